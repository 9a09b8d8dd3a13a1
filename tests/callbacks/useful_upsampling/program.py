"""A Lightning project that knows nothing of this one: tuple batches, a plain loader, no ids.

Run as a program, it trains in the folder given and prints the hash of the final weights.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from callbacks import UsefulUpsampling
from toolkit.data import FlipAndCrop, ImageArrays, ImageData, Source
from toolkit.models import ImageClassifier

EPOCHS = 5
SEPARATION = 2


def dataset(count: int = 61, seed: int = 0) -> TensorDataset:
    """Three classes; every third example lies near the boundary."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 3
    centres = torch.eye(3, 6)[targets] * torch.where(torch.arange(count) % 7 < 3, 0.5, 3.0)[:, None]
    return TensorDataset(centres + 0.5 * torch.randn(count, 6, generator=draw), targets)


def loader(data: Dataset[Any] | None = None, **settings: Any) -> DataLoader[Any]:
    settings = {"batch_size": 8, "shuffle": True, **settings}
    return DataLoader(dataset() if data is None else data, **settings)


class Project(L.LightningModule):
    """BatchNorm, dropout, momentum, and a schedule over the run's number of updates."""

    def __init__(self, estimate: bool = True) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )
        self.estimate = estimate
        self.num_batches = 0
        self.promised: list[float] = []
        self.rates: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        self.num_batches += 1
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        loss = nn.functional.cross_entropy(self(inputs), targets)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if not self.estimate:
            return optimizer
        updates = self.trainer.estimated_stepping_batches
        self.promised.append(updates)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(updates))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Validated(Project):
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", nn.functional.cross_entropy(self(inputs), targets))

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(dataset(24, seed=1), shuffle=False)


def fit(
    folder: Path,
    callbacks: Any = (),
    *,
    train: Any = None,
    seed: int = 1,
    module: Callable[[], L.LightningModule] = Project,
    fit_arguments: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[L.Trainer, Any]:
    """Seed, build everything afresh, and fit, as a user's script does."""
    L.seed_everything(seed, verbose=False)
    built = module()
    settings = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": any(
            isinstance(c, L.pytorch.callbacks.Checkpoint) for c in callbacks
        ),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **settings,
    }
    trainer = L.Trainer(default_root_dir=folder, callbacks=list(callbacks), **settings)
    fit_arguments = {"train_dataloaders": loader() if train is None else train} | (
        fit_arguments or {}
    )
    trainer.fit(built, **fit_arguments)
    return trainer, built


def digest(module: nn.Module) -> str:
    """Hash of all weights and buffers."""
    found = hashlib.sha256()
    for value in module.state_dict().values():
        found.update(value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


class Images(ImageData):
    """Our own data, small enough for a test: an upper or a lower bar, every third one faint."""

    def read(self) -> Source:
        draw = torch.Generator().manual_seed(0)
        targets = torch.arange(70) % 2
        images = torch.randint(0, 90, (70, 1, 8, 8), generator=draw, dtype=torch.uint8)
        strength = torch.where(torch.arange(70) % 3 == 0, 30, 150).to(torch.uint8)
        for side, rows in ((0, slice(0, 3)), (1, slice(5, 8))):
            chosen = targets == side
            images[chosen, :, rows] += strength[chosen].view(-1, 1, 1, 1)
        arrays = ImageArrays(images=images, targets=targets, num_classes=2)
        return Source(arrays, val=arrays.select(torch.arange(10)), test=arrays)


def classifier(batch_statistics: bool = True) -> L.LightningModule:
    norm, drop = nn.BatchNorm2d(4), nn.Dropout(0.2)
    if not batch_statistics:
        norm, drop = nn.Identity(), nn.Identity()
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), drop, nn.Linear(144, 2))

    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def cosine(optimizer: torch.optim.Optimizer, updates: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)

    return ImageClassifier(net, momentum, cosine)


class Announce(L.Callback):
    """Says on a file where the run is, and waits a little there, to be killed."""

    runs_in_separation = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        stage = "separation" if type(trainer.fit_loop).__name__ == "SeparationLoop" else "training"
        with self.path.open("a") as file:
            file.write(f"{stage} {trainer.current_epoch} {batch_idx}\n")
        time.sleep(0.02)


class KillAt(L.Callback):
    """Ends the process before the n-th training batch of all stages."""

    runs_in_separation = True

    def __init__(self, batch: int) -> None:
        self.left = batch

    def on_train_batch_start(self, *args: Any) -> None:
        self.left -= 1
        if self.left < 0:
            os._exit(9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--ours", action="store_true", help="with our data and model")
    parser.add_argument("--slowly", action="store_true")
    parser.add_argument("--kill-at", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder: Path = arguments.folder
    folder.mkdir(exist_ok=True)
    callbacks: list[Any] = [UsefulUpsampling(SEPARATION)]
    if arguments.slowly:
        callbacks.append(Announce(folder / "moments.txt"))
    if arguments.kill_at is not None:
        callbacks.append(KillAt(arguments.kill_at))
    settings: dict[str, Any] = {}
    if arguments.devices > 1:
        settings = {"strategy": "ddp", "devices": arguments.devices}
    if arguments.ours:
        data = Images(batch_size=16, augment=FlipAndCrop(), seed=3)
        settings |= {
            "module": lambda: classifier(batch_statistics=False),
            "use_distributed_sampler": False,
            "fit_arguments": {"datamodule": data, "train_dataloaders": None},
        }
    trainer, module = fit(folder, callbacks, **settings)
    torch.save(module.state_dict(), folder / f"final{trainer.global_rank}.pt")
    (folder / f"final{trainer.global_rank}.txt").write_text(digest(module))
    if arguments.devices > 1:  # else gloo's threads may abort the process as it ends
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
