"""Facts of the process and the machine on which measured times, traces and roundings depend. Units: `_B` bytes."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from lowtide.device.heap import is_warm

_UNLIMITED_B = 2**60  # cgroup v1 writes "no limit" as a huge number of pages

# Environment variables by which libraries of linear algebra, of threads, of C and of CUDA choose their code.
_LIBRARIES = (
    *("ATEN_", "BLIS_", "CUBLAS_", "CUDNN_", "DNNL_", "GLIBC_TUNABLES", "GOTO_", "MKL_", "NVIDIA_TF32_", "ONEDNN_"),
    *("OMP_DYNAMIC", "OMP_THREAD_LIMIT", "OPENBLAS_", "TORCH_ALLOW_TF32_", "TORCH_BLAS_", "TORCH_LINALG_"),
)
_KINDS = ("matmul", "conv", "rnn")  # of operators whose precision can be set


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a measurement holds for: the same operator signature costs the same wherever all of this agrees.

    Arguments:
        torch: version of torch.
        device: the processor's or GPU's name.
        threads: intra-operator threads.
        capability: vector instructions of the CPU that torch uses, or the GPU's compute capability.
        mkldnn: whether oneDNN may be used.
        deterministic: whether deterministic algorithms are demanded.
        dtype: torch's default dtype.
        warm_heap: whether freed memory is kept in the process (`lowtide.device.heap`).
        arithmetic: what else decides how results are rounded (`arithmetic`).
    """

    torch: str
    device: str
    threads: int
    capability: str
    mkldnn: bool
    deterministic: bool
    dtype: str
    warm_heap: bool = False
    arithmetic: str = ""

    @property
    def key(self) -> str:
        """One line of text, equal exactly when everything is."""
        return msgspec.json.encode(self).decode()


def fingerprint(device: str = "cpu") -> Fingerprint:
    """Reads the facts as they are now.

    Arguments:
        device: torch device type, `"cpu"` or `"cuda"`.
    """
    cuda = device == "cuda"
    capability = torch.backends.cpu.get_cpu_capability()
    if cuda:
        major, minor = torch.cuda.get_device_capability()
        capability = f"sm_{major}{minor} cuda {torch.version.cuda} {capability}"
    return Fingerprint(
        torch=str(torch.__version__),
        device=device_name(device),
        threads=torch.get_num_threads(),
        capability=capability,
        mkldnn=bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),  # type: ignore[no-untyped-call]
        deterministic=torch.are_deterministic_algorithms_enabled(),
        dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        warm_heap=is_warm(),
        arithmetic=arithmetic(),
    )


def arithmetic() -> str:
    """Everything that decides how results are rounded, besides the other facts of a `Fingerprint`, as one line of text.

    Two processors with one name on the box, or one processor under two settings of MKL, may round differently: what
    was found to be bit-equal under one of these texts says nothing about another.
    """
    now = _library_settings(os.environ)
    # A library reads its variables when it is first used: of one that was changed since, either value may hold.
    changed = [f"earlier {', '.join(_AT_START) or 'none of these'}"] if now != _AT_START else []
    switches = " ".join(map(str, precision_switches()))
    facts = [f"{processor_kind()}, torch build {_build()}", f"precisions {switches}", *now, *changed]
    return "; ".join(facts)


def precision_switches() -> tuple[str | bool, ...]:
    """Torch's own switches by which one operator rounds differently; cheap enough to be asked in every call.

    Returns: with how many bits oneDNN and CUDA multiply floats, by kind of operator; whether oneDNN is used, and cuDNN;
        whether cuDNN may choose by time, and must be deterministic; whether matrix products of halves and of bfloat16
        may be summed in fewer bits; which kernels of attention may be used, and whether the plain one may sum in fewer
        bits; which libraries of linear algebra; whether deterministic algorithms are demanded, or only warned of.
    """
    return (
        *(torch._C._get_fp32_precision_getter(backend, kind) for backend in ("mkldnn", "cuda") for kind in _KINDS),
        torch._C._get_mkldnn_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_cudnn_deterministic(),
        str(torch._C._get_cublas_allow_fp16_reduced_precision_reduction()),
        str(torch._C._get_cublas_allow_bf16_reduced_precision_reduction()),
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),  # type: ignore[no-untyped-call]
        str(torch._C._get_blas_preferred_backend()),
        str(torch._C._get_linalg_preferred_backend()),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _library_settings(environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(f"{k}={v}" for k, v in environment.items() if k.startswith(_LIBRARIES) and "VERBOSE" not in k))


_AT_START = _library_settings(os.environ)


@functools.cache
def _build() -> str:
    """A digest of how torch was built: with which libraries and which compiler."""
    return _digest(f"{torch.version.git_version} {torch.__config__.show()}")


@functools.cache
def processor_kind(
    cpuinfo: Path = Path("/proc/cpuinfo"), caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")
) -> str:
    """Kind of the processor, and a digest of its instructions and caches: libraries choose their code by these."""
    facts: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if not line.strip():
                break  # the first of several alike
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
    known = " ".join(facts[k] for k in ("vendor_id", "cpu family", "model", "stepping") if k in facts)
    sizes = [p.read_text().strip() for p in sorted(caches.glob("index*/size"))]
    features = " ".join(sorted((facts.get("flags") or facts.get("Features", "")).split()))
    return f"{known or os.uname().machine}, features {_digest(f'{features} {sizes}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def device_name(device: str = "cpu", cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The name on the box: of the GPU, or of the processor where the system tells it."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return os.uname().machine if hasattr(os, "uname") else "cpu"


def device_memory_B(device: str = "cpu", root: Path = Path("/")) -> int:
    """Bytes the process may use on the device: what 100 % of a budget in percent means.

    Arguments:
        device: torch device type. On CPU the tightest of physical memory and the control group's limit (version 1
            or 2, every ancestor counted); on CUDA the GPU's memory.
        root: where `/proc` and `/sys` are.
    """
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    physical_B = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical_B, *_group_limits_B(root)])


def _group_limits_B(root: Path) -> list[int]:
    """Limits of the process's memory control group and its ancestors. A container may see its own group as the root."""
    membership = root / "proc/self/cgroup"
    lines = membership.read_text().splitlines() if membership.is_file() else []
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder != base and base not in folder.parents:
                break
            text = (folder / name).read_text().strip() if (folder / name).is_file() else "max"
            if text.isdigit() and 0 < int(text) < _UNLIMITED_B:
                limits.append(int(text))
    return limits
