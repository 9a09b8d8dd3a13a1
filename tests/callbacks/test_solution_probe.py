"""SolutionProbe: the exact values of small nets, no trace left, and the same on several ranks."""

import csv
import json
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from callbacks import SharpnessAware, SolutionProbe, UsefulUpsampling
from callbacks._probing import ProbedData
from callbacks._scoring import Reader
from toolkit.data import ArrayLoader, ImageArrays
from toolkit.functional import Fields
from toolkit.optim import SAM

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore:eigenvalue . of the Hessian was not found to.*"),
]
NUM = 30


def arrays() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(NUM, 1, 2, 2, generator=generator), torch.arange(NUM) % 3


class Net(L.LightningModule):
    """36 parameters, batch statistics and dropout; batches are tuples."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(4, 3),
            nn.BatchNorm1d(3),
            nn.Tanh(),
            nn.Dropout(0.5),
            nn.Linear(3, 3),
        )
        self.lr = lr

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*arrays()), **({"batch_size": 7} | settings))


def trainer(callbacks: list[L.Callback], epochs: int = 2, **more: Any) -> L.Trainer:
    settings: dict[str, Any] = {"logger": False} | more
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def probed(run: L.Trainer) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in sorted(run.callback_metrics.items())
        if key in SolutionProbe.logged_keys
    }


def exact_hessian(model: Net, chosen: Tensor) -> Tensor:
    """By torch.func, of the mean loss of the chosen examples in evaluation mode."""
    inputs, targets = (values[chosen] for values in arrays())
    inputs = inputs.to(model.net[1].weight.dtype)
    named = dict(model.named_parameters())
    model.eval()

    def of_vector(vector: Tensor) -> Tensor:
        parts = torch.split(vector, [p.numel() for p in named.values()])
        weights = {n: v.view(p.shape) for (n, p), v in zip(named.items(), parts, strict=True)}
        return F.cross_entropy(functional_call(model, weights, (inputs,)), targets)

    return torch.func.hessian(of_vector)(torch.cat([p.detach().flatten() for p in named.values()]))


def slow_sharpness(model: Net, chosen: Tensor, m: int, rho: float) -> float:
    """By definition, set by set, on a copy of the weights."""
    inputs, targets = (values[chosen] for values in arrays())
    inputs = inputs.to(model.net[1].weight.dtype)
    model.eval()
    total = 0.0
    for rows in torch.arange(len(chosen)).split(m):
        weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}

        def loss(at: dict[str, Tensor], rows: Tensor = rows) -> Tensor:
            return F.cross_entropy(functional_call(model, at, (inputs[rows],)), targets[rows])

        before = loss(weights)
        gradients = torch.autograd.grad(before, list(weights.values()))
        norm = sum(g.square().sum() for g in gradients) ** 0.5
        moved = {
            n: w + rho * g / norm for (n, w), g in zip(weights.items(), gradients, strict=True)
        }
        total += float((loss(moved) - before).detach()) * len(rows)
    return total / len(chosen)


@pytest.mark.parametrize("num_examples", [None, 12])
def test_values_are_those_of_the_exact_hessian_and_of_the_definitions(
    num_examples: int | None,
) -> None:
    model = Net().double()
    probe = SolutionProbe(num_examples=num_examples, chunk_size=4, m=5, rho=0.3)
    run = trainer([probe], precision="64-true")
    run.fit(model, loader(shuffle=True))
    chosen = torch.arange(NUM)
    if num_examples is not None:  # spread evenly, both ends included
        chosen = torch.tensor([0, 3, 5, 8, 11, 13, 16, 18, 21, 24, 26, 29])
    exact = torch.linalg.eigvalsh(exact_hessian(model, chosen)).flip(0)
    values = probed(run)
    assert values["train/hessian/eigenvalue1"] == pytest.approx(float(exact[0]), rel=1e-5)
    assert values["train/hessian/eigenvalue5"] == pytest.approx(float(exact[4]), rel=1e-4)
    assert values["train/hessian/ratio"] == pytest.approx(float(exact[0] / exact[4]), rel=1e-4)
    expected = slow_sharpness(model, chosen, 5, 0.3)
    assert values["train/m_sharpness"] == pytest.approx(expected, rel=1e-6)
    every = torch.cat([p.detach().flatten() for p in model.parameters()])
    matrices = torch.cat([model.net[1].weight.flatten(), model.net[5].weight.flatten()]).detach()
    assert values["train/weight_norm/l1"] == pytest.approx(float(every.abs().sum()))
    assert values["train/weight_norm/l2"] == pytest.approx(float(every.norm()))
    assert values["train/weight_norm/l1/no_bias_norm"] == pytest.approx(float(matrices.abs().sum()))
    assert values["train/weight_norm/l2/no_bias_norm"] == pytest.approx(float(matrices.norm()))
    assert set(values) == set(SolutionProbe.logged_keys)


def test_observed_weights_and_random_numbers_are_those_of_an_unobserved_run() -> None:
    states, generators = [], []
    for callbacks in ([], [SolutionProbe(every=1, m=8)]):
        model = Net()
        torch.manual_seed(7)
        trainer(callbacks, epochs=3).fit(model, loader(shuffle=True))
        states.append(model.state_dict())
        generators.append(torch.get_rng_state())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert torch.equal(*generators)


def test_a_probe_leaves_weights_buffers_modes_and_gradients_as_they_were() -> None:
    class Look(L.Callback):
        """Compares what it finds on both sides of the probe's hook."""

        def __init__(self, probe: SolutionProbe) -> None:
            self.probe = probe

        def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            module.net[3].eval()  # modes need not be alike
            before = self._of(module)
            self.probe._probe(trainer, module)
            after = self._of(module)
            assert len(before) == 2 * 6 + 3 + 8 + 1
            for one, other in zip(before, after, strict=True):
                assert torch.equal(one, other) if isinstance(one, Tensor) else one == other

        def _of(self, module: L.LightningModule) -> list[Any]:
            kept: list[Any] = [p.detach().clone() for p in module.parameters()]
            kept += [p.grad.clone() for p in module.parameters()]
            kept += [buffer.clone() for buffer in module.buffers()]
            kept += [child.training for child in module.modules()]
            return [*kept, torch.get_rng_state()]

    trainer([Look(SolutionProbe())], epochs=1).fit(Net(), loader())


