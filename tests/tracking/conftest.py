"""A small real fit on the CPU whose record depends on everything a checkpoint must hold."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

Fit = Callable[..., L.Trainer]


class Line(L.LightningModule):
    """Logs at steps, at the end of epochs, and in validation and tests."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.line(batch).square().mean()
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train/norm", self.line.weight.norm())

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val/loss", self.line(batch).square().mean())

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("test/loss", self.line(batch).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        # Steps after on_train_epoch_end, and cuts the rate soon: a resume must not lose it.
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val/loss"},
        }


@pytest.fixture
def loader() -> DataLoader[torch.Tensor]:
    """Three batches of four."""
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(list(inputs), batch_size=4)  # type: ignore[arg-type]  # a list serves


@pytest.fixture
def fit(loader: DataLoader[torch.Tensor]) -> Fit:
    """Trains ``Line`` with these loggers; returns the trainer."""

    def run(
        loggers: list[Any],
        callbacks: list[L.Callback] | None = None,
        ckpt_path: Any = None,
        *,
        seed: int = 0,
        train: Any = loader,
        **settings: Any,
    ) -> L.Trainer:
        torch.manual_seed(seed)
        trainer = L.Trainer(
            **{
                "max_epochs": 4,
                "logger": loggers,
                "callbacks": callbacks or [],
                "accelerator": "cpu",
                "log_every_n_steps": 2,
                "num_sanity_val_steps": 0,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                **settings,
            }
        )
        trainer.fit(Line(), train, loader, ckpt_path=ckpt_path, weights_only=True)
        return trainer

    return run
