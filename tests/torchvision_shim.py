"""Lets `import torchvision` succeed where its compiled operators cannot load, as with a CPU build of torch.

The wheel on the package index links CUDA; without it `torchvision._C` does not load, and the import then fails
while registering fake kernels for operators that do not exist, and takes transformers and timm with it. Defining
the operators by name is enough: the models that the tests use never call them. Does nothing where they exist.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re

import torch

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
    for name in sorted(names):
        _LIBRARY.define(f"{name}(Tensor a) -> Tensor")
