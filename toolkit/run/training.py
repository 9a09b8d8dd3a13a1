"""Trains one run: builds its parts, fits, tests, and writes the result."""

import contextlib
import errno
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from toolkit import config, distributed, history
from toolkit.run.checkpoints import AtomicCheckpointIO, FinalCheckpoint, RunCheckpoint
from toolkit.run.folder import Run, environment
from toolkit.run.guard import EpochSeeder, NonFiniteGuard, NonFiniteLossError
from toolkit.run.pictures import save_pictures
from toolkit.run.progress import ExamplesSeen, ProgressReporter
from toolkit.tracking import HistoryLogger, RecordState, WandbMirror

__all__ = [
    "build_trainer",
    "explain",
    "make_trainer",
    "mirror",
    "numbers",
    "quiet",
    "seeded_data",
    "seeded_model",
    "train",
    "write_inputs",
]

Tell = Callable[[dict[str, Any]], None]


def train(run: Run, tell: Tell = lambda event: None) -> dict[str, Any]:
    """Train, test and record one run; continue from its last checkpoint if there is one.

    Every rank calls this with the same run; rank 0 writes.

    Args:
        run: What to train, and where to put it.
        tell: Called on rank 0 with the progress after each epoch.

    Returns:
        The content of ``result.json``.
    """
    quiet()
    torch.set_num_threads(run.resolved["threads"])
    if distributed.is_main():
        write_inputs(run)
    datamodule, model = seeded_data(run), seeded_model(run)
    record = HistoryLogger(run.folder, mirror(run))
    rule = run.checkpoint_rule
    checkpoint = RunCheckpoint(
        run.checkpoints, rule["monitor"], rule["mode"], rule["every_n_epochs"]
    )
    seen = ExamplesSeen(record)
    trainer = build_trainer(run, record, checkpoint, [RecordState(record), seen], tell)
    with _closing(record):
        _fit(run, trainer, model, datamodule, record)
        # Not the trainer's own: it has none where training had ended before an interruption.
        metrics = numbers(checkpoint.metrics)
        updates = trainer.global_step
        metrics.update(_test(run, trainer, model, datamodule))
    if checkpoint.best_score is not None:
        metrics[f"best/{checkpoint.monitor}"] = checkpoint.best_score
    result = {
        "recipe": run.recipe,
        "variant": run.variant,
        "seed": run.seed,
        "status": "finished",
        "seconds": round(checkpoint.seconds, 3),
        "updates": updates,
        "epochs": trainer.current_epoch,
        "examples_seen": seen.in_stage,
        "world_size": distributed.world_size(),
        "metrics": metrics,
    }
    if distributed.is_main():
        save_pictures(run.folder, datamodule)
        history.write_csv(history.read_history(record.path), run.folder / "history.csv")
        history.write_json(result, run.folder / "result.json")
    distributed.barrier()
    return result


def build_trainer(
    run: Run,
    record: HistoryLogger,
    checkpoint: RunCheckpoint,
    counters: Sequence[L.Callback],
    tell: Tell,
) -> L.Trainer:
    """The Lightning trainer of a run: the recipe's settings, our callbacks around its own."""
    return make_trainer(
        run.resolved,
        [checkpoint, *counters, EpochSeeder(run.seed), NonFiniteGuard(run.resolved["nonfinite"])],
        [ProgressReporter(record, tell), FinalCheckpoint(checkpoint)],
        logger=[record, record.mirror] if record.mirror else record,
        default_root_dir=run.folder,
    )


def make_trainer(
    resolved: Mapping[str, Any],
    before: Sequence[L.Callback],
    after: Sequence[L.Callback],
    **settings: Any,
) -> L.Trainer:
    """A trainer with a recipe's arguments, its callbacks, and others before and after these."""
    own = [config.build(resolved, f"callbacks.{name}") for name in resolved["callbacks"]]
    packages = resolved.get("packages") or ()
    arguments = dict(resolved["trainer"])
    plugins = arguments.pop("plugins", None) or []
    nodes = plugins if isinstance(plugins, list) else [plugins]
    trainer: L.Trainer = config.instantiate(
        {"_target_": "lightning.Trainer", **arguments},
        packages,
        "trainer",
        callbacks=[*before, *own, *after],
        plugins=[
            AtomicCheckpointIO(),
            *(config.instantiate(node, packages, "trainer.plugins") for node in nodes),
        ],
        # Ours are written by a callback of the run; one of the user's own may write others.
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in own),
        enable_progress_bar=False,
        enable_model_summary=False,
        # Our loaders divide each batch over the ranks; Lightning's sampler repeats examples.
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **settings,
    )
    return trainer


