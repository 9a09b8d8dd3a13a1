"""Keeps small pictures of some training examples beside a run, for its report."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit import history
from toolkit.data import ImageArrays, ImageData

__all__ = ["save_pictures"]

_PER_KIND = 20


def save_pictures(folder: Path, datamodule: L.LightningDataModule) -> None:
    """Write pictures of what a run over an image data set upsampled, and of what it forgot.

    ``pictures.npz``, where examples were upsampled: up to 20 upsampled (slow) and 20 other (fast)
    training images, classes in turn: ``images`` uint8 ``(n, height, width, channels)``,
    ``selected`` bool ``(n,)``, ``targets`` and ``indices`` ``(n,)``.

    ``forgotten.npz``, where ``examples.npz`` says how examples were learnt: up to 20 of those with
    the highest forgetting scores, the highest first: ``images``, ``targets``, ``indices``, and
    ``forgetting_score`` ``(n,)``, all positive.
    """
    if not isinstance(datamodule, ImageData):
        return
    selection = history.read_json(folder / "useful.json")
    if selection is not None:
        _save_upsampled(folder / "pictures.npz", datamodule.train, selection["selected"])
    if (folder / "examples.npz").exists():
        with np.load(folder / "examples.npz", allow_pickle=False) as file:
            scores = file["forgetting_score"]
        _save_forgotten(folder / "forgotten.npz", datamodule.train, scores)


def _save_upsampled(path: Path, train: ImageArrays, ids: list[int]) -> None:
    selected = torch.zeros(len(train.targets), dtype=torch.bool)
    selected[torch.tensor(ids, dtype=torch.int64)] = True
    chosen = torch.cat([_in_turn(train.targets.cpu(), selected == kind) for kind in (True, False)])
    _save(path, train, chosen, selected=selected[chosen].numpy())


def _save_forgotten(path: Path, train: ImageArrays, scores: NDArray[np.float64]) -> None:
    if len(scores) != len(train.targets):  # the user's own indices are no positions
        return
    order = np.argsort(-np.nan_to_num(scores), kind="stable")[:_PER_KIND]
    order = order[scores[order] > 0]
    _save(path, train, torch.from_numpy(order), forgetting_score=scores[order])


def _save(path: Path, train: ImageArrays, chosen: Tensor, **more: NDArray[Any]) -> None:
    images = train.images.cpu()[chosen]
    if images.dtype != torch.uint8 and len(images):
        low, high = images.amin(), images.amax()
        images = (images - low) / (high - low).clamp_min(1e-12) * 255
    content: dict[str, Any] = {
        "images": images.to(torch.uint8).permute(0, 2, 3, 1).numpy(),
        "targets": train.targets.cpu()[chosen].numpy(),
        "indices": chosen.numpy(),
        **more,
    }
    with history.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **content)


def _in_turn(targets: Tensor, among: Tensor) -> Tensor:
    """The first examples of each class in turn: one of each, then a second of each, ..."""
    candidates = among.nonzero()[:, 0]
    classes = targets[candidates]
    rank = torch.zeros_like(classes)
    for number in range(int(targets.max()) + 1):
        members = classes == number
        rank[members] = torch.arange(int(members.sum()))
    order = sorted(range(len(candidates)), key=lambda i: (int(rank[i]), int(classes[i])))
    return candidates[torch.tensor(order[:_PER_KIND], dtype=torch.int64)]
