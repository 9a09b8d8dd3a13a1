"""Every claim can be supported, refuted, inconclusive and not tested."""

import math

import pytest

from toolkit.claims import (
    Comparison,
    Floor,
    NotTestedError,
    Ordering,
    Threshold,
    Trend,
    evaluate,
    is_fraction,
    paired_estimate,
    t_interval,
)

METRIC = "test/error"
LOW = (0.050, 0.052, 0.048, 0.051, 0.049)
MIDDLE = (0.060, 0.062, 0.058, 0.061, 0.060)
HIGH = (0.070, 0.072, 0.069, 0.071, 0.070)
SCATTERED = (0.010, 0.110, 0.040, 0.090, 0.060)


def runs(values, updates=100, epochs=10, first_seed=0, metric=METRIC):
    return {
        seed: {
            "status": "finished",
            "updates": updates,
            "epochs": epochs,
            "examples_seen": 32 * updates,
            "metrics": {metric: value},
        }
        for seed, value in enumerate(values, start=first_seed)
    }


def comparison(**changes):
    settings = {
        "text": "the arm is better",
        "source": "Fig. 4",
        "metric": METRIC,
        "arm": "arm",
        "baseline": "plain",
        "expect": "lower",
    }
    return Comparison(**{**settings, **changes})


def threshold(**bounds):
    return Threshold("t", "s", METRIC, "plain", **bounds)


def verdict(claim, results):
    return evaluate(claim, results).verdict


class TestInterval:
    def test_equals_the_hand_computed_value(self):
        # std = sqrt(2.5), t(0.975, 4) = 2.7764451052: half width 2.7764451052 * sqrt(2.5 / 5)
        mean, low, high = t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
        assert mean == 3.0
        assert low == pytest.approx(3 - 1.9632431614775588, abs=1e-10)
        assert high == pytest.approx(3 + 1.9632431614775588, abs=1e-10)

    def test_two_values_give_the_cauchy_quantile(self):
        # With one degree of freedom t is Cauchy: quantile tan(pi * 0.475), standard error 0.5.
        _, low, high = t_interval([0.0, 1.0])
        assert low == pytest.approx(0.5 - 0.5 * math.tan(math.pi * 0.475), rel=1e-9)
        assert high == pytest.approx(0.5 + 0.5 * math.tan(math.pi * 0.475), rel=1e-9)

    def test_one_value_has_no_interval(self):
        assert t_interval([0.3]) == (0.3, None, None)

    def test_equal_values_have_no_width_and_their_own_mean(self):
        assert t_interval([0.1] * 3) == (0.1, 0.1, 0.1)

    def test_no_values_are_refused(self):
        with pytest.raises(ValueError, match=r"values must hold at least one number, got none"):
            t_interval([])


