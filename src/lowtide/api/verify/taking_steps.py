"""Steps of a model of its own, plain or planned, with a digest of everything that each leaves behind.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import platform
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import lowtide
from lowtide.api.fit import fit, unfit
from lowtide.api.train_step import TrainStep, session_of
from lowtide.api.verify import whole_steps
from lowtide.api.verify.observed_steps import ObservedPlain, ObservedRuns
from lowtide.api.verify.whole_steps import Recipe
from lowtide.device.arena import nothing_engaged
from lowtide.device.arrivals import Arrivals, GradientLayout
from lowtide.device.digest import content_digest, digest
from lowtide.device.fingerprint import fingerprint
from lowtide.device.trees import leaves_with_paths, mapped, tensors_in, written
from lowtide.errors import LowtideError, VerificationError
from lowtide.plan_cache.lookup import PlanLookup
from lowtide.results.verification import Difference, Machine, PlanFacts, Taken, Task
from lowtide.session.handle import Fitted
from lowtide.session.objective import Objective

LossFn = Callable[[Any], torch.Tensor]
Seen = ObservedPlain | ObservedRuns
GradientLayouts = frozenset[tuple[str, GradientLayout]]
"""Outputs of a model that get a gradient, by name, and how each gradient lies in memory."""


@dataclass
class Subject:
    """A model with what it is called with; steps change it.

    Arguments:
        optimizer: steps after every backward; None for parameters that do not change. Gradients are freed in between.
        loss_fn: makes the loss of what the model returns; None for the loss that the model returns, or else for fixed
            gradients of all that it returns.
        gradient_layouts: the outputs that get gradients, and how these lie; None where it is as said above.
        recipe: where whole steps are taken, of a model that is an `Objective`.

    Raises:
        LowtideError: if the model is no `torch.nn.Module`.
    """

    model: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None
    loss_fn: LossFn | None = None
    gradient_layouts: GradientLayouts | None = None
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, torch.nn.Module):
            raise LowtideError(f"verify is about a torch.nn.Module, and this is a {type(self.model).__name__}")


@dataclass(frozen=True)
class Beforehand:
    """The state from which a planned step begins.

    Arguments:
        lookup: of plans; those that are made are kept there, for who is going to need the same ones.
        arrivals: how gradients have come.
    """

    lookup: PlanLookup
    arrivals: Mapping[str, Arrivals] = field(default_factory=dict)


def take(subject: Subject, task: Task, planned: Mapping[str, Any], known: Beforehand | None = None) -> Taken:
    """Carries out a task.

    Arguments:
        subject: is changed, and left to whoever gave it.
        planned: keyword arguments of `lowtide.fit`, or `TrainStep`, for a step inside the budget.
        known: to that step when it begins; None for nothing.

    Raises:
        VerificationError: if a plain step needs more memory than there is.
        LowtideError: as `lowtide.fit` and the first call of what it returns.
    """
    stage = _Stage(subject, task)
    before = {name: digest(t) for name, t in (*_state(subject), *_inputs(subject))}
    seen: Seen | None
    if task.kind in ("planned", "captured"):
        seen, plan = _run_planned(stage, planned, known)
    else:
        seen, plan = _run_plain(stage), None
    held = stage.save(None if seen is None else seen.held)
    return Taken(
        before=before,
        after=tuple(stage.after),
        size_B=stage.size_B,
        ran=() if seen is None else tuple(seen.ran),
        apart=tuple(stage.apart),
        held=held,
        plan=plan,
        machine=_machine(subject.model),
    )


def _run_plain(stage: _Stage) -> Seen | None:
    """Takes the steps of a task without lowtide; returns what was observed, if it is to be."""
    subject, task = stage.subject, stage.task
    if task.kind == "float64":
        _in_float64(subject)
    observed = ObservedPlain(subject.model) if task.observed else None
    with _enough_memory(), observed or contextlib.nullcontext():
        stage.take(observed)
    return observed


def _run_planned(
    stage: _Stage, planned: Mapping[str, Any], known: Beforehand | None
) -> tuple[ObservedRuns | None, PlanFacts]:
    """Takes the steps of a task inside the budget; returns what was observed, if it is to be, and the plan's facts."""
    subject, task = stage.subject, stage.task
    how = dict(planned) if task.kind == "planned" else {**planned, "scope": "none"}
    step = None
    if subject.recipe is not None:
        assert isinstance(subject.model, Objective)
        assert subject.optimizer is not None
        step = whole_steps.planned(subject.model, subject.optimizer, subject.recipe, how)
        session = session_of(step)
    else:
        handle = fit(subject.model, optimizer=subject.optimizer, **how).lowtide
        assert isinstance(handle, Fitted), "fit has put it there"
        session = handle.session
    if known is not None:
        session.lookup = known.lookup
        session.arrivals.update(known.arrivals)
    runs = ObservedRuns(session.active_plans, task) if task.observed else None
    stage.take(runs, step)
    record = session.active_plans.latest
    assert record is not None, "what has run has a plan"
    plain_B = record.keep_all_peak_B + record.reserve_B
    if step is not None:
        step.close()
    else:
        unfit(subject.model)
    return runs, PlanFacts(record.budget_B, record.budget_kind, record.reserved_B, plain_B, record.graphs)


