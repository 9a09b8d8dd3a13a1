"""Claims on single seeds: all three verdicts, their exact bounds, and that labels matter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom

from toolkit.claims import SeedShare, Throughout, evaluate, read_results
from toolkit.claims.seeds import share_verdict
from toolkit.history import History, write_json


def runs(values: Sequence[float | None]) -> dict[int, dict[str, Any]]:
    return {s: {"status": "finished", "metrics": {"m": v}} for s, v in enumerate(values)}


def verdict(arm: Sequence[float | None], plain: Sequence[float | None], **arguments: Any) -> str:
    given = {"arm": "a", "baseline": "b", "expect": "higher", **arguments}
    claim = SeedShare("", "", "m", **given)
    return evaluate(claim, {"a": runs(arm), "b": runs(plain)}).verdict


def test_one_seed_against_refutes_a_claim_on_all() -> None:
    assert verdict([2] * 6, [1] * 6) == "supported"
    assert verdict([2] * 5, [1] * 5) == "inconclusive"  # all five by chance: 2 / 2^5 = 6 %
    assert verdict([2] * 29 + [1], [1] * 30) == "refuted"
    assert verdict([2] * 29 + [1], [1] * 30, or_equal=True) == "supported"


def test_swapped_arms_turn_supported_into_refuted() -> None:
    arm, baseline = [2.0, 3, 4, 5, 6, 7, 8, 9], [1.0] * 8
    for share in (1.0, 0.5):
        assert verdict(arm, baseline, share=share) == "supported"
        assert verdict(baseline, arm, share=share) == "refuted"
        assert verdict(baseline, arm, share=share, expect="lower") == "supported"


def test_a_factor_is_on_the_baseline() -> None:
    assert verdict([1.3] * 9, [1.0] * 9, factor=1.2) == "supported"
    assert verdict([1.1] * 9, [1.0] * 9, factor=1.2) == "refuted"


def test_the_share_is_judged_by_the_exact_binomial_interval() -> None:
    """At the bounds of Clopper and Pearson the tail beyond the count has 2.5 %."""
    for total in (10, 30):
        for count in range(total + 1):
            above = binom.sf(count - 1, total, 0.5) < 0.025
            below = binom.cdf(count, total, 0.5) < 0.025
            expected = "supported" if above else "refuted" if below else "inconclusive"
            assert share_verdict(count, total, 0.5) == expected, (count, total)


def test_a_seed_without_a_number_leaves_the_claim_untested() -> None:
    assert verdict([2.0] * 5 + [None], [1.0] * 6) == "not tested"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"baseline": "a"}, "baseline must differ from the arm, got 'a'"),
        ({"share": 0.0}, "share must be above 0 and at most 1, got 0"),
        ({"factor": -1.0}, "factor must be above 0, got -1"),
    ],
)
def test_claims_without_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verdict([1], [1], **arguments)


def curves_study(
    folder: Path, arm: Sequence[float], baseline: Sequence[float], until: float
) -> Any:
    """Six seeds of two arms whose records hold the given values at updates 0, 1, 2, ..."""
    for name, values in (("a", arm), ("b", baseline)):
        for seed in range(6):
            run = folder / name / f"seed{seed}"
            history = History(run / "history.jsonl")
            for update, value in enumerate(values):
                history.append({"update": update, "gap": value})
            result = {"status": "finished", "updates": 9, "metrics": {"end": until}}
            write_json(result, run / "result.json")
    return read_results(folder)


def test_a_curve_has_to_lie_lower_at_every_update_before_the_end(tmp_path: Path) -> None:
    claim = Throughout("", "", "gap", "a", "b", "lower", until="end")
    # Update 0 and those from 3 on do not count.
    results = curves_study(tmp_path / "x", [5, 1, 1, 5], [1, 2, 2, 1], until=3)
    judged = evaluate(claim, results)
    assert judged.verdict == "supported"
    assert judged.evidence["estimates"][0]["values"] == (-1.0,) * 6
    swapped = Throughout("", "", "gap", "b", "a", "lower", until="end")
    assert evaluate(swapped, results).verdict == "refuted"
    results = curves_study(tmp_path / "y", [5, 1, 3, 1], [1, 2, 2, 1], until=3)
    assert evaluate(claim, results).verdict == "refuted"
    to_the_end = Throughout("", "", "gap", "a", "b", "lower")
    results = curves_study(tmp_path / "z", [5, 1, 1, 5], [1, 2, 2, 1], until=3)
    assert evaluate(to_the_end, results).verdict == "refuted"


def test_runs_without_records_leave_the_claim_untested() -> None:
    claim = Throughout("", "", "gap", "a", "b", "lower")
    result = {"status": "finished", "updates": 3, "metrics": {}}
    judged = evaluate(claim, {"a": {0: result}, "b": {0: result}})
    assert judged.verdict == "not tested"
    assert "no update of gap" in judged.sentence
