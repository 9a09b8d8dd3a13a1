"""MarginLogger on logits that are written into the batches."""

import csv
import fnmatch
import math
import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from callbacks import MarginLogger
from callbacks._observing import check_schedule
from callbacks.margin_logger import _check

Batch = dict[str, Tensor]


class Echo(L.LightningModule):
    """Its logits are its inputs times its only weight, which starts at 1 and moves by ``step``."""

    def __init__(self, step: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.step = step

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        logits = batch["inputs"] * self.weight
        return {"loss": -self.weight * self.step, "logits": logits}

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return {"logits": batch["inputs"] * self.weight}

    def test_step(self, batch: Batch, batch_idx: int) -> Any:
        return self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def batch(logits: list[list[float]], targets: list[int], indices: list[int]) -> Batch:
    return {
        "inputs": torch.tensor(logits),
        "targets": torch.tensor(targets),
        "indices": torch.tensor(indices),
    }


TRAIN = [
    batch([[3.0, 1.0, 0.0], [1.0, 0.0, 5.0]], [0, 0], [4, 2]),  # margins 2, -4
    batch([[0.0, 1.0, 0.0], [2.0, 0.0, 2.0]], [1, 2], [0, 7]),  # margins 1, 0
]
VAL = [batch([[0.0, 6.0, 1.0]], [1], [0])]


def loader(batches: list[Batch]) -> Any:
    return DataLoader(batches, batch_size=None)  # a bare list would mean several loaders


def trainer(margins: L.Callback, epochs: int = 1, **settings: Any) -> L.Trainer:
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[margins],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"logger": False, "num_sanity_val_steps": 0} | settings),
    )


def fit(
    margins: MarginLogger,
    train: list[Batch] = TRAIN,
    val: list[list[Batch]] | None = None,
    step: float = 0.0,
    **settings: Any,
) -> dict[str, float]:
    run = trainer(margins, **settings)
    run.fit(Echo(step), loader(train), [loader(batches) for batches in val or [VAL]])
    return {key: float(value) for key, value in run.callback_metrics.items()}


def test_hand_computed_margins_of_both_splits() -> None:
    metrics = fit(MarginLogger(quantiles=(0.25, 0.5, 0.9)))
    assert metrics == {
        "train/margin/min": -4.0,
        "train/margin/mean": -0.25,
        "train/margin/q25": -1.0,
        "train/margin/median": 0.5,
        "train/margin/q90": pytest.approx(1.7),
        "train/margin/nonpositive_share": 0.5,
        "val/margin/min": 5.0,
        "val/margin/mean": 5.0,
        "val/margin/q25": 5.0,
        "val/margin/median": 5.0,
        "val/margin/q90": 5.0,
        "val/margin/nonpositive_share": 0.0,
    }


def test_per_class_values_and_a_class_without_examples() -> None:
    metrics = fit(MarginLogger(per_class=True))
    assert metrics["train/margin/min/class0"] == -4
    assert metrics["train/margin/mean/class0"] == -1
    assert metrics["train/margin/median/class1"] == 1
    assert metrics["train/margin/nonpositive_share/class2"] == 1
    assert math.isnan(metrics["val/margin/min/class0"])


def test_every_logged_key_is_declared() -> None:
    logger = MarginLogger(per_class=True, normalize="l2", splits=("train", "val", "test"))
    keys = set(fit(logger))
    undeclared = {
        key for key in keys if not any(fnmatch.fnmatch(key, p) for p in MarginLogger.logged_keys)
    }
    assert len(keys) == 2 * 2 * 6 * 4
    assert undeclared == set()


def test_copies_of_an_example_count_once_at_their_last_visit() -> None:
    # Example 4 comes again, at a weight that has grown to 2: its margin is 4 by then.
    again = [*TRAIN[:1], batch([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]], [0, 0], [4, 4])]
    metrics = fit(MarginLogger(quantiles=(0.5,)), again, step=1.0)
    assert metrics["train/margin/mean"] == (4 - 4) / 2
    assert metrics["train/margin/nonpositive_share"] == 0.5


