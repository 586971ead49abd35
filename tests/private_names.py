"""Finds, in the text of a file, what torch keeps to itself: names with a leading underscore, and torch changed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

ATTRIBUTES = frozenset(
    {
        # of tensors and storages
        *("_version", "_base", "_is_view", "_cdata", "_backward_hooks", "_make_subclass", "_indices", "_values"),
        # of operators and compiled code
        *("_schema", "_op_dk", "_dispatch_cache", "_boxed_call", "_dynamo_source", "_torchdynamo_disable"),
        # of modules
        *("_modules", "_parameters", "_buffers", "_call_impl", "_compiled_call_impl", "_orig_mod", "_forward_hooks"),
        # of optimizers
        *("_init_group", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_wrapped_by_lr_sched"),
    }
)
"""What torch's objects have, under names that lowtide might use for its own: of anything but `self` they count."""
_PYTHONS = frozenset({"_replace", "_fields", "_asdict", "_getframe"})
_OF_ANYTHING = (".__file__", ".__module__", ".__name__", ".__qualname__")
_BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})
_SETTINGS = ("torch.backends.",)
"""Where to assign is what torch means users to do."""


def own_names(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Names with a leading underscore that a package defines itself: functions, attributes and variables."""
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                by_self = isinstance(node.ctx, ast.Store) and _root(node) in ("self", "cls")
                if by_self or node.attr.startswith("_lowtide_"):
                    found.add(node.attr)
            elif isinstance(node, ast.Constant) and str(node.value).startswith("_lowtide_"):
                found.add(str(node.value))
    return frozenset(name for name in found if _is_private(name))


def private_names(tree: ast.Module, own: frozenset[str]) -> set[str]:
    """The semi-private names of torch that a file uses: dotted where the file says of what, else attributes.

    Of a name below a private one (`torch._dynamo.config`) all is told that stands there. What a file assigns to
    something of torch's is `name =`.

    Arguments:
        own: what the package defines itself.
    """
    known = _known(tree)
    found: set[str] = set()
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {path for path in _imported(node).values() if _has_private_part(path)}
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            inner |= {id(part) for part in _parts(node)}
            found |= set(_of_chain(node, known, own))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
            found |= set(_by_name(node, known, own))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                path = _path(target, known)
                if path.startswith("torch.") and isinstance(target, ast.Attribute) and not path.startswith(_SETTINGS):
                    found.add(f"{path} =")
    return found


def _known(tree: ast.Module) -> dict[str, str]:
    """What names of a file stand for, as far as that is something of torch: not by scope, but by file."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {name: path for name, path in _imported(node).items() if name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            path = _path(node.value, known)
            if path.startswith("torch."):
                known[node.targets[0].id] = path
    return known


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """What an import of torch, or of a part of it, binds to what."""
    if isinstance(node, ast.Import):
        bound = {alias.asname or alias.name: alias.name for alias in node.names}
        return {name: path for name, path in bound.items() if path.split(".")[0] == "torch"}
    if node.module == "lowtide.ops.lazy":
        return {"torch": "torch"}
    if node.level or (node.module or "").split(".")[0] != "torch":
        return {}
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}


def _path(node: ast.AST, known: dict[str, str]) -> str:
    """The dotted name of an expression, with imports resolved; of what is computed, only the attributes."""
    if isinstance(node, ast.Attribute):
        return f"{_path(node.value, known)}.{node.attr}"
    return known.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _of_chain(node: ast.Attribute, known: dict[str, str], own: frozenset[str]) -> Iterator[str]:
    path, root = _path(node, known), _root(node)
    while path.endswith(_OF_ANYTHING):
        path = path.rpartition(".")[0]
    if path.startswith("torch."):
        if _has_private_part(path):
            yield path
        return
    for part in _parts(node):
        name = part.attr if isinstance(part, ast.Attribute) else ""
        if _is_foreign(name, own, by_self=root in ("self", "cls") and isinstance(part.value, ast.Name)):
            yield name


def _by_name(node: ast.Call, known: dict[str, str], own: frozenset[str]) -> Iterator[str]:
    if len(node.args) < 2 or not isinstance(node.args[1], ast.Constant) or not isinstance(node.args[1].value, str):
        return
    name, path = node.args[1].value, _path(node.args[0], known)
    if path.split(".")[0] == "torch" and (_has_private_part(path) or _is_private(name)):
        yield f"{path}.{name}"
    elif _is_foreign(name, own, by_self=path == "self"):
        yield name
    if path.split(".")[0] == "torch" and node.func.id in ("setattr", "delattr"):
        yield f"{path}.{name} ="


def _is_foreign(name: str, own: frozenset[str], *, by_self: bool) -> bool:
    if not _is_private(name) or name in _PYTHONS:
        return False
    return name not in own or (name in ATTRIBUTES and not by_self)


def _is_private(name: str) -> bool:
    return name.startswith("_") and name != "_" and not (name.startswith("__") and name.endswith("__"))


def _has_private_part(path: str) -> bool:
    return any(map(_is_private, path.split(".")))


def _parts(node: ast.Attribute) -> list[ast.Attribute]:
    found = [node]
    while isinstance(found[-1].value, ast.Attribute):
        found.append(found[-1].value)
    return found


def _root(node: ast.Attribute) -> str:
    last = _parts(node)[-1].value
    return last.id if isinstance(last, ast.Name) else ""
