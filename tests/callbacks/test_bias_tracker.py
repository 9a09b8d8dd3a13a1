"""BiasTracker on logits that are written into the batches."""

import csv
import fnmatch
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from callbacks import BiasTracker
from toolkit.metrics import lead

Batch = dict[str, Tensor]
NAMES = ["a", "b", "c"]


class Echo(L.LightningModule):
    """Its logits are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return {"loss": 0.0 * self.weight, "logits": batch["inputs"]}

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return {"logits": batch["inputs"]}

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return {"logits": batch["inputs"]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    """Holds batches, and declares what it is told to."""

    def __init__(self, train: list[Batch], val: list[Batch], **declared: Any) -> None:
        super().__init__()
        self.batches = {"train": train, "val": val}
        for name, value in declared.items():
            setattr(self, name, value)

    def train_dataloader(self) -> Any:
        return DataLoader(self.batches["train"], batch_size=None)

    def val_dataloader(self) -> Any:
        return DataLoader(self.batches["val"], batch_size=None)

    def test_dataloader(self) -> Any:
        return self.val_dataloader()


def batch(rows: list[tuple[int, int, int, bool]]) -> Batch:
    """Rows are (index, class, group, right); right ones have logit 2 for their class, else -2."""
    targets = torch.tensor([row[1] for row in rows])
    inputs = torch.zeros(len(rows), 2)
    inputs[range(len(rows)), targets] = torch.tensor([2.0 if row[3] else -2.0 for row in rows])
    return {
        "inputs": inputs,
        "targets": targets,
        "indices": torch.tensor([row[0] for row in rows]),
        "groups": torch.tensor([row[2] for row in rows]),
    }


RIGHT, WRONG = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
# Group 0: 2 of 3 right; group 1: none of 1; group 2: 1 of 1. Class 0: 2 of 3, class 1: 1 of 2.
TRAIN = [
    batch([(0, 0, 0, True), (1, 0, 0, True)]),
    batch([(2, 0, 0, False), (3, 1, 1, False), (4, 1, 2, True)]),
]
VAL = [batch([(0, 0, 0, True), (1, 1, 2, False), (2, 1, 2, True)])]  # no example of group 1


def without(key: str, batches: list[Batch]) -> list[Batch]:
    return [{name: value for name, value in one.items() if name != key} for one in batches]


def trainer(tracker: BiasTracker, epochs: int = 1, **settings: Any) -> L.Trainer:
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[tracker],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"logger": False, "num_sanity_val_steps": 1} | settings),
    )


def fit(tracker: BiasTracker, data: Data | None = None, **settings: Any) -> dict[str, float]:
    run = trainer(tracker, **settings)
    run.fit(Echo(), datamodule=data or Data(TRAIN, TRAIN, group_names=NAMES))
    return {key: float(value) for key, value in run.callback_metrics.items()}


def test_hand_computed_groups_and_classes() -> None:
    data = Data(TRAIN, TRAIN, group_names=NAMES, class_names=["cat", "dog"], num_classes=2)
    data.train = SimpleNamespace(groups=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]))
    metrics = fit(BiasTracker(), data)
    expected = {
        "group_acc/a": 2 / 3,
        "group_acc/b": 0.0,
        "group_acc/c": 1.0,
        "group_loss/a": (2 * RIGHT + WRONG) / 3,
        "group_loss/b": WRONG,
        "group_loss/c": RIGHT,
        "group_count/a": 3,
        "group_count/b": 1,
        "group_count/c": 1,
        "class_acc/cat": 2 / 3,
        "class_acc/dog": 0.5,
        "class_loss/cat": (2 * RIGHT + WRONG) / 3,
        "class_loss/dog": (RIGHT + WRONG) / 2,
        "class_count/cat": 3,
        "class_count/dog": 2,
        "worst_group_acc": 0.0,
        "worst_group": 1,
        "mean_group_acc": (2 / 3 + 0 + 1) / 3,
        "weighted_group_acc": (3 * 2 / 3 + 2 * 1) / 8,
        "group_acc_gap": 1.0,
    }
    for split in ("train", "val"):
        own = {k[len(split) + 1 :]: v for k, v in metrics.items() if k.startswith(split)}
        assert own == pytest.approx(expected, rel=1e-6)


def test_every_logged_key_is_declared() -> None:
    metrics = fit(BiasTracker(train_group_counts=[1, 1, 1]))
    patterns = BiasTracker.logged_keys
    assert len(metrics) == 2 * (9 + 6 + 5)
    assert [k for k in metrics if not any(fnmatch.fnmatch(k, p) for p in patterns)] == []


def test_an_absent_group_has_nan_and_count_0_and_is_warned_about_once() -> None:
    tracker = BiasTracker()
    with pytest.warns(UserWarning, match="val has no example of b: metrics of") as warned:
        metrics = fit(tracker, Data(TRAIN, VAL, group_names=NAMES), epochs=3)
    assert len([w for w in warned if "no example" in str(w.message)]) == 1
    assert math.isnan(metrics["val/group_acc/b"])
    assert math.isnan(metrics["val/group_loss/b"])
    assert metrics["val/group_count/b"] == 0
    assert metrics["val/group_acc/c"] == 0.5
    assert metrics["val/worst_group"] == 2
    assert metrics["val/mean_group_acc"] == 0.75
    assert metrics["train/group_acc/b"] == 0


def test_classes_are_the_groups_where_there_are_none() -> None:
    data = Data(without("groups", TRAIN), without("groups", TRAIN))
    data.train = SimpleNamespace(groups=None, targets=torch.tensor([0, 1, 1, 1]))
    metrics = fit(BiasTracker(), data)
    assert metrics["val/group_acc/class0"] == metrics["val/class_acc/class0"]
    assert metrics["val/worst_group"] == 1
    assert metrics["val/weighted_group_acc"] == pytest.approx((2 / 3 + 3 * 0.5) / 4)
    ignored = fit(BiasTracker(fields={"groups": None}), Data(TRAIN, TRAIN, group_names=NAMES))
    assert ignored["val/worst_group"] == 1
    assert "val/group_acc/a" not in ignored


def test_groups_come_from_a_rule_with_names_and_counts_as_arguments() -> None:
    tracker = BiasTracker(
        group_names=["even", "odd"],
        train_group_counts=[3, 1],
        fields={"groups": lambda batch: batch["indices"] % 2},
    )
    metrics = fit(tracker)
    assert metrics["val/group_acc/even"] == pytest.approx(2 / 3)
    assert metrics["val/group_acc/odd"] == 0.5
    assert metrics["val/weighted_group_acc"] == pytest.approx((3 * 2 / 3 + 0.5) / 4)


def test_a_rule_does_not_take_the_data_modules_counts() -> None:
    data = Data(TRAIN, TRAIN, group_names=NAMES)
    data.train = SimpleNamespace(groups=torch.tensor([0, 1, 2]))
    rule = {"groups": lambda batch: batch["indices"] % 2}
    metrics = fit(BiasTracker(group_names=["even", "odd"], fields=rule), data)
    assert "val/weighted_group_acc" not in metrics


def test_error_and_margin_of_each_group_are_logged_where_asked_for() -> None:
    metrics = fit(BiasTracker(values=["error", "margin"]))
    assert metrics["val/group_error/a"] == pytest.approx(1 / 3)
    assert metrics["val/group_margin/a"] == pytest.approx((2 + 2 - 2) / 3)
    assert metrics["val/class_margin/class1"] == pytest.approx((2 - 2) / 2)
    assert not [key for key in metrics if re.search("_(acc|loss|count)/", key)]
    assert metrics["val/worst_group_acc"] == 0


def test_overlapping_groups_count_an_example_in_each() -> None:
    def rule(batch: Batch) -> Tensor:
        first, even = batch["indices"] < 3, batch["indices"] % 2 == 0
        return torch.stack([first, even, torch.zeros_like(first)], 1)

    tracker = BiasTracker(
        group_names=["first", "even", "none"], overlapping=True, fields={"groups": rule}
    )
    with pytest.warns(UserWarning, match="no example of none"):
        metrics = fit(tracker)
    # Right are 0, 1 and 4 of 0..4.
    assert metrics["val/group_count/first"] == 3
    assert metrics["val/group_count/even"] == 3
    assert metrics["val/group_count/none"] == 0
    assert metrics["val/group_acc/first"] == pytest.approx(2 / 3)
    assert metrics["val/group_acc/even"] == pytest.approx(2 / 3)
    assert metrics["val/group_loss/first"] == pytest.approx((2 * RIGHT + WRONG) / 3)
    assert math.isnan(metrics["val/group_acc/none"])


def test_a_loss_that_is_nan_stays_in_its_overlapping_groups() -> None:
    broken = batch([(9, 1, 2, True)])
    broken["inputs"] = torch.tensor([[0.0, math.nan]])

    def rule(batch: Batch) -> Tensor:
        return torch.stack([batch["indices"] < 9, batch["indices"] > 3], 1)

    tracker = BiasTracker(group_names=["low", "high"], overlapping=True, fields={"groups": rule})
    metrics = fit(tracker, Data([*TRAIN, broken], [*TRAIN, broken]))
    assert math.isnan(metrics["val/group_loss/high"])
    assert metrics["val/group_loss/low"] == pytest.approx((3 * RIGHT + 2 * WRONG) / 5)


class Turning(Data):
    """Its validation batches are other ones in each epoch."""

    def val_dataloader(self) -> Any:
        epoch = self.trainer.current_epoch if self.trainer is not None else 0
        return DataLoader(self.batches["val"][epoch], batch_size=None)  # type: ignore[arg-type]


TURNING: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 0}


def test_the_lead_and_its_changes_are_told_by_epoch(tmp_path: Path) -> None:
    good = [batch([(0, 0, 0, True), (1, 0, 1, False)])]
    bad = [batch([(0, 0, 0, False), (1, 0, 1, True)])]
    tracker = BiasTracker(splits=["val"], lead_tolerance=0.1)
    data = Turning(good, [good, bad, bad, good], num_groups=2)  # type: ignore[list-item]
    fit(tracker, data, epochs=4, logger=CSVLogger(tmp_path), log_every_n_steps=1, **TURNING)
    (path,) = tmp_path.rglob("metrics.csv")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["val/leading_group"]]
    told = [(float(row["val/leading_group"]), float(row["val/lead_changes"])) for row in rows]
    assert told == [(0, 0), (1, 1), (1, 1), (0, 2)]


def test_the_lead_survives_a_checkpoint() -> None:
    before = BiasTracker(lead_tolerance=0.0)
    before._leads.after("val", torch.tensor([0.5, 0.6]))
    after = BiasTracker(lead_tolerance=0.0)
    after.load_state_dict(before.state_dict())
    values = after._leads.after("val", torch.tensor([0.7, 0.6]))
    assert (float(values["leading_group"]), float(values["lead_changes"])) == (1, 1)


def test_a_lead_within_the_tolerance_does_not_change() -> None:
    losses = [torch.tensor(pair) for pair in ([0.5, 0.6], [0.5, 0.45], [0.5, 0.38], [0.5, 0.45])]
    leader, leaders = None, []
    for pair in losses:
        leader = lead(pair, leader, tolerance=0.1)
        leaders.append(leader)
    assert leaders == [0, 0, 1, 1]
    assert lead(torch.tensor([math.nan, math.nan]), 1) == 1
    assert lead(torch.tensor([math.nan, 2.0])) == 1


def test_predictions_that_collapse_to_one_class_are_warned_of_once() -> None:
    collapsed = [batch([(0, 0, 0, True), (1, 0, 0, True), (2, 1, 0, False)])]

    tracker = BiasTracker(fields={"groups": None})
    turns = [VAL, collapsed, collapsed]
    data = Turning(TRAIN, turns, class_names=["cat", "dog"])  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="all are 'cat' now, and were not before") as caught:
        fit(tracker, data, epochs=3, **TURNING)
    assert sum("collapsed" in str(one.message) for one in caught) == 1


def test_copies_of_an_example_count_once() -> None:
    # Example 2 comes again and is right then; example 4 is padding and comes again unchanged.
    again = [*TRAIN, batch([(2, 0, 0, True), (4, 1, 2, True)])]
    metrics = fit(BiasTracker(), Data(again, again, group_names=NAMES))
    assert metrics["val/group_acc/a"] == 1
    assert metrics["val/group_count/a"] == 3
    assert metrics["val/group_count/c"] == 1
    every_row = fit(BiasTracker(fields={"indices": None}), Data(again, again, group_names=NAMES))
    assert every_row["val/group_count/a"] == 4


def test_nan_logits_count_as_wrong_and_their_loss_is_nan() -> None:
    broken = batch([(9, 1, 2, True)])
    broken["inputs"] = torch.tensor([[0.0, math.nan]])
    metrics = fit(BiasTracker(), Data([*TRAIN, broken], [*TRAIN, broken], group_names=NAMES))
    assert metrics["val/group_acc/c"] == 0.5
    assert math.isnan(metrics["val/group_loss/c"])
    assert metrics["val/group_loss/b"] == pytest.approx(WRONG)


def test_train_is_recorded_on_a_log_grid_of_updates(tmp_path: Path) -> None:
    batches = [batch([(i, 0, i % 3, i < 5), (i + 1, 1, i % 3, True)]) for i in range(0, 14, 2)]
    tracker = BiasTracker(updates_per_decade=2, per_class=False)
    data = Data(batches, TRAIN, group_names=NAMES)
    fit(tracker, data, epochs=2, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    (path,) = tmp_path.rglob("metrics.csv")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["train/worst_group"]]
    # Grid 1, 3, 10 (updates done; the record counts from 0), and the end of training at 14.
    assert [row["step"] for row in rows] == ["0", "2", "9", "13"]
    counts = [sum(float(row[f"train/group_count/{name}"]) for name in NAMES) for row in rows]
    # Updates 4..10 visit all seven batches once, 11..14 four of them.
    assert counts == [2, 4, 14, 8]
    assert float(rows[0]["train/group_acc/a"]) == 1
    assert math.isnan(float(rows[0]["train/group_acc/b"]))


def test_test_results_are_returned_by_the_trainer() -> None:
    data = Data(TRAIN, TRAIN, group_names=NAMES)
    (results,) = trainer(BiasTracker()).test(Echo(), datamodule=data, verbose=False)
    assert results["test/worst_group_acc"] == 0
    assert results["test/group_count/a"] == 3


def test_checkpoints_can_monitor_the_worst_group(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, monitor="val/worst_group_acc", mode="max")
    run = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[BiasTracker(), best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run.fit(Echo(), datamodule=Data(TRAIN[:1], TRAIN[:1], num_groups=1))
    assert best.best_model_score == 1
    assert "val/group_acc/group0" in run.callback_metrics
    torch.load(best.best_model_path, weights_only=True)


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        (BiasTracker(), "groups must be declared, got group ids without names."),
        (BiasTracker(group_names=["a", "b"]), "group ids must lie in 0..1, got 0..2."),
        (BiasTracker(train_group_counts=[1, 2]), "group ids must lie in 0..1, got 0..2."),
        (
            BiasTracker(group_names=["a", "b"], overlapping=True),
            "overlapping groups must be a boolean matrix of shape (batch, 2)",
        ),
        (BiasTracker(fields={"groups": "attribute"}), "must hold the tensor 'attribute'"),
        (BiasTracker(loss=torch.nn.functional.cross_entropy), "shape (2,), got ()."),
    ],
)
def test_undeclared_or_wrong_data_is_refused(tracker: BiasTracker, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(tracker, Data(TRAIN, TRAIN), num_sanity_val_steps=0)


def test_declared_groups_that_batches_lack_are_refused() -> None:
    data = Data(without("groups", TRAIN), without("groups", TRAIN))
    with pytest.raises(ValueError, match="a batch must hold the tensor 'groups'"):
        fit(BiasTracker(group_names=NAMES), data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be at least 1 epoch, got 0."),
        ({"updates_per_decade": 0}, "updates_per_decade must be at least 1, got 0."),
        ({"splits": ()}, "splits must be some of"),
        ({"group_names": ["a", "a"]}, "all different, got ['a', 'a']"),
        ({"group_names": []}, "group_names must be at least one"),
        ({"values": []}, "values must be some of ('acc', 'error', 'loss', 'margin'"),
        ({"lead_tolerance": -1.0}, "lead_tolerance must be at least 0, got -1.0"),
        ({"overlapping": True}, "group_names must be 1 to 63 names where groups overlap"),
        ({"group_names": ["a"], "fields": {"groups": None}}, "group_names must be None where"),
        (
            {"group_names": ["a", "b"], "train_group_counts": [1]},
            "train_group_counts must be 2, one per group name, got 1.",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        BiasTracker(**arguments)
