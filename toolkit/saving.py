"""Writes tensors so that a killed process leaves the old file or the whole new one."""

import os
from pathlib import Path
from typing import Any

import torch

from toolkit.history import replacing

__all__ = ["save_atomically"]


def save_atomically(value: Any, path: Path) -> None:
    """``torch.save`` that leaves either the old file or the whole new one at ``path``."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
