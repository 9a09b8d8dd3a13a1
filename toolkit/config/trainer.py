"""What a recipe may say about Lightning's Trainer, beyond names and types of its arguments."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from toolkit.config.collect import Report

__all__ = ["check_trainer_values", "settled"]

_SET_BY_THE_RUN = {
    "callbacks": "; write it at the top level",
    "num_nodes": "; torchrun and SLURM say it",
    "fast_dev_run": "; --dry-run is ours",
    **dict.fromkeys(
        (
            "barebones",
            "default_root_dir",
            "enable_checkpointing",
            "enable_model_summary",
            "enable_progress_bar",
            "logger",
            "num_sanity_val_steps",
            "use_distributed_sampler",
        ),
        "",
    ),
}
"""Arguments that a recipe must not give, and where what they are for is said instead."""


def settled(trainer: Any, report: Report) -> dict[str, Any]:
    """The arguments that a recipe gives the Trainer, those reported that the run sets itself."""
    given = dict(trainer) if isinstance(trainer, Mapping) else {}
    for key, more in _SET_BY_THE_RUN.items():
        if key in given:
            report(("trainer", key), f"must be left out: the run sets it{more}.")
            del given[key]
    return given


def check_trainer_values(resolved: Mapping[str, Any], report: Report) -> None:
    """Report values that Lightning takes, but that make no run, or another than one would think."""
    trainer = resolved.get("trainer")
    if not isinstance(trainer, Mapping):
        return

    def fault(key: str, message: str) -> None:
        report(("trainer", key), f"{message}, got {trainer[key]!r}.")

    epochs, updates = trainer.get("max_epochs"), trainer.get("max_steps", -1)
    is_bounded = _is_count(updates) and updates != -1
    if _is_count(epochs) and epochs < 1 and not (epochs == -1 and is_bounded):
        fault("max_epochs", "must be at least 1, or -1 beside a max_steps")
    if _is_count(updates) and updates < 1 and updates != -1:
        fault("max_steps", "must be at least 1, or -1 for no bound")
    for key in ("limit_train_batches", "limit_test_batches"):
        if _is_zero(trainer.get(key)):
            fault(key, "must be above 0")
    checkpoint = resolved.get("checkpoint")
    monitor = checkpoint.get("monitor") if isinstance(checkpoint, Mapping) else None
    if str(monitor).startswith("val/") and _is_zero(trainer.get("limit_val_batches")):
        fault("limit_val_batches", f"must be above 0, since checkpoint.monitor is {monitor!r}")
    devices = trainer.get("devices", 1)
    if devices not in ("auto", -1, None) and not (_is_count(devices) and devices >= 1):
        fault("devices", "must be the number of devices of a run (CUDA_VISIBLE_DEVICES says which)")


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_zero(value: Any) -> bool:
    return not isinstance(value, bool) and value in (0, 0.0)
