import io
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.optim import SAM, cosine, steps

SGD = partial(torch.optim.SGD, lr=0.4)


def rates(schedule: Any, total: int, optimizer: Any = None) -> list[float]:
    optimizer = optimizer or SGD([nn.Parameter(torch.zeros(1))])
    scheduled = schedule(optimizer, total)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step(lambda: None)
        scheduled.step()
    return [*found, optimizer.param_groups[0]["lr"]]


def test_cosine_is_half_a_cosine_from_the_rate_to_zero() -> None:
    expected = [0.2 * (1 + math.cos(math.pi * update / 10)) for update in range(11)]
    assert rates(cosine, 10) == pytest.approx(expected, abs=1e-12)


def test_cosine_rises_linearly_over_the_warmup_and_ends_at_its_final_factor() -> None:
    found = rates(partial(cosine, warmup=0.25, final=0.1), 16)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert found[10] == pytest.approx(0.4 * 0.55)  # half way between 4 and 16
    assert found[-1] == pytest.approx(0.04)
    assert found[4:] == sorted(found[4:], reverse=True)


def test_cosine_stays_at_its_end_beyond_the_run() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))])
    schedule = cosine(optimizer, 2, final=0.5)
    for _ in range(9):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_steps_divide_at_their_shares_of_the_run() -> None:
    found = rates(steps, 8)
    assert found == pytest.approx([0.4] * 4 + [0.04] * 2 + [0.004] * 3)
    assert rates(partial(steps, milestones=(), gamma=0.5), 3) == [0.4] * 4


@pytest.mark.parametrize("total", [10, 30, 70, 130, 390])
def test_a_milestone_is_not_late_by_rounding(total: int) -> None:
    found = rates(partial(steps, milestones=(0.1, 0.7)), total)
    assert found.index(pytest.approx(0.04)) == total // 10
    assert found.index(pytest.approx(0.004)) == total * 7 // 10


@pytest.mark.parametrize("schedule", [partial(cosine, warmup=0.2), steps])
def test_resumed_equals_uninterrupted_and_the_state_is_plain(schedule: Any) -> None:
    whole = rates(schedule, 10)
    optimizer = SAM([nn.Parameter(torch.zeros(1))], SGD, rho=0.1)
    scheduled = schedule(optimizer, 10)
    for _ in range(6):
        optimizer.step(lambda: None)
        scheduled.step()
    file = io.BytesIO()
    torch.save((optimizer.state_dict(), scheduled.state_dict()), file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    resumed = SAM([nn.Parameter(torch.zeros(1))], partial(torch.optim.SGD, lr=9.0), rho=0.1)
    scheduled = schedule(resumed, 10)
    resumed.load_state_dict(states[0])
    scheduled.load_state_dict(states[1])
    found = []
    for _ in range(4):
        resumed.step(lambda: None)
        scheduled.step()
        found.append(resumed.base.param_groups[0]["lr"])
    assert found == whole[7:]


def test_every_group_keeps_its_own_rate() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.01}], lr=1)
    schedule = steps(optimizer, 2)
    optimizer.step()
    schedule.step()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.1, 0.001])


BAD = {
    "no updates": (partial(cosine, total_updates=0), "total_updates must be at least 1, got 0"),
    "no updates for steps": (partial(steps, total_updates=0), "total_updates must be at least 1"),
    "all warm-up": (partial(cosine, total_updates=5, warmup=1.0), r"warmup must be in \[0, 1\)"),
    "negative final": (
        partial(cosine, total_updates=5, final=-0.1),
        r"final must be in \[0, 1\], got -0.1",
    ),
    "epochs for shares": (
        partial(steps, total_updates=5, milestones=[100.0, 150.0]),
        r"milestones must increase within \(0, 1\), got \(100.0, 150.0\)",
    ),
    "milestones back": (
        partial(steps, total_updates=5, milestones=[0.7, 0.5]),
        "milestones must increase",
    ),
    "gamma of zero": (
        partial(steps, total_updates=5, gamma=0.0),
        "gamma must be positive, got 0.0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make(SGD([nn.Parameter(torch.zeros(1))]))
