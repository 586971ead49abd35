"""The bytes that a plan has to leave free: for tiny tensors, the caller's code, the optimizer's state and temporaries.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from lowtide.errors import BudgetWarning
from lowtide.ir.graph import Graph
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.layout import ALIGNMENT_B, SMALL_B, rounded_B
from lowtide.ir.sequence import blocks_of, small_peak_B
from lowtide.profile.needs_cache import known_needs
from lowtide.profile.optimizer import OptimizerNeeds, joined_needs
from lowtide.runtime.hard_budget import HardBudget
from lowtide.units import format_B

_SLACK_B = 1024  # tiny tensors of the caller's own: loss values, counters, the optimizer's scalars
_LEAST_BETWEEN_B = 64 * 1024
_LOSS_COPIES = 3  # a loss of the caller's own holds this many tensors of an output's size at once: cross-entropy


@dataclass(eq=False)
class Reserve:
    """The bytes that plans leave free: measured, predicted, or learnt from steps for which they did not suffice.

    Arguments:
        optimizers: gives those whose state and temporaries count.
        updates_B: gives the temporary bytes of updates that follow a step and stand in no plan.
        alignment: gives what every size in the arena is a multiple of.
        small_B: zone for requests too small to be planned; fixed when there is an arena.
    """

    optimizers: Callable[[], Sequence[torch.optim.Optimizer]]
    updates_B: Callable[[], int] = lambda: 0
    alignment: Callable[[], int] = lambda: ALIGNMENT_B
    small_B: int = 0
    _needs: WeakKeyDictionary[torch.optim.Optimizer, OptimizerNeeds] = field(default_factory=WeakKeyDictionary)
    _between_B: dict[str, int] = field(default_factory=dict)  # graph key -> what the caller's code really took
    _variants_B: dict[str, int] = field(default_factory=dict)  # graph key -> what any loss of its forward usually takes
    _frozen: set[str] = field(default_factory=set)
    _concurrent_B: dict[str, int] = field(default_factory=dict)  # graph key -> what its plans leave free besides
    _before: dict[str, tuple[int | None, int]] = field(default_factory=dict)  # both, until plans hold what was raised
    _spends: bool = False
    _asked: set[str] = field(default_factory=set)  # graphs whose reserve was raised, and whose plans do not know it yet
    _spilled_B: int = 0
    _troubles: int = 0  # of any kind, when they were last looked at
    _crowded: int = 0  # refusals, and misplaced allocations with overflow, until then
    _has_warned: bool = False
    _has_told: bool = False  # of misplaced allocations

    @property
    def needs(self) -> OptimizerNeeds | None:
        """The optimizers' state and temporaries in bytes, found out once, before the first step; None without one."""
        found = []
        for optimizer in self.optimizers():
            if optimizer not in self._needs:
                self._needs[optimizer] = known_needs(optimizer, alignment_B=self.alignment())
            found.append(self._needs[optimizer])
        return joined_needs(found)

    @property
    def state_B(self) -> int:
        """Bytes of the optimizers' state, as the arena reserves them."""
        needs = self.needs
        return 0 if needs is None else sum(self._rounded_B(size_B) for size_B in needs.state_sizes_B)

    def temporaries_B(self, graph: Graph) -> int:
        """Bytes for the optimizer's step after a step of a graph; none where it has no backward."""
        if not graph.trains:
            return 0
        needs = self.needs
        return self._rounded_B(max(0 if needs is None else needs.temporaries_B, self.updates_B()))

    def reserve_B(self, graph: Graph) -> int:
        """Bytes for tiny tensors, worker threads and the caller's code between the segments.

        Tiny tensors that the arena's zone is too small for, since it was made for another graph, lie above the plan.
        """
        small_B = max(self.small_B, _small_zone_B(graph, self.needs, self.alignment()))
        workers_B = max((r.trace.workers_B for r in graph.recipes), default=0)
        uneven_B = self.alignment()  # a budget that is no whole number of units loses a part of one
        concurrent_B = 0 if self._spends else self.concurrent_B(graph)
        return small_B + self._rounded_B(workers_B) + self._between(graph) + uneven_B + concurrent_B

    def set_small_zone(self, graph: Graph) -> None:
        """Sizes the zone for requests too small to be planned after a step of a graph."""
        self.small_B = _small_zone_B(graph, self.needs, self.alignment())

    def expect_between(self, graph: Graph, between_B: int) -> None:
        """Says what code between the segments was seen to take, before any step."""
        self._between_B.setdefault(graph.key, self._rounded_B(between_B) + self._usual_between_B(graph))

    def share(self, variants: Sequence[Graph]) -> None:
        """Says that one forward is captured as several graphs, for gradients that come otherwise.

        Which gradients come is known after the forward, whose plan may be that of any of these graphs. Plans that left
        less free are sought anew before their next step, where the budget has the bytes.
        """
        most_B = max(map(self._usual_between_B, variants))
        for graph in variants:
            if self._between(graph) < most_B and graph.key not in self._frozen:
                self._asked.add(graph.key)
                self._variants_B[graph.key] = most_B

    def takes_more(self, graph: Graph, between_B: int) -> bool:
        """Notes what code between the segments was seen to take in a step.

        Returns: whether the reserve of the graph's plans has been raised, so that they should be sought anew.
        """
        wanted_B = self._rounded_B(between_B) + self._usual_between_B(graph)
        if not between_B or graph.key in self._frozen or wanted_B <= self._between(graph):
            return False
        self._note(graph)
        self._between_B[graph.key] = wanted_B
        return True

    def ask(self, graph: Graph, concurrent_B: int) -> None:
        """Says what a graph's plans are to leave free from its next step on: when asked again, more."""
        self._note(graph)
        self._concurrent_B[graph.key] = max(
            self._rounded_B(concurrent_B), self._rounded_B(self.concurrent_B(graph) * 3 // 2)
        )
        self._asked.add(graph.key)

    def concurrent_B(self, graph: Graph) -> int:
        """Bytes that a graph's plans leave free for forwards that wait, and for what a kept graph holds."""
        return self._concurrent_B.get(graph.key, 0)

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Inside, a plan is made for those for whom these bytes were left free."""
        before, self._spends = self._spends, True
        try:
            yield
        finally:
            self._spends = before

    def begin_anew(self) -> None:
        """A new arena counts its troubles from zero, and may have the bytes that the last one had not."""
        self._spilled_B = self._crowded = self._troubles = 0
        self._frozen.clear()

    def learn(self, graph: Graph, hard_budget: HardBudget) -> bool:
        """Looks whether the caller's code between the segments needed more than its reserve since the last look.

        Returns: whether the reserve of the graph's plans has been raised, so that they should be sought anew.
        """
        if graph.key in self._asked:
            self._asked.discard(graph.key)
            return True
        troubles = hard_budget.arena.troubles
        if troubles == self._troubles:
            return False
        self._troubles = troubles
        seen = hard_budget.arena.stats()
        spilled_B, self._spilled_B = seen.spilled_B - self._spilled_B, seen.spilled_B
        if spilled_B and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "code outside lowtide's graphs, between a forward and its backward or in the optimizer's step, found "
                f"no space in the budget and took {format_B(spilled_B)} outside it. If it belongs to this training, it "
                "gets space now where the budget allows; else raise the budget. If it is another model's, finish this "
                'one\'s backward first, or delete its loss. fit(..., scope="process") refuses instead.',
                BudgetWarning,
                stacklevel=2,
            )
        if seen.misplaced_allocations and not self._has_told:
            self._has_told = True
            warnings.warn(
                f"{seen.misplaced_allocations} allocations of a planned step were not served at their planned "
                "addresses, because something else lay there. Results are right and the budget holds as long as they "
                "fit elsewhere; a step may be refused that the plan said would fit. "
                "lowtide.misplaced_allocations(model) names them and what lay there.",
                BudgetWarning,
                stacklevel=2,
            )
        crowded = (
            seen.failures_for_capacity + seen.failures_for_contiguity + min(seen.misplaced_allocations, seen.overflow)
        )
        before, self._crowded = self._crowded, crowded
        if not (spilled_B or crowded > before) or graph.key in self._frozen:
            return False
        self._note(graph)
        self._between_B[graph.key] = max(2 * self._between(graph), self._rounded_B(spilled_B), _LEAST_BETWEEN_B)
        return True

    def hold(self, graph: Graph) -> None:
        """Says that a graph's plan leaves free what was learnt."""
        self._before.pop(graph.key, None)

    def freeze(self, graph: Graph) -> None:
        """Leaves a graph's reserve as it was from now on: the budget has no bytes for more."""
        self._frozen.add(graph.key)
        self._variants_B.pop(graph.key, None)
        if graph.key not in self._before:
            return
        between_B, concurrent_B = self._before.pop(graph.key)
        self._concurrent_B[graph.key] = concurrent_B
        self._between_B.pop(graph.key, None)
        if between_B is not None:
            self._between_B[graph.key] = between_B

    def _rounded_B(self, size_B: int) -> int:
        return rounded_B(size_B, self.alignment())

    def _note(self, graph: Graph) -> None:
        self._before.setdefault(graph.key, (self._between_B.get(graph.key), self.concurrent_B(graph)))

    def _between(self, graph: Graph) -> int:
        """Bytes for the caller's code between the segments: measured, or as much as a loss usually takes."""
        known_B = self._between_B.get(graph.key)
        return self._usual_between_B(graph) if known_B is None else known_B

    def _usual_between_B(self, graph: Graph) -> int:
        """Bytes that a loss between forward and backward usually takes, whichever gradients come."""
        tangents = [v for v in graph.arriving if not v.persistent and v.id not in graph.handed]
        begin = min((v.arrives or 0 for v in tangents), default=0)  # where the caller's own loss hands over
        inside = any(v.size_B < SMALL_B for v in tangents if v.arrives == begin)  # the loss is the model's own
        copies = 1 if inside else _LOSS_COPIES
        large = [v for v in tangents if v.size_B >= SMALL_B]
        own_B = sum(self._rounded_B(v.size_B) * (copies if v.arrives == begin else 1) for v in large)
        return max(own_B, self._variants_B.get(graph.key, 0))


def _small_zone_B(graph: Graph, needs: OptimizerNeeds | None, alignment_B: int) -> int:
    """Bytes for requests too small to be planned: those of a step that keeps everything, the optimizer's, and slack.

    A plan may serve groups by options that save tiny values instead of large ones: bits instead of a mask.
    """
    step_B = small_peak_B(blocks_of(graph, keep_all_schedule(graph), small_B=0), granule_B=alignment_B)
    step_B += _saved_by_options_B(graph, alignment_B)
    state_B = sum(rounded_B(s, alignment_B) for s in (() if needs is None else needs.state_sizes_B) if s < SMALL_B)
    return rounded_B(step_B + step_B // 8 + state_B + _SLACK_B * alignment_B // ALIGNMENT_B, alignment_B)


def _saved_by_options_B(graph: Graph, alignment_B: int) -> int:
    """Tiny bytes that the options of all groups can add to what a forward saves, each group by its worst. O(reads)."""
    programs = {v for r in graph.program for v in graph.recipes[r].outputs}
    made = {v: r.segment for r in graph.recipes for v in r.outputs if v not in programs}
    saved = {v for r in graph.recipes for v in r.read_values if made.get(v, r.segment) < r.segment}
    tiny = {v for v in saved if graph.values[v].size_B < SMALL_B}
    total_B = 0
    for group in graph.groups:
        options = ({v for r in o.recipes for v in graph.recipes[r].outputs} & tiny for o in group.options)
        total_B += max(sum(rounded_B(graph.values[v].size_B, alignment_B) for v in option) for option in options)
    return total_B
