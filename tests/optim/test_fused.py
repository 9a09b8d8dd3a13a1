"""Compiled updates against the reference, one at a time and many, on any number of threads."""

import numpy as np
import pytest
import torch
from torch import Tensor

from toolkit.losses import (
    CrossEntropy,
    GammaPhiLoss,
    MulticlassExponential,
    PairLogLoss,
    PERMLoss,
)
from toolkit.optim import (
    Adam,
    FullBatchMethod,
    FusedBinary,
    FusedMulticlass,
    GradientDescent,
    LogDomainAdam,
    Momentum,
    NormalizedGradientDescent,
    SignDescent,
    Signum,
    State,
    binary_gradient,
    linear_gradient,
    power_rates,
    run_updates,
)
from toolkit.optim.fused_kernel import _exponentials
from toolkit.optim.fused_multiclass import MulticlassLoss
from toolkit.optim.linear_gradients import BinaryLoss

METHODS: dict[str, FullBatchMethod] = {
    "gd": GradientDescent(),
    "momentum": Momentum(0.8),
    "normalised": NormalizedGradientDescent(),
    "sign": SignDescent(),
    "signum": Signum(0.8),
    "adam": Adam(),
    "adam without eps": Adam(eps=0.0),
    "log-domain adam": LogDomainAdam(),
}


def signed(seeds: int, examples: int, size: int) -> Tensor:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((seeds, examples, size))
    return torch.from_numpy(rng.choice([-1.0, 1.0], (seeds, examples, 1)) * inputs)


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("examples", "size"), [(50, 50), (7, 13), (1, 1), (33, 6)])
def test_each_update_is_that_of_the_reference(
    loss: BinaryLoss, name: str, examples: int, size: int
) -> None:
    rows, method = signed(3, examples, size), METHODS[name]
    fused, gradient = FusedBinary(rows, loss), binary_gradient(rows, loss)
    weights = 0.3 * signed(2, 3, size)  # two settings of three seeds
    state: State = method.init(weights)
    for update in range(40):
        rates = power_rates(torch.tensor([[0.1], [0.02]]), 0.5, start=update)
        found, found_state = fused.run(method, weights, state, rates)
        expected, expected_state = run_updates(method, gradient, weights, state, rates)
        step = (expected - weights).abs().amax(-1, keepdim=True)
        assert bool(((found - expected).abs() <= 1e-12 * step + 4e-16 * weights.abs()).all())
        for key, value in expected_state.items():
            torch.testing.assert_close(found_state[key], value, rtol=1e-11, atol=1e-13)
        weights, state = expected, expected_state


@pytest.mark.parametrize("name", METHODS)
def test_many_updates_in_one_call_are_as_many_calls(name: str) -> None:
    method = METHODS[name]
    fused = FusedBinary(signed(2, 9, 11), "logistic")
    start = 0.1 * signed(1, 2, 11)[0]
    rates = power_rates(0.1, 0.5, count=30)
    whole, whole_state = fused.run(method, start, method.init(start), rates)
    weights, state = start, method.init(start)
    for update in range(30):
        weights, state = fused.run(method, weights, state, rates[update : update + 1])
    assert torch.equal(whole, weights)
    assert all(torch.equal(whole_state[key], value) for key, value in state.items())


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    fused = FusedBinary(signed(5, 20, 20), "logistic")
    start = torch.zeros(3, 5, 20, dtype=torch.float64)
    method, rates = LogDomainAdam(), power_rates(0.1, 0.5, count=50)
    found = fused.run(method, start, method.init(start), rates, threads=threads)[0]
    assert torch.equal(found, fused.run(method, start, method.init(start), rates, threads=1)[0])
    assert torch.equal(found[0], found[2])
    assert not start.any()


def test_settings_and_rates_are_those_of_each_run() -> None:
    rows = signed(2, 10, 8)
    fused = FusedBinary(rows, "logistic")
    start = 0.1 * signed(3, 2, 8)
    betas = torch.tensor([[0.0], [0.5], [0.9]])
    rates = power_rates(torch.tensor([[0.1], [0.2], [0.3]]), torch.tensor([0.0, 0.5]), count=25)
    method = Adam(
        betas, torch.tensor([[0.9], [0.99], [0.999]]), torch.tensor([[1e-3], [0.0], [1.0]])
    )
    found, _ = fused.run(method, start, method.init(start), rates)
    expected, _ = run_updates(
        method, binary_gradient(rows, "logistic"), start, method.init(start), rates
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("margin", [-500.0, 300.0, 700.0, 5000.0])
def test_directions_hold_at_margins_beyond_the_floats(margin: float) -> None:
    rows = torch.tensor([[[1.0, 0.0], [0.9, 0.5]]], dtype=torch.float64)
    start = torch.tensor([[margin, 0.0]], dtype=torch.float64)
    gradient = binary_gradient(rows, "logistic")
    for method in (NormalizedGradientDescent(), LogDomainAdam(), Signum()):
        rates = power_rates(0.1, count=1)
        found, _ = FusedBinary(rows, "logistic").run(method, start, method.init(start), rates)
        expected, _ = run_updates(method, gradient, start, method.init(start), rates)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-11)


