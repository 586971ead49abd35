"""The laws of the house: layers, forbidden imports, sizes and names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.private_names import own_names, private_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "lowtide"
LAYERS = [
    {"arguments", "units", "errors", "printable", "progress", "_core"},
    {"ir"},
    {"ops"},
    {"device"},
    {"capture", "profile", "planners", "placers", "runtime", "report", "eager_engine"},
    {"compiled", "constraints"},
    {"tightening"},
    {"record"},
    {"pipeline"},
    {"plan_cache", "results"},
    {"distributed"},
    {"session"},
    {"api"},
    {"integrations"},
    {"demo"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MAY_USE_TORCH = {
    "device",
    "capture",
    "compiled",
    "profile",
    "runtime",
    "ops",
    "eager_engine",
    "pipeline",
    "distributed",
    "session",
    "api",
    "demo",
    "integrations",
}
TORCH_FREE = {"ir", "planners", "placers", "report", "results"}
TORCH_FREE_FILES = {
    PACKAGE / name
    for name in (
        "profile/roofline.py",
        "constraints.py",
        "tightening.py",
        "record.py",
        "eager_engine/eager_stats.py",
        "eager_engine/policy_names.py",
        "eager_engine/recorder.py",
        "eager_engine/replay.py",
        "eager_engine/wrong_schemas.py",
        "api/plan_file.py",
        "api/frontier_file.py",
        "api/verify/compared_steps.py",
        "session/options.py",
    )
}
VAGUE = {"util", "utils", "helper", "helpers", "misc", "common", "stuff", "tools"}
OF_TORCHS_OWN = {
    # Below device/, and imported without torch: these name operators, and two ask torch's objects.
    "ops/attention.py": {
        "torch.ops.aten._safe_softmax",
        "torch.ops.aten._softmax.out",
        "torch.ops.aten._softmax_backward_data.out",
    },
    "ops/batch_norm.py": {"torch.ops.aten._native_batch_norm_legit_no_training"},
    "ops/cross_entropy.py": {"torch.ops.aten._log_softmax.out", "torch.ops.aten._log_softmax_backward_data.out"},
    "ops/elementwise.py": {"_schema"},
    "ops/flash_attention.py": {
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward",
    },
    "ops/group_norm.py": {"torch.ops.aten._native_batch_norm_legit_no_training"},
    "ops/projected_loss.py": {"torch.ops.aten._log_softmax_backward_data.out"},
    "ops/updates.py": {"_init_group"},
}
"""Files outside device/ that use what torch keeps to itself, and what. No file and no name may be added."""

MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON = sorted(p for folder in ("src", "tests", "benchmarks", "examples") for p in (ROOT / folder).rglob("*.py"))
CPP = sorted(p for kind in ("*.cpp", "*.hpp", "*.h") for p in (ROOT / "src").rglob(kind))


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _part(file: Path) -> str:
    """The folder or module of the package that a file belongs to; empty for the package's own `__init__`."""
    name = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


