"""Claims about single seeds: that something holds in every one, in half of them, all along."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.claims.estimate import (
    Estimate,
    NotTestedError,
    Results,
    Verdict,
    common_seeds,
    seed_values,
)
from toolkit.claims.judgement import Floor, Judgement
from toolkit.history import read_history

__all__ = ["SeedShare", "Throughout", "share_verdict"]

_FEWEST = 6
"""Seeds that have to agree for 95 %: all on one side by chance is as likely as 2 / 2^6 = 3 %."""


@dataclass(frozen=True)
class SeedShare:
    """In every seed, or in more than a share of them, a metric is lower (or higher) in one variant.

    A seed holds if the arm's value lies beyond ``factor`` times the baseline's on the expected
    side. With ``share: 1`` one seed that does not hold *refutes* the claim; it is *supported* if
    all hold and there are at least 6. Below 1 the exact binomial 95 % interval of the share decides
    (Clopper and Pearson): *supported* if it lies above ``share``, *refuted* if below. With 0.5 and
    a factor this is a claim on the median of the ratio.

    Args:
        text: The statement, in words.
        source: Where it was made.
        metric: A key of the results; with a factor other than 1 its values must be positive.
        arm: The variant that is claimed to lie beyond.
        baseline: The variant it is compared with.
        expect: On which side.
        factor: What the baseline's value is multiplied with; above 0.
        share: Of the seeds, above 0 and at most 1.
        or_equal: Whether equal values hold.
        requires: Floor of a plain arm, without which the claim is *not tested*.

    Raises:
        ValueError: If a number is out of its range, or a variant is compared with itself.

    Example:
        >>> from toolkit.claims import evaluate
        >>> def runs(*values):
        ...     return {s: {"status": "finished", "metrics": {"updates": v}}
        ...             for s, v in enumerate(values)}
        >>> results = {"sam": runs(9, 8, 9, 9, 8, 7), "gd": runs(5, 4, 6, 5, 5, 4)}
        >>> claim = SeedShare("", "", "updates", "sam", "gd", "higher", factor=1.2)
        >>> evaluate(claim, results).verdict
        'supported'
    """

    text: str
    source: str
    metric: str
    arm: str
    baseline: str
    expect: Literal["lower", "higher"]
    factor: float = 1.0
    share: float = 1.0
    or_equal: bool = False
    requires: Floor | None = None

    def __post_init__(self) -> None:
        _check(self.arm, self.baseline, self.share)
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor must be above 0, got {self.factor}. 1 compares as it is.")

    def judge(self, results: Results) -> Judgement:
        """The verdict, with the number of seeds that hold and their differences."""
        values = {name: seed_values(results, name, self.metric) for name in self._pair}
        seeds, notes = common_seeds(values)
        sign = 1 if self.expect == "higher" else -1
        holds = {}
        for seed in seeds:
            arm, bound = values[self.arm][seed], self.factor * values[self.baseline][seed]
            holds[seed] = sign * arm > sign * bound or (self.or_equal and arm == bound)
        differences = {s: values[self.arm][s] - values[self.baseline][s] for s in seeds}
        estimate = Estimate.of(f"{self.arm} - {self.baseline}", "difference", differences)
        equal = "equal or " if self.or_equal else ""
        times = "" if self.factor == 1 else f"{self.factor:g} times "
        what = f"{self.metric} of {self.arm} is {equal}{self.expect} than {times}{self.baseline}'s"
        return _judged(self, holds, what, estimate, notes)

    @property
    def _pair(self) -> tuple[str, str]:
        return self.arm, self.baseline


@dataclass(frozen=True)
class Throughout:
    """At every recorded update, up to one that the baseline tells, a metric is lower (or higher).

    Read from the records of the runs: a seed holds if it does so at each update from 1 on that both
    arms recorded, before the update that the baseline's result has under ``until``. Judged over
    seeds as :class:`SeedShare`.

    Args:
        text: The statement, in words.
        source: Where it was made.
        metric: A key of the records.
        arm: The variant that is claimed to lie beyond.
        baseline: The variant it is compared with.
        expect: On which side.
        until: A key of the results, a number of updates; ``None`` is to the end.
        share: Of the seeds, above 0 and at most 1.
        requires: Floor of a plain arm, without which the claim is *not tested*.

    Raises:
        ValueError: If the share is out of its range, or a variant is compared with itself.
    """

    text: str
    source: str
    metric: str
    arm: str
    baseline: str
    expect: Literal["lower", "higher"]
    until: str | None = None
    share: float = 1.0
    requires: Floor | None = None

    def __post_init__(self) -> None:
        _check(self.arm, self.baseline, self.share)

    def judge(self, results: Results) -> Judgement:
        """The verdict, with the least favourable difference of each seed."""
        ends = seed_values(results, self.baseline, self.until or "updates", top=self.until is None)
        updates = seed_values(results, self.arm, "updates", top=True)
        seeds, notes = common_seeds({self.arm: updates, self.baseline: ends})
        sign = 1 if self.expect == "higher" else -1
        worst = {}
        for seed in seeds:
            arm, base = (_curve(results[name][seed], self.metric) for name in self._pair)
            end = ends[seed] if self.until is not None else math.inf
            turned = [sign * (arm[t] - base[t]) for t in arm if t in base and 1 <= t < end]
            if not turned:
                raise NotTestedError(f"seed {seed} has no update of {self.metric} to compare")
            worst[seed] = sign * min(turned)
        holds = {seed: sign * value > 0 for seed, value in worst.items()}
        label = f"{self.arm} - {self.baseline} where least favourable"
        what = f"{self.metric} of {self.arm} is {self.expect} than {self.baseline}'s throughout"
        return _judged(self, holds, what, Estimate.of(label, "difference", worst), notes)

    @property
    def _pair(self) -> tuple[str, str]:
        return self.arm, self.baseline


def share_verdict(count: int, total: int, share: float) -> Verdict:
    """Whether more than a share of all seeds hold, given that ``count`` of ``total`` do.

    Example:
        >>> share_verdict(30, 30, 1.0), share_verdict(29, 30, 1.0), share_verdict(29, 30, 0.5)
        ('supported', 'refuted', 'supported')
        >>> share_verdict(3, 3, 1.0), share_verdict(17, 30, 0.5), share_verdict(5, 30, 0.5)
        ('inconclusive', 'inconclusive', 'refuted')
    """
    if share == 1:
        if count < total:
            return "refuted"
        return "supported" if total >= _FEWEST else "inconclusive"
    from scipy.special import betaincinv  # 0.2 s, which reading a recipe should not pay

    low = float(betaincinv(count, total - count + 1, 0.025)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
    if low > share:
        return "supported"
    return "refuted" if high < share else "inconclusive"


def _judged(
    claim: SeedShare | Throughout,
    holds: Mapping[int, bool],
    what: str,
    estimate: Estimate,
    notes: tuple[str, ...],
) -> Judgement:
    count, total = sum(holds.values()), len(holds)
    against = [str(seed) for seed, held in holds.items() if not held]
    parts = [f"{what} in {count} of {total} seeds"]
    if against:
        more = ", ..." if len(against) > 5 else ""
        parts.append(f"not in seed {', '.join(against[:5])}{more}")
    evidence: dict[str, Any] = {
        "metric": claim.metric,
        "expect": claim.expect,
        "share": claim.share,
        "holds": count,
        "n": total,
        "against": against,
        "estimates": [estimate.as_dict()],
        "notes": list(notes),
    }
    verdict = share_verdict(count, total, claim.share)
    return Judgement(verdict, "; ".join([*parts, *notes]), evidence)


def _curve(run: Mapping[str, Any], metric: str) -> dict[int, float]:
    """``{update: value}`` of a run's record."""
    folder = run.get("folder")
    rows = read_history(Path(folder) / "history.jsonl") if folder else []
    return {
        row["update"]: float(row[metric])
        for row in rows
        if row.get("update") is not None and row.get(metric) is not None
    }


def _check(arm: str, baseline: str, share: float) -> None:
    if arm == baseline:
        raise ValueError(f"baseline must differ from the arm, got {arm!r} for both. Name another.")
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}. 1 is every seed.")
