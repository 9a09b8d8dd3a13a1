"""Which losses have the exponential tail, and which have not."""

import pytest
import torch

from toolkit.losses import (
    CrammerSingerHinge,
    CrossEntropy,
    FocalLoss,
    GammaPhiLoss,
    MulticlassExponential,
    PairLogLoss,
    PERMLoss,
    WestonWatkinsHinge,
    exponential_tail,
    has_exponential_tail,
)


@pytest.mark.parametrize(
    ("loss", "rate"),
    [
        (CrossEntropy(), 1.0),
        (MulticlassExponential(), 1.0),
        (PairLogLoss(), 1.0),
        (PairLogLoss(temperature=2.0), 2.0),
    ],
)
@pytest.mark.parametrize("num_classes", [2, 4, 7])
def test_losses_with_the_tail_have_the_rate_and_constant_known(
    loss: PERMLoss, rate: float, num_classes: int
) -> None:
    found = exponential_tail(loss, num_classes)
    assert found.holds
    assert found.example is None
    assert (found.rate, found.constant) == pytest.approx((rate, rate), rel=1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        CrammerSingerHinge(),
        WestonWatkinsHinge(),
        GammaPhiLoss(),
        GammaPhiLoss(5.0),
        GammaPhiLoss(outer="log1p"),
        FocalLoss(),
    ],
)
def test_losses_without_the_tail_are_told(loss: PERMLoss) -> None:
    assert not has_exponential_tail(loss)
    found = exponential_tail(loss)
    assert found.example is not None
    assert found.example.shape == (3,)


def test_focal_loss_of_two_classes_decays_at_its_rate_but_outside_the_envelope() -> None:
    found = exponential_tail(FocalLoss(2.0), num_classes=2, threshold=3.0)
    assert found.rate == pytest.approx(3, rel=1e-9)
    assert found.constant == pytest.approx(3, rel=1e-6)
    # q = 3 exp(-3 u) (1 - O(exp(-u))), where the envelope allows for exp(-3 u).
    assert (found.above, found.below > 0) == (0, True)


def test_another_rate_or_constant_is_refuted() -> None:
    assert exponential_tail(CrossEntropy(), rate=1.0, constant=1.0).holds
    assert exponential_tail(CrossEntropy(), rate=1.0, constant=0.5).above > 0
    assert exponential_tail(CrossEntropy(), rate=1.0, constant=2.0).below > 0
    assert exponential_tail(CrossEntropy(), rate=1.1, constant=1.0).above > 0
    assert exponential_tail(CrossEntropy(), rate=0.9, constant=1.0).below > 0


def test_the_test_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    exponential_tail(CrossEntropy())
    assert torch.equal(torch.get_rng_state(), before)
