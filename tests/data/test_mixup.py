"""MixUp: its draws, its batches over ranks, and the loss that a model makes of them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from toolkit import distributed
from toolkit.data import ArrayLoader, Compose, FlipAndCrop, ImageArrays, TrivialAugment
from toolkit.data.mixup import mixup_draws
from toolkit.models import ImageClassifier


def _arrays(n=23, size=6):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(256, (n, 3, size, size), generator=generator).to(torch.uint8)
    return ImageArrays(images=images, targets=torch.arange(n) % 4, num_classes=4)


def _epoch(loader, epoch=0):
    loader.sampler.set_epoch(epoch)
    return list(loader)


def _as_rank(monkeypatch, rank, world):
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "world_size", lambda: world)


def test_partners_are_a_permutation_within_each_batch():
    draws = mixup_draws(23, 5, 1.0, torch.Generator().manual_seed(0))
    for start in range(0, 23, 5):
        here = list(range(start, min(start + 5, 23)))
        assert sorted(draws.partners[here].tolist()) == here
    assert not torch.equal(draws.partners, torch.arange(23))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_are_those_of_the_beta_distribution_folded_at_a_half(alpha):
    shares = mixup_draws(4000, 1, alpha, torch.Generator().manual_seed(1)).shares.numpy()
    beta = stats.beta(alpha, alpha)
    folded = stats.kstest(shares, lambda x: np.where(x < 0.5, 0, beta.cdf(x) - beta.cdf(1 - x)))
    assert folded.pvalue > 1e-3
    assert shares.min() >= 0.5


def test_inputs_are_the_shares_of_both_and_the_labels_stay_ones_own():
    arrays = _arrays()
    plain = _epoch(ArrayLoader(arrays, 5, shuffle=True, seed=2, augment=FlipAndCrop(2)), 3)
    mixed = _epoch(
        ArrayLoader(arrays, 5, shuffle=True, seed=2, augment=FlipAndCrop(2), mixup=1.0), 3
    )
    assert [len(batch["targets"]) for batch in mixed] == [5, 5, 5, 5, 3]
    seen = 0
    for one, other in zip(plain, mixed, strict=True):
        assert torch.equal(one["indices"], other["indices"])
        assert torch.equal(one["targets"], other["targets"])
        share = float(other["mix_share"])
        for row in range(len(one["targets"])):
            fits = [
                k
                for k in range(len(one["targets"]))
                if torch.allclose(
                    share * one["inputs"][row] + (1 - share) * one["inputs"][k],
                    other["inputs"][row],
                    atol=1e-6,
                )
            ]
            assert len(fits) == 1
            assert other["mix_targets"][row] == one["targets"][fits[0]]
            seen += fits[0] != row
    assert seen >= 10


def test_epochs_repeat_bit_for_bit_and_differ_from_one_another():
    loader = ArrayLoader(_arrays(), 5, shuffle=True, mixup=0.4)
    first, again, next_one = (_epoch(loader, epoch) for epoch in (0, 0, 1))
    assert all(torch.equal(a["inputs"], b["inputs"]) for a, b in zip(first, again, strict=True))
    assert first[0]["mix_share"] != next_one[0]["mix_share"]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_together_mix_as_one_process_does(monkeypatch, world):
    """Partners may be examples of another rank, with the change that was drawn for them there."""
    augment = Compose([FlipAndCrop(2), TrivialAugment()])
    settings = {"shuffle": True, "augment": augment, "mixup": 1.0}
    whole = _epoch(ArrayLoader(_arrays(), 6, **settings), 1)
    parts = []
    for rank in range(world):
        _as_rank(monkeypatch, rank, world)
        parts.append(_epoch(ArrayLoader(_arrays(), 6, **settings), 1))
    for batch, *shares in zip(whole, *parts, strict=True):
        for key in ("inputs", "targets", "indices", "mix_targets"):
            assert torch.equal(torch.cat([share[key] for share in shares]), batch[key])
        assert all(share["mix_share"] == batch["mix_share"] for share in shares)


def test_loaders_over_other_indices_keep_mixing_and_none_mixes_by_default():
    loader = ArrayLoader(_arrays(), 5, shuffle=True, mixup=0.4)
    again = loader.with_indices(torch.arange(23))
    for a, b in zip(_epoch(loader), _epoch(again), strict=True):
        assert torch.equal(a["inputs"], b["inputs"])
    assert "mix_share" not in _epoch(ArrayLoader(_arrays(), 5))[0]


def _classifier(loss=nn.functional.cross_entropy):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
    return ImageClassifier(net, lambda p: torch.optim.SGD(p, lr=0.1), loss=loss)


@pytest.mark.parametrize(
    "loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss(reduction="none")]
)
def test_the_loss_is_cross_entropy_with_the_mixed_targets(loss):
    model = _classifier(loss)
    batch = _epoch(ArrayLoader(_arrays(), 8, shuffle=True, mixup=1.0))[0]
    share = float(batch["mix_share"])
    one_hot = nn.functional.one_hot(torch.stack([batch["targets"], batch["mix_targets"]]), 4)
    soft = share * one_hot[0] + (1 - share) * one_hot[1]
    found = model.training_step(batch, 0)
    expected = nn.functional.cross_entropy(found["logits"], soft.float())
    torch.testing.assert_close(found["loss"], expected)
    model.trainer = SimpleNamespace()  # evaluation reads no key of the mixture
    plain = {key: batch[key] for key in ("inputs", "targets")}
    assert torch.equal(model._evaluate("val", batch)["loss"], model._evaluate("val", plain)["loss"])


def test_weights_multiply_the_losses_of_their_examples():
    model = _classifier()
    weights = torch.rand(23).double()
    loader = ArrayLoader(_arrays(), 23, shuffle=True).with_loss_weights(weights)
    [batch] = _epoch(loader)
    found = model.training_step(batch, 0)
    losses = nn.CrossEntropyLoss(reduction="none")(found["logits"], batch["targets"])
    expected = (losses.double() * weights[batch["indices"]]).mean()
    torch.testing.assert_close(found["loss"].double(), expected)
    ones = loader.with_loss_weights(torch.ones(23))
    plain = model.training_step(_epoch(ArrayLoader(_arrays(), 23, shuffle=True))[0], 0)
    torch.testing.assert_close(model.training_step(_epoch(ones)[0], 0)["loss"], plain["loss"])


def test_a_mean_loss_cannot_be_weighted():
    batch = {"inputs": torch.zeros(2, 3, 6, 6), "targets": torch.zeros(2).long()}
    batch["loss_weights"] = torch.ones(2)
    message = r"loss must return one loss per example .* got shape \(\) for 2 examples. Set its red"
    with pytest.raises(ValueError, match=message):
        _classifier(nn.CrossEntropyLoss()).training_step(batch, 0)


@pytest.mark.parametrize("alpha", [-0.1, float("inf"), float("nan")])
def test_a_parameter_out_of_range_is_refused(alpha):
    with pytest.raises(ValueError, match=r"mixup must be finite and at least 0, got"):
        ArrayLoader(_arrays(), 5, mixup=alpha)


def test_draws_need_a_positive_parameter():
    with pytest.raises(ValueError, match=r"alpha must be above 0, got 0.0"):
        mixup_draws(4, 2, 0.0, torch.Generator())