def test_the_exponential_is_good_to_rounding() -> None:
    values = np.linspace(-700, 690, 5003)
    fractions, powers = np.empty(5003), np.empty(5003, np.int64)
    _exponentials(-values, 0.0, fractions, powers)
    found = fractions * powers.view(np.float64)
    np.testing.assert_allclose(found, np.exp(values), rtol=5e-16, atol=0)


def test_what_the_kernel_does_not_know_is_refused() -> None:
    rows = signed(2, 4, 3)
    fused = FusedBinary(rows, "logistic")
    weights = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"signed must be float64 on the CPU, got torch.float32"):
        FusedBinary(rows.float(), "logistic")
    with pytest.raises(ValueError, match=r"weights must be float64 on the CPU, got torch.float32"):
        fused.run(GradientDescent(), weights.float(), {}, power_rates(0.1))
    with pytest.raises(ValueError, match=r"\(seeds, size\) = \(2, 3\), got shape \(3, 2\)"):
        fused.run(GradientDescent(), weights.T, {}, power_rates(0.1))

    class Other(GradientDescent):
        """Overrides what the kernel would not call."""

    with pytest.raises(ValueError, match=r"method must be one of GradientDescent, .*, got Other"):
        fused.run(Other(), weights, {}, power_rates(0.1))


MULTICLASS: dict[str, tuple[MulticlassLoss, float, PERMLoss]] = {
    "cross-entropy": ("cross_entropy", 1.0, CrossEntropy()),
    "exponential": ("exponential", 1.0, MulticlassExponential()),
    "PairLog": ("pair_log", 1.0, PairLogLoss()),
    "PairLog, temperature 2": ("pair_log", 2.0, PairLogLoss(2.0)),
    "polynomial": ("polynomial", 1.0, GammaPhiLoss()),
    "polynomial of power 3": ("polynomial", 3.0, GammaPhiLoss(3.0)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("loss", MULTICLASS)
def test_each_multiclass_update_is_that_of_the_reference(name: str, loss: str) -> None:
    inputs, method = signed(2, 17, 6), METHODS[name]
    targets = torch.stack([torch.arange(17) % 4, (torch.arange(17) * 7 + 1) % 4])
    code, parameter, perm = MULTICLASS[loss]
    fused = FusedMulticlass(inputs, targets, 4, code, parameter, divisor=5.0)
    gradient = linear_gradient(inputs, targets, 4, perm.scaled_logit_gradient, divisor=5.0)
    weights = 0.3 * signed(3, 2, 24)  # three settings of two seeds
    state: State = method.init(weights)
    other: State = state
    for update in range(25):
        rates = power_rates(0.05, 0.5, start=update)
        found, other = fused.run(method, weights, other, rates)
        expected, state = run_updates(method, gradient, weights, state, rates)
        # States have scales of their own, hence a history of rounding.
        step = (expected - weights).abs().amax(-1, keepdim=True)
        assert bool(((found - expected).abs() <= 2e-12 * step + 4e-16 * weights.abs()).all())
        weights = expected


@pytest.mark.parametrize("margin", [50.0, 800.0, 1e5])
def test_multiclass_directions_hold_at_margins_beyond_the_floats(margin: float) -> None:
    inputs = torch.eye(3, dtype=torch.float64)[None]
    targets = torch.tensor([[0, 1, 2]])
    start = (margin * torch.eye(3, dtype=torch.float64) + 0.1 * signed(1, 3, 3)[0]).reshape(1, 9)
    for name, (code, parameter, perm) in MULTICLASS.items():
        if name.startswith("polynomial"):
            continue
        for method in (NormalizedGradientDescent(), LogDomainAdam()):
            rates = power_rates(0.1)
            found, _ = FusedMulticlass(inputs, targets, 3, code, parameter).run(
                method, start, method.init(start), rates
            )
            gradient = linear_gradient(inputs, targets, 3, perm.scaled_logit_gradient)
            expected, _ = run_updates(method, gradient, start, method.init(start), rates)
            torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-10)


def test_bad_classes_and_losses_are_refused() -> None:
    inputs, targets = signed(1, 4, 3), torch.tensor([[0, 1, 2, 3]])
    with pytest.raises(ValueError, match=r"targets must lie in 0\.\.2, got 0\.\.3"):
        FusedMulticlass(inputs, targets, 3, "cross_entropy")
    with pytest.raises(ValueError, match=r"parameter must be positive, got -1"):
        FusedMulticlass(inputs, targets, 4, "pair_log", -1.0)
    fused = FusedMulticlass(inputs, targets, 4, "cross_entropy")
    with pytest.raises(ValueError, match=r"\(seeds, size\) = \(1, 12\), got shape \(1, 3\)"):
        fused.run(GradientDescent(), torch.zeros(1, 3).double(), {}, power_rates(0.1))
