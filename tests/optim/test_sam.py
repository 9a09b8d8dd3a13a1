import copy
import pickle
import random
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from toolkit.optim import ASAM, SAM, cosine, kept_buffers, sam_perturbation

SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAM = partial(torch.optim.AdamW, lr=0.01)


def quadratic(w: Tensor) -> Tensor:
    return 0.5 * (w[0] ** 2 + 10 * w[1] ** 2)


def seen_by_passes(optimizer: SAM, w: Tensor, loss: Any) -> list[Tensor]:
    seen = []

    def closure() -> Tensor:
        seen.append(w.detach().clone())
        optimizer.zero_grad()
        value = loss(w)
        value.backward()
        return value

    optimizer.step(closure)
    return seen


def point(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


# Computed apart from this code, in float64, for 0.5 (w1^2 + 10 w2^2), lr 0.1, rho 0.1.
VECTORS = {
    "sam at (1,1)": (SAM, (1, 1), {}, (0.009950372, 0.099503719), (0.899004963, -0.099503719)),
    "sam at (2,1)": (SAM, (2, 1), {}, (0.019611614, 0.098058068), (1.798038839, -0.098058068)),
    "asam, eta 0": (
        ASAM,
        (2, 1),
        {"eta": 0.0},
        (0.074278135, 0.092847669),
        (1.792572186, -0.092847669),
    ),
    "asam, eta 0.01": (
        ASAM,
        (2, 1),
        {"eta": 0.01},
        (0.074330620, 0.093840085),
        (1.792566938, -0.093840085),
    ),
    "asam, all parameters": (
        ASAM,
        (2, 1),
        {"variant": "all_parameters"},
        (0.074278135, 0.092847669),
        (1.792572186, -0.092847669),
    ),
}


@pytest.mark.parametrize("case", VECTORS)
def test_one_step_gives_the_exact_perturbation_and_weights(case: str) -> None:
    kind, start, settings, perturbation, after = VECTORS[case]
    w = point(*start)
    optimizer = kind([("weight", w)], SGD, rho=0.1, **settings)
    first, second = seen_by_passes(optimizer, w, quadratic)
    expected = torch.tensor([perturbation, after], dtype=torch.float64)
    torch.testing.assert_close(second - first, expected[0], atol=1e-9, rtol=0)
    torch.testing.assert_close(w.detach(), expected[1], atol=1e-9, rtol=0)


def test_weight_decay_in_the_optimizer_is_no_part_of_the_perturbation() -> None:
    w = point(2, 1)
    optimizer = SAM([w], partial(SGD, weight_decay=0.1), rho=0.1)
    first, second = seen_by_passes(optimizer, w, quadratic)
    expected = torch.tensor([0.019611614, 0.098058068], dtype=torch.float64)
    torch.testing.assert_close(second - first, expected, atol=1e-9, rtol=0)
    expected = torch.tensor([1.778038839, -0.108058068], dtype=torch.float64)
    torch.testing.assert_close(w.detach(), expected, atol=1e-9, rtol=0)


def test_weight_decay_in_the_loss_is_part_of_the_perturbation() -> None:
    w = point(2, 1)
    optimizer = SAM([w], SGD, rho=0.1)
    first, second = seen_by_passes(optimizer, w, lambda w: quadratic(w) + 0.05 * w.square().sum())
    expected = torch.tensor([0.021283126, 0.097708897], dtype=torch.float64)
    torch.testing.assert_close(second - first, expected, atol=1e-9, rtol=0)
    expected = torch.tensor([1.777658856, -0.108685986], dtype=torch.float64)
    torch.testing.assert_close(w.detach(), expected, atol=1e-9, rtol=0)


def test_on_half_the_square_one_step_is_the_textbook_formula() -> None:
    w = point(3, 4)
    seen_by_passes(SAM([w], SGD, rho=0.5), w, lambda w: 0.5 * w.square().sum())
    start = torch.tensor([3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(w.detach(), start - 0.1 * (start + 0.5 * start / 5))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def batches(number: int = 6, size: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 4, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for _ in range(number)
    ]


def train(
    net: nn.Module, optimizer: torch.optim.Optimizer, data: Any, **kwargs: Any
) -> list[float]:
    """Losses of an ordinary loop with closures, the same for SAM and for its base."""
    if isinstance(optimizer, SAM):
        optimizer.second_pass = lambda: kept_buffers(net)
    losses = []
    for inputs, targets in data:

        def closure(
            rows: slice = slice(None), inputs: Tensor = inputs, targets: Tensor = targets
        ) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs[rows]), targets[rows])
            loss.backward()
            return loss

        losses.append(optimizer.step(closure, **kwargs).item())
    return losses


def made(base: Any, kind: Any = None, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    optimizer = kind(net.named_parameters(), base, **settings) if kind else base(net.parameters())
    return net, optimizer


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


@pytest.mark.parametrize("base", [SGD, MOMENTUM, ADAM])
@pytest.mark.parametrize(("kind", "settings"), [(SAM, {}), (ASAM, {})])
def test_rho_zero_is_the_base_optimizer_bit_for_bit(base: Any, kind: Any, settings: Any) -> None:
    plain, optimizer = made(base)
    plain_losses = train(plain, optimizer, batches())
    net, sam = made(base, kind, rho=0.0, **settings)
    passes = []
    net.register_forward_hook(lambda *_: passes.append(1))
    losses = train(net, sam, batches())
    assert len(passes) == 12
    assert losses == plain_losses
    assert_same(net, plain)


def test_the_control_with_a_positive_rho_differs_from_the_base_optimizer() -> None:
    plain, optimizer = made(MOMENTUM)
    train(plain, optimizer, batches())
    net, sam = made(MOMENTUM, SAM, rho=0.05)
    train(net, sam, batches())
    assert not torch.equal(net.layers[0].weight, plain.layers[0].weight)


def test_it_equals_the_definition_written_out_with_momentum() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    twin = copy.deepcopy(net)
    data = [(x.double(), y) for x, y in batches()]
    optimizer = SAM(net.parameters(), partial(torch.optim.SGD, lr=0.1, momentum=0.9), rho=0.2)
    train(net, optimizer, data)
    weights = list(twin.parameters())
    speed = [torch.zeros_like(w) for w in weights]
    for inputs, targets in data:
        loss = nn.functional.cross_entropy(twin(inputs), targets)
        gradient = torch.autograd.grad(loss, weights)
        length = sum((g**2).sum() for g in gradient).sqrt()
        names = [name for name, _ in twin.named_parameters()]
        moved = {
            n: (w + 0.2 * g / length) for n, w, g in zip(names, weights, gradient, strict=True)
        }
        loss = nn.functional.cross_entropy(
            torch.func.functional_call(twin, moved, (inputs,)), targets
        )
        sharp = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            speed = [0.9 * v + g for v, g in zip(speed, sharp, strict=True)]
            for w, v in zip(weights, speed, strict=True):
                w -= 0.1 * v
    for a, b in zip(net.parameters(), weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_step_runs_the_closure_twice_with_gradients_on_and_returns_the_first_loss() -> None:
    w = point(2, 1)
    optimizer = SAM([w], SGD, rho=0.1)
    losses = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = quadratic(w)
        loss.backward()
        losses.append(loss.item())
        return loss

    with torch.no_grad():
        returned = optimizer.step(closure)
    assert len(losses) == 2
    assert losses[0] != losses[1]
    assert returned.item() == losses[0] == 7.0


def test_the_weights_come_back_in_place_after_an_exception_in_the_second_pass() -> None:
    w = point(2, 1)
    view, address = w.data[:1], w.data_ptr()
    optimizer = SAM([w], partial(SGD, momentum=0.9), rho=0.1)
    calls = []

    def closure() -> Tensor:
        calls.append(w.detach().clone())
        optimizer.zero_grad()
        loss = quadratic(w)
        loss.backward()
        if len(calls) == 2:
            raise KeyError("second pass")
        return loss

    with pytest.raises(KeyError, match="second pass"):
        optimizer.step(closure)
    assert not torch.equal(calls[1], calls[0])
    assert torch.equal(w, calls[0])
    assert w.data_ptr() == address
    assert view.item() == 2.0
    assert not optimizer.state
    assert optimizer.chunk is None
    optimizer.step(closure)
    assert not torch.equal(w, calls[0])


def test_a_layer_that_the_second_pass_skips_does_not_stay_perturbed() -> None:
    used, skipped = point(2, 1), point(5, 5)
    optimizer = SAM([used, skipped], SGD, rho=0.1)
    calls = []

    def closure() -> Tensor:
        calls.append(skipped.detach().clone())
        optimizer.zero_grad()
        loss = quadratic(used) + (quadratic(skipped) if len(calls) == 1 else 0)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert not torch.equal(calls[1], calls[0])
    assert torch.equal(skipped, calls[0])


def test_a_closure_that_never_zeroes_does_not_mix_the_passes() -> None:
    w = point(2, 1)
    optimizer = SAM([w], SGD, rho=0.1)

    def closure() -> Tensor:
        loss = quadratic(w)
        loss.backward()
        return loss

    optimizer.step(closure)
    expected = torch.tensor([1.798038839, -0.098058068], dtype=torch.float64)
    torch.testing.assert_close(w.detach(), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", [SAM, ASAM])
def test_a_zero_gradient_gives_no_perturbation_and_no_nan(kind: Any) -> None:
    w = point(0, 0)
    first, second = seen_by_passes(kind([("weight", w)], SGD, rho=0.1), w, quadratic)
    assert torch.equal(first, second)
    assert torch.equal(w, torch.zeros(2, dtype=torch.float64))


def test_a_loss_without_gradients_leaves_the_weights_alone() -> None:
    w = point(2, 1)
    optimizer = SAM([w], MOMENTUM, rho=0.1)
    assert optimizer.step(lambda: None) is None
    assert torch.equal(w, point(2, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_norm_is_over_all_parameters_and_in_float32(dtype: torch.dtype) -> None:
    gradients = [torch.full((1000,), 3000.0, dtype=dtype), torch.full((4,), 3000.0, dtype=dtype)]
    perturbation = sam_perturbation(gradients, rho=1.0)  # the norm, 95,000, overflows float16
    expected = torch.full((1000,), 1004**-0.5)
    torch.testing.assert_close(perturbation[0].float(), expected, rtol=1e-2, atol=0)
    assert perturbation[0].dtype == dtype
    total = sum(p.double().square().sum() for p in perturbation)
    assert float(total) == pytest.approx(1, rel=1e-2)


def test_the_perturbation_has_length_rho_whatever_the_scale_of_the_gradient() -> None:
    gradients = [torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    for scale in (1e-6, 1.0, 1e6):
        perturbation = sam_perturbation([scale * g for g in gradients], rho=0.3)
        length = sum(p.square().sum() for p in perturbation).sqrt()
        assert float(length) == pytest.approx(0.3, rel=1e-5)


def test_parameters_of_several_types_are_perturbed_together() -> None:
    wide, narrow = point(3), nn.Parameter(torch.tensor([4.0], dtype=torch.bfloat16))
    optimizer = SAM([wide, narrow], SGD, rho=0.5)
    seen = seen_by_passes(
        optimizer, wide, lambda w: 0.5 * (w.square().sum() + narrow.square().sum())
    )
    assert float(seen[1] - seen[0]) == pytest.approx(0.3)


def test_both_passes_draw_the_same_random_numbers_and_the_stream_moves_once() -> None:
    w = point(2, 1)
    optimizer = SAM([w], SGD, rho=0.1)
    drawn = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        drawn.append((torch.rand(3).tolist(), np.random.rand(), random.random()))  # noqa: NPY002
        if len(drawn) == 2:
            torch.rand(100)  # a second pass that draws more leaves no trace either
        loss = quadratic(w)
        loss.backward()
        return loss

    torch.manual_seed(0)
    optimizer.step(closure)
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.rand(3)
    assert drawn[0] == drawn[1]
    assert torch.equal(after, torch.rand(1))


def test_autocast_does_not_hand_the_second_pass_the_old_weights() -> None:
    net = nn.Linear(4, 2, bias=False)
    inputs = torch.randn(8, 4)
    optimizer = SAM(net.parameters(), SGD, rho=0.5)
    outputs = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        outputs.append(net(inputs))
        loss = outputs[-1].square().mean()
        loss.backward()
        return loss

    with torch.autocast("cpu", torch.bfloat16):  # its cache of cast weights lives as long
        optimizer.step(closure)
        moved = net(inputs)
    assert not torch.equal(outputs[0], outputs[1])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(moved, net(inputs))


def test_state_and_groups_are_the_base_optimizers_own() -> None:
    net, sam = made(MOMENTUM, SAM, rho=0.05)
    train(net, sam, batches(2))
    state = sam.state_dict()
    assert len(state["state"]) == len(list(net.parameters()))
    assert all("momentum_buffer" in entry for entry in state["state"].values())
    assert sam.param_groups is sam.base.param_groups
    sam.load_state_dict(copy.deepcopy(state))
    assert sam.param_groups is sam.base.param_groups
    assert sam.state is sam.base.state
    _, plain = made(MOMENTUM)
    plain.load_state_dict(state)  # a checkpoint of SAM is one of its base


@pytest.mark.parametrize("base", [MOMENTUM, ADAM])
def test_resumed_equals_uninterrupted_although_it_starts_with_a_wrong_rate(base: Any) -> None:
    data = batches(8)
    whole, sam = made(base, SAM, rho=0.05)
    train(whole, sam, data[:4])
    saved = copy.deepcopy((whole.state_dict(), sam.state_dict(), torch.get_rng_state()))
    train(whole, sam, data[4:])
    finals = []
    for restore in (True, False):
        net, resumed = made(partial(base, lr=0.5), SAM, rho=0.05)
        net.load_state_dict(saved[0])
        if restore:
            resumed.load_state_dict(saved[1])
        torch.set_rng_state(saved[2])
        train(net, resumed, data[4:])
        finals.append(net)
    assert_same(finals[0], whole)
    assert not torch.equal(finals[1].layers[0].weight, whole.layers[0].weight)


def test_a_schedule_over_sam_drives_the_base_optimizer_also_after_loading() -> None:
    w = point(2, 1)
    optimizer = SAM([w], SGD, rho=0.1)
    schedule = cosine(optimizer, 4)
    for reload in (False, True):
        if reload:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        before = w.detach().clone()
        rate = optimizer.param_groups[0]["lr"]
        _, second = seen_by_passes(optimizer, w, quadratic)
        gradient = second * torch.tensor([1.0, 10.0])
        torch.testing.assert_close(w.detach(), before - rate * gradient)
        schedule.step()
    assert optimizer.base.param_groups[0]["lr"] == pytest.approx(0.05)


def test_an_added_group_is_stepped_too() -> None:
    w, later = point(2, 1), point(1, 1)
    optimizer = SAM([w], SGD, rho=0.1)
    optimizer.add_param_group({"params": [later], "lr": 0.5})
    seen_by_passes(optimizer, w, lambda w: quadratic(w) + quadratic(later))
    assert not torch.equal(later, point(1, 1))
    assert [group["lr"] for group in optimizer.base.param_groups] == [0.1, 0.5]


def test_separated_parameter_groups_are_refused() -> None:
    w = point(2, 1)
    optimizer = SAM([w], SGD, rho=0.1)
    optimizer.base.load_state_dict(optimizer.base.state_dict())
    with pytest.raises(RuntimeError, match="SAM and its base optimizer must share one list"):
        seen_by_passes(optimizer, w, quadratic)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_is_whole_and_apart(copied: Any) -> None:
    w = point(2, 1)
    optimizer = ASAM([("weight", w)], partial(SGD, momentum=0.9), rho=0.1, eta=0.0)
    seen_by_passes(optimizer, w, quadratic)
    optimizer.second_pass = lambda: None  # cannot be pickled, and is not wanted
    twin = copied(optimizer)
    twin_w = twin.param_groups[0]["params"][0]
    optimizer.second_pass = None
    seen_by_passes(optimizer, w, quadratic)
    assert not torch.equal(twin_w, w)
    seen_by_passes(twin, twin_w, quadratic)
    assert torch.equal(twin_w, w)


@pytest.mark.parametrize("m", [1, 3, 4, 10, 64])
def test_m_equals_an_explicit_loop_over_chunks(m: int) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    twin = copy.deepcopy(net)
    inputs, targets = torch.randn(10, 4).double(), torch.randint(0, 3, (10,))
    losses = train(
        net, SAM(net.parameters(), SGD, rho=0.3, m=m), [(inputs, targets)], batch_size=10
    )
    weights = list(twin.parameters())
    total = [torch.zeros_like(w) for w in weights]
    for start in range(0, 10, m):
        x, y = inputs[start : start + m], targets[start : start + m]
        gradient = torch.autograd.grad(nn.functional.cross_entropy(twin(x), y), weights)
        length = sum((g**2).sum() for g in gradient).sqrt()
        moved = {
            n: w + 0.3 * g / length
            for n, w, g in zip(("weight", "bias"), weights, gradient, strict=True)
        }
        loss = nn.functional.cross_entropy(torch.func.functional_call(twin, moved, (x,)), y)
        sharp = torch.autograd.grad(loss, weights)
        total = [t + g * len(x) / 10 for t, g in zip(total, sharp, strict=True)]
    for p, w, g in zip(net.parameters(), weights, total, strict=True):
        torch.testing.assert_close(p, w - 0.1 * g)
    assert losses[0] == pytest.approx(nn.functional.cross_entropy(twin(inputs), targets).item())


def test_m_of_the_whole_batch_is_no_m_bit_for_bit() -> None:
    plain, sam = made(MOMENTUM, SAM, rho=0.05)
    train(plain, sam, batches())
    net, sam = made(MOMENTUM, SAM, rho=0.05, m=10)
    train(net, sam, batches(), batch_size=10)
    assert_same(net, plain)


def test_chunks_of_one_kind_of_gradient_do_not_lose_those_of_another() -> None:
    a, b = point(2), point(3)
    optimizer = SAM([a, b], SGD, rho=0.0, m=1)

    def closure(rows: slice) -> Tensor:
        loss = 0.5 * (a if rows.start == 0 else b).square().sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure, batch_size=2).detach()) == pytest.approx((2 + 4.5) / 2)
    assert a.item() == pytest.approx(2 - 0.1 * 2 / 2)
    assert b.item() == pytest.approx(3 - 0.1 * 3 / 2)


def test_asam_official_scales_only_what_is_called_weight() -> None:
    weight, bias = point(2), point(2)
    optimizer = ASAM([("norm.weight", weight), ("norm.bias", bias)], SGD, rho=0.5, eta=0.0)
    seen = seen_by_passes(
        optimizer, weight, lambda w: 0.5 * (w.square().sum() + bias.square().sum())
    )
    scaled, plain = 2.0 * 2.0, 2.0  # T g with T = |w| and T = 1
    length = (scaled**2 + plain**2) ** 0.5
    assert float(seen[1] - seen[0]) == pytest.approx(0.5 * 2.0 * scaled / length)


def test_asam_does_not_care_how_two_layers_share_their_scale() -> None:
    reached = []
    for scale in (1.0, 7.0):
        a, b = point(2 * scale), point(3 / scale)
        optimizer = ASAM([a, b], SGD, rho=0.5, variant="all_parameters")
        products = []

        def closure(a: Tensor = a, b: Tensor = b, products: list[float] = products) -> Tensor:
            products.append(float((a * b).detach()))
            loss = (a * b - 1).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        reached.append(products)
    assert reached[0] == pytest.approx(reached[1])
    assert reached[0][1] > reached[0][0] == 6


def test_asam_official_without_names_is_refused() -> None:
    w = point(2, 1)
    optimizer = ASAM([w], SGD)
    with pytest.raises(RuntimeError, match="must know the parameters' names"):
        seen_by_passes(optimizer, w, quadratic)
    optimizer.name_parameters([("weight", w)])
    seen_by_passes(optimizer, w, quadratic)


def test_buffers_leave_as_they_came_in() -> None:
    class Counts(nn.BatchNorm1d):
        def __init__(self) -> None:
            super().__init__(2, momentum=None)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + 1  # replaced, not changed in place
            return super().forward(x)

    module = Counts()
    module(torch.randn(4, 2))
    before, running = copy.deepcopy(module.state_dict()), module.running_mean

    def fail_inside() -> None:
        with kept_buffers(module):
            module(torch.randn(4, 2))
            assert module.num_batches_tracked == 2
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert module.running_mean is running
    for name, buffer in module.state_dict().items():
        assert torch.equal(buffer, before[name]), name
    with kept_buffers(nn.Linear(1, 1)):
        pass


BAD = {
    "negative rho": (lambda: SAM([point(1)], SGD, rho=-0.1), "rho must be finite and at least 0"),
    "nan rho": (lambda: SAM([point(1)], SGD, rho=float("nan")), "rho must be finite"),
    "m of none": (lambda: SAM([point(1)], SGD, m=0), "m must be at least 1, got 0"),
    "lbfgs": (lambda: SAM([point(1)], torch.optim.LBFGS), "without a closure, got LBFGS"),
    "sam in sam": (lambda: SAM([point(1)], partial(SAM, base=SGD)), "without a closure, got SAM"),
    "negative eta": (lambda: ASAM([point(1)], SGD, eta=-1.0), "eta must be at least 0, got -1.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(("kind", "rho"), [(SAM, 2.0), (SAM, 1e-4), (ASAM, 0.01), (ASAM, 20.0)])
def test_an_unusual_rho_warns(kind: Any, rho: float) -> None:
    with pytest.warns(UserWarning, match=re.escape(f"rho is usually in {list(kind._usual_rho)}")):
        kind([point(1)], SGD, rho=rho)


def test_a_step_without_what_it_needs_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"SAM.step must be given a closure.*bf16-mixed"):
        SAM([point(1)], SGD).step()
    with pytest.raises(RuntimeError, match=r"must know the batch size.*got m=2 alone"):
        SAM([point(1)], SGD, m=2).step(lambda rows: None)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = SAM(table.parameters(), SGD)
    before = table.weight.detach().clone()

    def closure() -> Tensor:
        loss = table(torch.tensor([1])).square().sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match=r"Gradients must be dense and real.*sparse=False"):
        optimizer.step(closure)
    assert torch.equal(table.weight, before)