def test_every_second_epoch_and_the_end_are_probed_once(tmp_path: Path) -> None:
    def steps(probe: SolutionProbe, epochs: int) -> list[str]:
        name = f"{probe.every}-{epochs}"
        logger = CSVLogger(tmp_path, name=name)
        trainer([probe], epochs, logger=logger, log_every_n_steps=1).fit(Net(), loader())
        (path,) = (tmp_path / name).rglob("metrics.csv")
        with path.open() as file:
            return [row["step"] for row in csv.DictReader(file) if row["train/m_sharpness"]]

    # Five updates an epoch.
    assert steps(SolutionProbe(every=2), 4) == ["9", "19"]
    assert steps(SolutionProbe(every=2), 3) == ["9", "14"]
    assert steps(SolutionProbe(), 3) == ["14"]


@pytest.mark.filterwarnings("ignore:the selected share is usually within.*")
def test_beside_useful_upsampling_and_sam_each_example_is_probed_once(tmp_path: Path) -> None:
    class Flat(Net):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return SAM(self.parameters(), partial(torch.optim.SGD, lr=0.1))

    useful = UsefulUpsampling(1, dirpath=str(tmp_path))
    run = trainer([useful, SharpnessAware(), SolutionProbe(num_examples=None, m=NUM)])
    model = Flat()
    run.fit(model, loader(shuffle=True, drop_last=True))
    assert useful.upsampled is not None
    assert len(useful.upsampled.selected) > 0
    everyone = torch.arange(NUM)
    exact = torch.linalg.eigvalsh(exact_hessian(model, everyone))
    values = probed(run)
    assert values["train/hessian/eigenvalue1"] == pytest.approx(float(exact[-1]), rel=1e-3)
    expected = slow_sharpness(model, everyone, NUM, 0.05)
    assert values["train/m_sharpness"] == pytest.approx(expected, rel=1e-3)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*arrays(), strict=True))


@pytest.mark.parametrize("kind", ["loader", "stream", "arrays"])
@pytest.mark.parametrize("num_examples", [None, 11])
def test_all_kinds_of_loaders_are_read_in_order_and_in_sets_of_m(
    kind: str, num_examples: int | None
) -> None:
    images, targets = arrays()
    given: Any = {
        "loader": loader(shuffle=True),
        "stream": DataLoader(Stream(), batch_size=7),
        "arrays": ArrayLoader(ImageArrays(images=images, targets=targets, num_classes=3), 8),
    }[kind]
    fields = Fields(("inputs", "targets", "indices"))
    run = trainer([])
    run.fit(model := Net(), loader())
    data = ProbedData(run, model, given, Reader(fields), num_examples=num_examples, chunk_size=4)
    reader = Reader(fields)
    count = NUM if num_examples is None else num_examples
    chosen = torch.linspace(0, NUM - 1, count).round().long()
    if kind == "stream":  # which cannot be asked for an example: its first ones
        chosen = torch.arange(count)
    assert data.count == count
    for _ in range(2):
        pieces = [reader.read("inputs", batch) for batch in data]
        assert max(map(len, pieces)) <= 4
        assert torch.equal(torch.cat(pieces), images[chosen])
        sets = [torch.cat([reader.read("targets", b) for b in s]) for s in data.sets(5)]
        assert [of.tolist() for of in sets] == [of.tolist() for of in targets[chosen].split(5)]


