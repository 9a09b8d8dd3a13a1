"""Whether a loss has the multiclass exponential tail, by number."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.losses.perm import PERMLoss

__all__ = ["ExponentialTail", "exponential_tail", "has_exponential_tail"]


@dataclass(frozen=True)
class ExponentialTail:
    """Outcome of a random test of the exponential-tail property.

    Attributes:
        rate: The ``a`` tested, 0 if the derivative vanishes.
        constant: The ``c`` tested, 0 if the derivative vanishes.
        points: The number of points tested.
        above: Points at which a derivative exceeds the upper envelope.
        below: Points at which a derivative falls short of the lower envelope.
        example: Relative margins of one such point, or ``None``.
    """

    rate: float
    constant: float
    points: int
    above: int
    below: int
    example: Float[Tensor, " rivals"] | None

    @property
    def holds(self) -> bool:
        """Whether no point violates the property; a proof only of the contrary."""
        return self.above == self.below == 0


def exponential_tail(
    loss: PERMLoss,
    num_classes: int = 4,
    rate: float | None = None,
    constant: float | None = None,
    threshold: float = 0.0,
    generator: torch.Generator | None = None,
    points: int = 20_000,
) -> ExponentialTail:
    """Test the exponential-tail property at random relative margins ``u`` above a threshold.

    With ``q_k = -d psi / d u_k`` by automatic differentiation, in float64:
    ``c (1 - sum_j exp(-a u_j)) exp(-a u_k) <= q_k <= c (1 + exp(-a min u)) exp(-a u_k)``.

    Args:
        loss: Of which only ``psi`` is used.
        num_classes: At least 2; the property may depend on it.
        rate: The ``a``; by default read off the derivative between margins 30 and 34, all equal.
        constant: The ``c``; likewise.
        threshold: The margins are above it, within it and 40.
        generator: Of the points; a fixed seed by default.
        points: How many.

    Returns:
        The counts of violations, beyond a relative 1e-9 for rounding.

    Example:
        >>> from toolkit.losses import GammaPhiLoss, PairLogLoss
        >>> exponential_tail(PairLogLoss(temperature=2.0)).holds
        True
        >>> exponential_tail(GammaPhiLoss()).holds
        False

    Reference:
        Ravi, Scott, Soudry, Wang 2024, arXiv:2411.01350, definition of the ET property.
    """
    found_rate, found_constant = _read_off(loss, num_classes)
    a = found_rate if rate is None else rate
    c = found_constant if constant is None else constant
    generator = generator or torch.Generator().manual_seed(0)
    shape = (points, num_classes - 1)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    # Of all sizes, since violations may lie near the threshold or far out.
    spans = 40 * torch.rand(points, 1, generator=generator, dtype=torch.float64) ** 3
    margins = threshold + spans * uniform
    weights = _derivatives(loss, margins)
    tails = c * (-a * margins).exp()
    upper = tails * (1 + (-a * margins.amin(1, keepdim=True)).exp())
    lower = tails * (1 - (-a * margins).exp().sum(1, keepdim=True))
    above = (weights > upper * (1 + 1e-9)).any(1) | ~weights.isfinite().all(1)
    # A derivative of 0 is below any tail, whatever was read off.
    below = (weights < lower - 1e-9 * tails).any(1) | (weights <= 0).any(1)
    violating = margins[above | below]
    return ExponentialTail(
        rate=a,
        constant=c,
        points=points,
        above=int(above.sum()),
        below=int(below.sum()),
        example=violating[0] if len(violating) else None,
    )


def has_exponential_tail(loss: PERMLoss, num_classes: int = 4) -> bool:
    """Whether no violation of :func:`exponential_tail` is found at 20 000 points.

    Example:
        >>> from toolkit.losses import CrossEntropy, WestonWatkinsHinge
        >>> has_exponential_tail(CrossEntropy()), has_exponential_tail(WestonWatkinsHinge())
        (True, False)
    """
    return exponential_tail(loss, num_classes).holds


def _read_off(loss: PERMLoss, num_classes: int) -> tuple[float, float]:
    near, far = 30.0, 34.0
    margins = torch.tensor([[near], [far]], dtype=torch.float64).expand(2, num_classes - 1)
    logs = _derivatives(loss, margins)[:, 0].log()
    if not bool(logs.isfinite().all()):
        return 0.0, 0.0
    rate = float(logs[0] - logs[1]) / (far - near)
    return rate, float((logs[0] + rate * near).exp())


def _derivatives(loss: PERMLoss, margins: Tensor) -> Tensor:
    with torch.enable_grad():
        moving = margins.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss.psi(moving).sum(), moving)
    return -gradient
