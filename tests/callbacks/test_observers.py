"""Both observing callbacks change nothing, survive a resume, and agree on ranks."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from callbacks import BiasTracker, MarginLogger

Batch = dict[str, Tensor]
NAMES = ["common", "rare", "nobody"]


class Batches:
    """Global batches in a new order each epoch, some examples twice, divided over the ranks."""

    def __init__(
        self, rank: int = 0, world: int = 1, *, size: int = 8, copies: bool = True
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(40, 6, generator=generator)
        self.targets = torch.arange(40) % 3
        # The rare group's two examples are in one batch, in the first rank's share of it.
        self.groups = (torch.arange(40) < 2).long()
        self.order = torch.cat([torch.arange(40), torch.arange(8) if copies else torch.empty(0)])
        self.rank, self.world, self.size = rank, world, size

    def __len__(self) -> int:
        return len(self.order) // self.size

    def __iter__(self) -> Iterator[Batch]:
        for indices in self.order.long().split(self.size):
            share = indices.chunk(self.world)[self.rank]
            yield {
                "inputs": self.inputs[share],
                "targets": self.targets[share],
                "groups": self.groups[share],
                "indices": share,
            }


class Model(L.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        logits = self.net(batch["inputs"])
        return {"loss": nn.functional.cross_entropy(logits, batch["targets"]), "logits": logits}

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        return self.training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def plain_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def stochastic_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))


def observers(**bias: Any) -> list[L.Callback]:
    tracker = BiasTracker(group_names=NAMES, train_group_counts=[38, 2, 0], **bias)
    return [tracker, MarginLogger(normalize="logits", per_class=True), MarginLogger(normalize="l2")]


def trainer(callbacks: list[L.Callback], epochs: int = 3, **settings: Any) -> L.Trainer:
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def numbers(run: L.Trainer) -> dict[str, float]:
    return {key: float(value) for key, value in sorted(run.callback_metrics.items())}


ABSENT = pytest.mark.filterwarnings("ignore:.*has no example of.*")


@ABSENT
@pytest.mark.parametrize("bias", [{}, {"updates_per_decade": 3}])
def test_observed_weights_are_bit_identical_to_unobserved(bias: dict[str, Any]) -> None:
    states, generators = [], []
    for callbacks in ([], observers(**bias)):
        model = Model(stochastic_net())
        torch.manual_seed(7)
        trainer(callbacks).fit(model, Batches(), Batches(copies=False))
        states.append(model.state_dict())
        generators.append(torch.get_rng_state())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert torch.equal(*generators)


class SaveDuring(L.Callback):
    """Saves once, after so many updates, and stops there."""

    def __init__(self, update: int, path: Path) -> None:
        self.update, self.path = update, path

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.update:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


class Skipping(Batches):
    """Leaves out the first batches, as the pass in which a run resumes must."""

    def __init__(self, skip: int) -> None:
        super().__init__()
        self.skip = skip

    def __iter__(self) -> Iterator[Batch]:
        return iter(list(super().__iter__())[self.skip :])


@ABSENT
@pytest.mark.filterwarnings("ignore:.*You're resuming from a checkpoint that ended before.*")
@pytest.mark.parametrize("bias", [{}, {"updates_per_decade": 3}])
def test_a_run_resumed_in_the_middle_of_an_epoch_logs_what_the_whole_run_logs(
    tmp_path: Path, bias: dict[str, Any]
) -> None:
    whole = trainer(observers(**bias), epochs=2)
    whole.fit(Model(plain_net()), Batches(), Batches(copies=False))

    path = tmp_path / "middle.ckpt"
    first = trainer([*observers(**bias), SaveDuring(9, path)], epochs=2)
    with pytest.raises(SystemExit):
        first.fit(Model(plain_net()), Batches(), Batches(copies=False))
    second = trainer(observers(**bias), epochs=2)
    second.fit(
        Model(plain_net()), Skipping(3), Batches(copies=False), ckpt_path=path, weights_only=True
    )
    expected = numbers(whole)
    assert second.global_step == whole.global_step == 12
    assert len(expected) > 50
    assert numbers(second) == pytest.approx(expected, abs=0, nan_ok=True)


def test_a_plain_project_with_tuple_batches_needs_only_callables() -> None:
    class Plain(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain_net()

        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            scores = self.net(batch[0])
            return {"loss": nn.functional.cross_entropy(scores, batch[1]), "scores": scores}

        def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.net(batch[0])  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    data = Batches()
    fields: Any = {
        "logits": lambda outputs: outputs["scores"] if isinstance(outputs, dict) else outputs,
        "targets": lambda batch: batch[1],
        "indices": None,
    }
    rule = {"groups": lambda batch: (batch[0][:, 0] > 0).long()}
    run = trainer(
        [
            MarginLogger(fields=fields),
            BiasTracker(group_names=["left", "right"], fields=fields | rule),
        ],
        epochs=1,
    )
    loader = DataLoader(TensorDataset(data.inputs, data.targets), batch_size=7)
    model = Plain()
    run.fit(model, loader, loader)
    right = model.net(data.inputs).argmax(1) == data.targets
    metrics = numbers(run)
    for split in ("train", "val"):
        share = metrics[f"{split}/margin/nonpositive_share"]
        assert share == pytest.approx(1 - right.double().mean().item())
        on_the_right = right[data.inputs[:, 0] > 0].double().mean().item()
        assert metrics[f"{split}/group_acc/right"] == pytest.approx(on_the_right)


@pytest.mark.ranks
def test_two_ranks_with_different_halves_log_what_one_process_logs(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path / f"{world}-{rank}.json")],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
        )
        for world, rank in ((1, 0), (2, 0), (2, 1))
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    one, first, second = (
        json.loads((tmp_path / name).read_text()) for name in ("1-0.json", "2-0.json", "2-1.json")
    )
    assert list(first) == list(second) == list(one)
    assert first == pytest.approx(second, abs=0, nan_ok=True)
    assert len(one) > 100
    assert one["val/group_count/rare"] == 2
    assert first == pytest.approx(one, rel=1e-5, nan_ok=True)


def _train_as_a_rank(path: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    settings: dict[str, Any] = {"use_distributed_sampler": False, "num_sanity_val_steps": 0}
    if world > 1:
        settings |= {"strategy": "ddp", "devices": world}
    callbacks = [*observers(), MarginLogger(normalize="linf", every=2)]
    run = trainer(callbacks, epochs=2, **settings)
    model = Model(plain_net())
    run.fit(model, Batches(rank, world), Batches(rank, world, copies=False))
    path.write_text(json.dumps(numbers(run)))


if __name__ == "__main__":
    _train_as_a_rank(Path(sys.argv[1]))
