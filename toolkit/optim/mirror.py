"""Mirror descent on any gradient, and mirror flow in a time in which margins grow steadily.

All follow ``d/dt grad phi(b) = -grad L(b)``, whose path does not depend on how fast it is run
through. In its own time margins grow like ``log t``; divided by the loss's size the gradient lets
them grow linearly.

Reference: Pesme, Dragomir, Flammarion 2024, arXiv:2406.12763.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.optim.full_batch import FullBatchMethod, Gradient, Setting, State, column
from toolkit.optim.linear_gradients import BinaryLoss, binary_weights

__all__ = [
    "OVERFLOWED",
    "RUNNING",
    "STUCK",
    "MirrorDescent",
    "MirrorMap",
    "TimeChangedMirrorFlow",
    "stop_reason",
]

RUNNING, OVERFLOWED, STUCK = 0, 1, 2
LARGEST = 1e300


@runtime_checkable
class MirrorMap(Protocol):
    """What mirror descent needs of a potential; :class:`toolkit.theory.Potential` has it."""

    def value(self, weights: Tensor, /) -> Tensor:
        """``phi`` of each vector of the last axis."""

    def gradient(self, weights: Tensor, /) -> Tensor:
        """The dual variable."""

    def inverse(self, duals: Tensor, /) -> Tensor:
        """The weights of a dual variable."""

    def hessian(self, weights: Tensor, /) -> Tensor:
        """Second derivatives, ``(*runs, size, size)``."""


@dataclass(frozen=True)
class MirrorDescent(FullBatchMethod):
    """``theta - rate g`` for the dual variable ``theta = grad phi(w)``; plain mirror descent.

    Attributes:
        potential: The ``phi``; ``|w|^2 / 2`` gives gradient descent.
    """

    potential: MirrorMap

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """The dual variable of the start."""
        return {"dual": self.potential.gradient(weights)}

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        dual = state["dual"] - column(rate) * gradient.full()
        return self.potential.inverse(dual), {"dual": dual}


@dataclass(frozen=True)
class TimeChangedMirrorFlow:
    """Explicit steps of mirror flow on ``mean_i l(z_i)``, ``z = Z w``, at any margin.

    ``theta += delta (q' Z) / n`` with ``q`` scaled to about 1, which is ``delta / scale`` of the
    flow's own time. The step ``delta`` of each run is halved until no margin changes by more than
    ``max_change``, and grows by 1.3 after a change of less than 0.6 of that. A run whose weights or
    dual variable come near the largest float, or whose step cannot be made small enough, stops and
    keeps its place; see :func:`stop_reason`.

    Potentials whose second derivative varies wildly (cosh, exp(b^2), high powers) or limits with
    coordinates near 0 want :class:`toolkit.optim.ImplicitMirrorFlow`.

    Attributes:
        potential: The ``phi``.
        signed: The ``Z``: rows ``y_i x_i`` of each run, ``(*data, examples, size)``; leading
            dimensions are the last ones of the weights'.
        loss: ``exponential`` or ``logistic``.
        max_change: Of a margin per update.
        max_halvings: Of the step per update, so that an update always ends.
    """

    potential: MirrorMap
    signed: Tensor
    loss: BinaryLoss = "exponential"
    max_change: float = 0.2
    max_halvings: int = 100

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """Dual variable, step 1, logarithm of the flow's time (none has passed), all running."""
        shape = weights.shape[:-1]
        return {
            "dual": self.potential.gradient(weights),
            "step": weights.new_ones(shape),
            "log_time": weights.new_full(shape, -torch.inf),
            "stopped": torch.full(shape, RUNNING, dtype=torch.int64, device=weights.device),
        }

    def update(
        self, weights: Float[Tensor, " *runs size"], state: State
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """The weights and the state after a step; the arguments stay as they are."""
        margins = apply_rows(self.signed, weights)
        factors, log_scale = binary_weights(margins, self.loss)
        direction = (factors.unsqueeze(-2) @ self.signed).squeeze(-2) / margins.shape[-1]
        step, dual = state["step"], state["dual"]
        pending = state["stopped"] == RUNNING
        change = torch.zeros_like(step)
        for _ in range(self.max_halvings):
            moved_dual = state["dual"] + step.unsqueeze(-1) * direction
            moved = self.potential.inverse(moved_dual)
            moves = (apply_rows(self.signed, moved) - margins).abs().amax(-1)
            taken = pending & (moves <= self.max_change)  # false where NaN
            weights = torch.where(taken.unsqueeze(-1), moved, weights)
            dual = torch.where(taken.unsqueeze(-1), moved_dual, dual)
            change = torch.where(taken, moves, change)
            pending = pending & ~taken
            if not bool(pending.any()):
                break
            step = torch.where(pending, step / 2, step)
        took = (state["stopped"] == RUNNING) & ~pending
        passed = torch.logaddexp(state["log_time"], step.log() - log_scale)
        return weights, {
            "dual": dual,
            "step": torch.where(took & (change < 0.6 * self.max_change), 1.3 * step, step),
            "log_time": torch.where(took, passed, state["log_time"]),
            "stopped": stopping(state["stopped"], weights, dual, pending),
        }


def stop_reason(code: int) -> str | None:
    """Why a run's entry of ``state["stopped"]`` says that it stopped, or ``None`` if it runs.

    Example:
        >>> stop_reason(0) is None
        True
    """
    return {
        OVERFLOWED: "the weights or the dual variable reached the largest float; with a potential "
        "that grows slower the run could go on",
        STUCK: "no step was small enough to keep the margins' change within bounds; start nearer "
        "to 0, or use the implicit step",
    }.get(code)


def apply_rows(signed: Tensor, weights: Tensor) -> Tensor:
    """The margins ``Z w`` of each run."""
    return (signed @ weights.unsqueeze(-1)).squeeze(-1)


def stopping(before: Tensor, weights: Tensor, dual: Tensor, pending: Tensor) -> Tensor:
    """Which runs stop, by the codes of :func:`stop_reason`."""
    large = torch.maximum(weights.abs(), dual.abs()).amax(-1) > LARGEST
    codes = torch.where(pending, STUCK, torch.where(large, OVERFLOWED, RUNNING))
    return torch.where(before == RUNNING, codes, before)
