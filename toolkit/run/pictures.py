"""Keeps small pictures of upsampled and other examples beside a run, for its report."""

from pathlib import Path

import lightning as L
import numpy as np
import torch

from toolkit import history
from toolkit.data import ImageData

__all__ = ["save_pictures"]

_PER_KIND = 20


def save_pictures(folder: Path, datamodule: L.LightningDataModule) -> None:
    """Write ``pictures.npz`` if the run upsampled examples of an image data set.

    It holds up to 20 upsampled (slow) and 20 other (fast) training images, classes in turn:
    ``images`` uint8 ``(n, height, width, channels)``, ``selected`` bool ``(n,)``, ``targets`` and
    ``indices`` ``(n,)``.
    """
    selection = history.read_json(folder / "useful.json")
    if selection is None or not isinstance(datamodule, ImageData):
        return
    train = datamodule.train
    selected = torch.zeros(len(train.targets), dtype=torch.bool)
    selected[torch.tensor(selection["selected"], dtype=torch.int64)] = True
    chosen = torch.cat([_in_turn(train.targets.cpu(), selected == kind) for kind in (True, False)])
    images = train.images.cpu()[chosen]
    if images.dtype != torch.uint8:
        low, high = images.amin(), images.amax()
        images = ((images - low) / (high - low).clamp_min(1e-12) * 255).to(torch.uint8)
    np.savez_compressed(
        folder / "pictures.npz",
        images=images.permute(0, 2, 3, 1).numpy(),
        selected=selected[chosen].numpy(),
        targets=train.targets.cpu()[chosen].numpy(),
        indices=chosen.numpy(),
    )


def _in_turn(targets: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """The first examples of each class in turn: one of each, then a second of each, ..."""
    candidates = among.nonzero()[:, 0]
    classes = targets[candidates]
    rank = torch.zeros_like(classes)
    for number in range(int(targets.max()) + 1):
        members = classes == number
        rank[members] = torch.arange(int(members.sum()))
    order = sorted(range(len(candidates)), key=lambda i: (int(rank[i]), int(classes[i])))
    return candidates[torch.tensor(order[:_PER_KIND], dtype=torch.int64)]
