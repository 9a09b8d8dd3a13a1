"""What a claim is, its verdict, and how one is reached."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from toolkit.claims.estimate import NotTestedError, Results, Verdict, seed_values

__all__ = [
    "Claim",
    "ClaimResult",
    "Floor",
    "Judgement",
    "evaluate",
    "joint_verdict",
]


@dataclass(frozen=True)
class Judgement:
    """A verdict, the numbers behind it, and one plain line."""

    verdict: Verdict
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its verdict, as it stands in ``study.json``."""

    name: str
    text: str
    source: str
    verdict: Verdict
    evidence: dict[str, Any]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Floor:
    """What a plain arm must reach before a claim over it says anything.

    Args:
        variant: The plain arm.
        metric: The metric whose mean over seeds is compared.
        at_least: Lower bound, in the metric's unit (0.9, not 90).
        at_most: Upper bound.

    Raises:
        ValueError: If no bound is given.
    """

    variant: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ValueError("requires must have at_least or at_most, got neither. Add one.")


@runtime_checkable
class Claim(Protocol):
    """A statement over results; a class of one's own needs these four names only."""

    @property
    def text(self) -> str:
        """The statement, in words."""

    @property
    def source(self) -> str:
        """Where it was made: figure, table or section of a paper."""

    @property
    def requires(self) -> Floor | None:
        """What a plain arm must reach first."""

    def judge(self, results: Results) -> Judgement:
        """The verdict; may raise :class:`NotTestedError`."""


def evaluate(claim: Claim, results: Results, name: str = "") -> ClaimResult:
    """Verdict of a claim: *not tested* where runs, metrics or the required floor are missing.

    Args:
        claim: The claim.
        results: ``{variant: {seed: content of result.json}}``; runs whose ``status`` is
            ``finished`` count, one that ``failed`` leaves the claims on its variant untested
            (the seeds that survive are not a fair sample), others are still missing.
        name: Its name in the recipe.

    Example:
        >>> from toolkit.claims import Comparison
        >>> runs = {0: {"status": "finished", "metrics": {"test/error": 0.1}}}
        >>> claim = Comparison("SAM helps", "Fig. 4", "test/error", "sam", "sgd", "lower")
        >>> evaluate(claim, {"sam": runs}).sentence
        'not tested: sgd has no finished run'
    """
    try:
        if claim.requires is not None:
            _check_floor(claim.requires, results)
        judgement = claim.judge(results)
    except NotTestedError as reason:
        text = str(reason)
        judgement = Judgement("not tested", f"not tested: {text}", {"reason": text})
    return ClaimResult(
        name, claim.text, claim.source, judgement.verdict, judgement.evidence, judgement.sentence
    )


def joint_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """*supported* if all are, *refuted* if any is, else *inconclusive*."""
    verdicts = tuple(verdicts)
    if "refuted" in verdicts:
        return "refuted"
    return "supported" if set(verdicts) == {"supported"} else "inconclusive"


def _check_floor(floor: Floor, results: Results) -> None:
    """Raise :class:`NotTestedError` unless the plain arm reaches its floor."""
    values = seed_values(results, floor.variant, floor.metric)
    mean = math.fsum(values.values()) / len(values)
    for bound, word, missed in (
        (floor.at_least, "least", floor.at_least is not None and mean < floor.at_least),
        (floor.at_most, "most", floor.at_most is not None and mean > floor.at_most),
    ):
        if missed:
            raise NotTestedError(
                f"{floor.variant} has {floor.metric} {mean:.4g} on average, "
                f"and must have at {word} {bound:.4g} for this to be tested"
            )
