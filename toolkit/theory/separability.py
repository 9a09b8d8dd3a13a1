"""Whether linear data can be separated, and by how little they fail to be."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

__all__ = ["LeastViolation", "NotSeparableError", "least_violation"]


@dataclass(frozen=True)
class LeastViolation:
    """How far constraints ``G w >= 1`` are from being met by any ``w``.

    Attributes:
        total_slack: The least ``sum_i max(0, 1 - (G w)_i)`` over all ``w``; 0 if separable.
        weights: A ``w`` that reaches it.
        violated: The rows with ``(G w)_i <= 0`` at that ``w``, in order.
        certificate: A convex combination of the rows; where no ``w`` separates, it is zero, which
            nothing but non-separable data allows (Gordan's theorem).
        residual: The largest entry of that combination ``G' certificate``, relative to that of
            ``G``: about 0 if the data are not separable.
    """

    total_slack: float
    weights: Float[Tensor, " size"]
    violated: Int[Tensor, " violated"]
    certificate: Float[Tensor, " rows"]
    residual: float


class NotSeparableError(ValueError):
    """Raised where a margin was asked of data that no linear classifier separates.

    Attributes:
        violation: What the least violation is.
    """

    def __init__(self, message: str, violation: LeastViolation) -> None:
        super().__init__(message)
        self.violation = violation


def least_violation(constraints: Float[Tensor, "rows size"]) -> LeastViolation:
    """The least total violation of ``G w >= 1``, by a linear program, with its certificate.

    Args:
        constraints: The ``G``: rows ``y_i x_i``, or differences of classes.

    Example:
        >>> least = least_violation(torch.tensor([[1.0], [-3.0], [-4.0]]))
        >>> round(least.total_slack, 6), least.violated.tolist(), round(least.residual, 6)
        (1.333333, [0], 0.0)
    """
    matrix: NDArray[np.float64] = constraints.double().numpy()
    rows, size = matrix.shape
    # Scaled to entries of about 1, the size that the solver's tolerances are made for.
    scale = float(np.abs(matrix).max()) or 1.0
    solved = linprog(
        np.concatenate([np.zeros(size), np.ones(rows)]),
        A_ub=-np.hstack([matrix / scale, np.eye(rows)]),
        b_ub=-np.ones(rows),
        bounds=[(None, None)] * size + [(0, None)] * rows,
        method="highs",
    )
    weights = solved.x[:size] / scale
    dual = np.maximum(-solved.ineqlin.marginals, 0)
    total = dual.sum()
    dual = dual / total if total > 0 else np.full(rows, 1 / rows)
    margins = matrix @ weights
    return LeastViolation(
        total_slack=float(np.maximum(0, 1 - margins).sum()),
        weights=torch.from_numpy(weights),
        violated=torch.from_numpy(np.flatnonzero(margins <= 1e-9)),
        certificate=torch.from_numpy(dual),
        residual=float(np.abs(dual @ matrix).max() / scale),
    )
