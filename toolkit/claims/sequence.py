"""Claims over several variants in a row: a trend, and an ordering."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from toolkit.claims.estimate import (
    Estimate,
    Results,
    common_seeds,
    paired_estimate,
    seed_values,
)
from toolkit.claims.judgement import Floor, Judgement, joint_verdict
from toolkit.claims.wording import difference_words

__all__ = ["Ordering", "Trend"]

Direction = Literal["increasing", "decreasing"]


@dataclass(frozen=True)
class Trend:
    """A metric rises (or falls) along variants, in the mean slope over seeds.

    For each seed that all variants have, the least-squares slope of the metric against the
    position ``0, 1, 2, ...`` of the variant; the claim is judged on the 95 % t interval of these
    slopes: *supported* if it lies beyond ``tolerance`` on the expected side, *refuted* if it
    lies short of it, else *inconclusive*; one seed is always inconclusive. A trend may hold
    while two neighbours are reversed; :class:`Ordering` asks for every step.

    Args:
        text: The statement, in words.
        source: Where it was made.
        metric: A key of the results.
        variants: At least two variants, in the order of what is varied.
        expect: Direction of the metric along them.
        tolerance: Slopes per step up to this size count as flat; at least 0.
        requires: Floor of a plain arm, without which the claim is *not tested*.

    Raises:
        ValueError: If there are fewer than two different variants or the tolerance is negative.

    Example:
        >>> from toolkit.claims import evaluate
        >>> results = {name: {s: {"status": "finished", "metrics": {"test/loss": x + s}}
        ...                   for s in range(3)} for name, x in [("a", 3.0), ("b", 2.0)]}
        >>> evaluate(Trend("", "", "test/loss", ["a", "b"], "decreasing"), results).verdict
        'supported'
    """

    text: str
    source: str
    metric: str
    variants: Sequence[str]
    expect: Direction
    tolerance: float = 0.0
    requires: Floor | None = None

    def __post_init__(self) -> None:
        _check(self.variants, self.tolerance)

    def judge(self, results: Results) -> Judgement:
        """The verdict, with the slope of every seed."""
        values = {name: seed_values(results, name, self.metric) for name in self.variants}
        seeds, notes = common_seeds(values)
        slope = Estimate.of(
            "slope", "slope", {seed: _slope([values[v][seed] for v in values]) for seed in seeds}
        )
        words = difference_words(self.metric, slope)
        sentence = f"slope per step along {', '.join(self.variants)}: {words}"
        evidence = _evidence(self.metric, self.expect, self.tolerance, [slope], notes)
        evidence["means"] = {v: math.fsum(values[v][s] for s in seeds) / len(seeds) for v in values}
        verdict = slope.verdict(_sign(self.expect), self.tolerance)
        return Judgement(verdict, "; ".join([sentence, *notes]), evidence)


@dataclass(frozen=True)
class Ordering:
    """A metric orders the variants as listed: every step has the expected sign.

    *supported* if the paired 95 % t interval of every successive difference lies beyond
    ``tolerance`` on the expected side, *refuted* if one lies short of it, else *inconclusive*;
    one seed is always inconclusive. The steps are not corrected for their number: all of them
    have to hold, which errs on the side of *inconclusive*.

    Args:
        text: The statement, in words.
        source: Where it was made.
        metric: A key of the results.
        variants: At least two variants, in the claimed order.
        expect: Whether the metric rises or falls along the list.
        tolerance: Differences up to this size count as none; at least 0.
        requires: Floor of a plain arm, without which the claim is *not tested*.

    Raises:
        ValueError: If there are fewer than two different variants or the tolerance is negative.
    """

    text: str
    source: str
    metric: str
    variants: Sequence[str]
    expect: Direction = "increasing"
    tolerance: float = 0.0
    requires: Floor | None = None

    def __post_init__(self) -> None:
        _check(self.variants, self.tolerance)

    def judge(self, results: Results) -> Judgement:
        """The verdict, with every step's paired difference."""
        steps: list[Estimate] = []
        notes: tuple[str, ...] = ()
        for before, after in pairwise(self.variants):
            step, more = paired_estimate(results, self.metric, after, before, "step")
            steps.append(step)
            notes += more
        verdicts = [step.verdict(_sign(self.expect), self.tolerance) for step in steps]
        parts = [f"{step.label}: {difference_words(self.metric, step)}" for step in steps]
        held = f"{verdicts.count('supported')} of {len(steps)} steps {self.expect}"
        return Judgement(
            joint_verdict(verdicts),
            "; ".join([held, *parts, *notes]),
            _evidence(self.metric, self.expect, self.tolerance, steps, notes),
        )


def _check(variants: Sequence[str], tolerance: float) -> None:
    if len(set(variants)) < 2 or len(set(variants)) < len(variants):
        raise ValueError(
            f"variants must be at least two different names, got {list(variants)}. "
            "List each variant once."
        )
    if tolerance < 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}. Drop its sign.")


def _sign(direction: Direction) -> int:
    return {"increasing": 1, "decreasing": -1}[direction]


def _slope(values: Sequence[float]) -> float:
    """Least-squares slope against ``0, 1, 2, ...``."""
    center = (len(values) - 1) / 2
    spread = math.fsum((place - center) ** 2 for place in range(len(values)))
    return math.fsum((place - center) * value for place, value in enumerate(values)) / spread


def _evidence(
    metric: str, expect: str, tolerance: float, estimates: Sequence[Estimate], notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "metric": metric,
        "expect": expect,
        "tolerance": tolerance,
        "estimates": [estimate.as_dict() for estimate in estimates],
        "notes": list(notes),
    }
