"""Compiled updates of linear classifiers: one run's data stay in cache for many updates.

Every sum runs over its terms in ascending order, of features for the margins and of examples for
the gradient; vectors hold several sums, never parts of one. The result does not depend on the
number of threads, and on machines with the same instructions not on the machine.
"""

import inspect
import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["Data", "Runs", "advance"]

P = ParamSpec("P")
R = TypeVar("R")
Array = NDArray[np.float64]

METHOD_GD, METHOD_MOMENTUM, METHOD_NORMALIZED, METHOD_SIGN = 0, 1, 2, 3
METHOD_SIGNUM, METHOD_ADAM, METHOD_LOG_ADAM = 4, 5, 6

LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01  # its last bits are 0, so that multiples are exact
LN2_LOW = 1.90821492927058770002e-10


class Data(NamedTuple):
    """Rows ``y_i x_i`` of each seed, and their transpose, both padded with zeros at the end.

    Attributes:
        rows: ``(seeds, examples, padded size)``.
        columns: ``(seeds, size, padded examples)``.
        exponential: Whether the loss is ``exp(-z)`` and not ``log(1 + exp(-z))``.
    """

    rows: Array
    columns: Array
    exponential: bool


class Runs(NamedTuple):
    """What an update changes in place, and the settings.

    Attributes:
        weights: ``(runs, size)``.
        first: First moments, likewise.
        second: Second moments, likewise.
        log_scale: ``(runs,)``, that of the last gradient.
        settings: ``(runs, 3)``: beta1, beta2, eps.
        rates: ``(runs, updates)``.
    """

    weights: Array
    first: Array
    second: Array
    log_scale: Array
    settings: Array
    rates: Array


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
    margins: Array,
    least: float,
    scale: float,
    exponential: bool,
    weights: Array,
    powers: NDArray[np.int64],
) -> None:
    """``weights_i = -l'(z_i) / scale``, as :func:`toolkit.optim.binary_weights`."""
    powers_of_two = powers.view(np.float64)
    _exponentials(margins, least, weights, powers)
    if exponential:
        for i in range(len(weights)):
            weights[i] *= powers_of_two[i]
        return
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
            rate = runs.rates[run, update]
            _combine(columns, runs.weights[run], margins)
            least = _least(margins, examples)
            if not data.exponential:
                least = max(least, 0.0)
            scale = math.exp(-least)
            _weigh(margins, least, scale, data.exponential, weights, powers)
            _combine(rows, weights, total)
            if method in (METHOD_GD, METHOD_NORMALIZED, METHOD_SIGN):
                factor = scale if method == METHOD_GD else 1.0
                _move_by_gradient(method, runs, run, total, rate, -factor / examples)
            elif method == METHOD_MOMENTUM:
                _move_by_first(False, runs, run, total, rate, -scale / examples, 1.0)
            elif method == METHOD_SIGNUM:
                past = _rescaling(runs, run, -least)
                _move_by_first(True, runs, run, total, rate, -1 / examples, past)
            elif method == METHOD_ADAM:
                _move_by_ratio(runs, run, total, rate, -scale / examples, 1.0)
            else:
                past = _rescaling(runs, run, -least)
                _move_by_ratio(runs, run, total, rate, -1 / examples, past)
