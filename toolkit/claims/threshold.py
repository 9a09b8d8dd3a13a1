"""A claim that a metric reaches a bound."""

from dataclasses import dataclass
from typing import Any

from toolkit.claims.estimate import Estimate, Results, seed_values
from toolkit.claims.judgement import Floor, Judgement, joint_verdict
from toolkit.claims.wording import bound_words, level_words

__all__ = ["Threshold"]


@dataclass(frozen=True)
class Threshold:
    """The metric of a variant, averaged over seeds, reaches a bound.

    *supported* if the 95 % t interval of the mean lies beyond each bound (with the tolerance),
    *refuted* if it lies short of one, else *inconclusive*; one seed is always inconclusive.

    Args:
        text: The statement, in words.
        source: Where it was made.
        metric: A key of the results, such as ``test/acc``.
        variant: The variant.
        at_least: Lower bound in the metric's unit (0.9, not 90); needed if ``at_most`` is not
            given.
        at_most: Upper bound.
        tolerance: How far short of a bound still counts as reaching it, at least 0.
        requires: Floor of a plain arm, without which the claim is *not tested*.

    Raises:
        ValueError: If no bound is given, or the tolerance is negative.

    Example:
        >>> from toolkit.claims import evaluate
        >>> runs = {s: {"status": "finished", "metrics": {"test/acc": 0.93}} for s in range(3)}
        >>> evaluate(Threshold("", "", "test/acc", "sgd", at_least=0.9), {"sgd": runs}).verdict
        'supported'
    """

    text: str
    source: str
    metric: str
    variant: str
    at_least: float | None = None
    at_most: float | None = None
    tolerance: float = 0.0
    requires: Floor | None = None

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a threshold must have at_least or at_most, got neither. Add one.")
        if self.tolerance < 0:
            raise ValueError(f"tolerance must be at least 0, got {self.tolerance}. Drop its sign.")

    def judge(self, results: Results) -> Judgement:
        """The verdict, with the mean and its interval."""
        level = Estimate.of(self.variant, "level", seed_values(results, self.variant, self.metric))
        bounds = [
            (word, bound, sign)
            for word, bound, sign in (("least", self.at_least, 1), ("most", self.at_most, -1))
            if bound is not None
        ]
        verdict = joint_verdict(
            level.verdict(sign, sign * bound - self.tolerance) for _, bound, sign in bounds
        )
        claimed = " and ".join(
            f"at {word} {bound_words(self.metric, bound)}" for word, bound, _ in bounds
        )
        words = level_words(self.metric, level)
        evidence: dict[str, Any] = {
            "metric": self.metric,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "tolerance": self.tolerance,
            "estimates": [level.as_dict()],
        }
        return Judgement(
            verdict,
            f"{self.variant}: {self.metric} {words}; claimed {claimed}",
            evidence,
        )