class TestComparison:
    @pytest.mark.parametrize(
        ("arm", "expected"),
        [(LOW, "supported"), (HIGH, "refuted"), (SCATTERED, "inconclusive")],
    )
    def test_all_verdicts(self, arm, expected):
        results = {"arm": runs(arm), "plain": runs(MIDDLE)}
        assert verdict(comparison(), results) == expected

    def test_swapped_labels_flip_supported_to_refuted(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH)}
        swapped = {"arm": results["plain"], "plain": results["arm"]}
        for tolerance in (0.0, 0.005):
            claim = comparison(tolerance=tolerance)
            assert verdict(claim, results) == "supported"
            assert verdict(claim, swapped) == "refuted"

    def test_expecting_the_other_sign_flips_the_verdict(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH)}
        assert verdict(comparison(expect="higher"), results) == "refuted"
        assert verdict(comparison(expect="higher", arm="plain", baseline="arm"), results) == (
            "supported"
        )

    def test_one_seed_is_never_supported(self):
        result = evaluate(comparison(), {"arm": runs(LOW[:1]), "plain": runs(HIGH[:1])})
        assert result.verdict == "inconclusive"
        assert result.sentence == "arm - plain: -2.0 points of test/error (no interval, n = 1)"

    def test_pairs_by_seed_and_not_by_mean(self):
        # The arms scatter by 0.1 between seeds, and differ by 0.01 within each.
        shifted = tuple(value - 0.01 + 0.0001 * i for i, value in enumerate(SCATTERED))
        results = {"arm": runs(shifted), "plain": runs(SCATTERED)}
        assert verdict(comparison(), results) == "supported"
        reversed_seeds = {"arm": runs(shifted[::-1]), "plain": runs(SCATTERED)}
        assert verdict(comparison(), reversed_seeds) == "inconclusive"

    def test_equal_nonzero_differences_have_zero_width_and_a_verdict(self):
        results = {"arm": runs([0.25, 0.5]), "plain": runs([0.5, 0.75])}
        result = evaluate(comparison(), results)
        assert result.verdict == "supported"
        estimate = result.evidence["estimates"][0]
        assert (estimate["low"], estimate["mean"], estimate["high"]) == (-0.25, -0.25, -0.25)

    def test_identical_arms_are_inconclusive(self):
        assert verdict(comparison(), {"arm": runs(LOW), "plain": runs(LOW)}) == "inconclusive"

    def test_differences_up_to_the_tolerance_count_as_none(self):
        results = {"arm": runs(LOW), "plain": runs(MIDDLE)}
        assert verdict(comparison(tolerance=0.005), results) == "supported"
        assert verdict(comparison(tolerance=0.05), results) == "refuted"

    def test_pairs_over_common_seeds_and_says_so(self):
        results = {"arm": runs(LOW[:4]), "plain": runs(HIGH, first_seed=1)}
        result = evaluate(comparison(), results)
        assert result.evidence["estimates"][0]["seeds"] == (1, 2, 3)
        assert result.evidence["notes"] == [
            "arm: seed 0 left out, since another arm has no run of it",
            "plain: seed 4, 5 left out, since another arm has no run of it",
        ]
        assert "seed 4, 5 left out" in result.sentence

    def test_order_of_runs_changes_nothing(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH)}
        backwards = {name: dict(reversed(of.items())) for name, of in reversed(results.items())}
        assert evaluate(comparison(), results) == evaluate(comparison(), backwards)

    def test_sentence_reads_plainly(self):
        arm = (0.040, 0.044, 0.041, 0.039, 0.046)
        plain = (0.055, 0.052, 0.052, 0.056, 0.055)
        result = evaluate(comparison(), {"arm": runs(arm), "plain": runs(plain)})
        assert result.sentence == (
            "arm - plain: -1.2 points of test/error (95 % interval -1.7 to -0.7, n = 5)"
        )

    @pytest.mark.parametrize("name", ["tolerance", "slack"])
    def test_negative_tolerance_is_refused(self, name):
        with pytest.raises(ValueError, match=rf"{name} must be at least 0, got -0\.1"):
            comparison(**{name: -0.1})

    def test_comparison_with_itself_is_refused(self):
        with pytest.raises(ValueError, match="must differ from the arm, got 'arm' for both"):
            comparison(controls=["arm"])


class TestControls:
    def test_control_that_shows_the_effect_makes_it_inconclusive(self):
        near = tuple(value + 0.001 * (-1) ** i for i, value in enumerate(LOW))
        results = {"arm": runs(LOW), "plain": runs(HIGH), "random": runs(near)}
        assert verdict(comparison(), results) == "supported"
        result = evaluate(comparison(controls=["random"]), results)
        assert result.verdict == "inconclusive"
        assert "control arm - random: " in result.sentence

    def test_beaten_controls_leave_it_supported(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH), "random": runs(MIDDLE)}
        assert verdict(comparison(controls=["random"]), results) == "supported"

    def test_every_control_must_be_beaten(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH), "a": runs(MIDDLE), "b": runs(LOW)}
        assert verdict(comparison(controls=["a", "b"]), results) == "inconclusive"

    def test_control_that_does_better_refutes(self):
        results = {"arm": runs(MIDDLE), "plain": runs(HIGH), "random": runs(LOW)}
        assert verdict(comparison(controls=["random"]), results) == "refuted"

    def test_missing_control_leaves_it_untested(self):
        result = evaluate(comparison(controls=["random"]), {"arm": runs(LOW), "plain": runs(HIGH)})
        assert result.verdict == "not tested"
        assert result.sentence == "not tested: random has no finished run"


