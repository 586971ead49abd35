"""GPUs by name, with their makers' published figures. Torch-free.

Figures are peaks without sparsity; matrix units accumulate in float32. Memory is what the datasheet says, its GB taken
as 10^9 bytes: cards show up to 7 % more. Host bandwidth is that of the PCIe slot, in one direction, or of
NVLink where that leads to the processor.

Units: `_B` bytes, `_Bps` bytes per second.
"""

from __future__ import annotations

from lowtide.ir.machine import Link, Machine, Memory

_LAUNCH_s = 4e-6  # least time between two small kernels that PyTorch issues one after another
_PCIE_3_Bps, _PCIE_4_Bps, _PCIE_5_Bps = 16e9, 32e9, 64e9  # sixteen lanes
_NVLINK_C2C_Bps = 450e9  # between a Grace processor and its Hopper GPU
_G = 10**9
_T = 1e12


def _gpu(
    name: str,
    memory_B: int,
    traffic_Bps: float,
    host_Bps: float,
    *,
    float32: float,
    half: float,
    bfloat16: float | None = None,
    float64: float | None = None,
    float8: float | None = None,
) -> Machine:
    """A card. Without a rate of its own for bfloat16 it computes as fast as in float16."""
    rates = {
        "float64": float64,
        "float32": float32,
        "bfloat16": half if bfloat16 is None else bfloat16,
        "float16": half,
        "float8_e4m3fn": float8,
    }
    return Machine(
        name=name,
        memories=(Memory("device", memory_B, 512), Memory("host")),
        links=(
            Link("device", "host", "to_host", host_Bps, 1e-5),
            Link("host", "device", "from_host", host_Bps, 1e-5),
        ),
        flops={dtype: rate for dtype, rate in rates.items() if rate is not None},
        traffic_Bps=traffic_Bps,
        launch_s=_LAUNCH_s,
    )


