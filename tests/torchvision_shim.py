"""Lets `import torchvision` succeed where its compiled operators cannot load, as with a CPU build of torch.

The wheel on the package index links CUDA; without it `torchvision._C` does not load, and the import then fails
while registering fake kernels for operators that do not exist, and takes transformers and timm with it. Defining
the operators by name is enough for most models; of those that detectors call, torchvision has `roi_align` in Python
itself, and `nms` is here. Does nothing where they exist.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
from typing import Any

import torch
from torch import Tensor

_LIBRARY: torch.library.Library | None = None  # a library's definitions live as long as it does


def install() -> None:
    """Defines torchvision's operators by name if the compiled ones are missing."""
    global _LIBRARY
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _LIBRARY is not None:
        return
    folder = pathlib.Path(spec.origin).parent
    try:
        for compiled in folder.glob("_C*.so"):
            torch.ops.load_library(str(compiled))
    except OSError:
        pass
    if hasattr(torch.ops.torchvision, "nms"):
        return
    source = (folder / "_meta_registrations.py").read_text()
    names = set(re.findall(r'register_fake\("torchvision::(\w+)"\)', source))
    names |= set(re.findall(r'@register_meta\("(\w+)"', source))
    _LIBRARY = torch.library.Library("torchvision", "DEF")
    for name in sorted(names - {"nms"}):
        _LIBRARY.define(f"{name}(Tensor a) -> Tensor")
    _LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.impl("nms", _nms, "CPU")


def let_detectors_run() -> None:
    """Lets models of torchvision call `nms`, which it forbids where its compiled operators are missing.

    Their `roi_align` is eager PyTorch then; torchvision would compile it at its first call.
    """
    if _LIBRARY is not None:
        import torchvision.ops.boxes as boxes

        roi_align: Any = sys.modules["torchvision.ops.roi_align"]
        boxes._assert_has_ops = lambda: None
        roi_align._roi_align = getattr(roi_align._roi_align, "__wrapped__", roi_align._roi_align)


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes that overlap none of a higher score by more than the threshold, the highest score first."""
    order = scores.argsort(stable=True, descending=True)
    areas = (dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1])
    kept = []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        low, high = dets[order, :2].maximum(dets[best, :2]), dets[order, 2:].minimum(dets[best, 2:])
        both = (high - low).clamp(min=0).prod(1)
        order = order[both / (areas[order] + areas[best] - both) <= iou_threshold]
    return torch.stack(kept) if kept else order
