"""Compiled updates of linear classifiers: one run's data stay in cache for many updates.

Every sum runs over its terms in ascending order, of features for the margins and of examples for
the gradient; vectors hold several sums, never parts of one. The result does not depend on the
number of threads, and on machines with the same instructions not on the machine.
"""

import inspect
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from toolkit.optim.fused_types import (
    LOSS_CROSS_ENTROPY,
    LOSS_EXPONENTIAL,
    LOSS_PAIR_LOG,
    LOSS_POLYNOMIAL,
    METHOD_ADAM,
    METHOD_GD,
    METHOD_MOMENTUM,
    METHOD_NORMALIZED,
    METHOD_SIGN,
    METHOD_SIGNUM,
    Array,
    Data,
    Labels,
    MulticlassData,
    Runs,
)

__all__ = ["advance", "advance_multiclass"]

P = ParamSpec("P")
R = TypeVar("R")

LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01  # its last bits are 0, so that multiples are exact
LN2_LOW = 1.90821492927058770002e-10


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    # Contraction: a product and a sum may be rounded once. The others free the least margin from
    # its order, which matters to NaN and signed zeros alone, and the margins' NaN reach the weights
    # anyway. Sums keep their order. Unwrapped, as a type checker at run time may have wrapped it.
    compile_it = njit(cache=True, nogil=True, fastmath={"contract", "nnan", "nsz"})
    compiled: Callable[P, R] = compile_it(inspect.unwrap(function))
    return compiled


@_compiled
def _combine(rows: Array, factors: Array, total: Array) -> None:
    """``total = sum_i factors_i rows_i``, i ascending."""
    total[:] = 0.0
    count, size = rows.shape
    i = 0
    while i + 4 <= count:
        f0, f1, f2, f3 = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        for j in range(size):
            total[j] = (((total[j] + f0 * r0[j]) + f1 * r1[j]) + f2 * r2[j]) + f3 * r3[j]
        i += 4
    while i < count:
        factor, row = factors[i], rows[i]
        for j in range(size):
            total[j] += factor * row[j]
        i += 1


@_compiled
def _exponentials(
    margins: Array, least: float, fractions: Array, powers: NDArray[np.int64]
) -> None:
    """``exp(least - z) = fraction * 2^k``, with the bits of ``2^k`` in ``powers``.

    A loop that becomes vector instructions, unlike calls of the library's exp. Good to 2.3e-16; the
    exponent is kept within -708 and 700.
    """
    for i in range(len(fractions)):
        x = min(max(least - margins[i], -708.0), 700.0)
        k = math.floor(x * LOG2_E + 0.5)
        r = x - k * LN2_HIGH
        r = r - k * LN2_LOW
        p = 1 / 479001600  # Taylor series: |r| <= log(2) / 2, so that r^13 / 13! < 2e-16
        p = p * r + 1 / 39916800
        p = p * r + 1 / 3628800
        p = p * r + 1 / 362880
        p = p * r + 1 / 40320
        p = p * r + 1 / 5040
        p = p * r + 1 / 720
        p = p * r + 1 / 120
        p = p * r + 1 / 24
        p = p * r + 1 / 6
        p = p * r + 0.5
        p = p * r + 1.0
        fractions[i] = p * r + 1.0
        powers[i] = (np.int64(k) + 1023) << 52


@_compiled
def _least(margins: Array, count: int) -> float:
    least = float(margins[0])
    for i in range(1, count):
        least = min(float(margins[i]), least)
    return least


@_compiled
def _weigh(
    margins: Array, least: float, exponential: bool, weights: Array, powers: NDArray[np.int64]
) -> None:
    """``weights_i = -l'(z_i) exp(least)``, as :func:`toolkit.optim.binary_weights`."""
    powers_of_two = powers.view(np.float64)
    _exponentials(margins, least, weights, powers)
    if exponential:
        for i in range(len(weights)):
            weights[i] *= powers_of_two[i]
        return
    scale = math.exp(-least)
    for i in range(len(weights)):
        power = weights[i] * powers_of_two[i]
        weights[i] = power / (1 + power * scale)


@_compiled
def _rescaling(runs: Runs, run: int, log_scale: float) -> float:
    """The factor from the units of the last gradient to the new ones, which are noted."""
    factor = math.exp(min(runs.log_scale[run] - log_scale, 300.0))
    runs.log_scale[run] = log_scale
    return factor


@_compiled
def _move_by_gradient(
    method: int, runs: Runs, run: int, total: Array, rate: float, factor: float
) -> None:
    """Methods without moments; the gradient is ``factor * total``."""
    weights = runs.weights[run]
    if method == METHOD_GD:
        for j in range(len(weights)):
            weights[j] -= rate * (factor * total[j])
    elif method == METHOD_SIGN:
        for j in range(len(weights)):
            weights[j] -= rate * np.sign(factor * total[j])
    else:
        square = 0.0
        for j in range(len(weights)):
            square += total[j] * total[j]
        if square > 0:
            norm = math.sqrt(square)
            for j in range(len(weights)):
                weights[j] += rate * (total[j] / norm)


@_compiled
def _move_by_first(
    signed: bool, runs: Runs, run: int, total: Array, rate: float, factor: float, past: float
) -> None:
    """Methods of the first moment: it, or its sign."""
    weights, first = runs.weights[run], runs.first[run]
    beta = runs.settings[run, 0]
    for j in range(len(weights)):
        first[j] = beta * past * first[j] + (1 - beta) * (factor * total[j])
        weights[j] -= rate * (np.sign(first[j]) if signed else first[j])


