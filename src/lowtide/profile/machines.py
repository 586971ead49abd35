"""Machines that need not be here: built in with the makers' published figures, or from a file. Torch-free.

Figures are peaks without sparsity. Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from pathlib import Path

from lowtide.errors import LowtideError, PlanError
from lowtide.ir.machine import Link, Machine, Memory
from lowtide.ir.text import loads

_LAUNCH_s = 4e-6  # least time between two small kernels that PyTorch issues one after another


def _gpu(name: str, memory_B: int, traffic_Bps: float, host_Bps: float, flops: dict[str, float]) -> Machine:
    return Machine(
        name=name,
        memories=(Memory("device", memory_B, 512), Memory("host")),
        links=(
            Link("device", "host", "to_host", host_Bps, 1e-5),
            Link("host", "device", "from_host", host_Bps, 1e-5),
        ),
        flops=flops,
        traffic_Bps=traffic_Bps,
        launch_s=_LAUNCH_s,
    )


MACHINES = {
    machine.name: machine
    for machine in (
        # NVIDIA H200 Tensor Core GPU datasheet (SXM): 141 GB HBM3e, 4.8 TB/s; PCIe Gen5 x16, 64 GB/s each way.
        _gpu("h200", 141 * 10**9, 4.8e12, 64e9,
             {"float64": 34e12, "float32": 67e12, "bfloat16": 989e12, "float16": 989e12, "float8_e4m3fn": 1979e12}),
        # NVIDIA H100 Tensor Core GPU datasheet (SXM): 80 GB HBM3, 3.35 TB/s; PCIe Gen5 x16.
        _gpu("h100", 80 * 10**9, 3.35e12, 64e9,
             {"float64": 34e12, "float32": 67e12, "bfloat16": 989e12, "float16": 989e12, "float8_e4m3fn": 1979e12}),
        # NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM): HBM2e, 2,039 GB/s; PCIe Gen4 x16, 32 GB/s each way.
        _gpu("a100", 80 * 10**9, 2.039e12, 32e9,
             {"float64": 9.7e12, "float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12}),
        # NVIDIA Ada GPU architecture whitepaper, appendix on the GeForce RTX 4090: 24 GB GDDR6X, 1,008 GB/s; tensor
        # rates with float32 accumulation; PCIe Gen4 x16.
        _gpu("rtx4090", 24 * 10**9, 1.008e12, 32e9,
             {"float64": 1.29e12, "float32": 82.6e12, "bfloat16": 165.2e12, "float16": 165.2e12}),
        # No maker's figures: the order of magnitude of a few server cores, for operators that cannot be measured.
        Machine("cpu", flops={"float32": 1e11}, traffic_Bps=1e10, launch_s=3e-6),
    )
}  # fmt: skip


def load_machine(name: str) -> Machine:
    """A machine by name, or from a file that `lowtide.ir.text` wrote.

    Arguments:
        name: one of `MACHINES`, or the path of a JSON file.

    Raises:
        LowtideError: if it is neither, or the file is not a machine.
    """
    if name in MACHINES:
        return MACHINES[name]
    path = Path(name)
    if not path.is_file():
        raise LowtideError(f"no machine {name!r}: choose {', '.join(MACHINES)}, or name a machine file")
    try:
        return loads(path.read_bytes(), Machine, str(path))
    except (PlanError, OSError) as error:
        raise LowtideError(f"cannot read a machine from {name}: {error}") from error