GPUS = (
    # NVIDIA DGX B200 datasheet, an eighth of the system: 180 GB HBM3e, 8 TB/s; dense rates of the Blackwell
    # architecture technical brief.
    _gpu("b200", 180 * _G, 8e12, _PCIE_5_Bps, float64=40 * _T, float32=80 * _T, half=2250 * _T, float8=4500 * _T),
    # NVIDIA H200 Tensor Core GPU datasheet (SXM): 141 GB HBM3e, 4.8 TB/s.
    _gpu("h200", 141 * _G, 4.8e12, _PCIE_5_Bps, float64=34 * _T, float32=67 * _T, half=989 * _T, float8=1979 * _T),
    # NVIDIA H100 Tensor Core GPU datasheet: SXM 80 GB HBM3, 3.35 TB/s; NVL 94 GB HBM3, 3.9 TB/s; its earlier edition
    # for the PCIe card: 80 GB HBM2e, 2 TB/s.
    _gpu("h100", 80 * _G, 3.35e12, _PCIE_5_Bps, float64=34 * _T, float32=67 * _T, half=989 * _T, float8=1979 * _T),
    _gpu("h100-nvl", 94 * _G, 3.9e12, _PCIE_5_Bps, float64=30 * _T, float32=60 * _T, half=835 * _T, float8=1671 * _T),
    _gpu("h100-pcie", 80 * _G, 2e12, _PCIE_5_Bps, float64=26 * _T, float32=51 * _T, half=756 * _T, float8=1513 * _T),
    # NVIDIA GH200 Grace Hopper Superchip datasheet: 96 GB HBM3, 4 TB/s; 900 GB/s to the processor, both directions.
    _gpu("gh200", 96 * _G, 4e12, _NVLINK_C2C_Bps, float64=34 * _T, float32=67 * _T, half=990 * _T, float8=1979 * _T),
    # NVIDIA A100 Tensor Core GPU datasheet: SXM 80 GB HBM2e, 2,039 GB/s; 40 GB HBM2, 1,555 GB/s.
    _gpu("a100", 80 * _G, 2.039e12, _PCIE_4_Bps, float64=9.7 * _T, float32=19.5 * _T, half=312 * _T),
    _gpu("a100-40gb", 40 * _G, 1.555e12, _PCIE_4_Bps, float64=9.7 * _T, float32=19.5 * _T, half=312 * _T),
    # NVIDIA L40S, L4, A10, T4, V100 Tensor Core GPU datasheets.
    _gpu("l40s", 48 * _G, 864e9, _PCIE_4_Bps, float32=91.6 * _T, half=362 * _T, float8=733 * _T),
    _gpu("l4", 24 * _G, 300e9, _PCIE_4_Bps, float32=30.3 * _T, half=121 * _T, float8=242 * _T),
    _gpu("a10", 24 * _G, 600e9, _PCIE_4_Bps, float32=31.2 * _T, half=125 * _T),
    _gpu("t4", 16 * _G, 320e9, _PCIE_3_Bps, float32=8.1 * _T, half=65 * _T, bfloat16=8.1 * _T),
    _gpu("v100-16gb", 16 * _G, 900e9, _PCIE_3_Bps,
         float64=7.8 * _T, float32=15.7 * _T, half=125 * _T, bfloat16=15.7 * _T),
    _gpu("v100", 32 * _G, 900e9, _PCIE_3_Bps,
         float64=7.8 * _T, float32=15.7 * _T, half=125 * _T, bfloat16=15.7 * _T),
    # NVIDIA Tesla P100 GPU Accelerator datasheet, PCIe card: 16 GB HBM2, 732 GB/s; no matrix units.
    _gpu("p100", 16 * _G, 732e9, _PCIE_3_Bps,
         float64=4.7 * _T, float32=9.3 * _T, half=18.7 * _T, bfloat16=9.3 * _T),
    # NVIDIA RTX 6000 Ada and RTX A6000 datasheets, tensor rates halved: they are given with sparsity.
    _gpu("rtx6000-ada", 48 * _G, 960e9, _PCIE_4_Bps, float32=91.1 * _T, half=364 * _T, float8=728 * _T),
    _gpu("a6000", 48 * _G, 768e9, _PCIE_4_Bps, float32=38.7 * _T, half=154.8 * _T),
    # NVIDIA RTX Blackwell GPU architecture whitepaper, appendix on the GeForce RTX 5090: 32 GB GDDR7, 1,792 GB/s.
    _gpu("rtx5090", 32 * _G, 1.792e12, _PCIE_5_Bps, float64=1.64 * _T, float32=104.8 * _T, half=209.5 * _T),
    # NVIDIA Ada GPU architecture whitepaper, appendices on the GeForce RTX 4090 (24 GB GDDR6X, 1,008 GB/s) and 4080.
    _gpu("rtx4090", 24 * _G, 1.008e12, _PCIE_4_Bps, float64=1.29 * _T, float32=82.6 * _T, half=165.2 * _T),
    _gpu("rtx4080", 16 * _G, 716.8e9, _PCIE_4_Bps, float64=0.76 * _T, float32=48.7 * _T, half=97.5 * _T),
    # NVIDIA Ampere GA102 GPU architecture whitepaper, tables on the GeForce RTX 3090 and 3080.
    _gpu("rtx3090", 24 * _G, 936e9, _PCIE_4_Bps, float64=0.56 * _T, float32=35.6 * _T, half=71 * _T),
    _gpu("rtx3080", 10 * _G, 760e9, _PCIE_4_Bps, float64=0.47 * _T, float32=29.8 * _T, half=59.5 * _T),
    # AMD Instinct MI300X and MI325X accelerator datasheets: 192 GB HBM3, 5.3 TB/s; 256 GB HBM3E, 6 TB/s.
    _gpu("mi300x", 192 * _G, 5.3e12, _PCIE_5_Bps,
         float64=81.7 * _T, float32=163.4 * _T, half=1307.4 * _T, float8=2614.9 * _T),
    _gpu("mi325x", 256 * _G, 6e12, _PCIE_5_Bps,
         float64=81.7 * _T, float32=163.4 * _T, half=1307.4 * _T, float8=2614.9 * _T),
)  # fmt: skip
