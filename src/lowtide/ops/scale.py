"""Scales of normalisations: whether what went in can be read off what came out.

A normalisation gives y = gamma * xhat + beta per channel, so xhat = (y - beta) / gamma, with an error of y's rounding
times (1 + |beta / gamma|). Where that is too much (`RATIO`), or gamma's square would leave the range of floats, a
channel is *faint*. What went into faint channels is put aside in the forward (`put_aside`), for a few of them;
the gradient takes it from there. With more of them the forward stops: nothing has been changed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.errors import FaintScale
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

RATIO = 64.0  # of |beta| to |gamma|, at the most
LEAST, MOST = 2.0**-30, 2.0**30  # of |gamma|
_SHARE = 16  # one channel of so many can be put aside


def capacity(channels: int) -> int:
    """How many faint channels can be put aside. The buffer is there whether there are any or not: sizes are static."""
    return max(1, channels // _SHARE)


def is_faint(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Per channel, whether its input cannot be read off its output; a scale that is no number is faint, too."""
    size = weight.detach().abs()
    sound = (size >= LEAST) & (size <= MOST)
    if bias is not None:
        sound &= size * RATIO >= bias.detach().abs()
    return ~sound


def declines(weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether to leave a site as it is: its faint channels would take more than half of the capacity.

    The other half is for channels that become faint while the network trains. Scales that start at zero, as those
    that end torchvision's residual blocks may, decline.
    """
    return 2 * int(is_faint(weight, bias).sum()) > capacity(weight.numel())


def faint_channels(weight: Tensor, bias: Tensor | None) -> list[int]:
    """Which channels are faint, increasing.

    Raises:
        FaintScale: if there is no capacity for so many.
    """
    found: list[int] = is_faint(weight, bias).reshape(-1).nonzero().reshape(-1).tolist()
    if len(found) > capacity(weight.numel()):
        raise FaintScale(
            f"{len(found)} of a normalisation's {weight.numel()} scales are near zero, or no numbers, and at "
            f"most {capacity(weight.numel())} may be: its gradient cannot be made from its output. No parameter has "
            'been changed: plan with numerics="exact"'
        )
    return found


def put_aside(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Copies the faint channels of what goes into a normalisation.

    Arguments:
        x: with channels along its second dimension, as many as there are scales.

    Returns: one row per channel that can be put aside, in the order of `faint_channels`; the rest is zero.
    """
    aside = x.new_zeros((capacity(weight.numel()), x.shape[0], *x.shape[2:]))
    for row, channel in enumerate(faint_channels(weight, bias)):
        aside[row].copy_(x[:, channel])
    return aside


def put_aside_columns(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same where every element of a row has a scale of its own: `x` ends with the dimensions of `weight`."""
    return put_aside(x.reshape(-1, weight.numel()), weight, bias)


def inverse(weight: Tensor, bias: Tensor | None) -> Tensor:
    """What xhat is per y - beta; one where a channel is faint."""
    return torch.where(is_faint(weight, bias), torch.ones_like(weight), weight).reciprocal()
