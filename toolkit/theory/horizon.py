"""Horizon functions by number: sublevel sets of any separable potential, and which it may be."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.theory.norms import Norm
from toolkit.theory.potential import SeparablePotential

__all__ = ["CustomPotential", "Profile", "check_profile", "horizon_at", "level_radius"]

Profile = Callable[[Tensor], Tensor]


def level_radius(
    profile: Profile, levels: Float[Tensor, " *batch size"]
) -> Float[Tensor, " *batch size"]:
    """The largest ``t`` with ``f_j(t) - f_j(0) <= c``, to rounding.

    Args:
        profile: Maps ``(*batch, size)`` to ``f_j`` of each entry; grows for ``t >= 0``.
        levels: The ``c``, positive.

    Example:
        >>> level_radius(lambda b: b**2, torch.tensor([4.0, 9.0], dtype=torch.float64)).tolist()
        [2.0, 3.0]
    """
    base = profile(torch.zeros_like(levels))
    low, high = torch.full_like(levels, -1000.0), torch.full_like(levels, 1000.0)
    for _ in range(64):  # bisection of log2 t
        middle = (low + high) / 2
        # Also false where f is NaN or infinite, beyond the floats.
        within = profile(middle.exp2()) - base <= levels
        low, high = torch.where(within, middle, low), torch.where(within, high, middle)
    # The last few digits, which the logarithm has lost.
    low, high = (low - 1e-12).exp2(), (high + 1e-12).exp2()
    for _ in range(64):
        middle = (low + high) / 2
        within = profile(middle) - base <= levels
        low, high = torch.where(within, middle, low), torch.where(within, high, middle)
    return low


def horizon_at(
    potential: SeparablePotential, weights: Float[Tensor, " *batch size"], eta: float
) -> Float[Tensor, " *batch"]:
    """``eta f^{-1}(sum_j f(b_j / eta))``, which tends to ``phi_inf(b)`` as ``eta`` goes to 0.

    For one even ``f`` shared by all coordinates, shifted to 0 at 0. How fast it converges says how
    soon mirror flow feels the horizon: at once for a power, like ``1 / log(1 / eta)`` for the
    hyperbolic entropy.

    Args:
        potential: With the same profile in each coordinate.
        weights: The ``b``, not all 0, in float64.
        eta: Above 0; ``b / eta`` must not overflow the potential.

    Raises:
        ValueError: If the potential overflows.

    Example:
        >>> from toolkit.theory import Power
        >>> horizon_at(Power(2.0), torch.tensor([3.0, 4.0], dtype=torch.float64), 0.1)
        tensor(5., dtype=torch.float64)

    Reference:
        Pesme, Dragomir, Flammarion 2024, arXiv:2406.12763, on separable potentials.
    """
    scaled = weights.abs() / eta
    levels = (potential.profile(scaled) - potential.profile(torch.zeros_like(scaled))).sum(-1)
    if not bool(levels.isfinite().all()):
        raise ValueError(
            f"eta must keep phi(b / eta) within the floats, got {eta}. Take a larger one."
        )
    return eta * level_radius(potential.profile, levels.unsqueeze(-1)).squeeze(-1)


class CustomPotential(SeparablePotential):
    """A separable potential of one's own, with derivatives by automatic differentiation.

    Args:
        profile: Maps weights ``(*batch, size)`` to ``f_j`` of each entry, by torch functions.
        size: The number of coordinates.
        norm: Its horizon function, which no solver can be given by number alone; needed only
            where a reference is asked for.

    Raises:
        ValueError: If mirror flow with it is not covered; see :func:`check_profile`.

    Example:
        >>> potential = CustomPotential(lambda b: b**4, size=2)
        >>> potential.inverse(torch.tensor([4.0, 32.0], dtype=torch.float64))
        tensor([1., 2.], dtype=torch.float64)
    """

    def __init__(self, profile: Profile, size: int, norm: Norm | None = None) -> None:
        check_profile(profile, size)
        self._profile = profile
        self._norm = norm

    @property
    def norm(self) -> Norm:
        """The horizon function that was given.

        Raises:
            ValueError: If none was.
        """
        if self._norm is None:
            raise ValueError(
                "norm must be given for a potential of one's own, got None. Name the horizon "
                "function, such as LpNorm(2.0), or do without the reference."
            )
        return self._norm

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``f_j`` of each entry."""
        return self._profile(weights)

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``f_j'`` of each entry."""
        return _derivative(self._profile, weights)

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """By bisection of the gradient, to rounding."""
        target, sign = duals.abs(), torch.where(duals < 0, -1.0, 1.0).to(duals)
        size = level_radius(lambda entries: sign * self.gradient(sign * entries), target)
        return torch.where(duals == 0, 0.0, sign * size)

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``f_j''`` of each entry."""
        return _derivative(lambda entries: _derivative(self._profile, entries, keep=True), weights)


def check_profile(profile: Profile, size: int) -> None:
    """Refuse potentials outside the theory of mirror flow on separable data.

    By number, on points up to 1e140: each ``f_j`` must be defined on the whole line, convex with
    its minimum at 0, of a gradient that grows without bound, and all coordinates must grow alike:
    with ``r_j(c)`` of :func:`level_radius`, ``max_j r_j / min_j r_j`` must stay bounded in ``c``,
    or the limit of the sublevel sets is flat.

    Raises:
        ValueError: With the coordinate and the reason.
    """
    exponents = torch.arange(-2, 140.1, 0.25, dtype=torch.float64)
    points = (10**exponents)[:, None].expand(-1, size)
    sides = [(sign, sign * points) for sign in (1.0, -1.0)]
    for _, side in sides:
        _check_domain(profile(side), side)
    for sign, side in sides:
        values, gradients = profile(side), sign * _derivative(profile, side)
        for column in range(size):
            finite = values[:, column].isfinite() & gradients[:, column].isfinite()
            known = int(finite.long().cumprod(0).sum())  # before the first overflow
            _check_axis(gradients[:known, column], points[:known, column], column)
    _check_growth(lambda weights: profile(weights), size, "to the right")
    _check_growth(lambda weights: profile(-weights), size, "to the left")


def _check_domain(values: Tensor, points: Tensor) -> None:
    # Values beyond the floats are infinite or, by way of infinity, NaN; not below 10, however.
    bad = ~values.isfinite() & (points.abs() <= 10)
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the potential's coordinate {column} must be defined on the whole line, got "
            f"{float(values[row, column])} at {float(points[row, column]):.3g}. Potentials on a "
            "part of R^d, such as entropies and barriers, are not covered by the theory."
        )


def _check_axis(gradients: Tensor, points: Tensor, column: int) -> None:
    name = f"the potential's coordinate {column}"
    if not bool((gradients > 0).all()) or bool((gradients.diff() < -1e-12 * gradients[1:]).any()):
        raise ValueError(
            f"{name} must be convex with its minimum at 0, got a derivative that falls or points "
            "inwards. Shift or replace it."
        )
    last, middle = float(gradients[-1]), float(gradients[points <= points[-1] ** 0.5][-1])
    if last < 1.05 * middle:
        raise ValueError(
            f"{name} must have an unbounded derivative, got {last:.6g} at "
            f"{float(points[-1]):.3g}. Growth like |b| is too slow: take one like |b| log |b|."
        )


def _check_growth(profile: Profile, size: int, side: str) -> None:
    spreads = []
    for level in (1e20, 1e60):
        radii = level_radius(profile, torch.full((size,), level, dtype=torch.float64))
        spreads.append(float(radii.max() / radii.min()))
    if spreads[1] > 1.5 * spreads[0]:
        raise ValueError(
            f"the potential's coordinates must grow alike, got sublevel sets {side} whose widths "
            f"differ {spreads[0]:.3g} times at level 1e20 and {spreads[1]:.3g} times at 1e60. "
            "Their limit is flat, and the horizon function infinite: use one growth for all."
        )


def _derivative(profile: Profile, weights: Tensor, *, keep: bool = False) -> Tensor:
    with torch.enable_grad():
        inputs = weights if keep else weights.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(profile(inputs).sum(), inputs, create_graph=keep)
    return gradient
