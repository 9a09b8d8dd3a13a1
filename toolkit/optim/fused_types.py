"""What the compiled updates are given: data, runs, and the codes of methods and losses."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Data", "Labels", "MulticlassData", "Runs"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

METHOD_GD, METHOD_MOMENTUM, METHOD_NORMALIZED, METHOD_SIGN = 0, 1, 2, 3
METHOD_SIGNUM, METHOD_ADAM, METHOD_LOG_ADAM = 4, 5, 6
LOSS_CROSS_ENTROPY, LOSS_EXPONENTIAL, LOSS_PAIR_LOG, LOSS_POLYNOMIAL = 0, 1, 2, 3


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


class MulticlassData(NamedTuple):
    """Inputs of each seed, and their transpose, both padded with zeros at the end.

    Attributes:
        rows: ``(seeds, examples, padded size)``.
        columns: ``(seeds, size, padded examples)``.
        targets: ``(seeds, examples)``.
        classes: How many.
        loss: Its code.
        parameter: The temperature of PairLogLoss, the power of the polynomial.
        divisor: Of the summed loss.
    """

    rows: Array
    columns: Array
    targets: Labels
    classes: int
    loss: int
    parameter: float
    divisor: float
