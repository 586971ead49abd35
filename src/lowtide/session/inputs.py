"""The inputs of a model at any size: read off the user's function, or made from one example."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.device.trees import leaves_of, leaves_with_paths, mapped_with_paths, written
from lowtide.errors import LowtideError

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
MakeInputs = Callable[[int], Inputs]


def read_batch(batch: Any) -> Inputs:
    """Positional and keyword arguments from what a user's `make_batch` returned.

    Arguments:
        batch: a tensor, a tuple or list of positional arguments, a mapping of keyword arguments, or a pair of both.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if not isinstance(batch, tuple | list):
        return (batch,), {}
    if len(batch) == 2 and isinstance(batch[0], tuple | list) and isinstance(batch[1], Mapping):
        return tuple(batch[0]), dict(batch[1])
    return tuple(batch), {}


def varying(one: Inputs, other: Inputs) -> list[tuple[int, int]]:
    """The extents that differ between two calls: leaf and dimension, over the tensors as they come."""
    found = []
    for index, (a, b) in enumerate(zip(leaves_of(one), leaves_of(other), strict=False)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() == b.dim():
            found += [(index, dim) for dim in range(a.dim()) if a.shape[dim] != b.shape[dim]]
    return found


@dataclass(frozen=True)
class Varied:
    """One example call that can be given another size.

    Arguments:
        inputs: the example.
        dims: per tensor that changes, by its path in the inputs, the dimension that does.
        size: the example's own.
    """

    inputs: Inputs
    dims: dict[str, int]
    size: int

    def __call__(self, size: int) -> Inputs:
        """The example with its rows repeated, or left out, so that there are as many as asked for."""

        made: dict[tuple[int, int], torch.Tensor] = {}  # a tensor that is passed twice remains one

        def sized(path: Any, leaf: Any) -> Any:
            dim = self.dims.get(written(path)) if isinstance(leaf, torch.Tensor) else None
            if dim is None or size == self.size:
                return leaf
            if (id(leaf), dim) not in made:
                made[id(leaf), dim] = self._sized(leaf, dim, size)
            return made[id(leaf), dim]

        args, kwargs = mapped_with_paths(sized, self.inputs)
        return tuple(args), dict(kwargs)

    def _sized(self, tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        if tensor.device.type == "meta":
            return tensor.new_empty([size if d == dim else n for d, n in enumerate(tensor.shape)])
        rows = torch.arange(size, device=tensor.device) % self.size
        return tensor.detach().index_select(dim, rows).requires_grad_(tensor.requires_grad)


def vary(model: torch.nn.Module, inputs: Inputs, *, dim: int = 0, only: Sequence[str] = ()) -> Varied:
    """Says what of an example call is its size.

    Arguments:
        model: whose `forward` names the positional arguments.
        inputs: the example.
        dim: the dimension that varies, of every tensor that has it.
        only: instead of that, `NAME:DIM` for each argument that varies (`input_ids:1`), DIM without the colon being 0.

    Raises:
        LowtideError: if tensors disagree about the size, or there is none of that name and dimension.
    """
    named = dict(_read(text) for text in only)
    dims: dict[str, int] = {}
    extents: dict[str, int] = {}
    names = _names(model, inputs)
    seen: set[str] = set()
    for path, leaf in leaves_with_paths(inputs):
        if not isinstance(leaf, torch.Tensor):
            continue
        name = names[written(path[:2])]
        seen.add(name)
        chosen = named.get(name) if named else dim
        if chosen is None or (not named and leaf.dim() == 0):
            continue
        if not -leaf.dim() <= chosen < leaf.dim():
            raise LowtideError(
                f"{name} has the shape {list(leaf.shape)} and no dimension {chosen}: name what varies, as in "
                f"{name}:0, or leave {name} out"
            )
        dims[written(path)], extents[name] = chosen % leaf.dim(), leaf.shape[chosen]
    if unknown := set(named) - seen:
        raise LowtideError(f"no tensor argument {', '.join(sorted(unknown))}; there are: {', '.join(sorted(seen))}")
    if len(set(extents.values())) != 1 or 0 in extents.values():
        said = ", ".join(f"{name} {extent}" for name, extent in extents.items()) or "there is no tensor argument"
        raise LowtideError(
            "which dimension is the batch? Along the one chosen the arguments have different extents, or none: "
            f"{said}. Name those that vary, NAME:DIM for each"
        )
    return Varied(inputs, dims, next(iter(extents.values())))


def _read(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition(":") if ":" in text else (text, "", "0")
    if not name or not number.lstrip("-").isdigit():
        raise LowtideError(f"cannot read {text!r}: write NAME:DIM, as in input_ids:1")
    return name, int(number)


def _names(model: torch.nn.Module, inputs: Inputs) -> dict[str, str]:
    """The name of each argument, by its path: the parameter of `forward`, or its number where that has none."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {written(path[:2]): _name(path, plain) for path, leaf in leaves_with_paths(inputs) if leaf is not None}


def _name(path: Any, plain: Sequence[str]) -> str:
    key = getattr(path[1], "key", None)
    if key is not None:
        return str(key)
    index = int(path[1].idx)
    return plain[index] if index < len(plain) else str(index)
