"""Separable potentials of mirror descent whose horizon functions are known."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.theory.norms import LpNorm, Norm
from toolkit.theory.potential import SeparablePotential

__all__ = [
    "AbsLog",
    "ExpSquare",
    "HyperbolicCosine",
    "HyperbolicEntropy",
    "Power",
    "SquarePlusFourth",
]


class Power(SeparablePotential):
    """``sum_j c_j |b_j|^p / p``: weighted l_p; with p = 2 and no weights plain gradient descent.

    Args:
        p: Above 1.
        weights: The ``c_j``, positive, one per coordinate; 1 by default.

    Raises:
        ValueError: If ``p`` is not above 1 and finite, or a weight is not positive.

    Example:
        >>> Power(3.0).gradient(torch.tensor([-2.0, 1.0])), Power(3.0).norm
        (tensor([-4.,  1.]), LpNorm(3))
    """

    def __init__(self, p: float, weights: Sequence[float] | Tensor | None = None) -> None:
        if not 1 < p < math.inf:
            raise ValueError(
                f"p must be above 1 and finite, got {p}. For p = 1 the gradient is bounded: take "
                "HyperbolicEntropy, whose horizon is l_1; for l_inf take HyperbolicCosine."
            )
        self.p = p
        self._norm = LpNorm(p, weights)

    @property
    def norm(self) -> Norm:
        """Weighted l_p, dual to l_{p/(p-1)}."""
        return self._norm

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``c |b|^p / p``."""
        return self._factors(weights) * weights.abs() ** self.p / self.p

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``c sign(b) |b|^(p-1)``."""
        return self._factors(weights) * weights.sign() * weights.abs() ** (self.p - 1)

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``sign(theta) |theta / c|^(1/(p-1))``."""
        return duals.sign() * (duals.abs() / self._factors(duals)) ** (1 / (self.p - 1))

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``c (p-1) |b|^(p-2)``; infinite at 0 for p < 2."""
        return self._factors(weights) * (self.p - 1) * weights.abs() ** (self.p - 2)

    def _factors(self, like: Tensor) -> Tensor:
        if self._norm.weights is None:
            return like.new_ones(())
        self._norm.scales(like.shape[-1])  # refuses another size
        return self._norm.weights.to(like)


class HyperbolicEntropy(SeparablePotential):
    """``sum_j b_j asinh(b_j / k) - sqrt(b_j^2 + k^2)``: l_1, slowly for large ``k``.

    Args:
        k: Above 0; the weights' scale below which it acts like l_2.

    Raises:
        ValueError: If ``k`` is not positive.

    Reference:
        Ghai, Hazan, Singer 2020, arXiv:1902.01903.
    """

    def __init__(self, k: float = 1.0) -> None:
        if not 0 < k < math.inf:
            raise ValueError(f"k must be positive and finite, got {k}. 1 is the usual choice.")
        self.k = k

    @property
    def norm(self) -> Norm:
        """l_1, dual to l_inf."""
        return LpNorm(1.0)

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``b asinh(b / k) - sqrt(b^2 + k^2)``."""
        root = torch.hypot(weights, weights.new_tensor(self.k))
        return weights * (weights / self.k).asinh() - root

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``asinh(b / k)``."""
        return (weights / self.k).asinh()

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``k sinh(theta)``."""
        return self.k * duals.sinh()

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``1 / sqrt(b^2 + k^2)``."""
        return 1 / torch.hypot(weights, weights.new_tensor(self.k))


class AbsLog(SeparablePotential):
    """``sum_j |b_j| log(1 + |b_j|)``: l_1, as the hyperbolic entropy."""

    @property
    def norm(self) -> Norm:
        """l_1, dual to l_inf."""
        return LpNorm(1.0)

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``|b| log(1 + |b|)``."""
        return weights.abs() * weights.abs().log1p()

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``sign(b) (log(1 + |b|) + |b| / (1 + |b|))``."""
        size = weights.abs()
        return weights.sign() * (size.log1p() + size / (1 + size))

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """By Newton's method in ``v = log(1 + |b|)``, where ``|theta| = v + 1 - exp(-v)``."""
        target = duals.abs()
        logs = torch.maximum(target - 1, target / 2)  # below the root; the function is concave
        for _ in range(7):
            logs = logs - (logs - (-logs).expm1() - target) / (1 + (-logs).exp())
        return duals.sign() * logs.expm1()

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``1 / (1 + |b|) + 1 / (1 + |b|)^2``."""
        inverse = 1 / (1 + weights.abs())
        return inverse + inverse**2


class HyperbolicCosine(SeparablePotential):
    """``sum_j cosh(b_j)``: l_inf. The dual variable overflows at ``|b| = 710`` in float64."""

    @property
    def norm(self) -> Norm:
        """l_inf, dual to l_1."""
        return LpNorm(math.inf)

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``cosh(b)``."""
        return weights.cosh()

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``sinh(b)``."""
        return weights.sinh()

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``asinh(theta)``."""
        return duals.asinh()

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``cosh(b)``."""
        return weights.cosh()


class ExpSquare(SeparablePotential):
    """``sum_j exp(b_j^2) / 2``: l_inf. The dual variable overflows at ``|b| = 26.5`` in float64."""

    @property
    def norm(self) -> Norm:
        """l_inf, dual to l_1."""
        return LpNorm(math.inf)

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``exp(b^2) / 2``."""
        return (weights**2).exp() / 2

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``b exp(b^2)``."""
        return weights * (weights**2).exp()

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``sign(theta) sqrt(W(2 theta^2) / 2)`` with Lambert's W, taken in logarithms."""
        # y = 2 b^2 solves y + log y = level. Newton from below the root in y, which is concave, for
        # large levels; from above the root in log y, which is convex, for small ones.
        level = (math.log(2) + 2 * duals.abs().log()).clamp(min=-2000, max=2000)
        high = level.clamp(min=1)
        large = high - high.log()
        low = level.clamp(max=1)
        small = low
        for _ in range(7):
            large = large - (large + large.log() - high) / (1 + 1 / large)
            small = small - (small.exp() + small - low) / (small.exp() + 1)
        # b = theta exp(-b^2) keeps what y has lost to underflow.
        near = duals * (-small.exp() / 2).exp()
        found = torch.where(level > 1, duals.sign() * (large / 2).sqrt(), near)
        return torch.where(duals.isinf(), duals, found)

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``(1 + 2 b^2) exp(b^2)``."""
        return (1 + 2 * weights**2) * (weights**2).exp()


class SquarePlusFourth(SeparablePotential):
    """``sum_j b_j^2 + b_j^4``: l_4, the growth that wins."""

    @property
    def norm(self) -> Norm:
        """l_4, dual to l_{4/3}."""
        return LpNorm(4.0)

    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``b^2 + b^4``."""
        return weights**2 + weights**4

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``2 b + 4 b^3``."""
        return 2 * weights + 4 * weights**3

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """The only real root of the cubic, in its hyperbolic form."""
        root = math.sqrt(6)
        return (2 / root) * ((0.75 * root * duals).asinh() / 3).sinh()

    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``2 + 12 b^2``."""
        return 2 + 12 * weights**2