@_compiled
def _move_by_ratio(
    runs: Runs, run: int, total: Array, rate: float, factor: float, past: float
) -> None:
    """Methods of the first moment over the root of the second."""
    weights, first, second = runs.weights[run], runs.first[run], runs.second[run]
    beta1, beta2, eps = runs.settings[run]
    for j in range(len(weights)):
        gradient = factor * total[j]
        first[j] = beta1 * past * first[j] + (1 - beta1) * gradient
        second[j] = beta2 * (past * past) * second[j] + (1 - beta2) * (gradient * gradient)
        below = math.sqrt(second[j]) + eps
        weights[j] -= rate * (first[j] / below if below > 0 else 0.0)


@_compiled
def _move(
    method: int, runs: Runs, run: int, update: int, total: Array, least: float, divisor: float
) -> None:
    """One update; the gradient is ``-exp(-least) / divisor * total``."""
    rate, scale = runs.rates[run, update], math.exp(-least)
    if method in (METHOD_GD, METHOD_NORMALIZED, METHOD_SIGN):
        factor = scale if method == METHOD_GD else 1.0
        _move_by_gradient(method, runs, run, total, rate, -factor / divisor)
    elif method == METHOD_MOMENTUM:
        _move_by_first(False, runs, run, total, rate, -scale / divisor, 1.0)
    elif method == METHOD_SIGNUM:
        past = _rescaling(runs, run, -least)
        _move_by_first(True, runs, run, total, rate, -1 / divisor, past)
    elif method == METHOD_ADAM:
        _move_by_ratio(runs, run, total, rate, -scale / divisor, 1.0)
    else:
        past = _rescaling(runs, run, -least)
        _move_by_ratio(runs, run, total, rate, -1 / divisor, past)


@_compiled
def advance(method: int, data: Data, runs: Runs, start: int, stop: int) -> None:
    """All updates of the runs ``start`` to ``stop``, one run after the other, in place.

    Run ``r`` has the data of seed ``r % seeds``.
    """
    seeds, examples = data.rows.shape[:2]
    margins, total = np.empty(data.columns.shape[2]), np.empty(data.rows.shape[2])
    weights, powers = np.empty(examples), np.empty(examples, np.int64)
    for run in range(start, stop):
        rows, columns = data.rows[run % seeds], data.columns[run % seeds]
        for update in range(runs.rates.shape[1]):
            _combine(columns, runs.weights[run], margins)
            least = _least(margins, examples)
            if not data.exponential:
                least = max(least, 0.0)
            _weigh(margins, least, data.exponential, weights, powers)
            _combine(rows, weights, total)
            _move(method, runs, run, update, total, least, examples)


@_compiled
def _weigh_class(
    data: MulticlassData, least: float, margins: Array, fractions: Array, powers: Labels
) -> None:
    """From the margins of one rival class to its weights, but for cross-entropy's divisor."""
    a = data.parameter
    if data.loss == LOSS_POLYNOMIAL:
        for i in range(len(margins)):
            margins[i] = a * (1 + max(margins[i], 0.0)) ** (-a - 1)
        return
    if data.loss == LOSS_PAIR_LOG:
        for i in range(len(margins)):
            margins[i] *= a
    scale = math.exp(-least)
    _exponentials(margins, least, fractions, powers)
    powers_of_two = powers.view(np.float64)
    for i in range(len(margins)):
        power = fractions[i] * powers_of_two[i]
        margins[i] = a * power / (1 + power * scale) if data.loss == LOSS_PAIR_LOG else power


@_compiled
def _weigh_rivals(data: MulticlassData, targets: Labels, scores: Array, weights: Array) -> float:
    """``weights[k, i] = q_ik exp(least)`` of the rivals, minus their sum at ``y_i``; least."""
    classes, examples = weights.shape
    fractions, powers, sums = np.empty(examples), np.empty(examples, np.int64), np.zeros(examples)
    least = np.inf
    for k in range(classes):
        for i in range(examples):
            weights[k, i] = scores[targets[i], i] - scores[k, i]
            if k != targets[i]:
                least = min(least, weights[k, i])
    if data.loss == LOSS_POLYNOMIAL:
        least = 0.0
    elif data.loss != LOSS_EXPONENTIAL:
        least = max(least, 0.0) * data.parameter
    for k in range(classes):
        _weigh_class(data, least, weights[k], fractions, powers)
        for i in range(examples):
            weights[k, i] = weights[k, i] if k != targets[i] else 0.0
            sums[i] += weights[k, i]
    for i in range(examples):
        divisor = 1 + sums[i] * math.exp(-least) if data.loss == LOSS_CROSS_ENTROPY else 1.0
        for k in range(classes):
            weights[k, i] /= divisor
        weights[targets[i], i] = -sums[i] / divisor
    return least


@_compiled
def advance_multiclass(
    method: int, data: MulticlassData, runs: Runs, start: int, stop: int
) -> None:
    """As :func:`advance`, for scores ``X W`` with ``W`` flattened row by row."""
    seeds, examples = data.rows.shape[:2]
    size, classes = data.columns.shape[1], data.classes
    column, total = np.empty(size), np.empty(size * classes)
    one_class = np.empty(data.rows.shape[2])
    scores = np.empty((classes, data.columns.shape[2]))
    weights = np.empty((classes, examples))
    for run in range(start, stop):
        seed = run % seeds
        for update in range(runs.rates.shape[1]):
            for k in range(classes):
                for j in range(size):
                    column[j] = runs.weights[run, j * classes + k]
                _combine(data.columns[seed], column, scores[k])
            least = _weigh_rivals(data, data.targets[seed], scores, weights)
            for k in range(classes):
                _combine(data.rows[seed], weights[k], one_class)
                for j in range(size):
                    total[j * classes + k] = -one_class[j]
            _move(method, runs, run, update, total, least, data.divisor)