class TestBudget:
    def test_unequal_updates_leave_it_untested(self):
        results = {"arm": runs(LOW, updates=140), "plain": runs(HIGH, updates=100)}
        result = evaluate(comparison(equal="updates"), results)
        assert result.verdict == "not tested"
        assert result.sentence == (
            "not tested: arm and plain must have equal updates, got 140 and 100 on average"
        )

    def test_updates_within_the_slack_are_equal(self):
        results = {"arm": runs(LOW, updates=104), "plain": runs(HIGH, updates=100)}
        assert verdict(comparison(equal="updates"), results) == "supported"
        assert verdict(comparison(equal="updates", slack=0.01), results) == "not tested"

    def test_unknown_updates_leave_it_untested(self):
        results = {"arm": runs(LOW, updates=1), "plain": runs(HIGH, updates=1)}
        for run in results["arm"].values():
            del run["updates"]
        result = evaluate(comparison(equal="updates"), results)
        assert result.sentence == "not tested: the results do not tell the updates of both arms"

    def test_equal_epochs_state_the_ratio_of_updates(self):
        results = {"arm": runs(LOW, updates=140), "plain": runs(HIGH, updates=100)}
        result = evaluate(comparison(), results)
        assert result.verdict == "supported"
        assert result.evidence["budget"]["updates_ratio"] == pytest.approx(1.4)
        assert result.sentence.endswith("; the arm made 1.40 times the baseline's updates")

    def test_unequal_epochs_leave_it_untested(self):
        results = {"arm": runs(LOW, epochs=14), "plain": runs(HIGH, epochs=10)}
        assert verdict(comparison(), results) == "not tested"

    def test_controls_have_their_own_budget(self):
        results = {
            "arm": runs(LOW, updates=140),
            "plain": runs(HIGH),
            "longer": runs(MIDDLE, updates=140, epochs=14),
        }
        result = evaluate(comparison(controls=["longer"]), results)
        assert result.verdict == "supported"
        assert result.evidence["budget"]["updates"] == {"arm": 140, "plain": 100, "longer": 140}


class TestThreshold:
    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({"at_most": 0.08}, "supported"),
            ({"at_most": 0.065}, "refuted"),
            ({"at_most": 0.0702}, "inconclusive"),
            ({"at_least": 0.065}, "supported"),
            ({"at_least": 0.08}, "refuted"),
            ({"at_least": 0.0702}, "inconclusive"),
            ({"at_least": 0.06, "at_most": 0.08}, "supported"),
            ({"at_least": 0.06, "at_most": 0.065}, "refuted"),
            ({"at_least": 0.08, "tolerance": 0.02}, "supported"),
        ],
    )
    def test_all_verdicts(self, bounds, expected):
        assert verdict(threshold(**bounds), {"plain": runs(HIGH)}) == expected

    def test_one_seed_is_inconclusive(self):
        assert verdict(threshold(at_most=0.9), {"plain": runs([0.1])}) == "inconclusive"

    def test_missing_variant_is_not_tested(self):
        assert verdict(threshold(at_most=0.9), {}) == "not tested"

    def test_needs_a_bound(self):
        with pytest.raises(ValueError, match="must have at_least or at_most, got neither"):
            threshold()

    def test_sentence_names_mean_interval_and_bound(self):
        result = evaluate(threshold(at_most=0.08), {"plain": runs(HIGH)})
        assert result.sentence == (
            "plain: test/error 7.04 % (95 % interval 6.90 to 7.18, n = 5); claimed at most 8 %"
        )


STAIRS = {"a": runs(LOW), "b": runs(MIDDLE), "c": runs(HIGH)}
FLAT = {"a": runs(SCATTERED), "b": runs(SCATTERED[::-1]), "c": runs(SCATTERED[2:] + SCATTERED[:2])}


class TestTrend:
    @pytest.mark.parametrize(
        ("results", "variants", "expected"),
        [
            (STAIRS, "abc", "supported"),
            (STAIRS, "cba", "refuted"),
            (FLAT, "abc", "inconclusive"),
            (STAIRS, "abd", "not tested"),
        ],
    )
    def test_all_verdicts(self, results, variants, expected):
        claim = Trend("t", "s", METRIC, list(variants), "increasing")
        assert verdict(claim, results) == expected

    def test_slope_is_that_of_least_squares(self):
        results = {"a": runs([0.0, 0.0]), "b": runs([0.5, 1.0]), "c": runs([0.5, 2.0])}
        claim = Trend("t", "s", METRIC, ["a", "b", "c"], "increasing")
        # Per seed (-1 * y0 + 0 * y1 + 1 * y2) / 2.
        estimate = evaluate(claim, results).evidence["estimates"][0]
        assert estimate["values"] == (0.25, 1.0)

    def test_slopes_up_to_the_tolerance_count_as_flat(self):
        claim = Trend("t", "s", METRIC, ["a", "b", "c"], "increasing", tolerance=0.02)
        assert verdict(claim, STAIRS) == "refuted"

    def test_one_seed_is_inconclusive(self):
        results = {"a": runs(LOW[:1]), "b": runs(HIGH[:1])}
        claim = Trend("t", "s", METRIC, ["a", "b"], "increasing")
        assert verdict(claim, results) == "inconclusive"


