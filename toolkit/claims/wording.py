"""Numbers and intervals of metrics in plain words; ASCII, so that any terminal shows them."""

import math

from toolkit.claims.estimate import Estimate

__all__ = ["bound_words", "difference_words", "is_fraction", "level_words"]

_FRACTIONS = ("acc", "accuracy", "error")


def is_fraction(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and reads better in percent: accuracies and errors.

    Example:
        >>> is_fraction("test/error"), is_fraction("val/group_acc/3"), is_fraction("train/loss")
        (True, True, False)
    """
    return any(word in _FRACTIONS for part in metric.split("/") for word in part.split("_"))


def bound_words(metric: str, bound: float) -> str:
    """A bound in the unit of :func:`level_words`.

    Example:
        >>> bound_words("test/error", 0.08), bound_words("train/loss", 0.08)
        ('8 %', '0.08')
    """
    return f"{100 * bound:g} %" if is_fraction(metric) else f"{bound:g}"


def difference_words(metric: str, estimate: Estimate) -> str:
    """A mean difference with its 95 % interval.

    Example:
        >>> errors = Estimate.of("sam - sgd", "difference", {0: -0.01, 1: -0.012, 2: -0.014})
        >>> difference_words("test/error", errors)
        '-1.2 points of test/error (95 % interval -1.7 to -0.7, n = 3)'
        >>> difference_words("train/margin/min", Estimate.of("slope", "slope", {0: 0.25}))
        '+0.25 in train/margin/min (no interval, n = 1)'
    """
    scale, unit = (100.0, f"points of {metric}") if is_fraction(metric) else (1.0, f"in {metric}")
    return _with_interval(estimate, scale, f" {unit}", sign="+")


def level_words(metric: str, estimate: Estimate) -> str:
    """A mean with its 95 % interval.

    Example:
        >>> level_words("test/acc", Estimate.of("sgd", "level", {0: 0.92, 1: 0.93, 2: 0.94}))
        '93.0 % (95 % interval 90.5 to 95.5, n = 3)'
    """
    scale, unit = (100.0, " %") if is_fraction(metric) else (1.0, "")
    return _with_interval(estimate, scale, unit, sign="-")


def _with_interval(estimate: Estimate, scale: float, unit: str, *, sign: str) -> str:
    mean, low, high, n = estimate.mean, estimate.low, estimate.high, len(estimate.seeds)
    width = abs(mean) if low is None or high is None else (high - low) / 2
    digits = _digits(scale * width or scale * abs(mean), least=1 if scale > 1 else 0)
    mean_text = f"{scale * mean:{sign}.{digits}f}{unit}"
    if low is None or high is None:
        return f"{mean_text} (no interval, n = {n})"
    low_text, high_text = (f"{scale * bound:{sign}.{digits}f}" for bound in (low, high))
    return f"{mean_text} (95 % interval {low_text} to {high_text}, n = {n})"


def _digits(size: float, least: int) -> int:
    """Decimals that show two figures of ``size``, one for points of at least 0.3."""
    if size <= 0 or not math.isfinite(size):
        return max(least, 1)
    if least and size >= 0.3:
        return least
    return min(9, max(least, 1 - math.floor(math.log10(size))))
