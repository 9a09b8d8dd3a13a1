"""Checkable statements over the results of a study, and their verdicts.

``evaluate`` judges one claim, ``build_study`` all claims of a study. Intervals are 95 % Student
t intervals of per-seed values: they assume that the seeds are independent and their differences
roughly normal. Each claim is judged on its own; nothing is corrected for their number, which
reports state next to the verdicts.
"""

from toolkit.claims.comparison import Comparison
from toolkit.claims.estimate import (
    Estimate,
    NotTestedError,
    Results,
    Verdict,
    paired_estimate,
    seed_values,
    t_interval,
)
from toolkit.claims.judgement import Claim, ClaimResult, Floor, Judgement, evaluate
from toolkit.claims.seeds import SeedShare, Throughout
from toolkit.claims.sequence import Ordering, Trend
from toolkit.claims.summary import build_study, claim_from_node, read_results, summarize
from toolkit.claims.threshold import Threshold
from toolkit.claims.wording import is_fraction

__all__ = [
    "Claim",
    "ClaimResult",
    "Comparison",
    "Estimate",
    "Floor",
    "Judgement",
    "NotTestedError",
    "Ordering",
    "Results",
    "SeedShare",
    "Threshold",
    "Throughout",
    "Trend",
    "Verdict",
    "build_study",
    "claim_from_node",
    "evaluate",
    "is_fraction",
    "paired_estimate",
    "read_results",
    "seed_values",
    "summarize",
    "t_interval",
]
