"""What a study would do: builds everything and pushes a few batches through each variant."""

import math
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.table import Table

from toolkit import config
from toolkit.models import JointModel
from toolkit.run import Run
from toolkit.run.rehearsal import rehearse

__all__ = ["preview"]

_TIMED_BATCHES = 3


@dataclass
class _Stopwatch(L.Callback):
    """Observes: the times of training batches, also but for the first one, and their shapes."""

    seconds: list[float]
    shapes: str = ""
    total: float = 0.0
    _began: float = 0.0

    def on_train_batch_start(self, *arguments: Any) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, idx: int
    ) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - self._began
        self.total += taken
        if idx > 0:
            self.seconds.append(taken)
        if isinstance(outputs, dict) and "logits" in outputs and isinstance(batch, dict):
            inputs, logits = batch["inputs"], outputs["logits"]
            self.shapes = f"{tuple(inputs.shape)} -> {tuple(logits.shape)}"


def preview(
    recipe: config.Recipe, variants: tuple[str, ...] = (), seeds: tuple[int, ...] = ()
) -> Table:
    """Build each variant, train a few batches of it, and estimate what the study costs.

    The estimate is the time of one update times the number of updates of plain epochs; what
    callbacks add (USEFUL's separation and longer epochs, logging, tests) is not in it. Nothing is
    written.

    Args:
        recipe: The loaded and checked recipe.
        variants: Which variants; by default all.
        seeds: Which seeds; by default the recipe's.

    Raises:
        ValueError: In one line, if data, model, callbacks or trainer are wrong or do not fit.
    """
    first = (seeds or recipe.seeds)[0]
    runs = [
        Run(recipe.name, variant, first, Path(), recipe.resolve(variant, first))
        for variant in variants or recipe.variants
    ]
    rehearse(runs)
    table = Table(
        "variant", "input -> logits", "parameters", "updates", "time, all seeds", "memory"
    )
    num_seeds = len(seeds or recipe.seeds)
    total = 0.0
    for run in runs:
        row, seconds = _preview_variant(run.variant, run.resolved, num_seeds)
        total += seconds
        table.add_row(*row)
    table.caption = (
        f"{num_seeds} seeds; about {_duration(total)} with one run at a time, beside what "
        "callbacks add"
    )
    return table


def _preview_variant(
    variant: str, resolved: dict[str, Any], num_seeds: int
) -> tuple[list[str], float]:
    torch.set_num_threads(resolved["threads"])
    torch.manual_seed(resolved["seed"])
    datamodule = config.build(resolved, "data")
    model = config.build(resolved, "model")
    watch = _Stopwatch([])
    needed = [
        config.build(resolved, f"callbacks.{name}")
        for name, node in resolved["callbacks"].items()
        if node["_target_"] == "callbacks.SharpnessAware"
    ]
    # One process whatever the recipe says: Lightning would start others with our command line.
    alone = {"devices": 1, "num_nodes": 1, "strategy": "auto"}
    short = {"max_epochs": 1, "max_steps": -1, "limit_train_batches": _TIMED_BATCHES}
    settings = {**resolved["trainer"], **alone, **short, "limit_val_batches": 1}
    trainer = L.Trainer(
        **settings,
        callbacks=[*needed, watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, datamodule=datamodule)
    each = sum(watch.seconds) / max(1, len(watch.seconds))
    if isinstance(model, JointModel):
        # Of the smallest training, one step, the first is timed too.
        each = watch.total / max(1, model.done)
        updates = model.updates
    else:
        updates = _num_updates(len(datamodule.train_dataloader()), resolved["trainer"])
    seconds = each * updates * num_seeds
    count = sum(parameter.numel() for parameter in model.parameters())
    cells = [f"{count:,}", f"{updates:,}", _duration(seconds), _memory(trainer)]
    return [variant, watch.shapes, *cells], seconds


def _num_updates(per_epoch: int, settings: dict[str, Any]) -> int:
    """Updates of a plain training: bounded by epochs, by updates, or by both."""
    epochs, updates = settings.get("max_epochs"), settings.get("max_steps", -1)
    bounds = [] if epochs in (None, -1) else [per_epoch * int(epochs)]
    bounds += [] if updates == -1 else [int(updates)]
    return min(bounds, default=per_epoch)


def _memory(trainer: L.Trainer) -> str:
    """Most memory used so far: of the GPU if there is one, else of the process."""
    if trainer.strategy.root_device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB (GPU)"
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{peak / 2**30:.2f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
