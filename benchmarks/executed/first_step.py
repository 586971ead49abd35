"""From a process's first line to the end of its first training step, stage by stage; imports torch no sooner than that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stages:
    """Seconds by stage, taken round functions of lowtide."""

    def __init__(self) -> None:
        self.seconds_s: dict[str, float] = {}
        self.ends_s: dict[str, float] = {}

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Times every call of a function that some module refers to."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.ends_s[stage] = time.perf_counter()
                self.seconds_s[stage] = self.seconds_s.get(stage, 0.0) + self.ends_s[stage] - began_s

        setattr(owner, name, timed)


def first_step(name: str, budget: str) -> dict[str, float]:
    """Seconds of every stage, in a process of its own that has imported nothing."""
    began_s = time.perf_counter()
    import torch

    import lowtide
    from benchmarks.networks import SUBJECTS, loss_in
    from lowtide.plan_cache.lookup import PlanLookup
    from lowtide.runtime import executor
    from lowtide.session import session

    import_s = time.perf_counter() - began_s
    torch.set_num_threads(2)
    subject = SUBJECTS[name]
    model, batch = subject.build(), subject.batch()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    stages = Stages()
    stages.wrap(session, "measure_step", "profile")
    stages.wrap(session, "plan_step", "plan")
    stages.wrap(PlanLookup, "_recall", "lookup")
    first_operator_s: list[float] = []
    inner = executor.Loaded.run

    def run(self: Any, *arguments: Any) -> Any:
        if not first_operator_s:
            first_operator_s.append(time.perf_counter())
        return inner(self, *arguments)

    executor.Loaded.run = run  # type: ignore[method-assign]
    lowtide.fit(model, budget=budget, optimizer=optimizer)

    def step() -> tuple[float, float]:
        """When it began and when it ended."""
        began_s = time.perf_counter()
        loss_in(model(**batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return began_s, time.perf_counter()

    began_s, ended_s = step()
    later_began_s, later_ended_s = step()
    seconds_s = stages.seconds_s
    profile_began_s, plan_began_s = (stages.ends_s[s] - seconds_s[s] for s in ("profile", "plan"))
    return {
        "import_s": import_s,
        "capture_s": profile_began_s - began_s,
        "profile_s": seconds_s["profile"],
        "plan_s": seconds_s["plan"],
        "lookup_s": seconds_s.get("lookup", 0.0),
        "to_first_operator_s": first_operator_s[0] - plan_began_s,
        "first_step_s": ended_s - began_s,
        "later_step_s": later_ended_s - later_began_s,
    }
