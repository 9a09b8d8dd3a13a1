"""Metrics and numbers in plain words."""

from toolkit.claims import is_fraction

__all__ = ["in_unit", "metric_words", "number", "plus_minus", "unit"]

_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_NAMES = {
    "acc": "accuracy",
    "error": "error",
    "loss": "loss",
    "worst_group_acc": "accuracy of the worst group",
    "mean_group_acc": "mean accuracy over groups",
    "group_acc": "accuracy per group",
    "class_acc": "accuracy per class",
    "normalized_margin": "normalised margin",
}
_DETAILS = {"min": "smallest", "mean": "mean", "median": "median", "max": "largest"}


def metric_words(metric: str) -> str:
    """A metric's key in plain words.

    Example:
        >>> metric_words("val/error"), metric_words("train/margin/min")
        ('Validation error', 'Smallest training margin')
        >>> metric_words("test/group_acc/water"), metric_words("probe/l1_norm")
        ('Test accuracy per group: water', 'Probe l1 norm')
    """
    split, *rest = metric.split("/")
    words = [_SPLITS.get(split, split)]
    name = _NAMES.get(rest[0], rest[0].replace("_", " ")) if rest else ""
    details = rest[1:]
    if details and details[0] in _DETAILS:
        words, details = [_DETAILS[details[0]], *words], details[1:]
    text = " ".join([*words, name]).strip() + (f": {' '.join(details)}" if details else "")
    return text[:1].upper() + text[1:]


def unit(metric: str) -> str:
    """``" (%)"`` for accuracies and errors, else nothing."""
    return " (%)" if is_fraction(metric) else ""


def in_unit(metric: str) -> float:
    """What a value is multiplied with to be shown: 100 for accuracies and errors."""
    return 100.0 if is_fraction(metric) else 1.0


def number(value: float | int | None, digits: int | None = None) -> str:
    """A number for people: grouped thousands, at most four significant figures.

    Example:
        >>> number(1234567), number(0.012345), number(3.14159, 1), number(None)
        ('1,234,567', '0.01235', '3.1', '\u2013')
    """
    if value is None:
        return "\u2013"
    if digits is not None:
        return f"{value:,.{digits}f}".replace("-", "\u2212")
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "\u2212")
    return f"{value:.4g}".replace("-", "\u2212")


def plus_minus(metric: str, mean: float | None, std: float | None) -> str:
    r"""Mean and standard deviation, in percent where that reads better.

    Example:
        >>> plus_minus("test/error", 0.0312, 0.0041)
        '3.12 \xb1 0.41 %'
        >>> plus_minus("train/margin/min", 1.5, None)
        '1.5'
    """
    if mean is None:
        return "\u2013"
    scale = in_unit(metric)
    digits = 2 if scale > 1 else None
    text = number(scale * mean, digits)
    if std is not None:
        text += f" \u00b1 {number(scale * std, digits)}"
    return f"{text} %" if scale > 1 else text
