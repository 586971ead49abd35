"""Where a captured node comes from: the user's module and source line."""

from __future__ import annotations

import re

from torch import fx

from lowtide.device.dynamo_settings import source_of
from lowtide.ir.graph import Origin

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]*)\n\s*(?P<text>[^\n]*)')
_INSIDE_TORCH = re.compile(r"[/\\]torch[/\\](?!.*site-packages)|[/\\]lowtide[/\\](api|session|demo|device|cli)[/\\]")
_PART = re.compile(r"\.?_(?:modules|parameters|buffers)\['?([^'\]]+)'?\]|\.(\w+)|\['?(\w+)'?\]")


def origin_of(node: fx.Node) -> Origin:
    """The innermost frame of the user's own code that led to a node; for a backward node, of its forward."""
    trace = node.meta.get("stack_trace") or ""
    frames = [m for m in _FRAME.finditer(trace) if is_users_file(m["file"])]
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = ""
    for entry in stack.values():
        path = entry[0] if isinstance(entry, tuple) else str(entry)
    if not frames:
        return Origin(module=module_name(path))
    frame = frames[-1]
    return Origin(module=module_name(path), source=place(frame["file"], frame["line"]), text=frame["text"].strip())


def is_users_file(file: str) -> bool:
    """Whether a line of a file is worth naming: neither torch's nor that of lowtide's call around the model."""
    return not _INSIDE_TORCH.search(file)


def place(file: str, line: int | str) -> str:
    """`gpt2/modeling_gpt2.py:700`: a file with its folder, and the line."""
    return f"{'/'.join(file.replace(chr(92), '/').split('/')[-2:])}:{line}"


def module_name(path: str) -> str:
    """`L['self']._modules['h']._modules['0'].mlp` -> `h.0.mlp`: the name that `named_modules` gives."""
    root = re.match(r"L\['[^']*'\]|G\['[^']*'\]", path)
    rest = path[root.end() :] if root else path
    parts = [a or b or c for a, b, c in _PART.findall(rest)]
    skip = {"__dict__", "_modules", "_parameters", "_buffers", "__self__", "__closure__", "cell_contents"}
    return ".".join(p for p in parts if p not in skip)


def primal_path(placeholder: fx.Node) -> str:
    """What Dynamo calls a placeholder, `L['self']._modules['h']`; empty where it does not say."""
    source = source_of(placeholder)
    found = getattr(source, "name", "")
    return str(found() if callable(found) else found)