def test_without_indices_every_row_counts() -> None:
    again = [*TRAIN, TRAIN[0]]
    metrics = fit(MarginLogger(fields={"indices": None}), again)
    assert metrics["train/margin/mean"] == pytest.approx((-1 - 2) / 6)


def test_normalised_by_logits_and_by_the_weights() -> None:
    centred = math.sqrt((5 / 3) ** 2 + (1 / 3) ** 2 + (4 / 3) ** 2)
    metrics = fit(MarginLogger(normalize="logits"), [batch([[3.0, 1.0, 0.0]], [0], [0])])
    assert metrics["train/normalized_margin/min"] == pytest.approx(2 / centred)
    # Two updates of +1: the weight ends at 3; val is measured there, so its margin is 5 * 3.
    metrics = fit(MarginLogger(normalize="l2"), step=1.0)
    assert metrics["val/margin/min"] == 15
    assert metrics["val/normalized_margin/min"] == 5


def test_nan_logits_are_reported_and_do_not_stop_the_run() -> None:
    broken = [batch([[math.nan, 1.0, 0.0]], [0], [1]), *TRAIN]
    metrics = fit(MarginLogger(per_class=True), broken)
    assert math.isnan(metrics["train/margin/min"])
    assert math.isnan(metrics["train/margin/nonpositive_share/class0"])
    assert metrics["train/margin/min/class1"] == 1


def test_every_second_epoch_and_the_last_are_recorded(tmp_path: Path) -> None:
    fit(MarginLogger(every=2), epochs=5, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    (path,) = tmp_path.rglob("metrics.csv")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["train/margin/min"]]
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "3"), ("3", "7"), ("4", "9")]


def test_the_sanity_check_and_further_validation_loaders_leave_no_trace() -> None:
    worse = [batch([[0.0, -6.0, 1.0]], [1], [0])]
    metrics = fit(MarginLogger(), val=[VAL, worse], num_sanity_val_steps=2)
    assert metrics["val/margin/min"] == 5


def test_test_results_are_returned_by_the_trainer() -> None:
    (results,) = trainer(MarginLogger(splits=("test",))).test(Echo(), loader(VAL), verbose=False)
    assert results["test/margin/min"] == 5


@pytest.mark.filterwarnings("ignore:.training_step. returned .None.")
def test_a_skipped_step_is_left_out() -> None:
    class Skips(Echo):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return None if batch_idx == 0 else super().training_step(batch, batch_idx)

    run = trainer(MarginLogger(splits=("train",)))
    run.fit(Skips(), loader(TRAIN), loader(VAL))
    assert run.callback_metrics["train/margin/min"] == 0


def test_state_key_tells_loggers_apart() -> None:
    assert MarginLogger().state_key != MarginLogger(normalize="l2").state_key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be at least 1 epoch, got 0."),
        ({"quantiles": (10.0,)}, "quantiles must lie in [0, 1], got [10.0]. 10 % is 0.1."),
        ({"splits": ()}, "splits must be some of ('train', 'val', 'test'), got []"),
        ({"fields": {"indice": None}}, "got 'indice'. Did you mean 'indices'?"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MarginLogger(**arguments)


def test_unknown_words_are_refused_where_types_are_not_checked() -> None:
    with pytest.raises(ValueError, match=r"normalize must be one of \('none', .* got 'l3'"):
        _check((0.5,), "l3")
    with pytest.raises(ValueError, match=r"splits must be some of .*, got \['valid'\]"):
        check_schedule(1, ["valid"])


def test_outputs_without_logits_are_refused_with_the_way_out() -> None:
    class Silent(Echo):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx)["loss"]

    message = "the outputs of a train step must hold the tensor 'logits', got ['loss']."
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer(MarginLogger()).fit(Silent(), loader(TRAIN), loader(VAL))
