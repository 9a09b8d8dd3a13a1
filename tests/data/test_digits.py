"""The digits data module: splits, checks, and what the base class promises."""

import lightning as L
import pytest
import torch
from sklearn.datasets import load_digits

from toolkit.data import Digits, FlipAndCrop, ImageData, Normalize, Spurious


def _rows(arrays):
    return {image.numpy().tobytes() for image in arrays.images}


def test_digits_are_scikit_learns_in_three_disjoint_parts():
    data = Digits(seed=1)
    data.setup("fit")
    assert [len(s) for s in (data.train, data.val, data.test)] == [600, 200, 797]
    assert data.input_shape == (1, 8, 8)
    assert data.num_classes == 10
    assert data.class_names == tuple("0123456789")
    assert data.num_groups == 0
    known = {
        ((image * 255 / 16).round().astype("uint8").tobytes(), label)
        for image, label in zip(load_digits().images, load_digits().target, strict=True)
    }
    parts = []
    for split in (data.train, data.val, data.test):
        pairs = {
            (i.numpy().tobytes(), int(t)) for i, t in zip(split.images, split.targets, strict=True)
        }
        assert pairs <= known
        parts.append(_rows(split))
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_splits_are_stratified_and_validation_does_not_depend_on_train_size():
    small, large = Digits(train_size=100), Digits(train_size=800)
    for data in (small, large):
        data.setup()
        share = torch.bincount(torch.as_tensor(load_digits().target)) / 1797
        for split in (data.train, data.val, data.test):
            counts = torch.bincount(split.targets, minlength=10)
            # Largest remainders: within one of the share of what was left, and so within three.
            assert (counts - share * len(split)).abs().max() < 3
    assert torch.equal(small.val.images, large.val.images)
    assert torch.equal(small.test.images, large.test.images)


def test_same_seed_shares_the_split_and_another_seed_does_not():
    first, same, other = Digits(seed=2), Digits(seed=2, batch_size=7), Digits(seed=3)
    for data in (first, same, other):
        data.setup()
    assert first.train.fingerprint == same.train.fingerprint
    assert first.train.fingerprint != other.train.fingerprint


def test_setup_does_not_read_again_what_check_has_read(monkeypatch):
    data = Digits()
    data.check()
    monkeypatch.setattr(Digits, "read", lambda self: pytest.fail("read twice"))
    data.check()
    data.setup("fit")
    data.setup("test")


def test_scoring_loader_is_the_training_set_in_order_without_augmentation():
    data = Digits(augment=FlipAndCrop(1, flip=False), eval_batch_size=100)
    data.setup()
    batches = list(data.scoring_dataloader())
    assert torch.cat([b["indices"] for b in batches]).tolist() == list(range(600))
    inputs = torch.cat([b["inputs"] for b in batches])
    assert torch.equal(inputs, data.normalize(data.train.images))
    trained = torch.cat([b["inputs"] for b in data.train_dataloader()])
    assert not torch.equal(trained.sort(0).values, inputs.sort(0).values)


def test_evaluation_loaders_cover_their_split_once():
    data = Digits(eval_batch_size=64)
    data.setup()
    for loader, split in (
        (data.val_dataloader(), data.val),
        (data.test_dataloader(), data.test),
    ):
        targets = torch.cat([batch["targets"] for batch in loader])
        assert torch.equal(targets, split.targets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_size": 801}, r"train_size must lie in 1\.\.800, .* got 801"),
        ({"train_size": 0}, r"train_size must lie in 1\.\.800, .* got 0"),
        ({"val_size": 1100}, r"what 1100 validation and 797 test examples leave of 1797"),
        ({"val_size": 0}, "val_size must be a fraction below 1 or a count"),
        ({"val_size": 20.5}, "val_size must be a fraction below 1 or a count.*got 20.5"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"eval_batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 601, "drop_last": True}, "at most the number of examples, 600"),
        ({"normalize": Normalize([0.0] * 3, [1.0] * 3)}, "normalize must have 1 or 1 numbers"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_faults_of_the_sizes_end_in_one_line_before_training(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        Digits(**arguments).check()
    assert "\n" not in str(caught.value)


def test_fractions_are_of_the_whole():
    data = Digits(train_size=None, val_size=0.1, test_size=0.25)
    data.setup()
    assert [len(s) for s in (data.train, data.val, data.test)] == [1797 - 180 - 449, 180, 449]


def test_coloured_digits_have_groups_and_the_agreement_asked_for():
    data = Digits(spurious=Spurious("color", agreement=1.0, num_attributes=10), seed=4)
    data.setup()
    assert data.input_shape == (3, 8, 8)
    assert data.num_groups == 100
    assert data.group_names[11] == "class1_attr1"
    assert torch.equal(data.train.groups, 11 * data.train.targets)
    agrees = (data.test.groups % 10 == data.test.targets).double().mean()
    assert abs(agrees - 0.1) < 4 * (0.1 * 0.9 / 797) ** 0.5


def test_lightning_trains_on_it_and_asks_each_epoch_for_another_order():
    orders = []

    class Watch(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)

        def training_step(self, batch, _):
            orders.append((self.current_epoch, batch["indices"]))
            return self.layer(batch["inputs"].flatten(1)).square().mean()

        def validation_step(self, batch, _):
            assert set(batch) == {"inputs", "targets", "indices"}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    data = Digits(batch_size=600)
    assert isinstance(data, ImageData)
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Watch(), datamodule=data)
    loader = data.train_dataloader()
    for epoch, indices in orders:
        loader.sampler.set_epoch(epoch)
        assert torch.equal(indices, next(iter(loader))["indices"])
    assert [epoch for epoch, _ in orders] == [0, 1, 2]
