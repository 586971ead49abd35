"""What stands in nested lists, tuples, dictionaries and other containers that torch knows, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

Path = tuple[Any, ...]
"""The steps that lead from a container to what stands in it, outermost first."""
Form = _pytree.TreeSpec
"""Nested containers without what stands in them; equal where they are nested alike."""


def leaves_of(nested: Any) -> list[Any]:
    """Everything in nested containers that is no container itself, in order."""
    return _pytree.tree_leaves(nested)


def tensors_in(nested: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in _pytree.tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def flattened(nested: Any) -> tuple[list[Any], Form]:
    """What `leaves_of` gives, and the containers without it."""
    return _pytree.tree_flatten(nested)


def filled(form: Form, leaves: list[Any]) -> Any:
    """Containers like those that were flattened, with other leaves in them."""
    return _pytree.tree_unflatten(leaves, form)


def leaves_with_paths(nested: Any) -> list[tuple[Path, Any]]:
    """Everything in nested containers that is no container itself, in order, each with where it stands."""
    return _pytree.tree_flatten_with_path(nested)[0]


def written(path: Path) -> str:
    """A path as Python writes it: `[0]['mask']`."""
    return _pytree.keystr(path)


def mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    """The same containers with what a function makes of each leaf."""
    return _pytree.tree_map(function, nested)


def mapped_tensors(function: Callable[[torch.Tensor], Any], nested: Any) -> Any:
    """The same containers with what a function makes of each tensor; all else stays as it is."""
    return _pytree.tree_map_only(torch.Tensor, function, nested)


def mapped_with_paths(function: Callable[[Path, Any], Any], nested: Any) -> Any:
    """The same containers with what a function makes of each leaf and of where it stands."""
    return _pytree.tree_map_with_path(function, nested)
