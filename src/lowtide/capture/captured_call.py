"""A captured graph's call: one capture for every arrival of its gradients.

How gradients will arrive is guessed before a graph's first backward, and remembered afterwards. Where they arrive
otherwise, the backward of this forward cannot be used: the graph is captured for them, its forward is recomputed from
what it was given, and its backward follows. The model's own code does not run again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.capture.captured import Captured, Executor
from lowtide.device.arena import nothing_engaged
from lowtide.device.arrivals import Arrivals, arrivals_of, come_as, no_zeros_for_absent
from lowtide.device.autocast_cache import period_of_caller, refuse_casts_of_several_calls
from lowtide.device.contributions import behind, hand_over, in_at_most
from lowtide.device.generator_guard import TorchGenerators
from lowtide.device.handed_out import as_views
from lowtide.device.in_place_layouts import copy_with_gaps
from lowtide.device.versions import version_of
from lowtide.errors import BackwardError, InexactCapture

_MOST_ARRIVALS = 16
_BUFFER_B, _COUNTER_B = 1 << 16, 64  # buffers up to this size are copied: before gradients have come, and at all times
_LOST = (
    "gradients came to lowtide's backward in another way than in earlier steps (other outputs of the model take part "
    "in the loss, or a gradient lies otherwise in memory), and {what}. The forward cannot be computed again for them. "
    "{moved} If you repeat the step, it is planned for gradients that come this way."
)
_MOVED = (
    "No parameter has been changed. What the step has changed stays so: {names}, `.grad` of what lies behind this "
    "graph in the backward, and what the model's own code has changed between its graphs. Give them what they had "
    "before the step, or a repeated step updates them twice: buffers with copy_ and the generator with "
    "torch.set_rng_state from copies or a checkpoint, `.grad` with zero_grad."
)
_OVERWRITTEN = "an input or a weight was overwritten since the forward"
_UNTOLD = "The forward has changed buffers and random generators: give them what they had before the step."
_STAYED = (
    "No parameter, no buffer and no random generator has been changed by captured graphs; `.grad` of what lies behind "
    "this graph in the backward has been added to (zero_grad)."
)


@dataclass(eq=False)
class Given:
    """What a forward was given, for the case that it has to be computed again.

    Arguments:
        place: which of the step's calls of the graph it was.
        key: what the executor ran it as.
        arguments: the arguments; copies of those that are overwritten behind the forward.
        versions: of those that are tensors and no copies.
        generators: the states of the random generators before it; None where it draws nothing.
        ran: the graphs of its step, in the order in which they run.
        period: the time in which autocast keeps what it casts; None where it keeps nothing.
    """

    place: Hashable
    arguments: tuple[Any, ...]
    versions: tuple[int, ...]
    generators: TorchGenerators | None
    ran: Sequence[Captured] = ()
    key: Any = None
    period: object = None

    def cast(self, captured: Captured) -> list[torch.Tensor]:
        """The arguments of which autocast has kept a cast."""
        return [behind(self.arguments[i]) for i in captured.kept_casts]

    def again(self, captured: Captured) -> list[Any]:
        """The arguments.

        Raises:
            BackwardError: if one was overwritten meanwhile.
        """
        found: list[Any] = []
        by_itself = set(captured.unchanged.values())
        for index, (argument, version) in enumerate(zip(self.arguments, self.versions, strict=True)):
            if index not in by_itself and _version(argument) != version:
                raise self._lost()
            found.append(argument)
        return found

    def _lost(self) -> BackwardError:
        names = list(dict.fromkeys(name for captured in self.ran for name in captured.moves))
        moved = _MOVED.format(names=", ".join(names)) if names else _STAYED
        return BackwardError(_LOST.format(what=_OVERWRITTEN, moved=moved))


def _version(argument: Any) -> int:
    return version_of(argument) if isinstance(argument, torch.Tensor) and not argument.is_inference() else 0


@dataclass(eq=False)
class RoundTrip:
    """The forward and the backward of one capture, as AOTAutograd calls them.

    Arguments:
        call: to which it belongs; None where gradients are not looked at.
        has_come: whether gradients have come as it was captured for.
    """

    captured: Captured
    executor: Executor
    call: CapturedCall | None = None
    has_come: bool = False

    def forward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the forward, and hands on with its token what it was given."""
        if self.call is None or self.captured.arrivals is None:
            return as_views(self.executor.forward(arguments), self.captured.shared_results)
        given = self.call.given(self.captured, arguments)
        results = as_views(self.executor.forward(arguments), self.captured.shared_results)
        given.key = self.executor.latest_key
        results[self.captured.token_result]._lowtide_given = given
        return results

    def backward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the backward, if gradients have come as it was captured for."""
        arrivals, token = self.captured.arrivals, self.captured.slots.token
        if self.call is None or arrivals is None:
            return self.executor.backward(arguments)
        given: Given | None = getattr(arguments[token], "_lowtide_given", None)
        expected = self._is_expected(arguments[token + 1 : token + 1 + len(arrivals)], arrivals)
        if expected is None:  # outputs that only code without a gradient has read
            arguments[token]._lowtide_lease = None
            return [None] * len(self.captured.joint.gradients)
        if given is not None and given.period is not None:
            refuse_casts_of_several_calls(given.cast(self.captured), given.period, given)
        if not expected:
            return self.call.again(self, given, arguments)
        self.has_come = True
        if given is not None:
            self.call.came(given, self)
        return self.executor.backward(arguments)

    @staticmethod
    def _is_expected(gradients: Sequence[torch.Tensor | None], arrivals: Arrivals) -> bool | None:
        """Whether gradients have come as expected; None if there are none. Nothing may hold them when they are used."""
        return None if all(g is None for g in gradients) else come_as(gradients, arrivals)


@dataclass(eq=False)
class Capture:
    """A graph as captured for one arrival of its gradients.

    Arguments:
        trip: its forward and backward.
        call: takes the graph's arguments, and hands autograd its backward.
    """

    trip: RoundTrip
    call: Callable[..., Any]


IN_BACKWARD = (
    "This was found in the backward: outputs take part in the loss, or gradients lie in memory, otherwise than "
    "was expected. The forward has run and has changed buffers and random generators; no gradient has changed."
)


class AbstractSteps:
    """What the calls of captured graphs ask, and tell, about the steps in which they take part; a session answers.

    What stands here is true of a graph that is captured and run alone.

    Arguments:
        arrivals: how gradients came, by the text of the graph as first captured: Dynamo may hand the same
            one over again.
    """

    arrivals: dict[str, Arrivals]

    @property
    def step_number(self) -> int:
        """Of the step that runs."""
        return 0

    @property
    def is_exact(self) -> bool:
        """Whether results have to be those of plain PyTorch, bit for bit."""
        return True

    @property
    def has_one_graph(self) -> bool:
        """Whether the model is not known to break into several."""
        return True

    @property
    def graphs_run(self) -> Sequence[Captured]:
        """The graphs of the step that runs, those to come too when they have run."""
        return ()

    def expected_arrivals(self, captured: Captured) -> Arrivals | None:  # noqa: ARG002
        """How the gradients of a new capture are known to come; None where nobody knows."""
        return None

    def computed_again(self, executor: Any, key: Any, is_stale: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """A context in which the forward of an executor is computed again by another one.

        Arguments:
            key: what distinguishes the shapes of that forward.
            is_stale: whether the first executor's plan is of no use any more.
        """
        return contextlib.nullcontext()


class CapturedCall:
    """Stands in for a captured graph that has a backward.

    Arguments:
        first: its capture for the most likely arrival.
        capture: captures it for another.
        steps: tells one step from the next.
    """

    def __init__(self, first: Capture, capture: Callable[[Arrivals], Capture], steps: AbstractSteps) -> None:
        self._capture, self._steps = capture, steps
        self._captures: list[Capture] = []
        self._latest: dict[Hashable, Capture] = {}  # by place
        # At a place, which capture came after which: losses may alternate.
        self._after: dict[tuple[Hashable, Capture], Capture] = {}
        self._step, self._calls = -1, 0
        self._period: object = None
        self._recent = self._known(first)
        captured = first.trip.captured
        self._text = hashlib.sha256(str(captured.joint.module.graph).encode()).hexdigest()
        expected = steps.arrivals.get(self._text) or steps.expected_arrivals(captured)
        if expected is not None and expected != captured.arrivals:
            self._recent = self._for(expected)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the graph as it was captured for gradients as they came here before."""
        number = self._steps.step_number
        self._calls = self._calls + 1 if number == self._step else 0
        self._step = number
        capture = self._latest.get(self._calls, self._recent)
        capture = self._after.get((self._calls, capture), capture)
        self._period = self._period_of(capture.trip.captured, arguments)
        results = capture.call(*arguments)
        if capture.trip.captured.arrivals is not None:
            no_zeros_for_absent(results)
        return results

    def _period_of(self, captured: Captured, arguments: Sequence[Any]) -> object:
        """What stands for the time in which eager's autocast would keep what a forward casts."""
        if not captured.kept_casts or not self._steps.is_exact or not torch.is_grad_enabled():
            return None
        period = period_of_caller(next(arguments[i].device for i in captured.kept_casts))
        # Where a model breaks inside its own autocast context, each graph enters that anew, and eager does not.
        return period or (None if self._steps.has_one_graph else self._step)

    def given(self, captured: Captured, arguments: Sequence[Any]) -> Given:
        """Notes what a forward is given, and keeps it alive: a plan reckons with its bytes all the same."""
        place, statics = self._calls, captured.joint.statics
        most_B = _COUNTER_B if place in self._latest else _BUFFER_B
        by_itself = set(captured.unchanged.values())  # overwritten behind the forward, whose versions say nothing

        def held_of(index: int, argument: Any) -> Any:
            if not isinstance(argument, torch.Tensor):
                return argument
            if index in statics:
                is_copied = index not in by_itself and not isinstance(argument, torch.nn.Parameter)
                is_copied = is_copied and argument.nbytes <= most_B
                return copy_with_gaps(argument) if is_copied or index in captured.overwritten else argument
            if index in captured.overwritten:
                return copy_with_gaps(argument)
            return argument

        with nothing_engaged():
            held = tuple(held_of(index, argument) for index, argument in enumerate(arguments))
        generators = TorchGenerators.now() if captured.slots.random else None
        versions = tuple(_version(a) if a is h else 0 for a, h in zip(arguments, held, strict=True))
        return Given(place, held, versions, generators, self._steps.graphs_run, period=self._period)

    def came(self, given: Given, trip: RoundTrip) -> None:
        """Gradients have come for a forward as a capture was made for."""
        capture = next((c for c in self._captures if c.trip is trip), None)
        if capture is None:  # dropped meanwhile
            return
        before = self._latest.get(given.place)
        if before is not None:
            self._after[given.place, before] = capture
        self._latest[given.place] = self._recent = capture

    def again(self, trip: RoundTrip, given: Given | None, arguments: list[Any]) -> Sequence[Any]:
        """Computes a forward again, and the backward for gradients that have arrived otherwise.

        Arguments:
            arguments: of the backward that was captured for the expected arrival.

        Returns: what that backward would have returned.

        Raises:
            BackwardError: if the forward cannot be computed again.
        """
        token = trip.captured.slots.token
        gradients = arguments[token + 1 :]
        try:
            other = self._for(arrivals := arrivals_of(gradients))
        except InexactCapture as error:
            error.add_note(IN_BACKWARD)
            raise
        if given is None:
            raise BackwardError(_LOST.format(what="a hook of saved tensors has replaced lowtide's own", moved=_UNTOLD))
        self.came(given, other.trip)
        self._steps.arrivals[self._text] = arrivals
        values = given.again(trip.captured)
        arguments[token]._lowtide_lease = None  # nothing is going to use the places of that backward
        arguments.clear()
        captured, executor = other.trip.captured, other.trip.executor
        count, numbers = len(captured.joint.forward_outputs), len(captured.slots.numbers)
        with torch.no_grad(), self._steps.computed_again(trip.executor, given.key, not trip.has_come):
            with given.generators.again() if given.generators else contextlib.nullcontext():
                results = executor.forward(values)[count:]
            handed = len(results) - numbers
            backward = [*results[handed:], *results[:handed], *gradients]
            del results, gradients
            found = executor.backward(backward)
        other.trip.has_come = True
        return _as_shares_of(trip.captured, captured, found)

    def _for(self, arrivals: Arrivals) -> Capture:
        """The capture for an arrival of gradients; the oldest one goes where there are many."""
        for capture in self._captures:
            if capture.trip.captured.arrivals == arrivals:
                return capture
        if len(self._captures) >= _MOST_ARRIVALS:
            oldest = self._captures.pop(0)
            self._latest = {k: c for k, c in self._latest.items() if c is not oldest}
            self._after = {k: c for k, c in self._after.items() if oldest not in (k[1], c)}
        return self._known(self._capture(arrivals), arrivals)

    def _known(self, capture: Capture, arrivals: Arrivals | None = None) -> Capture:
        if arrivals is not None:
            capture.trip.captured.arrivals = arrivals
        capture.trip.call = self
        self._captures.append(capture)
        return capture


def _as_shares_of(wanted: Captured, captured: Captured, gradients: Sequence[Any]) -> list[Any]:
    """Gradients of one capture as the caller of another expects them: in one contribution or several."""
    found = list(gradients[: len(wanted.joint.gradients)])
    edges = {index: 1 + len(further) for index, further in wanted.joint.handed_over}
    for index in {*edges, *(index for index, _ in captured.joint.handed_over)}:
        contributions = in_at_most(edges.get(index, 1), index, found[index])
        if index in edges:
            found[index] = hand_over(index, contributions, alone=index in wanted.joint.undivided)
        else:
            found[index] = contributions[0] if contributions else None
    return found
