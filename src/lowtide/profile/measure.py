"""A captured graph made real: every distinct operator signature is run once, and the graph is told what it cost.

Recipes are visited in topological order, and what flows on is the geometry that a run returned, never the captured
one: fake tensors have wrong strides and dtypes often enough to break both the traces and the sizes.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from lowtide.device.fingerprint import Fingerprint, fingerprint
from lowtide.device.other_work import OtherWork
from lowtide.errors import CaptureError, LowtideError, UnsupportedOperator
from lowtide.ir.call import Read
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, Recipe, Value
from lowtide.ir.in_place import plain_candidates
from lowtide.ir.likeness import structure
from lowtide.profile.cache import ProfileCache
from lowtide.profile.findings import Correction, Profiled, ProfileReport
from lowtide.profile.in_place import settled
from lowtide.profile.machines import MACHINES
from lowtide.profile.measurement import Measurement, output_paths, resized
from lowtide.profile.recording import BRANCHES, isolation, record
from lowtide.profile.roofline import assumed_trace, predict_s, replayed
from lowtide.profile.scaled_seconds import scaled_s
from lowtide.profile.signature import Signature, copies_storage, counting, viewed
from lowtide.progress import tell_part, told

_LOG = logging.getLogger("lowtide")
Watch = Callable[[int, int, str], None]
_WINDOW_s = 0.2  # over which other programs are watched
_LEAST_WINDOW_s = 0.05  # in less the kernel's hundredths of a second say nothing


def profile_graph(
    graph: Graph,
    *,
    held: Sequence[Any] = (),
    cache: ProfileCache | None = None,
    watch: Watch | None = None,
    like: Graph | None = None,
    scaled: bool = False,
) -> Profiled:
    """Measures every distinct operator signature of a graph on this machine.

    Arguments:
        graph: as captured.
        held: what the `Held` arguments of its recipes stand for.
        cache: measurements to reuse and extend; None measures everything and writes nothing.
        watch: called before each recipe with (recipes done, recipes in all, operator).
        like: the same program measured for another shape. A signature that is new then runs once, for its events;
            its seconds are those of its likeness, scaled as a roofline model scales them.
        scaled: whether seconds in the cache that came about so will do; otherwise they are measured now.

    Returns: the graph with measured times, mini-traces, geometries and sizes, and a report. Nothing of the process
        is changed: no generator, no mode. An operator that cannot be run alone keeps an assumed trace and a
        predicted time, and is named in the report.

    Raises:
        KeyboardInterrupt: when interrupted; what was measured until then is in the cache.
        LowtideError: if a torch profiler is running: there can be only one.
        CaptureError: if the program reads a view that does not exist for the strides that its operators return.

    O(recipes) plus a few runs of each distinct signature; memory of one operator at a time.
    """
    alike = like is not None and structure(like) == structure(graph)
    walk = _Walk(graph, held, cache, like if alike else None, scaled)
    start = time.perf_counter()
    try:
        with isolation(), told():
            for done, recipe in enumerate(_topological(graph)):
                if watch is not None:
                    watch(done, len(graph.recipes), recipe.op)
                count = len(graph.recipes)
                tell_part(f"measuring operator {done} of {count}", done / count, time.perf_counter() - start)
                walk.visit(recipe)
    finally:
        walk.look_around(_LEAST_WINDOW_s)
        if cache is not None:
            cache.flush()
    if walk.disturbed:
        _LOG.warning("%s", disturbed(walk.disturbed))
    return walk.finish(time.perf_counter() - start)


def disturbed(count: int) -> str:
    """The warning that operators were measured beside other work."""
    return (
        f"{count} operators were measured while other programs used the processor: predicted times and overheads may "
        "be wrong, bytes are not. They are measured again by the next first call on a quiet machine; "
        "`lowtide cache clear` forgets plans that were made with them"
    )


def _topological(graph: Graph) -> Iterator[Recipe]:
    """The program's recipes, then the alternatives, each as soon as something has produced what it reads."""
    known = {v.id for v in graph.arriving} | {v.id for v in graph.values if v.persistent}
    in_program = set(graph.program)
    pending = [r for r in graph.recipes if r.id not in in_program]
    for recipe in graph.program:
        yield graph.recipes[recipe]
        known.update(graph.recipes[recipe].outputs)
    while pending:
        ready = [r for r in pending if known.issuperset(r.read_values)] or pending
        for recipe_ in ready:
            yield recipe_
            known.update(recipe_.outputs)
        done = {r.id for r in ready}
        pending = [r for r in pending if r.id not in done]


