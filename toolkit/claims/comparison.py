"""A claim that one variant does better than another, at a stated budget and beyond controls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.claims.estimate import Estimate, NotTestedError, Results, paired_estimate
from toolkit.claims.judgement import Floor, Judgement, joint_verdict
from toolkit.claims.wording import difference_words

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """A metric is lower (or higher) under one variant than under another, seed by seed.

    Let ``d`` be the per-seed difference arm - baseline, turned so that the expected sign is
    positive. The claim is *supported* if the 95 % t interval of the mean of ``d`` lies above
    ``tolerance``, *refuted* if it lies below it, else *inconclusive*; one seed is never
    supported. Each control adds a condition: the interval of (arm - control) must exclude 0 on
    the expected side as well. A control that the arm is not told apart from makes the claim
    inconclusive; one that does better than the arm, all of the interval on the wrong side,
    refutes it. Swapping arm and baseline turns supported into refuted.

    Fair budgets: under ``equal: updates`` the mean updates of arm and baseline may differ by at
    most ``slack``, else the claim is *not tested*. Under ``equal: epochs`` the same holds for
    ``epochs`` where the results have it, and the ratio of updates is part of the sentence.
    ``equal`` is about arm and baseline only: a control has the budget that makes it one
    (``sgd_longer`` as many updates as the arm, ``sgd_random`` as many epochs); its updates are
    part of the evidence.

    The interval assumes independent seeds with roughly normal differences; it is not corrected
    for the number of claims.

    Args:
        text: The statement, in words.
        source: Where it was made.
        metric: A key of the results, such as ``test/error``.
        arm: The variant that is claimed to do better.
        baseline: The variant it is compared with.
        expect: Sign of arm - baseline.
        tolerance: Differences up to this size, in the metric's unit, count as none; at least 0.
        equal: The budget that arm and baseline share.
        controls: Variants whose advantage over the baseline would explain the arm's away.
        requires: Floor of a plain arm, without which the claim is *not tested*.
        slack: Relative difference of budgets that counts as equal.

    Raises:
        ValueError: If the tolerance or slack is negative, or a variant is compared with itself.

    Example:
        >>> from toolkit.claims import evaluate
        >>> def runs(*errors):
        ...     return {s: {"status": "finished", "metrics": {"test/error": e}}
        ...             for s, e in enumerate(errors)}
        >>> results = {"sam": runs(0.05, 0.06, 0.05), "sgd": runs(0.08, 0.09, 0.09)}
        >>> claim = Comparison("SAM helps", "Fig. 4", "test/error", "sam", "sgd", "lower")
        >>> evaluate(claim, results).sentence
        'sam - sgd: -3.3 points of test/error (95 % interval -4.8 to -1.9, n = 3)'
    """

    text: str
    source: str
    metric: str
    arm: str
    baseline: str
    expect: Literal["lower", "higher"]
    tolerance: float = 0.0
    equal: Literal["epochs", "updates"] = "epochs"
    controls: Sequence[str] = ()
    requires: Floor | None = None
    slack: float = 0.05

    def __post_init__(self) -> None:
        for name in ("tolerance", "slack"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}. Drop its sign.")
        for other in (self.baseline, *self.controls):
            if other == self.arm:
                raise ValueError(
                    f"baseline and controls must differ from the arm, got {other!r} for both. "
                    "Name another variant."
                )

    def judge(self, results: Results) -> Judgement:
        """The verdict, with paired differences to baseline and controls, and the budgets."""
        sign = {"higher": 1, "lower": -1}[self.expect]
        main, notes = paired_estimate(results, self.metric, self.arm, self.baseline)
        estimates, verdicts = [main], [main.verdict(sign, self.tolerance)]
        for control in self.controls:
            estimate, more = paired_estimate(results, self.metric, self.arm, control, "control")
            estimates.append(estimate)
            verdicts.append(estimate.verdict(sign))
            notes += more
        budget = self._budget(results, main.seeds)
        evidence: dict[str, Any] = {
            "metric": self.metric,
            "expect": self.expect,
            "tolerance": self.tolerance,
            "budget": budget,
            "estimates": [
                {**estimate.as_dict(), "verdict": verdict}
                for estimate, verdict in zip(estimates, verdicts, strict=True)
            ],
            "notes": list(notes),
        }
        parts = [self._words(estimate) for estimate in estimates]
        parts += _budget_words(budget)
        return Judgement(joint_verdict(verdicts), "; ".join([*parts, *notes]), evidence)

    def _words(self, estimate: Estimate) -> str:
        text = f"{estimate.label}: {difference_words(self.metric, estimate)}"
        return f"control {text}" if estimate.role == "control" else text

    def _budget(self, results: Results, seeds: Sequence[int]) -> dict[str, Any]:
        """Mean budgets per variant and the arm's relative to the baseline's.

        Raises:
            NotTestedError: If arm and baseline differ in the budget that should be equal.
        """
        variants = dict.fromkeys((self.arm, self.baseline, *self.controls))
        budget: dict[str, Any] = {"equal": self.equal, "slack": self.slack}
        for unit in ("epochs", "updates", "examples_seen"):
            budget[unit] = {name: _mean(results, name, seeds, unit) for name in variants}
        arm, baseline = budget[self.equal][self.arm], budget[self.equal][self.baseline]
        if arm is None or baseline is None:
            if self.equal == "updates":
                raise NotTestedError("the results do not tell the updates of both arms")
        elif abs(arm - baseline) > self.slack * baseline:
            raise NotTestedError(
                f"{self.arm} and {self.baseline} must have equal {self.equal}, "
                f"got {arm:.6g} and {baseline:.6g} on average"
            )
        updates = budget["updates"]
        if updates[self.arm] is not None and updates[self.baseline]:
            budget["updates_ratio"] = updates[self.arm] / updates[self.baseline]
        return budget


def _mean(results: Results, variant: str, seeds: Sequence[int], unit: str) -> float | None:
    """Mean of a budget over the runs that have it; ``None`` if one lacks it."""
    runs = results.get(variant, {})
    values = [runs[seed].get(unit) for seed in seeds if seed in runs]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _budget_words(budget: dict[str, Any]) -> list[str]:
    """The ratio of updates, where it is not about 1."""
    ratio = budget.get("updates_ratio")
    if ratio is None or abs(ratio - 1) <= budget["slack"]:
        return []
    return [f"the arm made {ratio:.2f} times the baseline's updates"]
