"""One model's steps at every size: captured with varying extents, measured at a few sizes, predicted at the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowtide.api.plan import NOTHING_CAPTURED
from lowtide.device.arena import nothing_engaged
from lowtide.device.dynamo_settings import let_extent_vary
from lowtide.device.trees import leaves_of
from lowtide.errors import CaptureError, LowtideError, RecompileLimit
from lowtide.ir.graph import Graph
from lowtide.ir.likeness import structure
from lowtide.ir.plan import PlanRecord
from lowtide.pipeline import measure
from lowtide.profile.foresight import Sample, foreseen_graph
from lowtide.record import PlanOptions
from lowtide.session.dynamo_call import compiled_call, run_loudly
from lowtide.session.graph_discovery import Call
from lowtide.session.inputs import Inputs, MakeInputs, varying
from lowtide.session.planning import MeasuredStep, plan_step, step_of
from lowtide.session.session import Session


class RefusesOneError(CaptureError):
    """The model raises when its inputs have size 1, as batch norm does."""


class Family:
    """The steps of one model, by size. Nothing of the model runs, and nothing of it changes.

    The first capture lets the extents vary that differ between two sizes, so that Dynamo's guards, which are asked at
    every size, find it good for the others too; where a model fixes an extent, it is captured again.

    Arguments:
        model: plain, in the mode to plan for.
        make: what it is called with at a size.
        session: has options, and a budget scope that enforces nothing.
        two: two sizes, to see what varies.
        times: whether seconds matter; else an operator is run once at every further size, for its bytes.
    """

    def __init__(
        self, model: torch.nn.Module, make: MakeInputs, session: Session, two: tuple[int, int], times: bool = True
    ) -> None:
        self._model, self._make, self._session, self._times = model, make, session, times
        self._varying = varying(make(two[0]), make(two[1]))
        self._call = compiled_call(model, session.backend, None, exact=session.is_exact)
        self._samples: dict[tuple[str, ...], list[tuple[Sample, ...]]] = {}
        if not self._varying:
            raise LowtideError(
                f"the inputs have the same shapes at sizes {two[0]} and {two[1]}: make_batch(n) has to return tensors "
                "of which some extent grows with n"
            )

    def measured(self, size: int) -> MeasuredStep:
        """The step at a size, every distinct operator of it run (or found in the cache, or predicted).

        Raises:
            RefusesOneError: if the model itself raises at size 1. What it raises at other sizes is passed on.
        """
        return self._measured(size, self._calls(size))

    def foreseen(self, size: int) -> MeasuredStep:
        """The step at a size, from what it was at the two nearest sizes that were measured, if there are two."""
        calls = self._calls(size)
        captured = [c.specialised.graph for c in calls]
        samples = self._samples.get(_kind(captured), [])
        if len(samples) < 2 or self._session.options.machine is not None:
            return self._measured(size, calls)
        nearest = sorted(samples, key=lambda s: abs(s[0].size - size))[:2]
        graphs = [foreseen_graph(graph, size, one, other) for graph, one, other in zip(captured, *nearest, strict=True)]
        return self._step(calls, graphs)

    def plan(self, step: MeasuredStep, options: PlanOptions) -> PlanRecord:
        """Plans a step of this family.

        Raises:
            InfeasibleBudget: if no plan fits.
        """
        with nothing_engaged():
            return plan_step(step, options, self._session.budget_scope, watch=self._session.watch)

    def _calls(self, size: int) -> list[Call]:
        inputs = self._make(size)
        leaves = leaves_of(inputs)
        for index, dim in self._varying:
            let_extent_vary(leaves[index], dim)
        try:
            return self._dry(inputs)
        except RecompileLimit:  # a model that fixes its extents is captured again for each: that is wanted here
            self._call = compiled_call(self._model, self._session.backend, None, exact=self._session.is_exact)
            return self._dry(inputs)
        except LowtideError:
            raise
        except Exception as error:
            if size > 1:
                raise
            raise RefusesOneError(f"the model raises {type(error).__name__} at size 1") from error

    def _dry(self, inputs: Inputs) -> list[Call]:
        with self._session.dry() as calls:
            run_loudly(self._call, *inputs)
        if not calls:
            raise CaptureError(NOTHING_CAPTURED)
        return calls

    def _measured(self, size: int, calls: list[Call]) -> MeasuredStep:
        captured = [c.specialised.graph for c in calls]
        samples = self._samples.setdefault(_kind(captured), [])
        known = min(samples, key=lambda s: abs(s[0].size - size), default=None)
        graphs = []
        with nothing_engaged():
            for index, call in enumerate(calls):
                like = None if known is None or self._times else known[index].profiled
                graphs.append(
                    measure(
                        call.specialised.graph,
                        call.specialised.held,
                        self._session.options.machine,
                        self._session.cache,
                        like,
                        scaled=not self._times,
                    )
                )
        if all(s[0].size != size for s in samples):
            samples.append(tuple(Sample(size, a, b) for a, b in zip(captured, graphs, strict=True)))
        return self._step(calls, graphs)

    def _step(self, calls: list[Call], graphs: Sequence[Graph]) -> MeasuredStep:
        step = step_of(calls, graphs, self._session.budget_scope.persistent)
        self._session.expect_between(step)
        return step


def _kind(graphs: Sequence[Graph]) -> tuple[str, ...]:
    """The program of each graph of a step, whatever its sizes."""
    return tuple(structure(graph) for graph in graphs)
