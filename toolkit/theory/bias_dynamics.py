"""Order parameters of a linear classifier that learns sub-populations by one-pass SGD.

Inputs of sub-population ``j`` (share ``p_j``) are ``x = v_j / sqrt(d) + sqrt(Delta_j) z`` with
Gaussian ``z``; its own teacher labels them ``y = sign(T_j . x / sqrt(d) + b_j)``. The student
``w . x / sqrt(d)`` takes one fresh example per step of ``(y - w . x / sqrt(d))^2 / 2``. Time is
steps over the dimension ``d``. As ``d`` grows, ``M_j = w . v_j / d``, ``R_k = w . T_k / d`` and
``Q = w . w / d`` follow ordinary differential equations.

Reference:
    Jain, Nobahari, Baratin, Sarao Mannelli 2024, arXiv:2405.18296 (model); scaling, and equations
    for any number of sub-populations, are ours.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import erf, ndtr
from scipy.stats import multivariate_normal

from toolkit.theory.order_parameters import Crossing, OrderParameters, check_products, gram

__all__ = ["TeacherMixture"]

Array = NDArray[np.float64]
Vector = Sequence[float] | Array
Matrix = Sequence[Sequence[float]] | Array


class TeacherMixture:
    """A mixture of Gaussian sub-populations with a teacher each.

    Args:
        shares: ``p``, at least one, positive, with sum 1; shape ``(clusters,)``.
        variances: ``Delta``, positive, ``(clusters,)``.
        centers: ``V``, products ``v_j . v_l / d`` of the centres, ``(clusters, clusters)``.
        alignments: ``S``, products ``T_k . v_j / d``, teachers in rows, ``(clusters, clusters)``.
        teachers: Products ``T_k . T_l / d``, with ones on the diagonal, ``(clusters, clusters)``.
        biases: ``b`` of the teachers, ``(clusters,)``; by default 0.

    Raises:
        ValueError: If a shape or range is wrong, or no vectors have these products.

    Example:
        >>> mixture = TeacherMixture.opposite(0.8, (0.5, 2.0), 1.0, (0.3, -0.2), 0.6)
        >>> path = mixture.solve([0.0, 10.0], learning_rate=0.3)
        >>> path.times.tolist()
        [0.0, 10.0]
    """

    def __init__(
        self,
        shares: Vector,
        variances: Vector,
        centers: Matrix,
        alignments: Matrix,
        teachers: Matrix,
        biases: Vector | None = None,
    ) -> None:
        self.shares, self.variances = (np.asarray(x, float) for x in (shares, variances))
        self.centers, self.alignments, self.teachers = (
            np.asarray(x, float) for x in (centers, alignments, teachers)
        )
        given = np.zeros_like(self.shares) if biases is None else biases
        self.biases = np.asarray(given, float)
        check_products(
            self.shares,
            {"variances": self.variances, "biases": self.biases},
            {
                "centers": self.centers,
                "alignments": self.alignments,
                "teachers": self.teachers,
            },
        )
        offset = self.alignments.diagonal() + self.biases
        self._thresholds = offset / np.sqrt(self.variances)
        self._mean_labels = erf(self._thresholds / np.sqrt(2))
        self._slopes = np.sqrt(2 * self.variances / np.pi) * np.exp(-(self._thresholds**2) / 2)

    @classmethod
    def opposite(
        cls,
        share: float,
        variances: Sequence[float],
        shift: float,
        alignments: Sequence[float],
        overlap: float,
        biases: Sequence[float] = (0.0, 0.0),
    ) -> "TeacherMixture":
        """Two sub-populations with centres ``+v`` and ``-v``, the case of the paper.

        Args:
            share: Of the first one, between 0 and 1.
            variances: ``Delta_+`` and ``Delta_-``.
            shift: ``V = v . v / d``.
            alignments: ``S_+`` and ``S_-``, the teachers' products with ``v``, over ``d``.
            overlap: The product of the two teachers, over ``d``.
            biases: Of the two teachers.
        """
        sign = np.array([1.0, -1.0])
        return cls(
            [share, 1 - share],
            variances,
            shift * np.outer(sign, sign),
            np.outer(alignments, sign),
            [[1.0, overlap], [overlap, 1.0]],
            biases,
        )

    @property
    def mean_variance(self) -> float:
        """``D = sum p_j Delta_j``."""
        return float(self.shares @ self.variances)

    @property
    def largest_learning_rate(self) -> float:
        """Above it the student's norm diverges: ``2 D / sum p_j Delta_j^2``."""
        return 2 * self.mean_variance / float(self.shares @ self.variances**2)

    def timescales(self, learning_rate: float) -> dict[str, Array]:
        """Times over which shift, teacher and norm approach their limits.

        Returns:
            ``shift``: one per direction among the centres, fastest first; ``teacher`` and
            ``norm``: one each, ``norm`` negative where it diverges.
        """
        mean = self.mean_variance
        rates = np.sort(np.linalg.eigvals(self.centers * self.shares).real)[::-1] + mean
        second = float(self.shares @ self.variances**2)
        return {
            "shift": 1 / (learning_rate * rates),
            "teacher": np.array([1 / (learning_rate * mean)]),
            "norm": np.array([1 / (learning_rate * (2 * mean - learning_rate * second))]),
        }

    def solve(
        self, times: Vector, learning_rate: float, start: Vector | None = None
    ) -> OrderParameters:
        """Integrate the equations.

        Args:
            times: Increasing, from 0 on; steps over the dimension.
            learning_rate: ``eta``, positive.
            start: ``M``, ``R`` and ``Q`` at time 0 in one array; by default 0, a student of zeros.

        Raises:
            ValueError: If the learning rate is not positive, or times decrease.
            RuntimeError: If the solver fails.
        """
        grid = np.asarray(times, float)
        if learning_rate <= 0 or grid[0] < 0 or (np.diff(grid) < 0).any():
            raise ValueError(
                "learning_rate must be positive and times increase from 0 on, got "
                f"{learning_rate} and {grid[:3]}... Use a smaller rate than "
                f"{self.largest_learning_rate:.3g}, above which the norm diverges."
            )
        count = len(self.shares)
        first = np.zeros(2 * count + 1) if start is None else np.asarray(start, float)
        solution = solve_ivp(
            lambda _, state: self._derivative(state, learning_rate),
            (0.0, max(float(grid[-1]), 1e-12)),
            first,
            method="LSODA",
            t_eval=grid,
            rtol=1e-9,
            atol=1e-12,
        )
        if not solution.success:
            raise RuntimeError(f"the equations must be solvable, got {solution.message}")
        shift, teacher = solution.y[:count].T, solution.y[count : 2 * count].T
        return OrderParameters(grid, shift, teacher, solution.y[-1])

    def limit(self, learning_rate: float) -> OrderParameters:
        """The fixed point that training approaches, as a solution at time infinity.

        Raises:
            ValueError: If there is none, since the learning rate is too large.
        """
        if learning_rate >= self.largest_learning_rate:
            raise ValueError(
                f"learning_rate must be below {self.largest_learning_rate:.6g}, above which the "
                f"norm diverges, got {learning_rate}. Lower it."
            )
        weighted, mean = self.shares * self._slopes, self.mean_variance
        force = self.centers @ (self.shares * self._mean_labels) + weighted @ self.alignments
        count = len(self.shares)
        shift = np.linalg.solve(self.centers * self.shares + mean * np.eye(count), force)
        residual = self.shares * (self._mean_labels - shift)
        teacher = (self.alignments @ residual + self.teachers @ weighted) / mean
        output = self._products(shift, teacher)
        second = float(self.shares @ self.variances**2)
        gain = 2 * self.shares @ (output - shift**2) + learning_rate * (
            self.shares * self.variances
        ) @ (1 - 2 * output + shift**2)
        norm = gain / (2 * mean - learning_rate * second)
        return OrderParameters(np.array([np.inf]), shift[None], teacher[None], np.array([norm]))

    def mse(self, path: OrderParameters) -> Float[np.ndarray, " times clusters"]:
        """Mean of ``(y - w . x / sqrt(d))^2 / 2`` in each sub-population."""
        output = self._products(path.shift, path.teacher)
        return (1 - 2 * output + self._squares(path.shift, path.norm[:, None])) / 2

    def error(self, path: OrderParameters) -> Float[np.ndarray, " times clusters"]:
        """Share of wrongly classified examples of each sub-population; NaN for a zero student."""
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = np.sqrt(path.norm[:, None])
            student = path.shift / (np.sqrt(self.variances) * scale)
            correlation = np.clip(path.teacher / scale, -1, 1)
        teacher = np.broadcast_to(self._thresholds, student.shape)
        both = np.vectorize(_joint, otypes=[float])(teacher, student, correlation)
        error: Array = ndtr(teacher) + ndtr(student) - 2 * both
        return error

    def crossings(
        self, learning_rate: float, end: float, pair: tuple[int, int] = (0, 1), points: int = 2000
    ) -> list[Crossing]:
        """When, from a student of zeros, the lead in loss changes between two sub-populations.

        Args:
            learning_rate: Of SGD.
            end: Last time looked at.
            pair: The two sub-populations.
            points: Of a logarithmic grid of times between which a change is looked for.
        """
        first, second = pair
        times = np.concatenate([[0.0], np.geomspace(1e-4 * end, end, points)])
        path = self.solve(times, learning_rate)
        mse = self.mse(path)
        gaps = mse[:, first] - mse[:, second]

        def gap(time: float) -> float:
            values = self.mse(self.solve([0.0, time], learning_rate))[-1]
            return float(values[first] - values[second])

        found = []
        for (t0, t1), (g0, g1) in zip(pairwise(times[1:]), pairwise(gaps[1:]), strict=True):
            if g0 * g1 < 0:
                leader = first if g1 < 0 else second
                found.append(Crossing(float(brentq(gap, t0, t1)), leader))
        return found

    def vectors(self, dimension: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Random centres and teachers, rows of ``(clusters, dimension)``, with these products.

        Raises:
            ValueError: If ``dimension`` is less than twice the number of sub-populations.
        """
        count = len(self.shares)
        if dimension < 2 * count:
            raise ValueError(f"dimension must be at least {2 * count}, got {dimension}. Raise it.")
        values, basis = np.linalg.eigh(gram(self.centers, self.alignments, self.teachers))
        root = basis * np.sqrt(np.clip(values, 0, None)) @ basis.T
        axes, _ = np.linalg.qr(generator.standard_normal((dimension, 2 * count)))
        rows = np.sqrt(dimension) * root @ axes.T
        return rows[:count], rows[count:]

    def _derivative(self, state: Array, learning_rate: float) -> Array:
        count = len(self.shares)
        shift, teacher, norm = state[:count], state[count : 2 * count], state[-1]
        residual = self.shares * (self._mean_labels - shift)
        weighted, mean = self.shares * self._slopes, self.mean_variance
        of_shift = self.centers @ residual + weighted @ self.alignments - mean * shift
        of_teacher = self.alignments @ residual + self.teachers @ weighted - mean * teacher
        output, squares = self._products(shift, teacher), self._squares(shift, norm)
        of_norm = 2 * self.shares @ (output - squares) + learning_rate * (
            self.shares * self.variances
        ) @ (1 - 2 * output + squares)
        return learning_rate * np.concatenate([of_shift, of_teacher, [of_norm]])

    def _products(self, shift: Array, teacher: Array) -> Array:
        """``h = E[y yhat]`` in each sub-population."""
        products: Array = self._mean_labels * shift + self._slopes * teacher
        return products

    def _squares(self, shift: Array, norm: Array | float) -> Array:
        """``q = E[yhat^2]`` in each sub-population."""
        return shift**2 + self.variances * norm


def _joint(first: float, second: float, correlation: float) -> float:
    """Probability that two standard normal numbers are below ``first`` and ``second``."""
    if np.isnan(second) or np.isnan(correlation):
        return np.nan
    cov = [[1.0, correlation], [correlation, 1.0]]
    return float(multivariate_normal.cdf([first, second], cov=cov, allow_singular=True))