def _where(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def _imported(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every import in a file, nested ones too, with the full name of the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node, node.module or ""


def test_every_part_has_a_layer() -> None:
    parts = {_part(file) for file in MODULES} - {""}
    assert parts <= set(RANK), f"without a layer: {sorted(parts - set(RANK))}"


def test_imports_point_down_only() -> None:
    wrong = []
    for file in MODULES:
        here = _part(file)
        for node, module in _imported(_tree(file)):
            if not here or not module.startswith("lowtide."):
                continue
            there = module.split(".")[1]
            foundation = RANK.get(here) == RANK.get(there) == 0
            if there != here and not foundation and RANK.get(there, 99) >= RANK.get(here, 99):
                wrong.append(f"{_where(file, node)} {here} -> {there}")
    assert not wrong


def test_imports_of_the_package_are_absolute_and_name_the_module() -> None:
    """`import lowtide` serves the top layers, which use it as people do; below them it gives the version only."""
    wrong = []
    for file in MODULES:
        for node in ast.walk(_tree(file)):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            package = isinstance(node, ast.ImportFrom) and node.module == "lowtide"
            package = package and [a.name for a in node.names] != ["__version__"]
            whole = isinstance(node, ast.Import) and any(a.name.startswith("lowtide.") for a in node.names)
            name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lowtide"
            name = name and node.attr != "__version__" and _part(file) not in {"api", "session", "demo", "cli"}
            if relative or package or whole or name:
                wrong.append(_where(file, node))
    assert not wrong


def test_only_some_parts_use_torch() -> None:
    wrong = []
    for file in MODULES:
        if _part(file) in MAY_USE_TORCH and file not in TORCH_FREE_FILES:
            continue
        wrong += [_where(file, node) for node, module in _imported(_tree(file)) if module.split(".")[0] == "torch"]
    assert not wrong


def _module_name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _python(code: str) -> None:
    """Runs code in a fresh interpreter that finds this package."""
    path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n" if not _is_installed() else ""
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def _is_installed() -> bool:
    import importlib.util

    return importlib.util.find_spec("lowtide") is not None


def test_planning_and_reporting_import_without_torch() -> None:
    files = [file for file in MODULES if _part(file) in TORCH_FREE or file in TORCH_FREE_FILES]
    names = [_module_name(file) for file in files]
    _python(
        f"""
import importlib, importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is hidden", name="torch")

sys.meta_path.insert(0, Hidden())
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "lowtide._core":  # not compiled: the sources alone are on the path
            raise
assert "torch" not in sys.modules
"""
    )


def test_the_oracle_needs_no_torch_and_nobody_in_the_package_needs_the_oracle() -> None:
    oracle = sorted((ROOT / "tests" / "oracle").rglob("*.py"))
    assert len(oracle) > 20
    assert not {module for file in oracle for _, module in _imported(_tree(file)) if module.split(".")[0] == "torch"}
    assert not {module for file in MODULES for _, module in _imported(_tree(file)) if module.split(".")[0] == "tests"}


def test_no_part_of_the_package_has_the_name_of_a_public_function() -> None:
    """Importing a submodule binds its name on the package: `lowtide.eager` would be a module from then on."""
    parts = {_part(file) for file in MODULES} - {""}
    _python(f"import lowtide; assert not {parts!r} & set(lowtide.__all__)")


def test_importing_the_package_does_not_import_torch() -> None:
    _python("import lowtide, sys; assert 'torch' not in sys.modules")


@pytest.mark.parametrize("file", [*PYTHON, *CPP], ids=lambda f: str(f.relative_to(ROOT)))
def test_files_are_named_by_a_noun(file: Path) -> None:
    assert not VAGUE & set(file.stem.lower().split("_"))


def test_no_exception_is_swallowed_unnamed() -> None:
    wrong = []
    for file in PYTHON:
        handlers = (n for n in ast.walk(_tree(file)) if isinstance(n, ast.ExceptHandler))
        wrong += [_where(file, node) for node in handlers if node.type is None]
    assert not wrong


def test_only_the_command_line_prints() -> None:
    wrong = []
    for file in MODULES:
        if _part(file) != "cli":
            calls = (n for n in ast.walk(_tree(file)) if isinstance(n, ast.Call))
            wrong += [_where(file, n) for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
    assert not wrong


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    for file in PACKAGE.joinpath("ir").glob("check*.py"):
        modules = {module for _, module in _imported(_tree(file))}
        assert not {m for m in modules if "simulate" in m or "planners" in m or "placers" in m}


def test_types_of_the_core_have_names_of_their_own() -> None:
    """Two types of one name in one library are undefined behaviour: their vectors' code is merged."""
    found: dict[str, list[str]] = {}
    for header in sorted((ROOT / "src" / "core").glob("*.hpp")):
        for name in re.findall(r"^(?:struct|class) (\w+)", header.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(header.name)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def _names_of_torchs_own() -> dict[Path, set[str]]:
    """By file, the semi-private names of torch that it uses, and what of torch it changes."""
    trees = {file: _tree(file) for file in MODULES}
    own = own_names(trees.values())
    return {file: names for file, tree in trees.items() if (names := private_names(tree, own))}


def test_only_device_touches_what_torch_keeps_to_itself() -> None:
    """Move it into a function of device/; where fewer names are used, shorten the list."""
    found = {str(f.relative_to(PACKAGE)): n for f, n in _names_of_torchs_own().items() if _part(f) != "device"}
    assert found == OF_TORCHS_OWN
    assert len(OF_TORCHS_OWN) <= 8


def _table() -> list[str]:
    """The names in the table of `semiprivate.py`."""
    text = ast.get_docstring(_tree(PACKAGE / "device" / "semiprivate.py")) or ""
    return re.findall(r"^\| `([^`]+)` \| 2\.\d+ to 2\.\d+ \| .+ \|$", text, re.MULTILINE)


def test_what_torch_keeps_to_itself_is_in_the_table() -> None:
    """A name is in it, or something of which it is an attribute; a module is, where something in it is."""
    table, known = _table(), {name.split(".")[-1] for name in _table()}
    lacking = []
    for file, names in _names_of_torchs_own().items():
        for name in {name.removesuffix(" =") for name in names} if _part(file) == "device" else ():
            parts = name.split(".")
            is_module = any(other.startswith(f"{name}.") for other in (*names, *table))
            if not is_module and not known & set(parts[1:] or parts):
                lacking.append(f"{file.name}: {name}")
    assert sorted(lacking) == []


def test_the_table_names_nothing_that_is_not_used() -> None:
    table = _table()
    assert len(table) == len(set(table)) > 100
    files = [file for file in MODULES if _part(file) in ("device", "ops") and file.name != "semiprivate.py"]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    assert sorted(name for name in table if name.split(".")[-1] not in words) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch\ntorch._C._foo()", {"torch._C._foo"}),
        ("from torch.utils._pytree import tree_map", {"torch.utils._pytree.tree_map"}),
        ("from torch import utils as u\nu._pytree.keystr", {"torch.utils._pytree.keystr"}),
        ("import torch.utils._pytree", {"torch.utils._pytree"}),
        ("import torch\naten = torch.ops.aten\naten._to_copy.default", {"torch.ops.aten._to_copy.default"}),
        ("import torch\ntorch.add = None", {"torch.add ="}),
        ("import torch\nsetattr(torch.nn, 'Linear', None)", {"torch.nn.Linear ="}),
        ("import torch\ntorch.backends.cudnn.benchmark = True", set()),
        (
            "def f(t):\n    return t._version, t.x._unheard_of, getattr(t, '_base')",
            {"_version", "_unheard_of", "_base"},
        ),
        ("class A:\n    def f(self, other):\n        self._version = other._mine\n    def _mine(self): ...", set()),
        ("f = lambda x: x._replace(a=1)", set()),
    ],
)
def test_names_are_found(text: str, names: set[str]) -> None:
    tree = ast.parse(text)
    assert private_names(tree, own_names([tree])) == names