def explain(error: BaseException, run: Run) -> str:
    """What ended a run, in one line, with what to do or what is left."""
    text = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        size = run.resolved["data"].get("batch_size")
        if size is None:
            return f"out of memory on {_device()}. Use smaller data, or less of it at a time."
        return f"out of memory on {_device()} with batch size {size}. Lower data.batch_size."
    if isinstance(error, NonFiniteLossError):
        last = run.checkpoints / "last.ckpt"
        return f"{text} Last good checkpoint: {last if last.exists() else 'none yet'}."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{text}. Free space on the disk of {run.folder}; the same command continues."
    if isinstance(error, history.DamagedFileError):
        return text
    return config.one_line(error, 600)


def _device() -> str:
    if torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()} ({torch.cuda.get_device_name()})"
    return "the CPU"


def write_inputs(run: Run) -> None:
    """Save what the run is, before it starts, and remove what killed writes have left."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for place in (run.folder, run.checkpoints):
        for left in place.glob(".*.tmp"):
            left.unlink(missing_ok=True)
    with history.replacing(run.folder / "recipe.yaml") as temporary:
        temporary.write_text(config.to_yaml(run.resolved), encoding="utf-8")
    history.write_json(environment(), run.folder / "environment.json")


def seeded_data(run: Run) -> L.LightningDataModule:
    """The data module, built from the run's seed."""
    L.seed_everything(run.seed, workers=True, verbose=False)
    data: L.LightningDataModule = config.build(run.resolved, "data")
    return data


def seeded_model(run: Run) -> L.LightningModule:
    """The model, built from the run's seed: variants that differ in their data still share it."""
    L.seed_everything(run.seed, workers=True, verbose=False)
    model: L.LightningModule = config.build(run.resolved, "model")
    return model


def mirror(run: Run) -> WandbMirror | None:
    """The run at Weights & Biases; ``None`` where the recipe wants none."""
    settings = run.wandb
    if settings["mode"] == "disabled":
        return None
    return WandbMirror(
        run.folder,
        name=f"{run.recipe}/{run.name}",
        group=run.recipe,
        config=run.resolved,
        mode=settings["mode"],
        project=settings["project"],
        entity=settings["entity"],
        tags=[run.variant, f"seed{run.seed}", *settings["tags"]],
    )


@contextlib.contextmanager
def _closing(record: HistoryLogger) -> Iterator[None]:
    """Close the record and W&B however the block ends, with the right status."""
    try:
        yield
    except BaseException:
        record.close("failed")
        raise
    record.close("success")


def _fit(
    run: Run,
    trainer: L.Trainer,
    model: L.LightningModule,
    datamodule: L.LightningDataModule,
    record: HistoryLogger,
) -> None:
    """Train from the last checkpoint, or from the start with an empty record if there is none."""
    last = run.checkpoints / "last.ckpt"
    if last.exists():
        trainer.fit(model, datamodule=datamodule, ckpt_path=last, weights_only=True)
        return
    if not (run.folder / "separation.ckpt").exists():  # which keeps rows of its own
        record.cut_to(0)
    trainer.fit(model, datamodule=datamodule, weights_only=True)


def _test(
    run: Run, trainer: L.Trainer, model: L.LightningModule, datamodule: L.LightningDataModule
) -> dict[str, float | None]:
    """Metrics on the test data, of the last or the best weights as the recipe says."""
    best = run.checkpoints / "best.ckpt"
    rule = run.checkpoint_rule
    if rule["test"] == "best":
        if not best.exists():
            raise RuntimeError(
                "checkpoint.monitor must be finite after some epoch where checkpoint.test is best, "
                f"got no such value of {rule['monitor']}. Validate more often, or test the last."
            )
        with history.reading(best, f"Delete {run.folder} to train that run again."):
            state = torch.load(best, weights_only=True, map_location=model.device)["state_dict"]
        model.load_state_dict(state)
    trainer.test(model, datamodule=datamodule, verbose=False)
    return {
        key: value
        for key, value in numbers(trainer.callback_metrics).items()
        if key.startswith("test/")
    }


def numbers(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Plain numbers, ``None`` where a value is not finite."""
    values = {key: float(value) for key, value in metrics.items()}
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


def quiet() -> None:
    """Keep Lightning's own announcements out of our output."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Our loaders hold the data in memory; workers would only slow them down.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*is smaller than the logging interval.*")
    # Lightning's own calls.
    warnings.filterwarnings("ignore", message=".*treespec.*")
    warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
