"""Losses against closed forms, torch's own, automatic differentiation, and in low precision."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.config import instantiate
from toolkit.losses import (
    CrammerSingerHinge,
    CrossEntropy,
    FocalLoss,
    GammaPhiLoss,
    MulticlassExponential,
    PairLogLoss,
    PERMLoss,
    WestonWatkinsHinge,
    relative_margins,
)
from toolkit.models import ImageClassifier

LOSSES: dict[str, PERMLoss] = {
    "cross-entropy": CrossEntropy(),
    "exponential": MulticlassExponential(),
    "PairLog": PairLogLoss(),
    "PairLog, temperature 2": PairLogLoss(temperature=2.0),
    "Crammer-Singer": CrammerSingerHinge(),
    "Weston-Watkins": WestonWatkinsHinge(),
    "polynomial": GammaPhiLoss(),
    "polynomial of power 3": GammaPhiLoss(3.0),
    "log1p of polynomial": GammaPhiLoss(outer="log1p"),
    "focal": FocalLoss(),
    "focal, gamma 1": FocalLoss(1.0),
    "focal, gamma 0": FocalLoss(0.0),
}
SMOOTH = [name for name in LOSSES if name not in ("Crammer-Singer", "Weston-Watkins")]


def random_logits(scale: float = 2.0, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(64, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (64,), generator=generator)


def test_values_by_hand() -> None:
    logits, targets = torch.tensor([[2.0, 0.0, 3.0]], dtype=torch.float64), torch.tensor([0])
    # The relative margins are 2 and -1.
    expected = {
        "cross-entropy": math.log(1 + math.exp(-2) + math.e),
        "exponential": math.exp(-2) + math.e,
        "PairLog": math.log(1 + math.exp(-2)) + math.log(1 + math.e),
        "PairLog, temperature 2": math.log(1 + math.exp(-4)) + math.log(1 + math.exp(2)),
        "Crammer-Singer": 2,
        "Weston-Watkins": 2,
        "polynomial": 1 / 3 + 2,
        "polynomial of power 3": 1 / 27 + 4,
        "log1p of polynomial": math.log(1 + 1 / 3 + 2),
    }
    for name, value in expected.items():
        assert LOSSES[name](logits, targets).item() == pytest.approx(value, rel=1e-14), name


@pytest.mark.parametrize("scale", [0.1, 2.0, 100.0])
def test_cross_entropy_is_torchs_own(scale: float) -> None:
    logits, targets = random_logits(scale)
    expected = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(CrossEntropy()(logits, targets), expected)
    torch.testing.assert_close(FocalLoss(0.0)(logits, targets), expected)


def test_focal_loss_is_the_weighted_cross_entropy() -> None:
    logits, targets = random_logits()
    true = logits.softmax(1).gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(FocalLoss()(logits, targets), -((1 - true) ** 2) * true.log())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_closed_form_gradients_are_the_automatic_ones(name: str, scale: float) -> None:
    logits, targets = random_logits(scale)
    moving = logits.requires_grad_()
    (expected,) = torch.autograd.grad(LOSSES[name](moving, targets).sum(), moving)
    gradient = LOSSES[name].logit_gradient(logits, targets)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)
    values, log_scale = LOSSES[name].scaled_logit_gradient(logits, targets)
    torch.testing.assert_close(values * log_scale.exp(), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    logits, targets = random_logits(1.0)
    loss = partial(LOSSES[name], targets=targets[:6])
    assert torch.autograd.gradcheck(loss, logits[:6].requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
def test_renaming_the_classes_changes_nothing(name: str) -> None:
    logits, targets = random_logits()
    order = torch.tensor([2, 0, 3, 1])
    renamed = LOSSES[name](logits[:, order], order.argsort()[targets])
    torch.testing.assert_close(renamed, LOSSES[name](logits, targets))
    shifted = LOSSES[name](logits + 5, targets)
    torch.testing.assert_close(shifted, LOSSES[name](logits, targets))


@pytest.mark.parametrize("margin", [1.0, 17.0, 40.0, 80.0])
@pytest.mark.parametrize("name", ["cross-entropy", "exponential", "PairLog"])
def test_single_precision_keeps_the_gradient_of_the_true_class(name: str, margin: float) -> None:
    logits = torch.tensor([[margin, 0.0, -0.5, -1.0]], requires_grad=True)
    loss = LOSSES[name](logits, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    rivals = [math.exp(-margin), math.exp(-margin - 0.5), math.exp(-margin - 1)]
    if margin > 1:
        assert gradient[0].tolist() == pytest.approx([-sum(rivals), *rivals], rel=1e-4)
        assert loss.item() == pytest.approx(sum(rivals), rel=1e-4)
    assert gradient.sum().item() == pytest.approx(0, abs=1e-7 * math.exp(-margin))


def test_torch_loses_that_gradient() -> None:
    # If this fails torch has mended it, and the reason for our own cross-entropy is gone.
    logits = torch.tensor([[40.0, 0.0, 0.0]], requires_grad=True)
    F.cross_entropy(logits, torch.tensor([0])).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] == 0
    assert logits.grad[0, 1] > 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [90.0, 1e4, 1e30])
def test_huge_margins_of_either_sign_give_no_nan(name: str, size: float) -> None:
    for sign in (1, -1):
        logits = torch.tensor([[sign * size, 0.0, 0.0]], requires_grad=True)
        loss = LOSSES[name](logits, torch.tensor([0]))
        assert not loss.isnan().any()
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        # On the wrong side the exponential overflows, as it should.
        assert gradient.isfinite().all() or (sign < 0 and name == "exponential")


@pytest.mark.parametrize("name", ["cross-entropy", "exponential", "PairLog", "focal"])
@pytest.mark.parametrize("shift", [30.0, 700.0, 1e5])
def test_scaled_gradients_do_not_underflow(name: str, shift: float) -> None:
    margins = torch.tensor([[0.0, 0.3], [2.0, 1.0]], dtype=torch.float64) + shift
    logits = torch.cat([torch.zeros(2, 1, dtype=torch.float64), -margins], 1)
    values, log_scale = LOSSES[name].scaled_logit_gradient(logits, torch.tensor([0, 0]))
    tails = (-margins).exp() if name != "focal" else None
    rate = 3 if name == "focal" else 1
    assert log_scale.item() == pytest.approx(-rate * shift, rel=0.1)
    assert values.abs().max() >= 1
    if tails is not None:
        expected = (shift - margins).exp()
        torch.testing.assert_close(values[:, 1:], expected, rtol=1e-10, atol=0)


def test_a_loss_without_gradient_has_the_scale_one() -> None:
    logits = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64)
    values, log_scale = WestonWatkinsHinge().scaled_logit_gradient(logits, torch.tensor([0]))
    assert values.abs().max() == 0
    assert log_scale == 0


def test_runs_have_scales_of_their_own() -> None:
    logits, targets = random_logits()
    runs = torch.stack([logits, 10 * logits])
    values, log_scale = CrossEntropy().scaled_logit_gradient(runs, targets.expand(2, -1))
    for run in range(2):
        alone, scale = CrossEntropy().scaled_logit_gradient(runs[run], targets)
        torch.testing.assert_close(values[run], alone)
        assert log_scale[run] == scale


def test_half_precision_is_computed_in_single_precision() -> None:
    logits = torch.tensor([[256.0, 0.0625]], dtype=torch.float16)
    assert relative_margins(logits, torch.tensor([0])).item() == 255.9375
    assert CrossEntropy()(logits, torch.tensor([1])).dtype == torch.float32


def test_two_classes_of_cross_entropy_are_the_logistic_loss() -> None:
    logits, targets = random_logits(classes=2)
    torch.testing.assert_close(CrossEntropy()(logits, targets), PairLogLoss()(logits, targets))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PairLogLoss(0.0), "temperature must be positive and finite, got 0"),
        (lambda: GammaPhiLoss(-1.0), "power must be positive and finite, got -1"),
        (lambda: FocalLoss(0.5), "gamma must be 0 or at least 1, got 0.5"),
        (lambda: CrossEntropy()(torch.zeros(3, 1), torch.zeros(3).long()), "at least 2 classes"),
    ],
)
def test_bad_settings_are_refused(make: partial[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("loss", ["CrossEntropy", "PairLogLoss", "FocalLoss", "GammaPhiLoss"])
def test_a_recipe_may_name_them_as_the_loss_of_a_classifier(loss: str) -> None:
    net = {"_target_": "toolkit.nets.SmallCNN", "in_channels": 1, "num_classes": 3, "widths": [4]}
    optimizer = {"_target_": "torch.optim.SGD", "lr": 0.1}
    node = {
        "_target_": "toolkit.models.ImageClassifier",
        "net": net,
        "optimizer": optimizer,
        "loss": {"_target_": f"toolkit.losses.{loss}"},
    }
    model = instantiate(node)
    assert type(model.loss).__name__ == loss


def test_a_classifiers_step_is_that_of_torchs_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = {
        "inputs": torch.randn(8, 6, generator=generator),
        "targets": torch.randint(3, (8,), generator=generator),
    }
    net = nn.Linear(6, 3)
    gradients = []
    for loss in (CrossEntropy(), F.cross_entropy):
        model = ImageClassifier(net, partial(torch.optim.SGD, lr=0.1), loss=loss)
        net.zero_grad()
        model.training_step(batch, 0)["loss"].backward()
        assert net.weight.grad is not None
        gradients.append(net.weight.grad.clone())
        assert set(model.state_dict()) == {
            name for name in model.state_dict() if not name.startswith("loss")
        }
    torch.testing.assert_close(*gradients)