def seed_generators(seed: int = 0) -> None:
    """Seeds every generator that belongs to nobody, so that a model is made the same in every process."""
    torch.manual_seed(seed)
    random.seed(seed)
    with contextlib.suppress(ModuleNotFoundError):
        import numpy

        numpy.random.seed(seed)


class _Stage:
    """Steps that are being taken, and what has been seen of their results."""

    def __init__(self, subject: Subject, task: Task) -> None:
        self.subject, self.task = subject, task
        self.after: list[dict[str, str]] = []
        self.size_B: dict[str, int] = {}
        self.apart: list[Difference] = []
        self._kept: dict[tuple[int, str], torch.Tensor] = {}
        self._others: dict[tuple[int, str], torch.Tensor] = torch.load(task.against) if task.against else {}

    def take(self, seen: Seen | None, whole: TrainStep | None = None) -> None:
        """Takes the steps of the task.

        Arguments:
            whole: takes whole steps; None where a loop does.
        """
        subject, recipe = self.subject, self.subject.recipe
        if recipe is not None:
            _free_gradients(subject)  # those that a step begins with are its own
        for step in range(self.task.steps):
            if seen is not None:
                seen.begin(step)
            self.after.append({})
            if recipe is None:
                self._loop(seen)
            elif whole is not None:
                whole_steps.planned_step(whole, subject.args, subject.kwargs, recipe, self._look)
            else:
                assert subject.optimizer is not None
                call = functools.partial(subject.model, *subject.args, **subject.kwargs)
                whole_steps.plain_step(
                    subject.model, subject.optimizer, call, recipe, self._look, functools.partial(_behind, seen)
                )
            self._look(_state(subject))
            _free_gradients(subject)

    def _loop(self, seen: Seen | None) -> None:
        """Forward, backward, and the optimizer's step."""
        subject = self.subject
        outputs = subject.model(*subject.args, **subject.kwargs)
        _behind(seen)
        _backward(outputs, subject)
        self._look(_named_outputs(outputs))
        del outputs
        self._look(_gradients(subject))
        if subject.optimizer is not None and not _wants_closure(subject.optimizer):
            subject.optimizer.step()

    def save(self, held: tuple[str, torch.Tensor] | None) -> Difference | None:
        """Writes what is to be kept, or compares the held result of an operator with the one in the file."""
        task = self.task
        if task.file:
            torch.save(self._kept if task.hold is None else {} if held is None else {(0, ""): held[1]}, task.file)
        if task.hold is None or held is None or (0, "") not in self._others:
            return None
        return difference(held[0], task.hold.step + 1, self._others[0, ""], held[1])

    def _look(self, results: Iterable[tuple[str, torch.Tensor]]) -> None:
        step = len(self.after)
        for name, tensor in results:
            self.after[-1][name] = digest(tensor)
            self.size_B[name] = tensor.numel() * tensor.element_size()
            if step == self.task.steps and name in self.task.keep:
                with nothing_engaged():
                    self._kept[step, name] = tensor.detach().to("cpu", copy=True)
            other = self._others.get((step, name))
            if other is not None:
                with nothing_engaged():
                    found = difference(name, step, other, tensor.detach())
                if found is not None:
                    self.apart.append(found)


