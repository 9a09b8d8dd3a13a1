"""``min norm(w) subject to G w >= 1``: the exact solvers behind the max margins."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, linprog, nnls

from toolkit.theory.interior_point import least_power_norm

__all__ = ["least_norm"]

Vector = NDArray[np.float64]


def least_norm(constraints: Vector, p: float) -> tuple[Vector, Vector]:
    """Minimise ``||w||_p`` subject to ``G w >= 1`` for a feasible ``G``.

    Linear programs for p = 1 and inf (HiGHS), the least-distance problem by non-negative least
    squares for p = 2, an interior-point method for the rest.

    Args:
        constraints: The ``G``, ``(rows, size)``.
        p: At least 1.

    Returns:
        ``w``, not necessarily feasible to the last digit, and multipliers ``>= 0`` of the rows.

    Raises:
        RuntimeError: If the linear program is not solved.

    Reference:
        Lawson and Hanson 1974, Solving Least Squares Problems, chapter 23 (least distance).
    """
    if p == 1:
        return _least_sum(constraints)
    if p == math.inf:
        return _least_maximum(constraints)
    if p == 2:
        return _least_distance(constraints)
    # From the nearest exact solution; in units of `size` all numbers are about 1.
    nearest = math.inf if p >= 8 else 1.0 if p <= 1.25 else 2.0
    weights, multipliers = least_norm(constraints, nearest)
    weights = weights / float((constraints @ weights).min())
    size = float(np.abs(weights).max())
    found, multipliers = least_power_norm(
        constraints * size, p, weights / size, np.maximum(multipliers, 0)
    )
    return found * size, multipliers


def _least_sum(constraints: Vector) -> tuple[Vector, Vector]:
    rows, size = constraints.shape
    solved = _linear_program(
        np.ones(2 * size),
        -np.hstack([constraints, -constraints]),
        -np.ones(rows),
        (0, None),
    )
    return solved.x[:size] - solved.x[size:], -solved.ineqlin.marginals


def _least_maximum(constraints: Vector) -> tuple[Vector, Vector]:
    # max g subject to G w >= g, -1 <= w <= 1.
    rows, size = constraints.shape
    solved = _linear_program(
        np.append(np.zeros(size), -1.0),
        np.hstack([-constraints, np.ones((rows, 1))]),
        np.zeros(rows),
        [(-1, 1)] * size + [(None, None)],
    )
    return solved.x[:size], -solved.ineqlin.marginals


def _linear_program(costs: Vector, upper: Vector, bound: Vector, bounds: object) -> OptimizeResult:
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solved = linprog(costs, A_ub=upper, b_ub=bound, bounds=bounds, method="highs", options=tight)
    if not solved.success:
        raise RuntimeError(
            f"the linear program of the max margin must be solved, got {solved.message!r}. Scale "
            "the inputs to entries of about 1."
        )
    return solved


def _least_distance(constraints: Vector) -> tuple[Vector, Vector]:
    rows, size = constraints.shape
    system = np.vstack([constraints.T, np.ones(rows)])
    target = np.append(np.zeros(size), 1.0)
    multipliers, _ = nnls(system, target, maxiter=50 * max(rows, size))
    residual = system @ multipliers - target
    weights = -residual[:size] / residual[size]
    # The residual loses digits where the margin is small; its support has the exact solution.
    support = np.flatnonzero(multipliers)
    solved = np.linalg.lstsq(constraints[support], np.ones(len(support)))[0]
    polished = np.asarray(solved, dtype=np.float64)
    if _margin(constraints, polished) > _margin(constraints, weights):
        weights = polished
    return weights, multipliers


def _margin(constraints: Vector, weights: Vector) -> float:
    return float((constraints @ weights).min() / np.linalg.norm(weights))
