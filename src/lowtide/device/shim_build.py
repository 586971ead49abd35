"""The shim's compiled modules: found in the cache, or built from the sources that ship inside the package.

There is one for CPU memory and one for a GPU's. Each is compiled against the torch that is installed, by calling the
compiler directly. One file per torch, Python, compiler and source text is kept in the user's cache folder; its name
carries a checksum of its own content, so that a damaged file is known before it is loaded; nothing is loaded from a
folder to which others can write. A build happens in a folder
of its own under a lock and is moved into place in one step: two processes build once, and a build that is killed leaves
nothing that could be taken for a module.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import platformdirs
import torch
from filelock import FileLock

from lowtide.errors import ShimUnavailable

_LOG = logging.getLogger("lowtide")
_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = _PACKAGE / "_shim"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG")
_COMPILERS = ("c++", "g++", "clang++")
_STALE_OUTPUT = 20  # lines of a compiler's output that are shown


@dataclass(frozen=True)
class Kit:
    """What one module is made of.

    Arguments:
        name: of the module's kind.
        units: patterns of its own units below the shim's folder.
        libraries: of torch's that it is linked with.
        core: patterns of the core's units.
        as_one: the folder whose units are compiled as one: they include torch's operators, which take ten times longer
            to read than the units themselves.
        what, duration: what people know it as, and about how long it takes to build.
        probes: macros, each 1 where torch's header of its CUDA allocator has a function of that name.
        cuda: whether it includes CUDA's headers.
    """

    name: str
    units: tuple[str, ...]
    libraries: tuple[str, ...]
    core: tuple[str, ...] = ("arena*.cpp",)
    what: str = "memory arena"
    duration: str = "ten seconds"
    as_one: str = ""
    probes: tuple[tuple[str, str], ...] = ()
    cuda: bool = False


_SLABS = (
    "bind_slabs",
    "event_log",
    "fast_calls",
    "memory",
    "names",
    "refusal",
    "slab",
    "slab_values",
    "slabs",
    "table",
    "thread",
)
CPU = Kit("cpu", ("*.cpp",), ("-lc10", "-ltorch_cpu"))
EAGER = Kit(
    "eager",
    ("eager/*.cpp", "slab_values.cpp"),
    ("-lc10", "-ltorch_cpu", "-ltorch_python"),
    ("arena*.cpp", "eager/**/*.cpp", "greedy.cpp", "levels.cpp", "moves.cpp", "program.cpp", "retention*.cpp"),
    "eager runtime",
    "a minute",
    as_one="eager",
)
CUDA = Kit("cuda", (*(f"{name}.cpp" for name in _SLABS), "cuda/*.cpp"), ("-lc10",))
_DEVICE = ("device", "events", "parking", "runtime", "stream_order")
TENANT = Kit(
    "tenant",
    (
        *(f"{name}.cpp" for name in (*_SLABS, "bind_storages", "surgery")),
        *(f"cuda/{name}.cpp" for name in _DEVICE),
        "cuda_tenant/*.cpp",
    ),
    ("-lc10", "-lc10_cuda"),
    probes=(
        ("LOWTIDE_TORCH_OBSERVES_REJECTIONS", "attachOomRejectionObserver"),
        ("LOWTIDE_TORCH_TELLS_CONTEXTS", "getContextForPointer"),
        ("LOWTIDE_TORCH_MARKS_CAPTURES", "markCaptureBegin"),
        ("LOWTIDE_TORCH_PLACES", "allocateWithAddress"),
        ("LOWTIDE_TORCH_ANNOTATES", "annotateMemory"),
    ),
    cuda=True,
    what="memory arena for GPUs",
    duration="twenty seconds",
)


def default_folder() -> Path:
    """Where modules are kept: `$LOWTIDE_SHIM_DIR`, `$LOWTIDE_CACHE_DIR/shim`, or a place in the user's cache folder."""
    if apart := os.environ.get("LOWTIDE_SHIM_DIR"):
        return Path(apart)
    chosen = os.environ.get("LOWTIDE_CACHE_DIR")
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("lowtide"))) / "shim"


def core_folder() -> Path:
    """The core's sources: inside the installed package, else next to it in the source tree."""
    inside = _SOURCES / "core"
    return inside if inside.is_dir() else _PACKAGE.parent / "core"


def units(kit: Kit = CPU) -> list[Path]:
    """The files that are compiled for a module.

    Raises:
        ShimUnavailable: if the installation lacks some.
    """
    own = sorted(file for pattern in kit.units for file in _SOURCES.glob(pattern))
    core = sorted(file for pattern in kit.core for file in core_folder().glob(pattern))
    for found, folder in ((own, _SOURCES), (core, core_folder())):
        if not found:
            raise ShimUnavailable(f"{folder} lacks the sources of lowtide's memory arena: install lowtide again")
    return [*own, *core]


