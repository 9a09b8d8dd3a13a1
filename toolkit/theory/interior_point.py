"""Least l_p norm under linear constraints, 1 < p < inf, by a primal-dual interior-point method."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["least_power_norm"]

Vector = NDArray[np.float64]


def least_power_norm(
    constraints: Vector, p: float, start: Vector, max_iterations: int = 500
) -> tuple[Vector, Vector]:
    """Minimise ``sum_j |w_j|^p / p`` subject to ``G w >= 1``.

    Newton's method on the perturbed optimality conditions ``grad = G' a``, ``G w - 1 = s``,
    ``a_i s_i = mu``. For p >= 2 the unknowns are ``w`` and ``a``. Below 2 the second derivative is
    infinite at 0, that of the conjugate ``|theta|^q / q`` is not, so that only ``a`` is unknown and
    ``w`` is the conjugate's gradient at ``G' a``.

    Args:
        constraints: The ``G``, ``(rows, size)``.
        p: Above 1, finite.
        start: Strictly feasible: ``G start > 1``.
        max_iterations: Of Newton's method.

    Returns:
        ``w`` and the multipliers ``a >= 0``, as far as rounding let it get; the caller checks.

    Reference:
        Boyd and Vandenberghe 2004, Convex Optimization, algorithm 11.2.
    """
    system = _Primal(constraints, p) if p >= 2 else _Dual(constraints, p)
    state = system.start(start)
    best, best_gap = state, np.inf
    stalled = 0
    for _ in range(max_iterations):
        gap = float(state.multipliers @ state.slacks)
        error = gap + float(np.abs(system.residual(state, 0.0)).max())
        stalled = 0 if error < 0.9 * best_gap else stalled + 1
        if error < best_gap:
            best, best_gap = state, error
        if error < 1e-15 or stalled > 12:
            break
        state = _step(system, state, 0.1 * gap / len(state.slacks))
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

    def start(self, weights: Vector) -> _State:
        slacks = self.constraints @ weights - 1
        gradient = np.abs(self._gradient(weights)).max()
        return _State(weights, gradient / slacks / len(slacks), slacks)

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

    def _gradient(self, weights: Vector) -> Vector:
        gradient: Vector = np.sign(weights) * np.abs(weights) ** (self.p - 1)
        return gradient


class _Dual:
    """Unknown ``a``, ``s``; ``w`` follows from ``a``, the system is of the size of ``a``."""

    def __init__(self, constraints: Vector, p: float) -> None:
        self.constraints = constraints
        self.q = p / (p - 1)

    def start(self, weights: Vector) -> _State:
        p = self.q / (self.q - 1)
        gradient = np.sign(weights) * np.abs(weights) ** (p - 1)
        slacks = self.constraints @ weights - 1
        multipliers = np.abs(gradient).max() / slacks / len(slacks)
        return self._complete(_State(weights, multipliers, slacks))

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

    def _complete(self, state: _State) -> _State:
        return _State(self._weights(state.multipliers), state.multipliers, state.slacks)

    def _weights(self, multipliers: Vector) -> Vector:
        theta = multipliers @ self.constraints
        weights: Vector = np.sign(theta) * np.abs(theta) ** (self.q - 1)
        return weights


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
    return system._complete(moved) if isinstance(system, _Dual) else moved


def _solve(matrix: Vector, right: Vector) -> Vector:
    # A ridge far below rounding of the largest entry keeps flat directions solvable.
    ridge = 1e-18 * np.trace(matrix)
    try:
        solution: Vector = np.linalg.solve(matrix + ridge * np.eye(len(matrix)), right)
    except np.linalg.LinAlgError:
        solution = np.asarray(np.linalg.lstsq(matrix, right)[0], dtype=np.float64)
    return solution
