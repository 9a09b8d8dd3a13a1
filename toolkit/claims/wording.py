"""Numbers and intervals of metrics in plain words; ASCII, so that any terminal shows them."""

import math

__all__ = ["difference_words", "is_fraction", "level_words"]

_FRACTIONS = ("acc", "accuracy", "error")


def is_fraction(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and reads better in percent: accuracies and errors.

    Example:
        >>> is_fraction("test/error"), is_fraction("val/group_acc/3"), is_fraction("train/loss")
        (True, True, False)
    """
    return any(word in _FRACTIONS for part in metric.split("/") for word in part.split("_"))


def difference_words(metric: str, mean: float, low: float | None, high: float | None) -> str:
    """A difference with its 95 % interval.

    Example:
        >>> difference_words("test/error", -0.012, -0.0171, -0.0068)
        '-1.2 points of test/error (95 % interval -1.7 to -0.7'
        >>> difference_words("train/margin/min", 0.25, None, None)
        '+0.25 in train/margin/min (no interval'
    """
    scale, unit = (100.0, f"points of {metric}") if is_fraction(metric) else (1.0, f"in {metric}")
    return _with_interval(mean, low, high, scale, f" {unit}", sign="+")


def level_words(metric: str, mean: float, low: float | None, high: float | None) -> str:
    """A mean with its 95 % interval.

    Example:
        >>> level_words("test/acc", 0.931, 0.92, 0.944)
        '93.1 % (95 % interval 92.0 to 94.4'
    """
    scale, unit = (100.0, " %") if is_fraction(metric) else (1.0, "")
    return _with_interval(mean, low, high, scale, unit, sign="-")


def _with_interval(
    mean: float, low: float | None, high: float | None, scale: float, unit: str, *, sign: str
) -> str:
    """The sentence up to the closing bracket, which the caller sets after the sample size."""
    width = abs(mean) if low is None or high is None else (high - low) / 2
    digits = _digits(scale * width or scale * abs(mean), least=1 if scale > 1 else 0)
    mean_text = f"{scale * mean:{sign}.{digits}f}{unit}"
    if low is None or high is None:
        return f"{mean_text} (no interval"
    low_text, high_text = (f"{scale * bound:{sign}.{digits}f}" for bound in (low, high))
    return f"{mean_text} (95 % interval {low_text} to {high_text}"


def _digits(size: float, least: int) -> int:
    """Decimals that show two figures of ``size``, one for points of at least 0.3."""
    if size <= 0 or not math.isfinite(size):
        return max(least, 1)
    if least and size >= 0.3:
        return least
    return min(9, max(least, 1 - math.floor(math.log10(size))))