def _behind(seen: Seen | None) -> None:
    """Notes that a forward has ended."""
    if seen is not None:
        seen.segment = "backward"


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer calls the model itself, as LBFGS does: its step is not the end of one of the model's."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def difference(name: str, step: int, plain: torch.Tensor, other: torch.Tensor) -> Difference | None:
    """The difference of a result from plain PyTorch's; None where every bit is the same.

    Arguments:
        other: of any dtype; floats of another one are compared as numbers.
    """
    other = other.cpu()
    if plain.layout is not other.layout or plain.shape != other.shape:
        return Difference(
            name, step, note=f"{plain.layout} {tuple(plain.shape)} and {other.layout} {tuple(other.shape)}"
        )
    note = ""
    if plain.dtype == other.dtype and digest(plain) == digest(other):
        return None
    if plain.dtype == other.dtype and content_digest(plain) == content_digest(other):
        note = f"the same numbers in another order in memory: strides {plain.stride()} and {other.stride()}"
    a, b = (t.to_dense() if t.layout is not torch.strided else t for t in (plain, other))
    resolution = torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0
    a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
    unlike = (a != b) & ~(a.isnan() & b.isnan())
    apart = (a - b)[unlike].abs()
    return Difference(
        name,
        step,
        elements=int(unlike.sum()),
        of=a.numel(),
        largest=float(apart.max()) if apart.numel() else 0.0,
        distance=float(apart.norm()),
        norm=float(a.abs().norm()),
        resolution=resolution,
        note=note,
    )


def _backward(outputs: Any, subject: Subject) -> None:
    """A backward from the loss, or from what is differentiable with gradients that are the same every time."""
    laid_out = _as_they_come(outputs, subject.gradient_layouts or ())
    losses = [t for t, _ in laid_out] or ([subject.loss_fn(outputs)] if subject.loss_fn else _loss_of(outputs))
    losses = [t for t in losses if t.requires_grad]
    if not losses:
        return
    with contextlib.ExitStack() as plain:
        for device in dict.fromkeys(t.device.type for t in losses):  # autocast is for forwards
            plain.enter_context(torch.autocast(device, enabled=False))
        torch.autograd.backward(losses, [g for _, g in laid_out] or [_cotangent(i, t) for i, t in enumerate(losses)])


def guessed_layouts(outputs: Any) -> GradientLayouts:
    """The gradients that outputs get where nothing is known of the loss."""
    losses = {id(t) for t in _loss_of(outputs) if t.requires_grad}
    named = {id(t): (name, t) for name, t in reversed(list(_named_outputs(outputs))) if id(t) in losses}
    return frozenset((name, GradientLayout(tuple(range(t.dim())))) for name, t in named.values())


def watch_gradients(outputs: Any, came: Callable[[str, torch.Tensor | None], None]) -> None:
    """Has a function called with an output's name and its gradient, in backwards in which others may have one alone."""
    named = {id(t): (name, t) for name, t in reversed(list(_named_outputs(outputs))) if t.grad_fn is not None}
    for name, tensor in named.values():
        tensor.register_hook(functools.partial(came, name))  # type: ignore[no-untyped-call]


