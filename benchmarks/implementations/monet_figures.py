"""What MONeT's authors published of their five networks on a P100 of 16 GB, and of Checkmate beside it.

A. Shah, C.-Y. Wu, J. Mohan, V. Chidambaram, P. Kraehenbuehl, "Memory Optimization for Deep Networks", ICLR 2021, and
the README of its repository. Their GB are 2^30 bytes: so much memory keeps the same networks whole in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

GiB = 2**30


@dataclass(frozen=True)
class Published:
    """One network of the paper.

    Arguments:
        plain: GB of PyTorch.
        overheads: GB of MONeT's plans, and percent over PyTorch.
        at_ten: GB at 10 % overhead of PyTorch, Checkmate, MONeT.
    """

    plain: float
    overheads: dict[float, float]
    at_ten: tuple[float, float, float]


PUBLISHED = {
    "resnet50": Published(
        15.06, {10: 3.22, 9: 4.68, 8: 5.56, 7: 7.28, 6: 9.31, 5: 11.95}, (15.1, 8.2, 5.7)
    ),
    "googlenet": Published(
        14.93, {10: 7.13, 9: 7.87, 8: 8.44, 7: 9.71, 6: 12.14, 5: 15.77}, (14.9, 10.5, 6.9)
    ),
    "unet": Published(
        14.32, {10: -4.10, 9: -2.07, 8: -0.09, 7: 1.39, 6: 4.95, 5: 11.51}, (14.3, 9.1, 5.2)
    ),
    "vgg16": Published(
        14.12, {9.71: -5.30, 8.66: -4.64, 7.88: -2.18, 6.82: 1.99, 5.90: 5.44, 5.51: 9.11}, (14.1, 9.9, 5.5)
    ),
    "mobilenet_v2": Published(
        14.46, {10: 2.40, 9: 3.10, 8: 4.77, 7: 5.53, 6: 7.55, 5: 8.72}, (14.5, 5.8, 4.8)
    ),
}  # fmt: skip
SOLVED = (
    # budget in GB, gap in percent, seconds, and how the row is called
    (10.0, 3.6, 402.0, "MONeT, 10 GB, 7 minutes"),
    (10.0, 0.1, 86_400.0, "MONeT, 10 GB, a day"),
    (6.0, 2.5, 86_400.0, "MONeT, 6 GB, a day"),
    (5.0, 3.9, 86_400.0, "MONeT, 5 GB, a day"),
)
"""Gaps of its integer programme for ResNet-50, twelve threads of a machine with 48 cores."""