class TestOrdering:
    @pytest.mark.parametrize(
        ("results", "variants", "expected"),
        [
            (STAIRS, "abc", "supported"),
            (STAIRS, "acb", "refuted"),
            (FLAT, "abc", "inconclusive"),
            (STAIRS, "abd", "not tested"),
        ],
    )
    def test_all_verdicts(self, results, variants, expected):
        assert verdict(Ordering("t", "s", METRIC, list(variants)), results) == expected

    def test_one_step_that_straddles_makes_it_inconclusive(self):
        results = {**STAIRS, "d": runs(HIGH)}
        result = evaluate(Ordering("t", "s", METRIC, ["a", "b", "c", "d"]), results)
        assert result.verdict == "inconclusive"
        assert result.sentence.startswith("2 of 3 steps increasing; b - a: ")

    def test_decreasing_reads_the_list_the_other_way(self):
        claim = Ordering("t", "s", METRIC, ["c", "b", "a"], expect="decreasing")
        assert verdict(claim, STAIRS) == "supported"

    @pytest.mark.parametrize("variants", [["a"], ["a", "a"]])
    def test_needs_different_variants(self, variants):
        with pytest.raises(ValueError, match="variants must be at least two different names"):
            Ordering("t", "s", METRIC, variants)


class TestNotTested:
    def test_floor_of_the_plain_arm_is_needed(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH)}
        missed = comparison(requires=Floor("plain", METRIC, at_most=0.06))
        assert evaluate(missed, results).sentence == (
            "not tested: plain has test/error 0.0704 on average, "
            "and must have at most 0.06 for this to be tested"
        )
        reached = comparison(requires=Floor("plain", METRIC, at_least=0.06, at_most=0.08))
        assert verdict(reached, results) == "supported"
        assert verdict(comparison(requires=Floor("plain", METRIC, at_least=0.9)), results) == (
            "not tested"
        )

    def test_floor_needs_a_bound(self):
        with pytest.raises(ValueError, match="requires must have at_least or at_most"):
            Floor("plain", METRIC)

    def test_failed_run_is_named(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH)}
        results["arm"][3] = {"status": "failed", "error": "the loss is NaN at update 7"}
        assert evaluate(comparison(), results).sentence == (
            "not tested: arm, seed 3 failed (the loss is NaN at update 7)"
        )

    @pytest.mark.parametrize("value", [None, math.nan, math.inf])
    def test_metric_without_a_number_is_named(self, value):
        results = {"arm": runs(LOW), "plain": runs([*HIGH[:4], value])}
        assert evaluate(comparison(), results).sentence == (
            "not tested: plain, seed 4 has no finite test/error"
        )

    def test_no_common_seed_is_named(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH, first_seed=9)}
        assert evaluate(comparison(), results).sentence == (
            "not tested: arm, plain have no seed in common"
        )

    def test_unfinished_run_is_missing(self):
        results = {"arm": runs(LOW), "plain": runs(HIGH)}
        results["arm"][0]["status"] = "interrupted"
        assert evaluate(comparison(), results).evidence["estimates"][0]["seeds"] == (1, 2, 3, 4)

    def test_paired_estimate_raises_it(self):
        with pytest.raises(NotTestedError, match="sgd has no finished run"):
            paired_estimate({}, METRIC, "sgd", "sam")


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("val/worst_group_acc", True),
        ("test/error", True),
        ("test/group_acc/2", True),
        ("train/loss", False),
        ("train/margin/min", False),
        ("val/accumulated", False),
    ],
)
def test_accuracies_and_errors_read_in_percent(metric, expected):
    assert is_fraction(metric) is expected
