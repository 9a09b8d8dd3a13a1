"""Norms and their duals, the currency of implicit bias: weighted l_p and sqrt(b' M b)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["LpNorm", "Norm", "QuadraticNorm"]


class Norm(ABC):
    """A norm of the last axis, with its dual norm."""

    @abstractmethod
    def __call__(self, vectors: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The norm of each vector."""

    @abstractmethod
    def dual(self, vectors: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The dual norm, ``max of <b, g> over the b of norm 1``, of each vector ``g``."""


class LpNorm(Norm):
    """Weighted l_p norm ``(sum_j c_j |b_j|^p)^(1/p)``; for p = inf ``max_j c_j |b_j|``.

    Its dual is the l_q norm, 1/p + 1/q = 1, of ``g_j / c_j^(1/p)`` (of ``g_j / c_j`` for p = inf).

    Args:
        p: At least 1; ``math.inf`` for the maximum.
        weights: The ``c_j``, positive and finite, one per coordinate; 1 by default.

    Raises:
        ValueError: If ``p`` is below 1 or a weight is not positive and finite.

    Example:
        >>> LpNorm(2.0)(torch.tensor([3.0, 4.0])), LpNorm(1.0).dual(torch.tensor([3.0, -4.0]))
        (tensor(5.), tensor(4.))
    """

    def __init__(self, p: float, weights: Sequence[float] | Tensor | None = None) -> None:
        if not p >= 1:
            raise ValueError(
                f"p must be at least 1, got {p}. Below 1 the l_p ball is not convex, and there is "
                "no norm."
            )
        self.p = float(p)
        self.weights = None
        if weights is not None:
            self.weights = torch.as_tensor(weights, dtype=torch.float64)
            if self.weights.ndim != 1 or not bool(
                ((self.weights > 0) & self.weights.isfinite()).all()
            ):
                raise ValueError(
                    "weights must be positive, finite and one per coordinate, got "
                    f"{self.weights.tolist()}. Leave out coordinates that should not count."
                )

    @property
    def q(self) -> float:
        """The exponent of the dual norm."""
        if self.p == 1:
            return math.inf
        return 1.0 if self.p == math.inf else self.p / (self.p - 1)

    def scales(self, size: int) -> Float[Tensor, " size"]:
        """The ``s_j`` for which the norm of ``b`` is the plain l_p norm of ``s_j b_j``.

        Raises:
            ValueError: If the number of weights is not ``size``.
        """
        if self.weights is None:
            return torch.ones(size, dtype=torch.float64)
        if len(self.weights) != size:
            raise ValueError(
                f"weights must be one per coordinate, got {len(self.weights)} for vectors of size "
                f"{size}. Give as many."
            )
        return self.weights if self.p == math.inf else self.weights ** (1 / self.p)

    def __call__(self, vectors: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The norm of each vector."""
        scaled = vectors * self.scales(vectors.shape[-1]).to(vectors)
        norm: Tensor = torch.linalg.vector_norm(scaled, self.p, dim=-1)
        return norm

    def dual(self, vectors: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The dual norm of each vector."""
        scaled = vectors / self.scales(vectors.shape[-1]).to(vectors)
        norm: Tensor = torch.linalg.vector_norm(scaled, self.q, dim=-1)
        return norm

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights={self.weights.tolist()}"
        return f"LpNorm({self.p:g}{weights})"


class QuadraticNorm(Norm):
    """``sqrt(b' M b)`` for a symmetric positive definite ``M``; its dual is ``sqrt(g' M^-1 g)``.

    Args:
        matrix: The ``M``.

    Raises:
        ValueError: If ``M`` is not square, symmetric and positive definite.

    Example:
        >>> QuadraticNorm(torch.diag(torch.tensor([4.0, 9.0])))(torch.tensor([1.0, 1.0]))
        tensor(3.6056)
    """

    def __init__(self, matrix: Float[Tensor, " size size"]) -> None:
        self.matrix = matrix.double()
        asymmetry = (self.matrix - self.matrix.mT).abs().max()
        if not float(asymmetry) <= 1e-12 * float(self.matrix.abs().max()):
            raise ValueError(
                f"matrix must be symmetric, got entries that differ by {float(asymmetry):.3g}. "
                "Take (M + M.T) / 2, which has the same quadratic form."
            )
        factor, failed = torch.linalg.cholesky_ex(self.matrix)
        if int(failed):
            lowest = float(torch.linalg.eigvalsh(self.matrix)[0])
            raise ValueError(
                f"matrix must be positive definite, got the eigenvalue {lowest:.3g}. Add a "
                "multiple of the identity."
            )
        self.factor: Tensor = factor

    def __call__(self, vectors: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The norm of each vector."""
        norm: Tensor = torch.linalg.vector_norm(vectors @ self.factor.to(vectors), dim=-1)
        return norm

    def dual(self, vectors: Float[Tensor, " *batch size"]) -> Float[Tensor, " *batch"]:
        """The dual norm of each vector."""
        solved = torch.linalg.solve_triangular(
            self.factor.to(vectors), vectors.unsqueeze(-1), upper=False
        )
        norm: Tensor = torch.linalg.vector_norm(solved.squeeze(-1), dim=-1)
        return norm

    def __repr__(self) -> str:
        return f"QuadraticNorm({len(self.matrix)} x {len(self.matrix)})"
