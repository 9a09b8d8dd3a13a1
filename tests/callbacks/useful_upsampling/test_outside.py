"""A Lightning project that knows nothing of this one, from its script to its checkpoint."""

from pathlib import Path
from types import ModuleType
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from callbacks import UsefulUpsampling


class Pairs(Dataset[tuple[Tensor, int]]):
    """Examples without ids; labels are plain numbers."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs, target = self.data[index]
        return inputs, int(target)


class OwnData(L.LightningDataModule):
    """Shuffled tuples from a torch ``DataLoader``; nothing of ours."""

    def __init__(self, project: ModuleType) -> None:
        super().__init__()
        self.project = project

    def setup(self, stage: str) -> None:
        self.pairs = Pairs(self.project.dataset())

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.pairs, batch_size=8, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Pairs(self.project.dataset(24, seed=1)), batch_size=24)


class Seen(L.Callback):
    """The rows of the training batches of stage two, as numbers."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.rows += batch[0].tolist()


def run(project: ModuleType, folder: Path, seed: int = 1) -> tuple[Any, Any, Any, Any]:
    useful, seen = UsefulUpsampling(2), Seen()
    kept = ModelCheckpoint(folder, monitor="val_loss", save_last=True)
    arguments = {"train_dataloaders": None, "datamodule": OwnData(project)}
    trainer, module = project.fit(
        folder, [useful, kept, seen], module=project.Validated, seed=seed, fit_arguments=arguments
    )
    return useful.upsampled, project.digest(module), seen.rows, trainer


def test_two_runs_are_equal_bit_for_bit_and_another_seed_differs(
    project: ModuleType, tmp_path: Path
) -> None:
    one, same, other = (
        run(project, tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert torch.equal(one[0].selected, same[0].selected)
    assert one[1] == same[1]
    assert one[2] == same[2]
    assert other[1] != one[1]


def test_each_epoch_holds_the_selected_examples_twice_and_the_others_once(
    project: ModuleType, tmp_path: Path
) -> None:
    found, _, rows, trainer = run(project, tmp_path)
    length = 61 + len(found.selected)
    assert len(rows) == 5 * length
    assert trainer.global_step == 5 * -(-length // 8)
    positions = {tuple(row.tolist()): k for k, row in enumerate(project.dataset().tensors[0])}
    selected = set(found.selected.tolist())
    for epoch in range(5):
        part = [positions[tuple(row)] for row in rows[epoch * length : (epoch + 1) * length]]
        assert {k: part.count(k) for k in range(61)} == {
            k: 2 if k in selected else 1 for k in range(61)
        }


def test_its_checkpoint_is_an_ordinary_one(project: ModuleType, tmp_path: Path) -> None:
    run(project, tmp_path)
    module = project.Validated.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert module(torch.zeros(2, 6)).shape == (2, 3)
    assert (tmp_path / "useful.json").exists()


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_the_callback_leaves_other_loops_alone(
    project: ModuleType, tmp_path: Path, stage: str
) -> None:
    class Tested(project.Validated):  # type: ignore[name-defined,misc]
        test_step = project.Validated.validation_step
        test_dataloader = project.Validated.val_dataloader

    trainer = L.Trainer(
        default_root_dir=tmp_path,
        callbacks=[UsefulUpsampling(2)],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    torch.manual_seed(0)
    [metrics] = getattr(trainer, stage)(Tested(), verbose=False)
    assert metrics["val_loss"] > 0
    assert not (tmp_path / "useful.json").exists()