def compiler() -> list[str]:
    """The C++ compiler as the start of a command line: `$CXX`, else the first that is found.

    Raises:
        ShimUnavailable: if there is none.
    """
    if chosen := os.environ.get("CXX", "").split():
        if shutil.which(chosen[0]):
            return chosen
        raise ShimUnavailable(f"CXX names {chosen[0]!r}, which is not there: unset CXX, or name a C++ compiler")
    for name in _COMPILERS:
        if shutil.which(name):
            return [name]
    raise ShimUnavailable(
        "no C++ compiler was found, and lowtide's memory arena is compiled on first use: install one "
        "(Debian, Ubuntu: apt install g++), or name it in CXX"
    )


def key(command: Sequence[str], kit: Kit = CPU) -> str:
    """What a compiled module depends on, as sixteen digits: torch, Python, compiler, platform, flags and sources."""
    version = _run([*command, "--version"], "the C++ compiler does not start").splitlines()[:1]
    facts = [
        torch.__version__,
        str(torch.version.git_version),
        str(torch.compiled_with_cxx11_abi()),
        str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform.machine(),
        *command,
        *version,
        *_FLAGS,
        kit.name,
    ]
    digest = hashlib.sha256("\n".join(facts).encode())
    for file in [*units(kit), *sorted(_headers(kit))]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _headers(kit: Kit) -> set[Path]:
    """Every header that a unit of the module may include."""
    own = {"*.hpp", *(pattern.replace(".cpp", ".hpp") for pattern in kit.units)}
    core = {"bytes.hpp", "rows.hpp", *(pattern.replace(".cpp", ".hpp") for pattern in kit.core)}
    found = {file for pattern in own for file in _SOURCES.glob(pattern)}
    return found | {file for pattern in core for file in core_folder().glob(pattern)}


