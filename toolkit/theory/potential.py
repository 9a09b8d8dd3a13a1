"""Potentials of mirror descent, each with its horizon function: the norm that mirror flow favours.

Mirror flow ``d/dt grad phi(b) = -grad L(b)`` on separable data under a loss with an exponential
tail converges in direction to ``argmin phi_inf(b)`` subject to margins of at least 1, where the
horizon function ``phi_inf`` is the gauge of the limit of the normalised sublevel sets
``{phi <= c}``. It is defined up to a positive factor. Here ``phi`` must be defined on all of R^d,
strictly convex and of a gradient that is unbounded along every axis.

Reference: Pesme, Dragomir, Flammarion 2024, arXiv:2406.12763.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.theory.norms import Norm, QuadraticNorm

__all__ = ["Potential", "QuadraticForm", "SeparablePotential"]


class Potential(ABC):
    """A strictly convex function of the last axis, whose gradient maps weights to the dual."""

    @property
    @abstractmethod
    def norm(self) -> Norm:
        """The horizon function ``phi_inf``, up to a factor; ``norm.dual`` is its dual norm."""

    @abstractmethod
    def value(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """``phi`` of each vector; infinite where it overflows."""

    @abstractmethod
    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """The dual variable ``theta = grad phi``; infinite where it overflows."""

    @abstractmethod
    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """The weights of a dual variable."""

    @abstractmethod
    def hessian(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size size"]:
        """The matrix of second derivatives."""


class SeparablePotential(Potential):
    """``phi(b) = sum_j f_j(b_j)``."""

    @abstractmethod
    def profile(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``f_j`` of each entry."""

    @abstractmethod
    def curvature(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``f_j''`` of each entry."""

    def value(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The sum of the profiles."""
        return self.profile(weights).sum(-1)

    def hessian(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size size"]:
        """A diagonal matrix."""
        return torch.diag_embed(self.curvature(weights))


class QuadraticForm(Potential):
    """``b' M b / 2``, not separable: ``sqrt(b' M b)``.

    Args:
        matrix: The ``M``, symmetric and positive definite.

    Raises:
        ValueError: If ``M`` is not.
    """

    def __init__(self, matrix: Float[Tensor, " size size"]) -> None:
        self._norm = QuadraticNorm(matrix)

    @property
    def norm(self) -> Norm:
        """``sqrt(b' M b)``, dual to ``sqrt(g' M^-1 g)``."""
        return self._norm

    def value(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """``b' M b / 2``."""
        return (weights * self.gradient(weights)).sum(-1) / 2

    def gradient(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``M b``."""
        return weights @ self._norm.matrix.to(weights)

    def inverse(self, duals: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size"]:
        """``M^-1 theta``."""
        factor = self._norm.factor.to(duals)
        return torch.cholesky_solve(duals.unsqueeze(-1), factor).squeeze(-1)

    def hessian(self, weights: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch size size"]:
        """``M``."""
        return self._norm.matrix.to(weights).expand(*weights.shape, weights.shape[-1])
