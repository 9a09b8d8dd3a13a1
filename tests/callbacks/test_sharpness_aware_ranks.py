"""SharpnessAware under Lightning's DDP, two real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

SCRIPT = """
import json, os, sys
from functools import partial
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from callbacks import SharpnessAware
from toolkit.optim import SAM

class Module(L.LightningModule):
    def __init__(self, norm, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 3)
        ).double()
        self.acc = MulticlassAccuracy(3, average="micro")
        self.settings = settings
        self.gradients = []

    def training_step(self, batch, batch_idx):
        logits = self.net(batch["inputs"])
        self.acc(logits, batch["targets"])
        loss = nn.functional.cross_entropy(logits, batch["targets"])
        self.log("acc", self.acc, on_step=False, on_epoch=True)
        return {"loss": loss, "logits": logits}

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.net[0].weight.grad.flatten().tolist())

    def configure_optimizers(self):
        base = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        return SAM(self.parameters(), base, rho=0.3, **self.settings)

def loader(rank, ranks):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(24, 4, generator=generator).double()
    targets = torch.randint(0, 3, (24,), generator=generator)
    mine = torch.arange(24).view(-1, ranks, 4 // ranks)[:, rank].flatten()  # of each chunk of 4
    rows = [{"inputs": inputs[i], "targets": targets[i]} for i in mine]
    return DataLoader(rows, batch_size=8 // ranks)

def fit(ranks, norm=False, **settings):
    module = Module(norm, **settings)
    trainer = L.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=2,
        callbacks=[SharpnessAware()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )
    trainer.fit(module, loader(int(os.environ.get("LOCAL_RANK", 0)), ranks))
    return {
        "weights": [p.detach().flatten().tolist() for p in module.net.parameters()],
        "gradients": module.gradients,
        "updates": trainer.global_step,
        "tracked": int(module.net[1].num_batches_tracked) if norm else None,
        "acc": float(trainer.callback_metrics["acc"]),
    }

ranks = int(sys.argv[1])
found = {"global": fit(ranks), "chunks": fit(ranks, m=4)}
if ranks > 1:
    found["local"] = fit(ranks, norm=True, perturbation="local")
    found["local chunks"] = fit(ranks, perturbation="local", m=3)
rank = os.environ.get("LOCAL_RANK", 0)
open(f"{sys.argv[2]}/{rank}.json", "w").write(json.dumps(found))
if ranks > 1:  # else gloo's threads may still run when the process ends, which aborts it
    torch.distributed.destroy_process_group()
"""


def over_ranks(folder: Path, ranks: int) -> list[dict[str, Any]]:
    script = folder / "fit.py"
    script.write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "MASTER_PORT")}
    subprocess.run(
        [sys.executable, str(script), str(ranks), str(folder)],
        check=True,
        env=environment | {"OMP_NUM_THREADS": "1"},
        timeout=300,
        stdout=subprocess.PIPE,
    )
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return over_ranks(tmp_path_factory.mktemp("two"), ranks=2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return over_ranks(tmp_path_factory.mktemp("one"), ranks=1)[0]


@pytest.mark.parametrize("run", ["local", "local chunks"])
def test_local_perturbations_leave_the_replicas_bit_identical(run: str, found: Any) -> None:
    one, two = (rank[run] for rank in found)
    assert one["weights"] == two["weights"]
    first, second = one["gradients"][0], one["gradients"][-1]
    assert first != two["gradients"][0]  # each rank's own after a first pass
    assert second == two["gradients"][-1]  # averaged after a second
    assert one["updates"] == two["updates"] == 6


def test_local_first_gradients_all_differ_and_the_second_never(found: Any) -> None:
    one, two = (rank["local"]["gradients"] for rank in found)
    assert all(a != b for a, b in zip(one[::2], two[::2], strict=True))
    assert one[1::2] == two[1::2]
    assert found[0]["local"]["tracked"] == 6


@pytest.mark.parametrize("run", ["global", "chunks"])
def test_two_ranks_with_their_halves_are_one_process_with_the_whole(
    run: str, found: Any, alone: Any
) -> None:
    one, two = (rank[run] for rank in found)
    assert one["weights"] == two["weights"]
    assert one["gradients"] == two["gradients"]
    for ours, theirs in zip(one["weights"], alone[run]["weights"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert one["acc"] == two["acc"] == pytest.approx(alone[run]["acc"])
    assert one["updates"] == alone[run]["updates"] == 6


def test_chunks_are_perturbed_apart(alone: Any) -> None:
    assert alone["chunks"]["weights"] != alone["global"]["weights"]
