"""A small real fit whose record needs all that a checkpoint holds; a reader of W&B's files."""

import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader
from wandb.proto import wandb_internal_pb2 as messages

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


@dataclass(frozen=True)
class Part:
    """What one process wrote offline, in W&B's own messages."""

    records: list[Any]

    def only(self, kind: str) -> list[Any]:
        return [getattr(r, kind) for r in self.records if r.WhichOneof("record_type") == kind]

    @property
    def run(self) -> Any:
        return self.only("run")[0]

    @property
    def exit_codes(self) -> list[int]:
        return [message.exit_code for message in self.only("exit")]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The logged rows, the step as ``row``, W&B's own other fields left out."""
        rows = []
        for message in self.only("history"):
            row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in message.item}
            rows.append({"row": row["_step"]} | {k: v for k, v in row.items() if k[0] != "_"})
        return rows


@pytest.fixture
def read_parts() -> Callable[[Path], list[Part]]:
    """The parts of a run, oldest first; W&B writes for a moment after it says to have finished."""

    def read(folder: Path) -> list[Part]:
        deadline = time.monotonic() + 20
        while True:
            files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=os.path.getmtime)
            parts = [Part(list(_records(path.read_bytes()))) for path in files]
            if all(part.exit_codes for part in parts) or time.monotonic() > deadline:
                return parts
            time.sleep(0.01)

    return read


def _records(data: bytes) -> Iterator[Any]:
    """The messages of a ``.wandb`` file: a LevelDB log of blocks of 32 KiB after a header.

    A chunk is a checksum of type and data, the length, the type (1 whole, 2 first, 3 middle,
    4 last) and the data; fewer than 7 bytes at the end of a block are filled with zeros.
    """
    assert data[:4] == b":W&B"
    position, message = 7, b""
    while position < len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data.ljust(position + 7), position)
        chunk = data[position + 7 : position + 7 + length]
        if len(chunk) < length:  # not yet written
            return
        assert zlib.crc32(bytes([kind]) + chunk) == checksum
        message += chunk
        position += 7 + length
        if kind in (1, 4):
            record = messages.Record()  # type: ignore[attr-defined]  # made when it is imported
            record.ParseFromString(message)
            yield record
            message = b""


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is logged in to W&B, and no variable says how to use it."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