class _Walk:
    """What is known so far: real geometry and size per value, measurement per signature, new recipes.

    Invariant: `geometry[v]` is real once the first recipe that produces v has been visited; until then, and for
    values of recipes that could not be run, it is the captured one.
    """

    def __init__(
        self, graph: Graph, held: Sequence[Any], cache: ProfileCache | None, like: Graph | None, scaled: bool
    ) -> None:
        self.graph = graph
        self.like = like
        self.takes_scaled = scaled
        # Their seconds are those of others: they run once, for their events.
        self.billed = frozenset(plain_candidates(graph))
        self.held = held
        self.cache = cache
        self.geometry = [v.geometry for v in graph.values]
        self.size_B = [v.size_B for v in graph.values]
        self.produced: set[int] = set()
        self.recipes: dict[int, Recipe] = {}
        self.measurements: dict[str, Measurement | str] = {}  # by signature; a text says why there is none
        self.signatures: dict[int, str] = {}
        self.fingerprints: dict[str, Fingerprint] = {}
        self.program = frozenset(graph.program)
        self.views: dict[tuple[Geometry, tuple[Any, ...]], Geometry | None] = {}
        self.measured = self.cached = 0
        self.others = OtherWork(torch.get_num_threads())
        self.fresh: list[tuple[Fingerprint, str]] = []  # measured since it was last asked whether others disturb
        self.disturbed = 0
        self.is_quiet: bool | None = None  # now; None until somebody needs to know
        self.found: dict[str, list[Any]] = {}

    def visit(self, recipe: Recipe) -> None:
        """Measures one recipe, or copies what it repeats."""
        original = replayed(self.graph, recipe)
        if original in self.recipes and original is not None:
            self.recipes[recipe.id] = _replay(recipe, self.recipes[original])
            return
        reads = tuple(self._read(recipe, read) for read in recipe.reads)
        recipe = msgspec.structs.replace(recipe, reads=reads)
        measurement = self._measurement(recipe)
        if measurement is None:
            self._assume(recipe)
            return
        self._learn(recipe, measurement)
        trace = measurement.trace(recipe)
        self.recipes[recipe.id] = msgspec.structs.replace(
            recipe,
            time_s=measurement.time_s,
            issue_s=measurement.issue_s,
            trace=trace,
            repeats=measurement.repeats,
        )
        if measurement.flaw:
            self._note("inexact", (recipe.op, measurement.flaw))

    def _note(self, kind: str, what: Any) -> None:
        self.found.setdefault(kind, []).append(what)

    def _read(self, recipe: Recipe, read: Read) -> Read:
        base = self.geometry[read.value]
        if base is None:
            return read
        key = (base, read.views)
        if key not in self.views:
            try:
                self.views[key] = viewed(base, read.views, self.held)
            except (RuntimeError, ValueError, IndexError, UnsupportedOperator) as error:
                if recipe.id in self.program:
                    raise CaptureError(self._impossible_view(recipe, read, error)) from error
                _LOG.warning("%s: a view of its input cannot be taken (%s)", recipe.op, str(error))
                self.views[key] = None
        real = self.views[key]
        if real is None:
            self._note("views", recipe.op)
            return read
        return msgspec.structs.replace(read, geometry=real)

    def _impossible_view(self, recipe: Recipe, read: Read, error: Exception) -> str:
        """The error for a program that cannot run: captured for another layout than its operators' results have."""
        makers = [r for i in self.graph.program if read.value in (r := self.graph.recipes[i]).outputs]
        maker = f"{makers[0].op}{_at(makers[0])} makes it" if makers else "the caller gives it"
        return (
            f"{recipe.op}{_at(recipe)} reads a view that does not exist for how the tensor lies in memory; {maker}. "
            "torch's capture took it to be laid out otherwise, so what was captured is not what runs without lowtide. "
            f"Call .contiguous() on that tensor before the view, in the model. Nothing has been changed. ({error})"
        )

    def _measurement(self, recipe: Recipe) -> Measurement | None:
        if recipe.effect is Effect.OPAQUE and recipe.op not in BRANCHES:
            self._note("opaque", recipe.op)
            return None
        passed = [r.geometry for r in recipe.reads]
        known = tuple(g for g in passed if g is not None)
        if len(known) < len(passed):
            self._note("failed", (recipe.op, "it reads something that has no geometry"))
            return None
        storages_B = tuple(self.size_B[r.value] for r in recipe.reads) if copies_storage(recipe.op) else ()
        signature = Signature(recipe.op, recipe.args, counting(recipe.kwargs), known, storages_B)
        found = self._recall(signature, recipe)
        if isinstance(found, str):
            self._note("failed", (recipe.op, found))
            return None
        for value, path in zip(recipe.outputs, output_paths(recipe), strict=False):
            if self.size_B[value] and found.at(path) is None:
                self._note("failed", (recipe.op, f"it returned no tensor at {path}"))
                return None
        return found

    def _recall(self, signature: Signature, recipe: Recipe) -> Measurement | str:
        key = signature.key
        if key in self.measurements:
            return self.measurements[key]
        device = signature.device
        if device not in self.fingerprints:
            self.fingerprints[device] = fingerprint(device)
        place = self.fingerprints[device]
        cache = self.cache if signature.portable else None
        found: Measurement | str | None = cache.get(place, key) if cache is not None else None
        if isinstance(found, Measurement) and found.scaled and not (self.takes_scaled or recipe.id in self.billed):
            found = None
        if isinstance(found, Measurement) and not self._is_of(found, recipe):
            found = None
        if isinstance(found, Measurement) and found.disturbed and self._now_quiet():
            found = None
        is_new = found is None
        if found is not None:
            self.cached += 1
        else:
            found = self._record(signature, recipe)
            if cache is not None and isinstance(found, Measurement):
                cache.put(place, key, found)
        self.measurements[key] = found
        if cache is not None and isinstance(found, Measurement):
            if is_new:
                self.fresh.append((place, key))
            self.look_around(_WINDOW_s)
        return found

    def _now_quiet(self) -> bool:
        """Whether no other program takes cores that operators are measured on."""
        if self.is_quiet is None:
            self.look_around(0.0)
            time.sleep(_WINDOW_s)
            self.is_quiet = not self.others.disturbs()
        return self.is_quiet

    def look_around(self, window_s: float) -> None:
        """Marks what was measured since the last look where other programs disturbed it.

        Arguments:
            window_s: after which it is worth looking again; the kernel counts in hundredths of a second.
        """
        if not self.fresh or self.others.watched_s < window_s:
            return
        if self.others.disturbs() and self.cache is not None:
            for place, key in self.fresh:
                found = self.measurements[key]
                assert isinstance(found, Measurement)
                if not found.disturbed:
                    self.cache.put(place, key, msgspec.structs.replace(found, disturbed=True))
            self.disturbed += len(self.fresh)
        self.fresh.clear()

    def _is_of(self, measurement: Measurement, recipe: Recipe) -> bool:
        """Whether a measurement from a file has results of the recipe's dtypes and shapes."""
        for value, path in zip(recipe.outputs, output_paths(recipe), strict=False):
            result, captured = measurement.at(path), self.graph.values[value].geometry
            if result is not None and captured is not None:
                found = result.geometry
                if (found.dtype, found.shape, found.device) != (captured.dtype, captured.shape, captured.device):
                    return False
        return True

    def _record(self, signature: Signature, recipe: Recipe) -> Measurement | str:
        like = None if self.like is None else self.like.recipes[recipe.id]
        billed = recipe.id in self.billed
        once = billed or (like is not None and like.trace.measured and like.time_s > 0)
        try:
            measurement = record(signature, self.held, once=once)
        except LowtideError as error:
            if not isinstance(error, UnsupportedOperator):
                raise
            return str(error)
        except Exception as error:
            # Anything an operator raises on made-up inputs must not stop a training that would have worked.
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            _LOG.warning("%s cannot be measured (%s): time predicted, memory assumed", signature.op, reason)
            return reason
        self.measured += 1
        if billed or not measurement.scaled:
            return measurement
        assert like is not None
        assert self.like is not None
        return msgspec.structs.replace(measurement, time_s=scaled_s(self.like, like, recipe, measurement))

    def _assume(self, recipe: Recipe) -> None:
        self.produced.update(recipe.outputs)
        graph = msgspec.structs.replace(self.graph, values=self._values())
        time_s = predict_s(graph, recipe, MACHINES["cpu"])
        self.recipes[recipe.id] = msgspec.structs.replace(recipe, time_s=time_s, trace=assumed_trace(graph, recipe))

    def _learn(self, recipe: Recipe, measurement: Measurement) -> None:
        """Corrects geometry and size of what the recipe produces, from the first recipe that produces it."""
        heirs = {t.output: t.value for t in recipe.consumes if t.output is not None}
        claimed: set[int] = set()
        for position, (value, path) in enumerate(zip(recipe.outputs, output_paths(recipe), strict=False)):
            result = measurement.at(path)
            first = value not in self.produced
            self.produced.add(value)
            size_B = 0
            if position in heirs:
                size_B = self.size_B[heirs[position]]
            elif result is not None and result.allocation is not None:
                if result.allocation in claimed:
                    self._note("shared", recipe.op)
                else:
                    size_B = result.size_B
                claimed.add(result.allocation)
            elif result is not None and result.alias is not None:
                self._note("aliases", recipe.op)
            if first:
                self.size_B[value] = size_B
            elif position not in heirs:  # what would lie in a larger storage than it needs is withdrawn (`settled`)
                self.size_B[value] = max(size_B, self.size_B[value])
            if result is not None:
                self._compare(recipe, value, result.geometry, first)

    def _compare(self, recipe: Recipe, value: int, real: Geometry, first: bool) -> None:
        before = self.geometry[value]
        if before is not None and before.has_bytes_of(real):
            return
        if first:
            self._note("corrected", Correction(value, recipe.op, before, real))
            self.geometry[value] = real
        else:
            self._note("conflicts", recipe.op)

    def _values(self) -> tuple[Value, ...]:
        return tuple(
            msgspec.structs.replace(v, geometry=g, size_B=s)
            for v, g, s in zip(self.graph.values, self.geometry, self.size_B, strict=True)
        )

    def finish(self, seconds_s: float) -> Profiled:
        """The new graph: recipes with the final sizes in their traces, values corrected."""
        recipes = []
        for old in self.graph.recipes:
            recipe = self.recipes[old.id]
            events = recipe.trace.events
            for value, allocation in zip(recipe.outputs, recipe.trace.outputs, strict=False):
                if allocation is not None:  # another recipe of the same value may need more
                    events = resized(events, allocation, self.size_B[value])
            trace = msgspec.structs.replace(recipe.trace, events=events)
            recipes.append(msgspec.structs.replace(recipe, trace=trace))
        graph = msgspec.structs.replace(self.graph, values=self._values(), recipes=tuple(recipes))
        found: dict[str, Any] = {kind: tuple(items) for kind, items in self.found.items()}
        report = ProfileReport(
            signatures=len(self.measurements),
            measured=self.measured,
            cached=self.cached,
            seconds_s=seconds_s,
            **found,
        )
        return Profiled(settled(graph), report)


def _at(recipe: Recipe) -> str:
    """Where an operator comes from in the user's code, for a message; empty where that is not known."""
    where = [x for x in (recipe.origin.module, recipe.origin.source, recipe.origin.text) if x]
    return f" ({', '.join(where)})" if where else ""


def _replay(recipe: Recipe, original: Recipe) -> Recipe:
    """Time and trace of the recipe that it repeats, outputs found by value."""
    allocations = dict(zip(original.outputs, original.trace.outputs, strict=False))
    trace = msgspec.structs.replace(original.trace, outputs=tuple(allocations.get(v) for v in recipe.outputs))
    return msgspec.structs.replace(
        recipe,
        reads=original.reads,
        time_s=original.time_s,
        issue_s=original.issue_s,
        trace=trace,
        repeats=original.repeats,
    )
