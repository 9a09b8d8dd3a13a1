"""Shared by all tests: tiny recipes, and how to run the command line in a process of its own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

collect_ignore = ["benchmarks"]  # scripts of their own

TINY = """
title: A tiny study
seeds: 0-1
data:
  _target_: toolkit.data.Digits
  train_size: 60
  val_size: 40
  test_size: 100
  batch_size: 16
  seed: ${seed}
model:
  _target_: toolkit.models.ImageClassifier
  net: {_target_: toolkit.nets.SmallCNN, in_channels: 1, num_classes: 10, widths: [4]}
  optimizer: {_target_: torch.optim.SGD, lr: 0.1, momentum: 0.9}
  schedule: {_target_: toolkit.optim.cosine}
trainer: {max_epochs: 4, accelerator: cpu, log_every_n_steps: 2}
callbacks:
  margin: {_target_: callbacks.MarginLogger}
  bias: {_target_: callbacks.BiasTracker}
checkpoint: {monitor: val/error, mode: min, every_n_epochs: 1, test: last}
wandb: {mode: disabled}
variants:
  sgd: {}
  sgd_useful:
    callbacks.useful: {_target_: callbacks.UsefulUpsampling, separation_epochs: 2}
  sam:
    model.optimizer:
      _target_: toolkit.optim.SAM
      base: {_target_: torch.optim.SGD, lr: 0.1, momentum: 0.9}
      rho: 0.05
  sam_useful: {extends: [sam, sgd_useful]}
claims:
  useful_helps:
    _target_: toolkit.claims.Comparison
    text: USEFUL lowers the test error.
    source: a test
    metric: test/error
    arm: sgd_useful
    baseline: sgd
    expect: lower
"""


@pytest.fixture(autouse=True, scope="session")
def _quiet_processes() -> None:
    """One thread, no W&B server, whatever the machine's own settings are."""
    os.environ.update(OMP_NUM_THREADS="1", WANDB_MODE="offline", WANDB_SILENT="true")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The file of a recipe whose runs take about a second."""
    return write_recipe(tmp_path / "tiny.yaml")


def write_recipe(path: Path, text: str = TINY) -> Path:
    """Write a recipe and return its path."""
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def run_fit(
    arguments: Sequence[str], folder: Path, launcher: Sequence[str] = ("-m", "toolkit.fit")
) -> subprocess.CompletedProcess[str]:
    """``python -m toolkit.fit ...`` in ``folder``."""
    command = [sys.executable, *launcher, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
