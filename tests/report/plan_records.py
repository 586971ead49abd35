"""Hand-made plans, small enough to check with a pencil. Sizes are in MiB unless they say bytes."""

from __future__ import annotations

from lowtide.ir.call import Read
from lowtide.ir.graph import Effect, Graph, MiniTrace, Origin, Recipe, Role, Segment, Value
from lowtide.ir.plan import Covers, Environment, Outcome, PlanRecord, Status
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule

MiB = 2**20
W, X, A, MASK, B, LOSS, TANGENT, GA, GW, STATE, H = range(11)


def _recipe(
    index: int,
    op: str,
    reads: tuple[int, ...],
    outputs: tuple[int, ...],
    *,
    segment: int,
    time_s: float,
    line: int,
    effect: Effect = Effect.PURE,
    state: int | None = None,
    workspace: int = 0,
) -> Recipe:
    sizes = tuple(SIZES[o] * MiB for o in outputs if o != STATE)
    inside = (workspace * MiB, -len(sizes) - 1) if workspace else ()
    return Recipe(
        id=index,
        op=f"aten.{op}.default",
        outputs=outputs,
        reads=tuple(Read(r) for r in reads),
        segment=segment,
        time_s=time_s,
        trace=MiniTrace(sizes + inside, tuple(range(len(sizes)))),
        effect=effect,
        state=state,
        origin=Origin(f"net.{op}", f"model.py:{line}", f"    y = {op}(x)  # <&>"),
    )


SIZES = {W: 4, X: 2, A: 8, MASK: 2, B: 8, LOSS: 1, TANGENT: 1, GA: 8, GW: 4, STATE: 0, H: 12}


def graph() -> Graph:
    """A linear layer, a dropout, an exponential, a sum with a workspace, and their backward: 11 values."""
    role = {W: Role.PARAMETER, X: Role.INPUT, LOSS: Role.OUTPUT, TANGENT: Role.TANGENT, GW: Role.GRADIENT}
    role[STATE] = Role.GENERATOR
    names = ("weight", "x", "a", "mask", "b", "loss", "tangent", "grad_a", "grad_weight", "state", "h")
    values = tuple(
        Value(
            id=i,
            name=name,
            size_B=SIZES[i] * MiB or 16,
            role=role.get(i, Role.ACTIVATION),
            arrives={W: 0, X: 0, TANGENT: 1}.get(i),
            persistent=i == W,
            leaves={LOSS: 0, GW: 1}.get(i),
        )
        for i, name in enumerate(names)
    )
    recipes = (
        _recipe(0, "addmm", (W, X), (A,), segment=0, time_s=0.004, line=10),
        _recipe(
            1, "native_dropout", (A,), (B, MASK, STATE), segment=0, time_s=0.002, line=11,
            effect=Effect.RANDOM, state=STATE,
        ),
        _recipe(2, "exp", (B,), (H,), segment=0, time_s=0.001, line=12),
        _recipe(3, "sum", (H,), (LOSS,), segment=0, time_s=0.001, line=13, workspace=8),
        _recipe(4, "mul", (TANGENT, MASK, B), (GA,), segment=1, time_s=0.003, line=11),
        _recipe(5, "mm", (GA, X, A), (GW,), segment=1, time_s=0.005, line=10),
        _recipe(6, "native_dropout", (A,), (B, MASK), segment=0, time_s=0.002, line=11, state=STATE),
    )  # fmt: skip
    return Graph(
        values, recipes, (0, 1, 2, 3, 4, 5), (Segment("forward"), Segment("backward")), name="tiny", key="0123"
    )


def schedule() -> Schedule:
    """Keeps `a`, `mask` and the generator's state; replays `b`."""
    return Schedule(
        (
            Boundary(0),
            Run(0, (A,)),
            Run(1, (B, MASK, STATE)),
            Run(2, (H,)),
            Drop(B),
            Run(3, (LOSS,)),
            Drop(H),
            Boundary(1),
            Run(6, (B,)),
            Run(4, (GA,)),
            Drop(B),
            Drop(MASK),
            Drop(STATE),
            Drop(TANGENT),
            Run(5, (GW,)),
            Drop(GA),
            Drop(A),
            Drop(X),
        )
    )


def record(status: Status = Status.FEASIBLE, bound_s: float = 0.017) -> PlanRecord:
    """The plan above, with claims that fit it."""
    outcome = Outcome(
        schedule(), status, "local_search", bound_s=bound_s, bound_class="schedules in program order",
        floor_B=30 * MiB, floor_class="schedules in program order", floor_recipes=(4, 5), smallest_B=31 * MiB,
    )  # fmt: skip
    return PlanRecord(
        graph=graph(), schedule=schedule(), outcome=outcome, budget_B=40 * MiB, peak_B=38 * MiB + 16, time_s=0.018,
        keep_all_peak_B=46 * MiB, keep_all_time_s=0.016, outside_B=MiB,
        covers=Covers(("parameters", "activations"), ("optimizer state",)),
        environment=Environment("2.13.0", "cpu", 2, "0.1.0"),
    )  # fmt: skip
