"""The user's function behind `MODULE:FUNCTION`: finding it, calling it, reading what it returns."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lowtide.cli.failure import UserCodeError
from lowtide.errors import LowtideError

_FORM = (
    "write MODULE:FUNCTION or path/to/file.py:FUNCTION, where FUNCTION() returns (model, args), (model, args, kwargs) "
    "or (model, args, kwargs, optimizer)"
)


class TargetError(LowtideError):
    """`MODULE:FUNCTION` that cannot be found, or that returns something else than a model and its arguments."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to plan: `model(*args, **kwargs)`, and the optimizer's step if there is one."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    optimizer: Any = None


def load_target(text: str) -> Target:
    """Finds the function, calls it, and reads what it returns.

    Arguments:
        text: `MODULE:FUNCTION`, the module importable from the current folder, or `path/to/file.py:FUNCTION`.

    Raises:
        TargetError: if there is no such module or function, or it returns something else.
        UserCodeError: if importing the module or calling the function raised; the cause is the user's exception.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise TargetError(f"cannot read {text!r}: {_FORM}")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    function = getattr(module, name, None)
    if not callable(function):
        found = [n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == module.__name__]
        listed = ", ".join(found[:8]) or "none"
        raise TargetError(f"{place} has no function {name!r}; it defines: {listed}")
    return _read(text, _call(text, function))


def _from_name(name: str) -> ModuleType:
    """Imports a module with the current folder first on the path."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not name.startswith(f"{error.name}."):
            raise UserCodeError(f"importing {name}") from error
        spec = None
    if spec is None:
        raise TargetError(f"there is no module {name!r}, seen from {here}: {_FORM}")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UserCodeError(f"importing {name}") from error


def _from_file(path: Path) -> ModuleType:
    """Imports a file, with its folder first on the path as if Python ran it."""
    if not path.is_file():
        raise TargetError(f"there is no file {str(path)!r}, seen from {Path.cwd()}: {_FORM}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file: {_FORM}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserCodeError(f"importing {path}") from error
    return module


def _call(text: str, function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:
        raise UserCodeError(f"{text}()") from error


def _read(text: str, result: object) -> Target:
    """Checks the shape of what the function returned."""
    if not isinstance(result, tuple | list) or len(result) not in (2, 3, 4):
        raise TargetError(f"{text} returned {_kind(result)}, not (model, args), (model, args, kwargs[, optimizer])")
    model, args = result[:2]
    kwargs = result[2] if len(result) > 2 else {}
    optimizer = result[3] if len(result) > 3 else None
    if not callable(model):
        raise TargetError(f"{text} returned {_kind(model)} in the model's place; a torch.nn.Module is wanted")
    if not isinstance(args, tuple | list):
        raise TargetError(
            f"{text} returned {_kind(args)} in the arguments' place; write (model, (x,)) for one argument"
        )
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise TargetError(f"{text} returned {_kind(kwargs)} in the keyword arguments' place; a dict by name is wanted")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TargetError(f"{text} returned {_kind(optimizer)} in the optimizer's place; a torch.optim one is wanted")
    return Target(model, tuple(args), dict(kwargs), optimizer)


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
