"""What a profile found, apart from the figures it put into the graph. Torch-free. Units: `_s` seconds."""

from __future__ import annotations

import msgspec

from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph


class Correction(msgspec.Struct, frozen=True):
    """A value whose real geometry is not the captured one."""

    value: int
    op: str
    captured: Geometry | None
    real: Geometry


class ProfileReport(msgspec.Struct, frozen=True):
    """Counts and exceptions of one profile; operator names repeat once per recipe they concern.

    Arguments:
        signatures: distinct operator signatures.
        measured: of these, run now.
        cached: of these, known from disk.
        seconds_s: of the whole profile.
        corrected: values whose captured geometry was wrong.
        opaque: operators that may not be run alone; their traces are assumed, their times predicted.
        failed: operators that could not be run on made-up inputs, with the reason; treated as the opaque ones.
        inexact: operators whose events are not certain, with the reason; their traces are the safer ones.
        aliases: operators that returned a tensor over an argument's storage, which the graph does not say. The
            value is counted as no bytes; the argument has to outlive it.
        shared: operators that returned two tensors over one storage; the second is counted as no bytes.
        conflicts: operators whose result differs in geometry from what the program's own recipe yields.
        views: alternative operators with a view that does not exist for the real strides; the captured geometry was
            used.
    """

    signatures: int = 0
    measured: int = 0
    cached: int = 0
    seconds_s: float = 0.0
    corrected: tuple[Correction, ...] = ()
    opaque: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    inexact: tuple[tuple[str, str], ...] = ()
    aliases: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    views: tuple[str, ...] = ()


class Profiled(msgspec.Struct, frozen=True):
    """A graph with measured times, traces, geometries and sizes, and how they came about."""

    graph: Graph
    report: ProfileReport
