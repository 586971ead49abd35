"""Facts of the process and the machine on which measured times and traces depend. Units: `_B` bytes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import torch

from lowtide.device.heap import is_warm

_UNLIMITED_B = 2**60  # cgroup v1 writes "no limit" as a huge number of pages


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
    """

    torch: str
    device: str
    threads: int
    capability: str
    mkldnn: bool
    deterministic: bool
    dtype: str
    warm_heap: bool = False

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
    )


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
