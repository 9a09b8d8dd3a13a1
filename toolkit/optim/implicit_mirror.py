"""Implicit steps of mirror flow, for potentials that are too stiff for explicit ones."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.optim.full_batch import State
from toolkit.optim.mirror import RUNNING, MirrorMap, apply_rows, stopping

__all__ = ["ImplicitMirrorFlow"]

LARGE = 1e150


@dataclass(frozen=True)
class ImplicitMirrorFlow:
    """Implicit steps of mirror flow on the exponential loss ``mean_i exp(-z_i)``, ``z = Z w``.

    Each minimises ``phi(b) - <theta, b> + delta logsumexp(-Z b)`` by damped Newton, then
    ``theta += delta p' Z`` with ``p = softmax(-Z b)``: ``delta n / sum_i exp(-z_i)`` of the flow's
    own time. The step ``delta`` of each run shrinks by 0.4 until Newton converges and no margin
    changes by more than ``max(max_change, max_share * least margin)``, and grows by 1.6 when it
    did. Runs stop as those of :class:`toolkit.optim.TimeChangedMirrorFlow`.

    Attributes:
        potential: The ``phi``.
        signed: The ``Z``: rows ``y_i x_i`` of each run, ``(*data, examples, size)``.
        max_change: Of a margin per update.
        max_share: Of the least margin, that any margin may change by.
        max_attempts: To find the step, per update.
        newton_steps: At most, per attempt.
        tolerance: Of the optimality condition, relative to the dual variable.
    """

    potential: MirrorMap
    signed: Tensor
    max_change: float = 0.2
    max_share: float = 0.02
    max_attempts: int = 60
    newton_steps: int = 30
    tolerance: float = 1e-9

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """Dual variable, step 0.1, logarithm of the flow's time (none has passed), all running."""
        shape = weights.shape[:-1]
        return {
            "dual": self.potential.gradient(weights),
            "step": weights.new_full(shape, 0.1),
            "log_time": weights.new_full(shape, -torch.inf),
            "stopped": torch.full(shape, RUNNING, dtype=torch.int64, device=weights.device),
        }

    def update(
        self, weights: Float[Tensor, " *runs size"], state: State
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """The weights and the state after a step; the arguments stay as they are."""
        margins = apply_rows(self.signed, weights)
        allowed = (self.max_share * margins.amin(-1)).clamp(min=self.max_change)
        start, step, pending = weights, state["step"], state["stopped"] == RUNNING
        for _ in range(self.max_attempts):
            moved, converged = self._minimise(start, state["dual"], step)
            moves = (apply_rows(self.signed, moved) - margins).abs().amax(-1)
            taken = pending & converged & (moves <= allowed)
            weights = torch.where(taken.unsqueeze(-1), moved, weights)
            pending = pending & ~taken
            if not bool(pending.any()):
                break
            step = torch.where(pending, 0.4 * step, step)
        took = (state["stopped"] == RUNNING) & ~pending
        ends = apply_rows(self.signed, weights)
        moved_dual = state["dual"] + step.unsqueeze(-1) * self._pull(ends)
        dual = torch.where(took.unsqueeze(-1), moved_dual, state["dual"])
        passed = (step * ends.shape[-1]).log() - (-ends).logsumexp(-1)
        return weights, {
            "dual": dual,
            "step": torch.where(took, 1.6 * step, step),
            "log_time": torch.where(
                took, torch.logaddexp(state["log_time"], passed), state["log_time"]
            ),
            "stopped": stopping(state["stopped"], weights, dual, pending),
        }

    def _pull(self, margins: Tensor) -> Tensor:
        """``p' Z``: minus the gradient of the log-loss."""
        return ((-margins).softmax(-1).unsqueeze(-2) @ self.signed).squeeze(-2)

    def _objective(self, weights: Tensor, dual: Tensor, step: Tensor) -> Tensor:
        log_loss = (-apply_rows(self.signed, weights)).logsumexp(-1)
        value = self.potential.value(weights) - (dual * weights).sum(-1) + step * log_loss
        return torch.where(value.isnan(), torch.inf, value)

    def _minimise(self, start: Tensor, dual: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """The minimiser, and which runs found it."""
        pull = self._pull(apply_rows(self.signed, start))
        # The explicit step leads away from points where second derivatives are 0 or infinite.
        guess = self.potential.inverse(dual + step.unsqueeze(-1) * pull)
        better = self._objective(guess, dual, step) < self._objective(start, dual, step)
        point = torch.where(better.unsqueeze(-1), guess, start)
        for _ in range(self.newton_steps):
            slope, size = self._slope(point, dual, step)
            if bool((slope.abs().amax(-1) <= self.tolerance * size).all()):
                break
            point = self._damped(point, self._newton(point, slope, step), dual, step)
        slope, size = self._slope(point, dual, step)
        return point, slope.abs().amax(-1) <= self.tolerance * size

    def _slope(self, point: Tensor, dual: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        pull = step.unsqueeze(-1) * self._pull(apply_rows(self.signed, point))
        slope = self.potential.gradient(point) - dual - pull
        return slope, torch.maximum(dual.abs(), pull.abs()).amax(-1)

    def _newton(self, point: Tensor, slope: Tensor, step: Tensor) -> Tensor:
        chances = (-apply_rows(self.signed, point)).softmax(-1)
        mean = (chances.unsqueeze(-2) @ self.signed).squeeze(-2)
        spread = (self.signed * chances.unsqueeze(-1)).mT @ self.signed
        spread = spread - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        matrix = self.potential.hessian(point).nan_to_num(posinf=LARGE)
        matrix = matrix + step[..., None, None] * spread
        # Rows and columns to a diagonal of 1: entries may differ by hundreds of powers of ten.
        scale = matrix.diagonal(dim1=-2, dim2=-1).clamp(min=1 / LARGE).rsqrt()
        scaled = matrix * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        ridge = 1e-14 * torch.eye(scaled.shape[-1]).to(scaled)
        solved, failed = torch.linalg.solve_ex(scaled + ridge, (scale * slope).unsqueeze(-1))
        newton = torch.where((failed == 0).unsqueeze(-1), scale * solved.squeeze(-1), 0.0)
        return -newton.nan_to_num(0.0, 0.0, 0.0)

    def _damped(self, point: Tensor, change: Tensor, dual: Tensor, step: Tensor) -> Tensor:
        """The longest of the changes 1, 1/2, ... that lowers the objective, up to rounding."""
        before = self._objective(point, dual, step)
        bound = before + 1e-13 * before.abs()
        length = torch.ones_like(step)
        for _ in range(40):
            high = ~(self._objective(point + length.unsqueeze(-1) * change, dual, step) <= bound)
            if not bool(high.any()):
                break
            length = torch.where(high, length / 2, length)
        else:
            length = torch.where(high, 0.0, length)
        return point + length.unsqueeze(-1) * change
