"""Loggers over a run's record: JSON lines are the truth, W&B mirrors them."""

from toolkit.tracking.history_logger import HistoryLogger, RecordState
from toolkit.tracking.wandb_mirror import WandbMirror, logged_in

__all__ = ["HistoryLogger", "RecordState", "WandbMirror", "logged_in"]
