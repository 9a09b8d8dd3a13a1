"""Full-batch methods: closed forms, agreement with torch's optimisers, units, underflow, nets."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from toolkit.losses import CrossEntropy, MulticlassExponential, PairLogLoss, PERMLoss
from toolkit.optim import (
    Adam,
    FullBatchMethod,
    Gradient,
    GradientDescent,
    LogDomainAdam,
    Momentum,
    NormalizedGradientDescent,
    SignDescent,
    Signum,
    binary_gradient,
    binary_weights,
    linear_gradient,
    power_rates,
    run_updates,
    stable_rate,
)
from toolkit.optim.linear_gradients import BinaryLoss

METHODS: dict[str, FullBatchMethod] = {
    "gd": GradientDescent(),
    "momentum": Momentum(),
    "normalised": NormalizedGradientDescent(),
    "sign": SignDescent(),
    "signum": Signum(),
    "adam": Adam(),
    "adam without eps": Adam(eps=0.0),
    "log-domain adam": LogDomainAdam(),
}
TOY = torch.tensor([[1, 0.5], [2, 1.5], [1.5, 3], [3, 0.8], [2.5, 2.5]], dtype=torch.float64)


def signed(seed: int, examples: int = 12, size: int = 15) -> Tensor:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((examples, size))
    return torch.from_numpy(rng.choice([-1.0, 1.0], examples)[:, None] * inputs)


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_closed_form_gradient_is_the_automatic_one(loss: BinaryLoss, scale: float) -> None:
    rows = signed(0)
    weights = (scale * signed(1)[0]).requires_grad_()
    margins = rows @ weights
    losses = (-margins).exp() if loss == "exponential" else -nn.functional.logsigmoid(margins)
    (expected,) = torch.autograd.grad(losses.mean(), weights)
    found = binary_gradient(rows, loss)(weights.detach())
    torch.testing.assert_close(found.full(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
@pytest.mark.parametrize("shift", [-600.0, -1.0, 0.0, 2.0, 300.0, 1e5])
def test_example_weights_hold_at_any_margin(loss: BinaryLoss, shift: float) -> None:
    margins = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64) + shift
    weights, log_scale = binary_weights(margins, loss)
    expected = -margins if loss == "exponential" else nn.functional.logsigmoid(-margins)
    torch.testing.assert_close(weights.log() + log_scale, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [CrossEntropy(), MulticlassExponential(), PairLogLoss(2.0)])
def test_multiclass_gradient_is_the_automatic_one(loss: PERMLoss) -> None:
    inputs, targets = signed(0), torch.arange(12) % 3
    flat = (0.3 * signed(1, 3).T.reshape(-1)).clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(inputs @ flat.reshape(15, 3), targets).mean(), flat)
    gradient = linear_gradient(inputs, targets, 3, loss.scaled_logit_gradient)
    torch.testing.assert_close(gradient(flat.detach()).full(), expected, rtol=1e-12, atol=1e-14)


def test_two_classes_are_the_binary_problem_in_the_difference_of_columns() -> None:
    rows = signed(0)
    weights = signed(1)[0]
    both = torch.stack([-weights / 2, weights / 2], 1).flatten()
    targets = torch.ones(12, dtype=torch.int64)
    found = linear_gradient(rows, targets, 2, CrossEntropy().scaled_logit_gradient)(both)
    expected = binary_gradient(rows, "logistic")(weights)
    torch.testing.assert_close(found.full().reshape(15, 2)[:, 1], expected.full())


@pytest.mark.parametrize("name", METHODS)
def test_an_update_by_hand(name: str) -> None:
    weights, gradient = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])
    method = METHODS[name]
    state = method.init(weights)
    moved, _ = method.update(weights, Gradient.plain(gradient), state, 0.1)
    step = {
        "gd": gradient,
        "momentum": 0.1 * gradient,
        "normalised": gradient / 5,
        "sign": gradient.sign(),
        "signum": gradient.sign(),
    }.get(name, gradient.sign() * 0.1 / math.sqrt(0.01))
    torch.testing.assert_close(moved, weights - 0.1 * step)
    assert weights.tolist() == [1, 2]
    assert all((value == 0).all() for value in state.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_gradient_of_zero_moves_nothing(name: str) -> None:
    weights = torch.tensor([1.0, 2.0])
    method = METHODS[name]
    still, _ = method.update(
        weights, Gradient.plain(torch.zeros(2)), method.init(weights), torch.tensor(0.1)
    )
    assert still.tolist() == [1, 2]


def test_gradient_descent_and_momentum_are_torchs() -> None:
    rows = signed(0)
    ours = {"gd": GradientDescent(), "momentum": Momentum(0.5)}
    for name, rate in (("gd", 0.3), ("momentum", 0.6)):
        parameter = nn.Parameter(torch.zeros(15, dtype=torch.float64))
        beta = 0.0 if name == "gd" else 0.5
        optimizer = torch.optim.SGD([parameter], lr=0.3, momentum=beta)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.softplus(-rows @ parameter, threshold=1000).mean().backward()
            optimizer.step()
        start = torch.zeros(15, dtype=torch.float64)
        gradient = binary_gradient(rows, "logistic")
        weights, _ = run_updates(
            ours[name], gradient, start, ours[name].init(start), power_rates(rate, count=20)
        )
        torch.testing.assert_close(weights, parameter.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_the_scale_of_a_gradient_may_be_written_either_way(name: str) -> None:
    method = METHODS[name]
    start = torch.ones(15, dtype=torch.float64)
    scaled = binary_gradient(signed(0), "exponential")
    rates = power_rates(0.01, 0.5, count=30)
    found, _ = run_updates(method, scaled, start, method.init(start), rates)
    expected, _ = run_updates(
        method, lambda w: Gradient.plain(scaled(w).full()), start, method.init(start), rates
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_log_domain_adam_is_adam_without_eps_while_that_lasts() -> None:
    rows = signed(0)
    start = 0.1 * signed(1)[0]
    rates = power_rates(0.1, 0.5, count=1000)
    gradient = binary_gradient(rows, "logistic")
    ends = [
        run_updates(method, gradient, start, method.init(start), rates)[0]
        for method in (Adam(eps=0.0), LogDomainAdam())
    ]
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-10)


def test_log_domain_adam_goes_on_where_adam_underflows() -> None:
    gradient = binary_gradient(TOY, "exponential")

    def gained(method: FullBatchMethod, margin: float) -> float:
        start = torch.full((2,), margin / 1.5, dtype=torch.float64)
        rates = power_rates(0.002, count=3000)
        weights, _ = run_updates(method, gradient, start, method.init(start), rates)
        return float((TOY @ weights).min()) - margin

    # One support vector: far out the same happens at every margin.
    far = gained(LogDomainAdam(), 370.0)
    assert far == pytest.approx(gained(LogDomainAdam(), 50.0), rel=1e-6)
    assert far > 5
    # The squared gradient's last float is reached at a margin of 372.
    assert gained(Adam(eps=0.0), 370.0) < 4


@pytest.mark.parametrize("name", METHODS)
def test_runs_with_settings_of_their_own_do_not_touch_each_other(name: str) -> None:
    method = METHODS[name]
    rows = torch.stack([signed(seed) for seed in range(3)])
    start = torch.stack([signed(9, 3), 2 * signed(9, 3)])  # (settings, seeds, size)
    rates = power_rates(torch.tensor([[0.1], [0.01]]), torch.tensor([[0.5], [0.0]]), count=15)
    ends, _ = run_updates(
        method, binary_gradient(rows, "logistic"), start, method.init(start), rates
    )
    for setting in range(2):
        for seed in range(3):
            alone = start[setting, seed]
            expected, _ = run_updates(
                method,
                binary_gradient(rows[seed], "logistic"),
                alone,
                method.init(alone),
                rates[:, setting, 0],
            )
            torch.testing.assert_close(ends[setting, seed], expected, rtol=1e-9, atol=1e-12)


def test_betas_may_differ_between_runs() -> None:
    gradient = binary_gradient(signed(0)[None], "logistic")
    start = 0.1 * signed(1)[:2, None]
    rates = power_rates(0.01, count=20)
    betas = (0.5, 0.99)
    together = LogDomainAdam(
        torch.tensor([[0.1], [0.9]], dtype=torch.float64),
        torch.tensor([[beta] for beta in betas], dtype=torch.float64),
    )
    ends, _ = run_updates(together, gradient, start, together.init(start), rates)
    for run, beta1 in enumerate((0.1, 0.9)):
        alone = LogDomainAdam(beta1, betas[run])
        expected, _ = run_updates(alone, gradient, start[run], alone.init(start[run]), rates)
        torch.testing.assert_close(ends[run], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_autograd_gradients_of_any_net_will_do(name: str) -> None:
    # A linear net, so that the closed form is the reference; nothing in `gradient` knows that.
    rows, targets = signed(0), torch.arange(12) % 3
    net = nn.Linear(15, 3, bias=False).double()
    start = parameters_to_vector(net.parameters()).detach()

    def gradient(weights: Tensor) -> Gradient:
        vector_to_parameters(weights, net.parameters())
        loss = nn.functional.cross_entropy(net(rows), targets)
        parts = torch.autograd.grad(loss, list(net.parameters()))
        return Gradient.plain(parameters_to_vector(parts))

    method, rates = METHODS[name], power_rates(0.05, 0.5, count=10)
    found, _ = run_updates(method, gradient, start.clone(), method.init(start), rates)
    closed = linear_gradient(rows, targets, 3, CrossEntropy().scaled_logit_gradient)
    ours = start.reshape(3, 15).T.flatten()
    expected, _ = run_updates(method, closed, ours, method.init(ours), rates)
    torch.testing.assert_close(found.reshape(3, 15).T.flatten(), expected, rtol=1e-8, atol=1e-10)


def test_rates_are_powers_of_the_update() -> None:
    rates = power_rates(torch.tensor([0.1, 1.0]), torch.tensor([0.5, 0.0]), start=7, count=3)
    assert rates.shape == (3, 2)
    assert rates[:, 0].tolist() == pytest.approx([0.1 / 3, 0.1 / 10**0.5, 0.1 / 11**0.5])
    assert rates[:, 1].tolist() == [1, 1, 1]
    whole = power_rates(0.1, 0.7, count=10)
    assert torch.equal(whole[4:], power_rates(0.1, 0.7, start=4, count=6))


def test_a_run_may_be_cut_anywhere() -> None:
    gradient = binary_gradient(signed(0), "logistic")
    for method in METHODS.values():
        start = 0.1 * signed(1)[0]
        rates = power_rates(0.1, 0.5, count=20)
        whole, _ = run_updates(method, gradient, start, method.init(start), rates)
        half, state = run_updates(method, gradient, start, method.init(start), rates[:7])
        rest, _ = run_updates(method, gradient, half, state, rates[7:])
        assert torch.equal(whole, rest)


def test_another_loss_is_refused() -> None:
    bad: Callable[..., object] = binary_gradient
    with pytest.raises(ValueError, match="loss must be 'exponential' or 'logistic', got 'hinge'"):
        getattr(bad, "__wrapped__", bad)(TOY, "hinge")


def test_betas_outside_the_theorem_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"beta1 must be at most beta2 .*, got 0\.99 and 0\.9"):
        LogDomainAdam(0.99, 0.9)
    betas = torch.tensor([0.5, 0.9])
    with pytest.warns(UserWarning, match="beta1 must be at most beta2"):
        Adam(betas, torch.tensor([0.6, 0.8]))


def test_the_stable_rate_separates_rates_that_diverge() -> None:
    # Least squares has the same curvature everywhere, here 1.
    inputs = signed(0)
    bound = stable_rate(inputs, smoothness=1.0, divisor=12.0)
    curvature = torch.linalg.eigvalsh(inputs.mT @ inputs / 12)[-1]
    assert bound.item() == pytest.approx(2 / curvature.item())
    both = stable_rate(torch.stack([inputs, 2 * inputs]), smoothness=0.25)
    assert (both[0] / both[1]).item() == pytest.approx(4)
    weights = torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for factor, falls in ((0.99, True), (1.01, False)):
        error = weights
        for _ in range(3000):
            error = error - factor * bound * (inputs.mT @ (inputs @ error)) / 12
        assert bool((inputs @ error).norm() < (inputs @ weights).norm()) == falls
