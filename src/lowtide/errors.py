"""The exceptions and warnings of lowtide, each with the remedy in its text."""

from __future__ import annotations

from lowtide.printable import printable


class LowtideError(Exception):
    """Base of every error that lowtide raises on purpose."""

    def __str__(self) -> str:
        """The message; what it quotes of a file or a model commands no terminal."""
        return printable(super().__str__())


class ArgumentError(LowtideError, TypeError, ValueError):
    """Something was given that is of the wrong kind, or out of range; the text says what is wanted, with an example."""


class BudgetError(LowtideError, ValueError):
    """A budget that cannot be read, or that makes no sense on this device."""


class LinkError(LowtideError, ValueError):
    """A link between device and host that cannot be read, or that there is not."""


class NumericsError(LowtideError, ValueError):
    """A level of numerics that there is not, or implementations to leave out that there are not."""


class InfeasibleBudget(LowtideError):
    """No plan fits the budget. Nothing has been changed: no parameter, buffer or generator.

    Arguments:
        message: names budget, floor, smallest feasible budget and the operators that set the floor.
        budget_B: what was asked.
        floor_B: proved: no schedule of the planned class lives in fewer bytes.
        smallest_B: the smallest budget for which a plan was found; None when none was.
        operators: the operators that set the floor, largest first.
        proof: the plan for `smallest_B`, a `PlanRecord`; None where there is none at hand.
        host_budget_B: what may be used of the host; 0 where nothing may be moved, None for no limit.
    """

    def __init__(
        self,
        message: str,
        *,
        budget_B: int = 0,
        floor_B: int = 0,
        smallest_B: int | None = None,
        operators: tuple[str, ...] = (),
        proof: object | None = None,
        host_budget_B: int | None = 0,
    ) -> None:
        super().__init__(message)
        self.budget_B = budget_B
        self.floor_B = floor_B
        self.smallest_B = smallest_B
        self.operators = operators
        self.proof = proof
        self.host_budget_B = host_budget_B


class BudgetWarning(UserWarning):
    """A budget that holds for less than one might think; the text says what to do."""


class OptimizerError(LowtideError, TypeError):
    """An object that was given as the optimizer is none."""


class CaptureError(LowtideError):
    """The program could not be captured, or a part of it would run outside the plan."""


class InexactCapture(CaptureError):
    """A capture may differ from plain PyTorch in the last bits, and `numerics="exact"` was asked for.

    Arguments:
        message: names every reason, with the line and the remedy.
        reasons: one text each.
    """

    def __init__(self, message: str, *, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class RecompileLimit(CaptureError):
    """torch would stop compiling and go on in eager, outside the budget."""


class UnsupportedOperator(CaptureError):
    """An operator that lowtide cannot carry out faithfully."""


class RanksError(LowtideError, RuntimeError):
    """The ranks that train a model together cannot take a step together: another one failed, or runs other code.

    Arguments:
        message: names the rank and what it raised, or what differs.
        is_final: whether these ranks cannot go on, so that they have to be started anew.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class BackwardError(LowtideError, RuntimeError):
    """A backward pass whose values are gone, or that is not supported."""


class FaintScale(LowtideError, ArithmeticError):
    """Scales so near zero that a normalisation's gradient cannot be made from its output. Nothing has been changed."""


class VerificationError(LowtideError):
    """A step whose bits could not be shown to be plain PyTorch's. Nothing of the model has been changed.

    Arguments:
        message: what differs, or why it could not be found out.
        verification: what the comparison has shown, a `lowtide.Verification`; None where there was none.
    """

    def __init__(self, message: str, *, verification: object | None = None) -> None:
        super().__init__(message)
        self.verification = verification


class PlanError(LowtideError):
    """Base of everything that can be wrong with a plan."""


class IllegalPlan(PlanError):
    """A schedule breaks a rule; the text names the rule and the step."""


class PlanFileError(PlanError):
    """A plan file that is damaged, foreign, or of another version."""


class PlanMismatch(PlanError):
    """A plan that was made for another program, shape, torch, device or thread count."""


class PackingError(LowtideError, ValueError):
    """Buffers that cannot be placed as they are described, or not within the capacity asked for."""


class ShimUnavailable(LowtideError):
    """lowtide's memory arena, or the engine of `lowtide.eager`, cannot be compiled or loaded; the text says what to do.

    Budgets of `fit` are then accounted, not enforced.
    """


class ArenaError(LowtideError, ValueError):
    """An arena that cannot be made as asked, or a table of places that is none."""


class StorageError(LowtideError):
    """A storage whose bytes may not be dropped or moved; it is unchanged."""


class EagerError(LowtideError, RuntimeError):
    """A context of `lowtide.eager` that cannot be opened or left here, or does not know what it was asked for."""
