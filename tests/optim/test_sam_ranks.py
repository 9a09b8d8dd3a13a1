"""SAM over several processes, in a plain loop with DistributedDataParallel."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

SCRIPT = """
import json, os
from functools import partial
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toolkit.optim import SAM

torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
SGD = partial(torch.optim.SGD, lr=0.1)

class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 1.0], dtype=torch.float64))

    def forward(self):
        return self.w.square() * torch.tensor([1.0, 10.0])

def two_losses(perturbation):
    net = DistributedDataParallel(Point())
    w = net.module.w
    optimizer = SAM([w], SGD, rho=0.1, perturbation=perturbation)
    if perturbation == "local":
        optimizer.first_pass = net.no_sync
    seen, gradients = [], []

    def closure():
        optimizer.zero_grad()
        seen.append(w.detach().clone())
        loss = net()[rank]  # w1^2 on one rank, 10 w2^2 on the other: their mean is the loss
        loss.backward()
        gradients.append(w.grad.clone())
        return loss

    optimizer.step(closure)
    found = {"perturbation": seen[1] - seen[0], "w": w, "first": gradients[0]}
    return {key: value.tolist() for key, value in (found | {"second": gradients[1]}).items()}

def flat(net):
    return [parameter.detach().flatten().tolist() for parameter in net.parameters()]

def closure_of(net, optimizer, inputs, targets):
    def closure(rows=slice(None)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs[rows]), targets[rows])
        loss.backward()
        return loss
    return closure

def drift(m):
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 3)))
    base = partial(SGD, momentum=0.9)
    optimizer = SAM(net.parameters(), base, rho=0.3, perturbation="local", m=m)
    optimizer.first_pass = net.no_sync
    generator = torch.Generator().manual_seed(rank)
    for update in range(20):
        inputs = torch.randn(6, 7, generator=generator)
        targets = torch.randint(0, 3, (6,), generator=generator)
        optimizer.step(closure_of(net, optimizer, inputs, targets), batch_size=6)
    return flat(net)

def global_chunks():
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(4, 3).double())
    inputs, targets = torch.randn(12, 4).double(), torch.randint(0, 3, (12,))
    mine = torch.arange(12).view(3, ranks, 4 // ranks)[:, rank].flatten()  # of each chunk of 4
    optimizer = SAM(net.parameters(), SGD, rho=0.3, m=4)
    closure = closure_of(net, optimizer, inputs[mine], targets[mine])
    optimizer.step(closure, batch_size=len(mine))
    return flat(net)

def message(error, batch_size=None, **settings):
    try:
        SAM([nn.Parameter(torch.ones(1))], SGD, **settings).step(print, batch_size=batch_size)
    except error as fault:
        return str(fault)

found = {"chunks": global_chunks()}
if ranks > 1:
    found |= {
        "local": two_losses("local"),
        "global": two_losses("global"),
        "drift": drift(None),
        "drift in chunks": drift(4),
        "no_sync": message(RuntimeError, perturbation="local"),
        "multiple": message(ValueError, m=3, batch_size=4),
        "equal": message(RuntimeError, m=2, batch_size=4 + rank),
    }
open(f"{os.environ['RESULTS']}/{rank}.json", "w").write(json.dumps(found))
torch.distributed.destroy_process_group()
"""


def over_ranks(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **common, "RANK": str(rank), "RESULTS": str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return over_ranks(tmp_path_factory.mktemp("ranks"), ranks=2)


def test_two_workers_with_losses_of_their_own_are_perturbed_apart(found: Any) -> None:
    one, two = (rank["local"] for rank in found)
    assert one["perturbation"] == pytest.approx([0.1, 0.0], abs=1e-9)
    assert two["perturbation"] == pytest.approx([0.0, 0.1], abs=1e-9)
    assert one["first"] != two["first"]  # each rank's own
    assert one["second"] == two["second"]  # averaged
    assert one["w"] == two["w"] == pytest.approx([1.79, -0.1], abs=1e-9)


def test_a_global_perturbation_comes_from_the_mean_loss(found: Any) -> None:
    one, two = (rank["global"] for rank in found)
    assert one == two
    assert one["perturbation"] == pytest.approx([0.019611614, 0.098058068], abs=1e-9)
    assert one["w"] == pytest.approx([1.798038839, -0.098058068], abs=1e-9)


@pytest.mark.parametrize("run", ["drift", "drift in chunks"])
def test_local_perturbations_leave_the_replicas_bit_identical(run: str, found: Any) -> None:
    assert found[0][run] == found[1][run]


def test_chunks_over_two_ranks_are_the_chunks_of_one_process(found: Any, tmp_path: Path) -> None:
    (alone,) = over_ranks(tmp_path, ranks=1)
    assert found[0]["chunks"] == found[1]["chunks"]
    for mine, theirs in zip(alone["chunks"], found[0]["chunks"], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-12)


def test_what_would_hang_or_drift_over_ranks_is_refused(found: Any) -> None:
    for rank in found:
        assert "Set optimizer.first_pass = model.no_sync" in rank["no_sync"]
        assert "m must be a multiple of the 2 ranks" in rank["multiple"]
        assert rank["multiple"].endswith("got 3. Choose 2.")
        assert "equally many examples of a batch, got 4 to 5" in rank["equal"]
