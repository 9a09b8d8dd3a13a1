"""A training epoch of ours against a plain PyTorch loop over the same net.

    python tests/benchmarks/bench_training.py

Ours is ``ImageClassifier`` with everything that a run has: record, checkpoints, seeds by epoch,
the guard against NaN, MarginLogger and BiasTracker, validation, and an ``ArrayLoader`` that draws,
crops, flips and normalises each batch. The baseline is its fastest form: batches drawn, augmented
and normalised before the clock starts, no metrics in training, no ``.item()``, ``set_to_none``; it
validates on the same examples. Both start from the same weights and take turns, update by update,
within one fit. Epochs are shorter than CIFAR-10's, so that what an epoch costs once (records,
validation, checkpoint) weighs more here than there; the checkpoint of the ResNet, 90 MB, is left
out, as it would weigh 150 times more. The ResNet is in channels-last layout, the faster one here.
"""

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from measuring import Row, Seconds, Stopwatch, compare, machine, one_thread, quiet, table
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import config
from toolkit.config import load_recipe
from toolkit.run.checkpoints import RunCheckpoint
from toolkit.run.folder import Run
from toolkit.run.progress import ExamplesSeen
from toolkit.run.training import build_trainer
from toolkit.tracking import HistoryLogger, RecordState

BATCH_SIZE = 128
RECIPE = """
title: A benchmark
data:
  _target_: toolkit.data.ArrayImages
  file: {file}
  val_size: {val_size}
  batch_size: 128
  augment: {{_target_: toolkit.data.FlipAndCrop, padding: 4}}
model:
  _target_: toolkit.models.ImageClassifier
  net: {net}
  optimizer: {{_target_: torch.optim.SGD, lr: 0.01, momentum: 0.9, weight_decay: 0.0005}}
  schedule: {{_target_: toolkit.optim.cosine}}
trainer: {{max_epochs: {epochs}, accelerator: cpu, log_every_n_steps: 1000}}
callbacks:
  margin: {{_target_: callbacks.MarginLogger}}
  bias: {{_target_: callbacks.BiasTracker}}
checkpoint: {{{rule}}}
wandb: {{mode: disabled}}
variants: {{plain: {{}}}}
"""
SMALL = "{_target_: toolkit.nets.SmallCNN, in_channels: 3, widths: [16, 32, 64]}"
RESNET = "{_target_: toolkit.nets.timm_net, name: resnet18, num_classes: 10, input_size: 32}"


class PlainLoop:
    """SGD and validation with nothing around them.

    Args:
        net: Is trained.
        batches: Inputs and targets, ready.
        validation: Likewise.
        updates: Of the whole training, for the schedule.
    """

    def __init__(
        self,
        net: nn.Module,
        batches: list[tuple[Tensor, Tensor]],
        validation: list[tuple[Tensor, Tensor]],
        updates: int,
    ) -> None:
        self.net = net
        self.batches = batches
        self.validation = validation
        self.optimizer = torch.optim.SGD(
            net.parameters(), lr=0.01, momentum=0.9, weight_decay=0.0005
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, updates)

    def step(self, batch_idx: int) -> None:
        """One update."""
        inputs, targets = self.batches[batch_idx]
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.net(inputs), targets).backward()
        self.optimizer.step()
        self.schedule.step()

    def validate(self) -> float:
        """Accuracy."""
        self.net.eval()
        with torch.inference_mode():
            correct = sum((self.net(x).argmax(1) == y).sum() for x, y in self.validation)
        self.net.train()
        return float(correct) / sum(len(y) for _, y in self.validation)


