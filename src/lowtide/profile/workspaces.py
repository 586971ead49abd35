"""Most bytes that one operator holds while it runs, found by running it on real tensors of the same geometry.

Most operators of an optimizer hold their result and nothing else, and are not run. Reductions in low precision,
matrix products, mixed dtypes and copies between layouts hold more. Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lowtide.device.dispatch_modes import no_modes
from lowtide.device.observer import observe
from lowtide.device.operators import plain_name
from lowtide.device.trees import leaves_of, mapped_tensors, tensors_in
from lowtide.ir.geometry import Geometry
from lowtide.profile.samples import samples
from lowtide.profile.signature import Signature, geometry_of

# Not tagged as pointwise, yet each element comes from one of the same place.
_COPIES = frozenset({"copy_", "_to_copy", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"})
_FILLS = ("empty", "zeros", "ones", "full", "new_", "scalar_tensor", "arange", "lift")
_REDUCTIONS = frozenset({"_foreach_max", "_foreach_norm", "_foreach_powsum"})


class Workspaces:
    """Answers for operators on fake tensors; remembers its answers, and what it could not run.

    Arguments:
        device: whose bytes count, `"cpu"` or `"cuda"`.

    `failed` says of each operator that could not be run why not; it counts as holding its results only.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._known: dict[object, int] = {}
        self.failed: dict[str, str] = {}

    def inside_B(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Most bytes that the call holds beyond those at its begin, results included; 0 if that is its results.

        Raises:
            LowtideError: if a torch profiler is running.
        """
        name = plain_name(func)
        tensors = tensors_in((args, kwargs))
        if not tensors or _holds_nothing(func, name, tensors):
            return 0
        if not name.startswith(("_foreach_", "_fused_")):
            return self._measured_B(func, args, kwargs)
        parts = [self._measured_B(func, *part) for part in _parts(args, kwargs)]
        return max(parts, default=0) if self._device == "cpu" else sum(parts)

    def _measured_B(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        described = mapped_tensors(geometry_of, (args, kwargs))
        key = (str(func), repr(described))
        if key not in self._known:
            reads = [leaf for leaf in leaves_of(described) if isinstance(leaf, Geometry)]
            with no_modes():
                try:
                    self._known[key] = _run_B(func, args, kwargs, reads, self._device)
                except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
                    self.failed[str(func)] = str(error).partition("\n")[0]
                    self._known[key] = 0
        return self._known[key]


def _run_B(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reads: Sequence[Geometry], device: str) -> int:
    made = iter(samples(Signature("", (), (), tuple(reads))))  # without a name: indices are zeros, valid everywhere
    args, kwargs = mapped_tensors(lambda _: next(made), (args, kwargs))
    with observe(device) as seen:
        result = func(*args, **kwargs)
    del result
    return seen.peak_B


def _holds_nothing(func: Any, name: str, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operator holds no more than its results: views, fills, and what is done element by element.

    The elements have to be of one dtype, or they are cast first; of copies they have to lie in one order; and fused
    steps copy what is not contiguous.
    """
    if func.is_view or name.startswith(_FILLS) or name.endswith("_like") or name == "_local_scalar_dense":
        return True
    if name.startswith("_fused_"):
        return all(t.is_contiguous() for t in tensors)
    if name in _COPIES:
        return _same_order(tensors)
    return _is_pointwise(func, name) and len({t.dtype for t in tensors if t.dim()}) <= 1


def _same_order(tensors: Sequence[torch.Tensor]) -> bool:
    strides: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for tensor in tensors:
        strides.setdefault(tuple(tensor.shape), set()).add(tensor.stride())
    return all(len(found) == 1 for found in strides.values())


def _is_pointwise(func: Any, name: str) -> bool:
    if not name.startswith("_foreach_"):
        return torch.Tag.pointwise in func.tags
    packet = getattr(torch.ops.aten, name.removeprefix("_foreach_").removesuffix("_"), None)
    if packet is None or name in _REDUCTIONS:
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


def _parts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls that a call on lists stands for, one for each place in the lists."""
    count = next((len(arg) for arg in args if isinstance(arg, list | tuple)), 0)

    def at(i: int, arg: Any) -> Any:
        return arg[i : i + 1] if isinstance(arg, list | tuple) and len(arg) == count else arg

    for i in range(count):
        yield tuple(at(i, arg) for arg in args), {name: at(i, arg) for name, arg in kwargs.items()}