def find_or_build(folder: Path | None = None, kit: Kit = CPU, libraries: Sequence[Path] = ()) -> Path:
    """A compiled module for this torch, Python and compiler.

    Arguments:
        folder: the cache; `default_folder()` when None. If it cannot be written to, a folder of this process is used
            and a warning says so.
        kit: which module.
        libraries: folders in which what it is linked with, and headers in `include`, are looked for before torch's own.

    Raises:
        ShimUnavailable: if there is no compiler, or the build fails.
    """
    command = compiler()
    name = key(command, kit)
    place = (folder or default_folder()) / name
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not (stranger := _stranger(place)):
            if built := intact(place):
                return built
            with FileLock(place / "build.lock"):
                return intact(place) or _build(command, place, kit, libraries)
        _LOG.warning(
            "%s can be written to by others (%s), so no compiled code is loaded from it, and every process builds "
            "lowtide's memory arena anew: take that right away (chmod go-w), or set LOWTIDE_CACHE_DIR to a folder of "
            "your own",
            place,
            stranger,
        )
    except OSError as error:
        with contextlib.suppress(OSError):  # read only, and filled
            if not _stranger(place) and (built := intact(place)):
                return built
        _LOG.warning(
            "lowtide's memory arena cannot be kept in %s (%s), so every process builds it anew: "
            "make that folder writable, or set LOWTIDE_CACHE_DIR",
            place,
            str(error),
        )
    temporary = Path(tempfile.mkdtemp(prefix="lowtide-shim-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return _build(command, temporary, kit, libraries)


def _stranger(place: Path) -> str:
    """Who else can write to a folder of compiled modules, or to one above it; empty where nobody can.

    Whoever owns lowtide's own sources may: they run here anyway.
    """
    trusted = {0, os.geteuid(), _PACKAGE.stat().st_uid}
    for path in (place, *place.glob("shim-*.so"), *place.absolute().parents):
        facts = path.lstat() if path.is_symlink() else path.stat()
        if path == place or path.parent == place:
            if facts.st_uid not in trusted:
                return f"{path} belongs to user {facts.st_uid}"
            if facts.st_mode & stat.S_IWGRP and facts.st_gid != os.getegid():
                return f"{path} can be written to by group {facts.st_gid}"
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX and not stat.S_ISLNK(facts.st_mode):
            return f"{path} can be written to by everybody"
    return ""


def load_file(path: Path, name: str) -> ModuleType:
    """Loads a compiled module, and lists it under its name.

    Raises:
        ImportError: if it is not one, or was made for other libraries.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module  # so that its types can be found by name
    return module


def intact(place: Path) -> Path | None:
    """The module in a folder whose content is what its name says; damaged ones are removed where possible."""
    for path in sorted(place.glob("shim-*.so")):
        if path.name == _name_of(path.read_bytes()):
            return path
        _LOG.warning("%s is damaged; it is built again", path)
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def _name_of(content: bytes) -> str:
    return f"shim-{hashlib.sha256(content).hexdigest()[:16]}.so"


def _build(command: Sequence[str], place: Path, kit: Kit, libraries: Sequence[Path]) -> Path:
    """Compiles in a folder of its own inside `place`, whose lock is held, and moves the result into place."""
    for stale in place.glob("building-*"):  # of a build that was killed: its lock is free
        shutil.rmtree(stale, ignore_errors=True)
    _LOG.warning("building lowtide's %s (once per torch and compiler; about %s) ...", kit.what, kit.duration)
    with _unfinished_folder(place) as unfinished:
        objects = _compile(command, unfinished, kit, libraries)
        module = unfinished / "module.so"
        folders = (f"-L{folder}" for folder in (*libraries, Path(torch.__file__).parent / "lib"))
        _run(
            [*command, "-shared", *map(str, objects), *folders, *kit.libraries, "-ldl", "-o", str(module)],
            f"lowtide's {kit.what} cannot be linked",
        )
        if not module.is_file():
            raise _no_compiler(command)
        final = place / _name_of(module.read_bytes())
        os.replace(module, final)
    return final


@contextlib.contextmanager
def _unfinished_folder(place: Path) -> Iterator[Path]:
    unfinished = Path(tempfile.mkdtemp(prefix="building-", dir=place))
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _compile(command: Sequence[str], unfinished: Path, kit: Kit, libraries: Sequence[Path]) -> list[Path]:
    """Every unit into an object file, as many at once as there are cores."""
    include = Path(torch.__file__).parent / "include"
    lifts = "clear_data_ptr_access_error_msg_" in _guard_header().read_text(encoding="utf-8")
    folders = [core_folder(), _SOURCES, *(place / "include" for place in libraries), *cuda_headers(kit)]
    common = [
        *(*command, *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        *(f"-DLOWTIDE_TORCH_LIFTS_GUARD={int(lifts)}", *probed(kit), *(f"-I{folder}" for folder in folders)),
        *("-isystem", str(include), "-isystem", sysconfig.get_paths()["include"]),
    ]
    jobs = [(file, unfinished / f"{file.stem}-{i}.o") for i, file in enumerate(_sources(kit, unfinished))]
    waiting, running = jobs[::-1], list[subprocess.Popen[str]]()
    try:
        while waiting or running:
            while waiting and len(running) < max(1, os.cpu_count() or 1):
                file, target = waiting.pop()
                running.append(_start([*common, "-c", str(file), "-o", str(target)]))
            _finish(running.pop(0), f"lowtide's {kit.what} cannot be compiled against this torch")
    finally:
        for process in running:
            process.kill()
            process.communicate()
    if not all(target.is_file() for _, target in jobs):
        raise _no_compiler(command)
    return [target for _, target in jobs]


def probed(kit: Kit) -> list[str]:
    """What of torch's allocator differs between releases, as macros.

    Raises:
        ShimUnavailable: if torch's allocator has functions that nobody has looked at: they would be answered wrongly.
    """
    if not kit.probes:
        return []
    header = (Path(torch.__file__).parent / "include" / ALLOCATOR_HEADER).read_text(encoding="utf-8")
    if strangers := allocator_functions(header) - KNOWN_FUNCTIONS:
        raise ShimUnavailable(
            f"the CUDA allocator of torch {torch.__version__} has functions that this lowtide does not know "
            f"({', '.join(sorted(strangers))}): use a torch that lowtide was tested with; budgets on a GPU are capped "
            "until then"
        )
    return [f"-D{macro}={int(re.search(rf'{name}[(]', header) is not None)}" for macro, name in kit.probes]


ALLOCATOR_HEADER = "c10/cuda/CUDACachingAllocator.h"
_KNOWN = (
    "allocateWithAddress annotateMemory attachAllocatorTraceTracker attachOomRejectionObserver "
    "attachOutOfMemoryObserver beginAllocateToPool cacheInfo checkPoolLiveAllocations createOrIncrefPool "
    "emptyCache enable enablePeerAccess endAllocateToPool getBaseAllocation getCheckpointState "
    "getContextForPointer getDeviceStats getExpandableSegmentSizes getIpcDevPtr getMemoryFraction "
    "getMemoryInfo getPoolUseCount getUserMetadata init initialized isEnabled isHistoryEnabled "
    "markCaptureBegin markCaptureEnd memcpyAsync name popCompileContext pushCompileContext raw_alloc "
    "raw_alloc_with_stream raw_delete recordAnnotation recordHistory recordStream releasePool "
    "resetAccumulatedStats resetPeakStats setCheckpointPoolState setMemoryFraction setNoSplit setUseOnOOM "
    "setUserMetadata shareIpcHandle snapshot supportsUserMetadata"
)
KNOWN_FUNCTIONS = frozenset(_KNOWN.split())
"""Virtual functions of `CUDAAllocator` that `_shim/cuda_tenant/tenant.cpp` hands on, of torch 2.11 to 2.14."""


def allocator_functions(header: str) -> frozenset[str]:
    """Names of the virtual functions of torch's `CUDAAllocator`.

    Arguments:
        header: text of `ALLOCATOR_HEADER`.
    """
    start = header.index("CUDAAllocator : public")
    body = header[start : header.index("CUDAAllocator* get()", start)]
    return frozenset(re.findall(r"virtual\s+[^;{(]*?([A-Za-z_]+)\s*\(", body))


def cuda_headers(kit: Kit) -> list[Path]:
    """Where CUDA's own headers are: with torch's wheels from pip, or in a toolkit.

    Raises:
        ShimUnavailable: if a module needs them and they are nowhere.
    """
    if not kit.cuda:
        return []
    packages = Path(torch.__file__).parents[1]
    compiler_ = shutil.which("nvcc")
    places = [
        *sorted(packages.glob("nvidia/cu*/include")),
        packages / "nvidia" / "cuda_runtime" / "include",
        packages / "triton" / "backends" / "nvidia" / "include",
        *(Path(root) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))),
        *([Path(compiler_).resolve().parents[1] / "include"] if compiler_ else []),
        Path("/usr/local/cuda/include"),
    ]
    chosen: list[Path] = []
    for wanted in ("cuda_runtime_api.h", "cuda.h"):
        found = next((place for place in places if (place / wanted).is_file()), None)
        if found is None:
            raise ShimUnavailable(
                f"CUDA's header {wanted} was not found, and lowtide's memory arena for GPUs is compiled on first use: "
                "pip install nvidia-cuda-runtime, which torch's own wheels bring, or name a toolkit in CUDA_HOME"
            )
        chosen += [found] if found not in chosen else []
    return chosen


def _sources(kit: Kit, unfinished: Path) -> list[Path]:
    """What the compiler is given, what takes longest first."""
    together = [file for file in units(kit) if kit.as_one and file.parent == _SOURCES / kit.as_one]
    if not together:
        return units(kit)
    whole = unfinished / f"{kit.as_one}.cpp"
    whole.write_text("".join(f'#include "{file}"\n' for file in together), encoding="utf-8")
    return [whole, *(file for file in units(kit) if file not in together)]


def _no_compiler(command: Sequence[str]) -> ShimUnavailable:
    """For a command that ends well and has made nothing, such as `CXX=/bin/true`."""
    return ShimUnavailable(
        f"{command[0]!r} is no C++ compiler: it ends without an error and makes no file, and lowtide's memory arena is "
        "compiled on first use: install one (Debian, Ubuntu: apt install g++), or name it in CXX"
    )


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finish(process: subprocess.Popen[str], failure: str) -> str:
    output, _ = process.communicate()
    if process.returncode:
        shown = "\n".join(output.splitlines()[:_STALE_OUTPUT])
        raise ShimUnavailable(
            f"{failure} (torch {torch.__version__}, {Path(str(process.args[0])).name}): "  # type: ignore[index]
            f"use a compiler and a torch that lowtide was tested with, or report this output:\n{shown}"
        )
    return output


def _run(command: Sequence[str], failure: str) -> str:
    try:
        return _finish(_start(command), failure)
    except OSError as error:
        raise ShimUnavailable(f"{failure} ({error}): install a C++ compiler, or name it in CXX") from error


def supported() -> None:
    """Raises:
    ShimUnavailable: on a system for which the shim was not written, or without the headers that it needs.
    """
    if sys.platform != "linux":
        raise ShimUnavailable(f"lowtide's memory arena runs on Linux, not on {sys.platform}: budgets are accounted")
    if not _guard_header().is_file():
        raise ShimUnavailable("this torch came without its C++ headers: install torch from its official wheels")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise ShimUnavailable(
            "Python came without its C headers: install them (Debian, Ubuntu: apt install python3-dev)"
        )


def _guard_header() -> Path:
    return Path(torch.__file__).parent / "include" / "c10" / "core" / "StorageImpl.h"