class TakingTurns(L.Callback):
    """Times the fit, which waits while the plain loop does the same: each update, each validation.

    Args:
        channels_last: Whether both nets get this layout.
    """

    def __init__(self, *, channels_last: bool) -> None:
        self.channels_last = channels_last
        self.ours: list[Seconds] = []  # by epoch
        self.baseline: list[Seconds] = []
        self._plain: PlainLoop | None = None
        self._our_watch = Stopwatch()
        self._plain_watch = Stopwatch()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.channels_last:
            pl_module.to(memory_format=torch.channels_last)
        data = trainer.datamodule
        self._plain = PlainLoop(
            copy.deepcopy(pl_module.net),
            [(batch["inputs"], batch["targets"]) for batch in data.train_dataloader()],
            [(batch["inputs"], batch["targets"]) for batch in data.val_dataloader()],
            int(trainer.estimated_stepping_batches),
        )
        self._our_watch.start()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch > 0:
            self._end_epoch()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._our_watch.stop()
        with self._plain_watch:
            self._plain.step(batch_idx)
        self._our_watch.start()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end_epoch()

    def _end_epoch(self) -> None:
        self._our_watch.stop()
        with self._plain_watch:
            self._plain.validate()
        self.ours.append(self._our_watch.lap())
        self.baseline.append(self._plain_watch.lap())
        self._our_watch.start()


def timed_fit(net: str, updates: int, epochs: int, *, channels_last: bool) -> TakingTurns:
    """Fit ``epochs`` epochs of ``updates`` updates and a tenth of that in validation, in turn."""
    turns = TakingTurns(channels_last=channels_last)
    rule = "every_n_epochs: 1000" if channels_last else "monitor: val/error, mode: min"
    fit_with(turns, net, updates, epochs, rule)
    return turns


def fit_with(watch: L.Callback, net: str, updates: int, epochs: int, rule: str) -> None:
    """Do what ``toolkit.run.training.train`` does, on random images, with a callback more.

    Args:
        watch: The callback; it acts after the last epoch's checkpoint, before all else.
        net: The recipe's node.
        updates: Of an epoch.
        epochs: How many.
        rule: The recipe's ``checkpoint``.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        val_size = updates * BATCH_SIZE // 10
        write_images(folder / "images.npz", updates * BATCH_SIZE + val_size)
        text = RECIPE.format(
            file=folder / "images.npz", val_size=val_size, net=net, epochs=epochs, rule=rule
        )
        (folder / "benchmark.yaml").write_text(text, encoding="utf-8")
        resolved = load_recipe(folder / "benchmark.yaml").resolve("plain", seed=0)
        run = Run("benchmark", "plain", 0, folder / "run", resolved)
        run.folder.mkdir()
        torch.manual_seed(run.seed)
        record = HistoryLogger(run.folder)
        rule_read = run.checkpoint_rule
        checkpoint = RunCheckpoint(
            run.checkpoints, rule_read["monitor"], rule_read["mode"], rule_read["every_n_epochs"]
        )
        counters = [RecordState(record), ExamplesSeen(record), watch]
        trainer = build_trainer(run, record, checkpoint, counters, lambda event: None)
        data = config.build(run.resolved, "data")
        trainer.fit(config.build(run.resolved, "model"), datamodule=data, weights_only=True)


def measure(repetitions: int = 9) -> list[Row]:
    """Both nets; the first epoch of each side is not counted."""
    one_thread()
    quiet()
    rows = []
    for name, net, target, updates, epochs in (
        ("training, small CNN", SMALL, 1.10, 60, repetitions + 1),
        ("training, ResNet-18", RESNET, 1.05, 2, repetitions // 2 + 1),
    ):
        turns = timed_fit(net, updates, epochs, channels_last="resnet" in net)
        rows.append(compare(name, turns.ours[1:], turns.baseline[1:], target, per=updates))
    return rows


def write_images(path: Path, count: int) -> None:
    """Random images of CIFAR-10's size for training and validation, and a few for tests."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
    labels = rng.permutation(np.arange(count) % 10)
    test = {"test_images": images[:100], "test_labels": labels[:100]}
    np.savez(path, train_images=images, train_labels=labels, **test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    rows = measure(**vars(parser.parse_args()))
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
