"""Least l_p norm under linear constraints, 1 < p < inf, by a primal-dual interior-point method."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["least_power_norm"]

Vector = NDArray[np.float64]


def least_power_norm(
    constraints: Vector,
    p: float,
    weights: Vector,
    multipliers: Vector,
    max_iterations: int = 500,
) -> tuple[Vector, Vector]:
    """Minimise ``sum_j |w_j|^p / p`` subject to ``G w >= 1``.

    Newton's method on the perturbed optimality conditions ``grad = G' a``, ``G w - 1 = s``,
    ``a_i s_i = mu``. For p >= 2 the unknowns are ``w`` and ``a``. Below 2 the second derivative is
    infinite at 0, that of the conjugate ``|theta|^q / q`` is not, so that only ``a`` is unknown and
    ``w`` is the conjugate's gradient at ``G' a``.

    Args:
        constraints: The ``G``, ``(rows, size)``.
        p: Above 1, finite.
        weights: A guess of ``w`` with ``G w >= 1``.
        multipliers: A guess of ``a``, up to a factor, not negative.
        max_iterations: Of Newton's method.

    Returns:
        ``w`` and the multipliers ``a >= 0``, as far as rounding let it get; the caller checks.

    Reference:
        Boyd and Vandenberghe 2004, Convex Optimization, algorithm 11.2.
    """
    system = _Primal(constraints, p) if p >= 2 else _Dual(constraints, p)
    # Powers may overflow on the way; what comes of that is no better than what there is.
    with np.errstate(all="ignore"):
        state = _start(system, p, 1.02 * weights, multipliers / multipliers.sum())
        best = _follow(system, state, max_iterations)
    return best.weights, best.multipliers


@dataclass(frozen=True)
class _State:
    weights: Vector
    multipliers: Vector
    slacks: Vector

    def moved(self, direction: "_State", step: float) -> "_State":
        return _State(
            self.weights + step * direction.weights,
            self.multipliers + step * direction.multipliers,
            self.slacks + step * direction.slacks,
        )


class _Primal:
    """Unknown ``w``, ``a``, ``s``; the system is of the size of ``w``."""

    def __init__(self, constraints: Vector, p: float) -> None:
        self.constraints = constraints
        self.p = p

    def residual(self, state: _State, mu: float) -> Vector:
        return np.concatenate(
            [
                self._gradient(state.weights) - state.multipliers @ self.constraints,
                self.constraints @ state.weights - 1 - state.slacks,
                state.multipliers * state.slacks - mu,
            ]
        )

    def direction(self, state: _State, mu: float) -> _State:
        size, rows = len(state.weights), len(state.slacks)
        dual, primal, centring = np.split(self.residual(state, mu), [size, size + rows])
        ratio = state.multipliers / state.slacks
        curvature = (self.p - 1) * np.abs(state.weights) ** (self.p - 2)
        matrix = np.diag(curvature) + self.constraints.T @ (ratio[:, None] * self.constraints)
        shift = centring / state.slacks + ratio * primal
        weights = _solve(matrix, -dual - shift @ self.constraints)
        slacks = self.constraints @ weights + primal
        return _State(weights, -(centring / state.slacks) - ratio * slacks, slacks)

    def complete(self, state: _State) -> _State:
        return state

    def _gradient(self, weights: Vector) -> Vector:
        gradient: Vector = np.sign(weights) * np.abs(weights) ** (self.p - 1)
        return gradient


class _Dual:
    """Unknown ``a``, ``s``; ``w`` follows from ``a``, the system is of the size of ``a``."""

    def __init__(self, constraints: Vector, p: float) -> None:
        self.constraints = constraints
        self.q = p / (p - 1)

    def residual(self, state: _State, mu: float) -> Vector:
        weights = self._weights(state.multipliers)
        return np.concatenate(
            [
                self.constraints @ weights - 1 - state.slacks,
                state.multipliers * state.slacks - mu,
            ]
        )

    def direction(self, state: _State, mu: float) -> _State:
        primal, centring = np.split(self.residual(state, mu), 2)
        theta = state.multipliers @ self.constraints
        curvature = (self.q - 1) * np.abs(theta) ** (self.q - 2)
        matrix = (self.constraints * curvature) @ self.constraints.T
        matrix[np.diag_indices_from(matrix)] += state.slacks / state.multipliers
        multipliers = _solve(matrix, -primal - centring / state.multipliers)
        slacks = -(centring + state.slacks * multipliers) / state.multipliers
        return _State(np.zeros_like(theta), multipliers, slacks)

    def complete(self, state: _State) -> _State:
        return _State(self._weights(state.multipliers), state.multipliers, state.slacks)

    def _weights(self, multipliers: Vector) -> Vector:
        theta = multipliers @ self.constraints
        weights: Vector = np.sign(theta) * np.abs(theta) ** (self.q - 1)
        return weights


def _follow(system: _Primal | _Dual, state: _State, max_iterations: int) -> _State:
    """The best state on the central path, until it gets no better."""
    best, best_error, stalled = state, np.inf, 0
    for _ in range(max_iterations):
        gap = float(state.multipliers @ state.slacks)
        error = gap + float(np.abs(system.residual(state, 0.0)).max())
        stalled = 0 if error < 0.9 * best_error else stalled + 1
        if error < best_error:
            best, best_error = state, error
        if not 1e-15 <= error < np.inf or stalled > 12:
            break
        state = _step(system, state, 0.1 * gap / len(state.slacks))
    return best


def _start(system: _Primal | _Dual, p: float, weights: Vector, shares: Vector) -> _State:
    """Strictly feasible, of multipliers that are all positive and add up to the right size."""
    size = float((np.abs(weights) ** p).sum() / (weights @ (shares @ system.constraints)))
    multipliers = size * (shares + 0.01 / len(shares))
    return system.complete(_State(weights, multipliers, system.constraints @ weights - 1))


def _step(system: _Primal | _Dual, state: _State, mu: float) -> _State:
    direction = system.direction(state, mu)
    step = 1.0
    for values, change in (
        (state.multipliers, direction.multipliers),
        (state.slacks, direction.slacks),
    ):
        falling = change < 0
        if falling.any():
            step = min(step, 0.99 * float((-values[falling] / change[falling]).min()))
    norm = np.linalg.norm(system.residual(state, mu))
    for _ in range(40):
        moved = state.moved(direction, step)
        if np.linalg.norm(system.residual(moved, mu)) <= (1 - 0.01 * step) * norm:
            break
        step /= 2
    return system.complete(moved)


def _solve(matrix: Vector, right: Vector) -> Vector:
    # A ridge far below rounding of the largest entry keeps flat directions solvable.
    ridge = 1e-18 * np.trace(matrix)
    try:
        solution: Vector = np.linalg.solve(matrix + ridge * np.eye(len(matrix)), right)
    except np.linalg.LinAlgError:
        solution = np.asarray(np.linalg.lstsq(matrix, right)[0], dtype=np.float64)
    return solution