def test_more_eigenvalues_than_parameters_are_nan_and_hard_ones_are_warned_of() -> None:
    class Line(Net):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))

        def forward(self, inputs: Tensor) -> Tensor:
            scores = self.net(inputs)
            return torch.cat([scores, -scores, 0 * scores], 1)

    run = trainer([SolutionProbe()])
    run.fit(Line(), loader())
    values = probed(run)
    assert values["train/hessian/eigenvalue1"] > 0
    assert np.isnan(values["train/hessian/eigenvalue5"])
    assert np.isnan(values["train/hessian/ratio"])
    message = (
        r"eigenvalue . of the Hessian was not found to 5 % by 10 products\. Raise max_products"
    )
    with pytest.warns(UserWarning, match=message):
        trainer([SolutionProbe(max_products=5)]).fit(Net(), loader())


def test_own_losses_and_a_forward_of_one_s_own_are_used() -> None:
    def forward(module: Any, batch: Any) -> Tensor:
        return module.net(batch[0])[:, 0]  # type: ignore[no-any-return]

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - targets).square()

    model = Net()
    model.net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    run = trainer([SolutionProbe(num_examples=None, forward=forward, losses=losses)])
    run.fit(model, loader())
    inputs = arrays()[0].flatten(1)
    largest = torch.linalg.eigvalsh(inputs.T @ inputs / NUM)[-1]
    assert probed(run)["train/hessian/eigenvalue1"] == pytest.approx(float(largest), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be at least 1, got 0."),
        ({"num_examples": 0}, "num_examples must be at least 1, got 0."),
        ({"m": 0}, "m must be at least 1, got 0."),
        ({"rho": 0.0}, "rho must be positive and finite, got 0.0. 0.05 is usual."),
        ({"max_products": 4}, "max_products must be at least 5, got 4."),
        ({"fields": {"target": "y"}}, "fields must be among ['inputs', 'targets', 'indices'], got"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        SolutionProbe(**arguments)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_probed_is_told_in_one_line() -> None:
    def refused(probe: SolutionProbe, error: type[Exception], message: str, data: Any) -> None:
        with pytest.raises(error, match=message):
            trainer([probe], epochs=1).fit(Net(), data)

    order = {"indices": lambda batch: torch.arange(NUM - 1, -1, -1)}
    images, targets = arrays()
    given = ArrayLoader(ImageArrays(images=images, targets=targets, num_classes=3), NUM)
    refused(
        SolutionProbe(dataloader=given, fields=order), ValueError, "must come in order", loader()
    )
    refused(
        SolutionProbe(dataloader=[loader(), loader()]),
        ValueError,
        "must come from one loader, got a list",
        loader(),
    )
    refused(
        SolutionProbe(losses=lambda logits, targets: F.cross_entropy(logits, targets)),
        ValueError,
        r"losses must return one loss for each of the 7 examples, got shape \(\)",
        loader(),
    )
    refused(
        SolutionProbe(forward=lambda module, batch: {"logits": module(batch[0])}),
        TypeError,
        "must return the tensor of logits for its inputs, got dict",
        loader(),
    )


@pytest.mark.ranks
def test_two_ranks_find_what_one_process_finds(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    _probe_as_a_rank(tmp_path / "1-0.json", 1)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path / f"{world}-{rank}.json")],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            | {"PYTHONPATH": str(ROOT)},
        )
        for world, rank in ((2, 0), (2, 1))
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    names = ("1-0.json", "2-0.json", "2-1.json")
    one, first, second = (json.loads((tmp_path / name).read_text()) for name in names)
    assert first == second
    for ours, expected in zip(first, one, strict=True):
        assert len(expected) == 8
        assert ours == pytest.approx(expected, rel=1e-8)


def _probe_as_a_rank(path: Path, world: int) -> None:
    """Sets of 7 straddle the ranks' shares; weights do not move, so that they are alike."""
    settings: dict[str, Any] = {"use_distributed_sampler": False, "precision": "64-true"}
    if world > 1:
        settings |= {"strategy": "ddp", "devices": world}
    images, targets = arrays()
    found = []
    for given in (
        None,
        ArrayLoader(ImageArrays(images=images, targets=targets, num_classes=3), 8),
    ):
        probe = SolutionProbe(num_examples=23, chunk_size=4, m=7, dataloader=given)
        run = trainer([probe], epochs=1, **settings)
        run.fit(Net(lr=0.0), loader(batch_size=NUM))
        found.append(probed(run))
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    _probe_as_a_rank(Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]))
