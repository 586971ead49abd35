"""Which implementations are exact here: each that claims it is run next to the program's own and compared bit by bit.

What was found is kept on disk next to the measurements, by what was run and by the machine's fingerprint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

import lowtide
from lowtide.device.fingerprint import Fingerprint, fingerprint
from lowtide.ir.graph import Graph
from lowtide.ir.in_place import plain_candidates
from lowtide.ir.numerics import Numerics
from lowtide.profile.cache import ProfileCache
from lowtide.profile.recording import isolation
from lowtide.profile.rehearsal import Rehearsal

_LOG = logging.getLogger("lowtide")


class Refuted(msgspec.Struct, frozen=True):
    """An implementation that is not exact here, though it should be.

    Arguments:
        name: of the option, with its group's; of the operator for a recipe of no group.
        reason: what differed, or why it could not be run.
        recipes: that only it has.
        group, option: which; None for a recipe of no group.
    """

    name: str
    reason: str
    recipes: tuple[int, ...]
    group: int | None = None
    option: int | None = None


@dataclass(eq=False)
class Exactness:
    """What has been tried, in this session and on disk.

    Arguments:
        cache: of measurements, which keeps what was found; None tries everything.
    """

    cache: ProfileCache | None = None
    _known: dict[tuple[str, str], str] = field(default_factory=dict)  # by place, and by what is run or its likeness

    def refuted(self, graph: Graph, held: Sequence[Any] = ()) -> tuple[Refuted, ...]:
        """Tries every implementation that claims to be exact, each kind and size of it once.

        Sizes that are new are not tried where the same was tried at other sizes in this session: shapes of one program
        keep the same implementations.

        Arguments:
            graph: with more implementations than its program's, and with geometries.
            held: what the `Held` arguments of its recipes stand for.

        Returns: those that are not. Memory: the tensors of one implementation at a time.
        """
        found = []
        places: dict[str, Fingerprint] = {}
        for candidate, rehearsal in _candidates(graph):
            devices = {g.device for v in rehearsal.inputs if (g := rehearsal.graph.values[v].geometry) is not None}
            device = next((d for d in sorted(devices) if d != "cpu"), "cpu")
            if device not in places:
                places[device] = fingerprint(device)
            reason = self._reason(rehearsal, held, places[device])
            if reason:
                found.append(msgspec.structs.replace(candidate, reason=reason))
        if self.cache is not None:
            self.cache.flush()
        for name, reason in dict.fromkeys((r.name, r.reason) for r in found):
            _LOG.info("%s is not exact here (%s)", name, reason)
        return tuple(found)

    def _reason(self, rehearsal: Rehearsal, held: Sequence[Any], place: Fingerprint) -> str:
        """Why an implementation is not exact here and as torch is set now; empty where it is."""
        likeness = place.key, rehearsal.key if rehearsal.hangs_on_sizes else rehearsal.likeness
        if likeness in self._known:
            return self._known[likeness]
        key = f"{rehearsal.key} {lowtide.__version__}"
        reason = None if self.cache is None else self.cache.verdict(place, key)
        if reason is None:
            reason = _tried(rehearsal, held)
            if self.cache is not None:
                self.cache.put_verdict(place, key, reason)
        self._known[likeness] = reason
        return reason


def _candidates(graph: Graph) -> Iterator[tuple[Refuted, Rehearsal]]:
    """What claims to be exact, and the rehearsal that tries it."""
    grouped = {r for g in graph.groups for o in g.options for r in o.recipes}
    for index, group in enumerate(graph.groups):
        own = group.options[0].recipes
        for number, option in enumerate(group.options[1:], 1):
            if option.numerics is Numerics.EXACT:
                others = {r for k, o in enumerate(group.options) if k != number for r in o.recipes}
                alone = tuple(r for r in option.recipes if r not in others)
                name = f"{group.name}: {option.name}"
                yield Refuted(name, "", alone, index, number), Rehearsal(graph, own, option.recipes)
    program = set(graph.program)
    maker = {v: r for r in graph.program for v in graph.recipes[r].outputs}
    plain = plain_candidates(graph)
    for recipe in graph.recipes:
        if recipe.id in program or recipe.id in grouped or recipe.state is not None:
            continue
        makers = (maker[v] for v in recipe.outputs if v in maker)
        own = (plain[recipe.id],) if recipe.id in plain else tuple(dict.fromkeys(makers))
        reads_own = not {v for r in own for v in graph.recipes[r].outputs}.isdisjoint(recipe.read_values)
        if recipe.consumes or reads_own:  # over what it reads; or once more, from what the first run left
            yield Refuted(recipe.op, "", (recipe.id,)), Rehearsal(graph, own, (*(own if reads_own else ()), recipe.id))


def _tried(rehearsal: Rehearsal, held: Sequence[Any]) -> str:
    with isolation():
        try:
            return rehearsal.difference(held)
        except Exception as error:
            # What an operator raises on made-up inputs must not stop a training that would have worked without it.
            return f"it cannot be tried: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
