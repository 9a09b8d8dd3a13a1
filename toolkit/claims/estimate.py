"""Per-seed values of a study, and the mean of paired differences with its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "Estimate",
    "NotTestedError",
    "Results",
    "Verdict",
    "common_seeds",
    "paired_estimate",
    "seed_values",
    "t_interval",
]

Verdict = Literal["supported", "refuted", "inconclusive", "not tested"]
Results = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""``{variant: {seed: content of result.json}}``."""


class NotTestedError(Exception):
    """The results cannot test a claim; the message says why, and becomes its sentence."""


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds of one number per seed, with its 95 % interval.

    Args:
        label: What is estimated, such as ``sgd_useful - sgd``.
        role: ``difference`` (arm and baseline), ``control``, ``step`` of an ordering, ``slope``
            or ``level``.
        seeds: The seeds, ascending.
        values: One number per seed, in the metric's unit.
        mean: Their mean.
        low: Lower end of the interval; ``None`` for one seed.
        high: Upper end.
    """

    label: str
    role: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, label: str, role: str, values: Mapping[int, float]) -> "Estimate":
        """The estimate of ``{seed: value}``."""
        seeds = tuple(sorted(values))
        numbers = tuple(values[seed] for seed in seeds)
        mean, low, high = t_interval(numbers)
        return cls(label, role, seeds, numbers, mean, low, high)

    def verdict(self, sign: int, bound: float = 0.0) -> Verdict:
        """Whether ``sign * value`` exceeds ``bound``: by the whole interval, or not at all.

        *supported* if the interval lies beyond the bound, *refuted* if it lies before it,
        *inconclusive* if it straddles or touches it, and for a single seed always.
        """
        if self.low is None or self.high is None:
            return "inconclusive"
        low, high = sorted((sign * self.low, sign * self.high))
        if low > bound:
            return "supported"
        return "refuted" if high < bound else "inconclusive"

    def as_dict(self) -> dict[str, Any]:
        """The fields and ``n``, ready for JSON."""
        return {**asdict(self), "n": len(self.seeds)}


def t_interval(
    values: Sequence[float], level: float = 0.95
) -> tuple[float, float | None, float | None]:
    """Mean and Student t interval of independent values; no interval for a single value.

    ``mean -+ t(n - 1) * std / sqrt(n)`` with ``std`` of ddof 1. Equal values give an interval
    of zero width.

    Raises:
        ValueError: If there are no values.

    Example:
        >>> mean, low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(mean, 3), round(low, 3), round(high, 3)
        (2.0, -0.484, 4.484)
    """
    if not values:
        raise ValueError("values must hold at least one number, got none. Run a seed first.")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return mean, None, None
    if len(set(values)) == 1:  # the mean of equal numbers may round; the interval has no width
        return values[0], values[0], values[0]
    from scipy.special import stdtrit  # 0.2 s, which reading a recipe should not pay

    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(stdtrit(count - 1, 0.5 + level / 2)) * math.sqrt(variance / count)
    return mean, mean - half, mean + half


def seed_values(
    results: Results, variant: str, metric: str, *, top: bool = False
) -> dict[int, float]:
    """``{seed: value}`` of a metric over the finished runs of a variant.

    With ``top`` the value stands beside the metrics, such as ``updates``.

    Raises:
        NotTestedError: If a run of the variant failed, none has finished, or a finished one has
            no finite value of the metric.
    """
    runs = results.get(variant, {})
    for seed, run in sorted(runs.items()):
        if run.get("status") == "failed":
            error = f" ({run['error']})" if run.get("error") else ""
            raise NotTestedError(f"{variant}, seed {seed} failed{error}")
    finished = {seed: run for seed, run in sorted(runs.items()) if run.get("status") == "finished"}
    if not finished:
        raise NotTestedError(f"{variant} has no finished run")
    values: dict[int, float] = {}
    for seed, run in finished.items():
        value = (run if top else run.get("metrics", {})).get(metric)
        if value is None or not math.isfinite(value):
            raise NotTestedError(f"{variant}, seed {seed} has no finite {metric}")
        values[seed] = float(value)
    return values


def common_seeds(
    values: Mapping[str, Mapping[int, float]],
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Seeds that every variant has, and a note for each variant with seeds that are left out.

    Raises:
        NotTestedError: If there is no such seed.
    """
    common = set.intersection(*(set(of_variant) for of_variant in values.values()))
    if not common:
        raise NotTestedError(f"{', '.join(values)} have no seed in common")
    notes = tuple(
        f"{variant}: seed {', '.join(map(str, sorted(extra)))} left out, "
        "since another arm has no run of it"
        for variant, of_variant in values.items()
        if (extra := set(of_variant) - common)
    )
    return tuple(sorted(common)), notes


def paired_estimate(
    results: Results, metric: str, arm: str, baseline: str, role: str = "difference"
) -> tuple[Estimate, tuple[str, ...]]:
    """Mean of ``arm - baseline`` over the seeds both have, and notes on seeds left out.

    Raises:
        NotTestedError: As :func:`seed_values` and :func:`common_seeds`.
    """
    values = {name: seed_values(results, name, metric) for name in (arm, baseline)}
    seeds, notes = common_seeds(values)
    differences = {seed: values[arm][seed] - values[baseline][seed] for seed in seeds}
    return Estimate.of(f"{arm} - {baseline}", role, differences), notes
