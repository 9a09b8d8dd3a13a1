"""Margins per example, norms, summaries."""

import math

import numpy as np
import pytest
import torch

from toolkit.metrics import (
    classification_margin,
    logit_normalized_margin,
    margin_summary,
    parameter_norm,
    quantile_name,
)


def random_margins(num_examples: int, num_labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    margins = torch.randn(num_examples, generator=generator, dtype=torch.float64)
    return margins, torch.randint(num_labels, (num_examples,), generator=generator)


def test_margin_is_the_true_logit_minus_the_largest_other() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0], [5.0, 5.0, 0.0]])
    assert classification_margin(logits, torch.tensor([1, 0, 0])).tolist() == [2.0, -3.0, 0.0]


def test_half_precision_logits_are_subtracted_in_single_precision() -> None:
    logits = torch.tensor([[256.0, 0.0625]], dtype=torch.float16)
    assert classification_margin(logits, torch.tensor([0])).tolist() == [255.9375]


def test_a_nan_logit_gives_a_nan_margin_wherever_it_is() -> None:
    logits = torch.tensor([[math.nan, 1.0], [1.0, math.nan], [1.0, 0.0]])
    margins = classification_margin(logits, torch.tensor([0, 0, 0]))
    assert margins.isnan().tolist() == [True, True, False]


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 2 classes, got shape \(3, 1\)"):
        classification_margin(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))


def test_logit_normalized_margin_ignores_scale_and_offset_and_is_bounded() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (50,), generator=generator)
    margins = logit_normalized_margin(logits, targets)
    torch.testing.assert_close(logit_normalized_margin(7 * logits + 3, targets), margins)
    assert margins.abs().max() <= math.sqrt(2)
    # Two classes alone: always the bound, with the sign of the margin.
    pair = logit_normalized_margin(logits[:, :2], targets % 2)
    torch.testing.assert_close(pair.abs(), torch.full_like(pair, math.sqrt(2)))
    assert logit_normalized_margin(torch.ones(1, 3), torch.tensor([1])).item() == 0


def test_parameter_norms_are_those_of_the_whole_vector() -> None:
    parameters = [torch.tensor([[1.0, -2.0]]), torch.tensor([-3.0])]
    assert parameter_norm(parameters, "l1").item() == 6
    assert parameter_norm(parameters, "l2").item() == pytest.approx(math.sqrt(14), rel=1e-15)
    assert parameter_norm(parameters, "linf").item() == 3
    with pytest.raises(ValueError, match="parameters must not be empty for the l2 norm"):
        parameter_norm([], "l2")


@pytest.mark.parametrize("quantile", [0.0, 0.05, 0.1, 0.25, 0.5, 0.975, 1.0])
def test_summary_agrees_with_numpy_for_each_label(quantile: float) -> None:
    margins, labels = random_margins(101, 3)
    summary = margin_summary(margins, labels, 3, (quantile,))
    for label in range(3):
        own = margins[labels == label].numpy()
        np.testing.assert_allclose(summary["min"][label], own.min())
        np.testing.assert_allclose(summary["mean"][label], own.mean())
        np.testing.assert_allclose(
            summary[quantile_name(quantile)][label], np.quantile(own, quantile), rtol=1e-12
        )
        np.testing.assert_allclose(summary["nonpositive_share"][label], (own <= 0).mean())


def test_an_absent_label_is_nan_and_shifts_no_other() -> None:
    margins, labels = random_margins(40, 3)
    present = labels != 1
    all_labels = margin_summary(margins, labels, 3)
    without = margin_summary(margins[present], labels[present], 3)
    for name, values in without.items():
        assert math.isnan(values[1])
        assert values[[0, 2]].tolist() == all_labels[name][[0, 2]].tolist()


def test_order_of_examples_is_irrelevant() -> None:
    margins, labels = random_margins(40, 3)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    shuffled = margin_summary(margins[order], labels[order], 3)
    for name, values in margin_summary(margins, labels, 3).items():
        torch.testing.assert_close(shuffled[name], values)


def test_a_nan_margin_spoils_its_own_label_only() -> None:
    margins = torch.tensor([1.0, math.nan, 2.0, math.inf, math.inf])
    summary = margin_summary(margins, torch.tensor([0, 0, 1, 2, 2]), 3)
    for values in summary.values():
        assert values.isnan().tolist() == [True, False, False]
    assert summary["median"][2] == math.inf


def test_no_examples_at_all_give_nan() -> None:
    summary = margin_summary(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 2)
    assert all(values.isnan().all() and len(values) == 2 for values in summary.values())


def test_a_label_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1, got 0\.\.2"):
        margin_summary(torch.zeros(2), torch.tensor([0, 2]), 2)


@pytest.mark.parametrize(
    ("quantile", "name"),
    [(0.5, "median"), (0.1, "q10"), (0.07, "q07"), (0.025, "q2.5"), (1.0, "q100"), (0.0, "q00")],
)
def test_quantiles_are_named_by_percent(quantile: float, name: str) -> None:
    assert quantile_name(quantile) == name
