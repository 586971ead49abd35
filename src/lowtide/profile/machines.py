"""Machines that need not be here: built in with the makers' published figures, or from a file. Torch-free.

Units: `_B` bytes.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from lowtide.errors import LinkError, LowtideError, PlanError
from lowtide.ir.check_claims import check_link
from lowtide.ir.machine import Link, Machine, nonsense
from lowtide.ir.schedule import DEVICE, HOST
from lowtide.ir.text import loads
from lowtide.ir.whole_file import read_whole
from lowtide.profile.gpus import GPUS

MACHINES = {
    machine.name: machine
    for machine in (
        *GPUS,
        # No maker's figures: the order of magnitude of a few server cores, for operators that cannot be measured.
        Machine("cpu", flops={"float32": 1e11}, traffic_Bps=1e10, launch_s=3e-6),
    )
}
_THERE, _BACK = (DEVICE, HOST, "to_host"), (HOST, DEVICE, "from_host")
_OTHER_NAMES = {
    "a100-80gb": "a100",
    "h100-sxm": "h100",
    "grace-hopper": "gh200",
    "v100-32gb": "v100",
    "rtx-a6000": "a6000",
}


def load_machine(name: str) -> Machine:
    """A machine by name, or from a file that `lowtide.ir.text` wrote.

    Arguments:
        name: one of `MACHINES`, capitals and spaces aside ("RTX 4090"), or the path of a JSON file.

    Raises:
        LowtideError: if it is neither, or the file is not a machine.
    """
    plain = name.lower().replace(" ", "").replace("_", "-")
    plain = _OTHER_NAMES.get(plain, plain)
    if plain in MACHINES:
        return MACHINES[plain]
    path = Path(name)
    if not path.is_file():
        raise LowtideError(f"no machine {name!r}: choose {', '.join(MACHINES)}, or name a machine file")
    try:
        machine = loads(read_whole(path, f"machine file {path}"), Machine, f"machine file {path}")
        for link in machine.links:
            check_link(link)
    except PlanError as error:
        raise LowtideError(f"cannot read a machine from {name}: {error}") from error
    if found := nonsense(machine):
        raise LowtideError(f"cannot read a machine from {name}: {found}. Write it again.")
    return machine


def links_of(name: str, limit_Bps: float | None = None) -> tuple[Link, ...]:
    """The links of a machine by name, or from a file.

    Arguments:
        limit_Bps: no direction counts as faster; None for no limit.

    Raises:
        LinkError: if it has none to the host and back.
        LowtideError: if there is no such machine.
    """
    found = load_machine(name).links
    if {link.engine for link in found} != {_THERE[2], _BACK[2]}:
        raise LinkError(f"the machine {name!r} has no link between device and host: say how fast one is, in its file")
    if limit_Bps is None:
        return found
    return tuple(replace(link, rate_Bps=min(limit_Bps, link.rate_Bps)) for link in found)


def named_links(limit_Bps: float) -> tuple[Link, ...]:
    """A link of one rate in each direction, for a graph whose machine nobody names."""
    return (Link(*_THERE, limit_Bps), Link(*_BACK, limit_Bps))


def nearest_machine(memory_B: int) -> Machine:
    """The built-in GPU whose memory is nearest to so many bytes: what a prediction for a card without a name takes.

    Arguments:
        memory_B: of a device that is only known by its memory.
    """
    return min(GPUS, key=lambda machine: abs((machine.memories[0].capacity_B or 0) - memory_B))