def _as_they_come(
    outputs: Any, gradient_layouts: Iterable[tuple[str, GradientLayout]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs with gradients that lie in memory in certain ways; empty where none is among the outputs."""
    known = dict(_named_outputs(outputs))
    layouts = [
        (known[name], layout) for name, layout in sorted(gradient_layouts, key=lambda entry: entry[0]) if name in known
    ]
    return [(t, _laid_out(i, t, layout)) for i, (t, layout) in enumerate(layouts) if t.requires_grad]


def _laid_out(number: int, output: torch.Tensor, layout: GradientLayout) -> torch.Tensor:
    """A gradient of an output that lies in memory in a certain way."""
    strides = layout.strides_of(output.shape)
    with nothing_engaged():
        extent = 0 if 0 in output.shape else 1 + sum((n - 1) * s for n, s in zip(output.shape, strides, strict=True))
        drawn = torch.randn(extent, generator=torch.Generator().manual_seed(number))
        return drawn.to(output.device, output.dtype).as_strided(output.shape, strides)


def _loss_of(outputs: Any) -> list[torch.Tensor]:
    """The loss that a model returns, or everything that it returns."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
        return [loss]
    return list({id(t): t for _, t in _named_outputs(outputs)}.values())


def _cotangent(number: int, output: torch.Tensor) -> torch.Tensor | None:
    """The gradient of an output: of a single number 1, else of both signs."""
    if output.numel() == 1:
        return None
    with nothing_engaged():
        drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(number))
        return drawn.to(output.device, output.dtype)


def _named_outputs(outputs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors and numbers of what a model returned, by where they stand in it."""
    for path, leaf in leaves_with_paths(outputs):
        parts = [("", leaf)]
        if not isinstance(leaf, torch.Tensor | int | float | complex | str) and hasattr(leaf, "__dict__"):
            parts = [(f".{name}", part) for name, part in vars(leaf).items()]
        for name, part in parts:
            if isinstance(part, torch.Tensor):
                yield f"output{written(path)}{name}", part
            elif isinstance(part, bool | int | float | complex):
                yield f"output{written(path)}{name}", torch.tensor(part)


def _inputs(subject: Subject) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in leaves_with_paths((subject.args, subject.kwargs)):
        if isinstance(leaf, torch.Tensor):
            yield f"input {written(path)}", leaf


def _gradients(subject: Subject) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in subject.model.named_parameters():
        if parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad
    for name, tensor in _inputs(subject):
        if tensor.is_leaf and tensor.grad is not None:
            yield f"gradient of {name}", tensor.grad


def _free_gradients(subject: Subject) -> None:
    """Sets gradients to None, as a training loop does between two steps; the smallest budgets do not hold them."""
    for tensor in (*subject.model.parameters(), *tensors_in((subject.args, subject.kwargs))):
        if tensor.is_leaf:
            tensor.grad = None


def _state(subject: Subject) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers, the optimizer's state, and the generators that belong to nobody."""
    names: dict[torch.Tensor, str] = {}
    for name, tensor in subject.model.named_parameters():
        names[tensor] = name
        yield f"parameter {name}", tensor
    for name, buffer in subject.model.named_buffers():
        yield f"buffer {name}", buffer
    if subject.optimizer is not None:
        for index, (parameter, state) in enumerate(subject.optimizer.state.items()):
            for key, value in state.items() if isinstance(state, Mapping) else ():
                if isinstance(value, torch.Tensor):
                    yield f"optimizer state {key} of {names.get(parameter, index)}", value
    yield "generator of torch", torch.get_rng_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            yield f"generator of cuda:{index}", torch.cuda.get_rng_state(index)
    yield "generator of Python", _as_bytes(random.getstate())
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        yield "generator of numpy", _as_bytes((kind, keys.tolist(), rest))


def _as_bytes(state: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(repr(state), "utf-8"), dtype=torch.uint8)


def _in_float64(subject: Subject) -> None:
    """Makes everything that floats a float64: the model, its inputs, the optimizer's state."""
    subject.model.double()
    if isinstance(subject.model, Objective):
        subject.model.autocast = None
    subject.args = mapped(_double, subject.args)
    subject.kwargs = mapped(_double, subject.kwargs)
    for state in () if subject.optimizer is None else subject.optimizer.state.values():
        state.update({key: _double(value) for key, value in state.items()})


def _double(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def _enough_memory() -> Iterator[None]:
    """Inside, a plain step that needs more memory than there is becomes an error with a remedy.

    Raises:
        VerificationError: then.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise VerificationError(
            "a step of plain PyTorch needs more memory than there is here, so there is nothing to compare with: verify "
            "with a smaller batch, or on a machine with more memory."
        ) from error


def _machine(model: torch.nn.Module) -> Machine:
    devices = {t.device.type for t in (*model.parameters(), *model.buffers())}
    found = fingerprint("cuda" if "cuda" in devices else "cpu")
    return Machine(
        found.device, found.capability, found.threads, found.torch, platform.python_version(), lowtide.__version__
    )
