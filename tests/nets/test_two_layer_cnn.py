"""The two-layer CNN: formula against autograd, compiled loops against plain ones."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.data import PatchSignals
from toolkit.nets.two_layer_cnn import (
    Descent,
    descend_patches,
    patch_gradient,
    patch_outputs,
    patch_table,
    stall_radius,
    table_gradient,
    table_outputs,
)

SHAPES = [
    # examples, patches, dim, filters, whether positions are permuted
    (40, 3, 50, 40, False),
    (33, 3, 7, 5, True),  # neither is a multiple of the tiles
    (9, 2, 4, 1, False),  # no patch of an example's own
    (520, 5, 6, 3, True),  # two blocks, several slots
]


def data_of(
    examples: int, patches: int, dim: int, *, permute: bool, seed: int = 0
) -> dict[str, Tensor]:
    return PatchSignals(
        num_examples=examples, num_patches=patches, dim=dim, num_test=4, permute=permute, seed=seed
    ).read()


def filters_of(count: int, dim: int, scale: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return scale * torch.randn(count, dim, generator=generator, dtype=torch.float64)


def plain_loss(weights: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """Written out over examples, patches and filters, so that autograd is a reference."""
    outputs = sum((inputs[:, p] @ weights.T).pow(3).sum(1) for p in range(inputs.shape[1]))
    return (shares * F.softplus(-targets * outputs)).sum()


def plain_descent(
    weights: Tensor, data: dict[str, Tensor], shares: Tensor, rho: float | None, updates: int
) -> Tensor:
    """Gradient descent or SAM with autograd, lr 0.1."""
    weights = weights.clone()

    def gradient(at: Tensor) -> Tensor:
        at = at.detach().requires_grad_()
        loss = plain_loss(at, data["inputs"], data["targets"], shares)
        return torch.autograd.grad(loss, at)[0]

    for _ in range(updates):
        slope = gradient(weights)
        if rho is not None:
            slope = gradient(weights + rho * slope / slope.norm())
        weights -= 0.1 * slope
    return weights


def compiled_descent(
    weights: Tensor,
    data: dict[str, Tensor],
    shares: Tensor,
    rho: float | None,
    spans: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    table = patch_table(data["inputs"], data["targets"])
    padded = np.zeros(len(table.targets))
    padded[: len(shares)] = shares.numpy()
    found, reached, done = weights.numpy().copy(), np.full(3, -1.0), 0
    settings = Descent(0.1, -1.0 if rho is None else rho, len(found))
    for span in spans:
        descend_patches(
            found, table, padded, settings, data["features"].numpy(), (done, span), reached
        )
        done += span
    return found, reached


def mean_shares(examples: int) -> Tensor:
    return torch.full((examples,), 1 / examples, dtype=torch.float64)


@pytest.mark.parametrize(("examples", "patches", "dim", "filters", "permute"), SHAPES)
def test_formula_and_compiled_loops_agree_with_autograd(
    examples: int, patches: int, dim: int, filters: int, permute: bool
) -> None:
    data = data_of(examples, patches, dim, permute=permute)
    weights = filters_of(filters, dim)
    shares = torch.rand(examples, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaf = weights.clone().requires_grad_()
    loss = plain_loss(leaf, data["inputs"], data["targets"], shares)
    (expected,) = torch.autograd.grad(loss, leaf)
    formula = patch_gradient(weights, data["inputs"], data["targets"], shares)
    torch.testing.assert_close(formula, expected, rtol=1e-11, atol=1e-13)
    table = patch_table(data["inputs"], data["targets"])
    padded = np.zeros(len(table.targets))
    padded[:examples] = shares.numpy()
    compiled = table_gradient(weights.numpy(), table, padded)
    np.testing.assert_allclose(compiled, expected.numpy(), rtol=1e-11, atol=1e-13)
    outputs = table_outputs(weights.numpy(), table)
    expected_outputs = patch_outputs(weights, data["inputs"]).numpy()
    np.testing.assert_allclose(outputs[:examples], expected_outputs, rtol=1e-11, atol=1e-12)
    assert not outputs[examples:].any()


def test_equal_patches_up_to_sign_are_stored_once() -> None:
    data = data_of(60, 4, 10, permute=True)
    table = patch_table(data["inputs"], data["targets"])
    assert len(table.shared) == 2  # the features; their opposites and the zeros are not stored
    lengths = np.sort(np.linalg.norm(table.shared, axis=1))
    np.testing.assert_allclose(lengths, [0.7, 1.0], rtol=1e-12)
    assert (np.abs(table.counts[:60]).sum(1) == 2 - data["groups"].numpy()).all()
    assert table.blocks.shape[1] == 2


@pytest.mark.parametrize("rho", [None, 0.03])
def test_descent_agrees_with_a_plain_loop(rho: float | None) -> None:
    data = data_of(120, 3, 20, permute=False)
    weights = filters_of(12, 20, scale=0.1)
    expected = plain_descent(weights, data, mean_shares(120), rho, updates=150)
    found, _ = compiled_descent(weights, data, mean_shares(120), rho, [150])
    assert (expected - weights).norm() > 0.1  # it has moved
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-10)


def test_sam_without_radius_is_gradient_descent_bit_for_bit() -> None:
    data, weights = data_of(50, 3, 20, permute=False), filters_of(8, 20, scale=0.1)
    plain, _ = compiled_descent(weights, data, mean_shares(50), None, [200])
    zero, _ = compiled_descent(weights, data, mean_shares(50), 0.0, [200])
    some, _ = compiled_descent(weights, data, mean_shares(50), 0.01, [200])
    assert (plain == zero).all()
    assert not (plain == some).all()


def test_updates_in_parts_are_updates_at_once_bit_for_bit() -> None:
    data, weights = data_of(50, 3, 20, permute=False), filters_of(8, 20, scale=0.15)
    whole, reached = compiled_descent(weights, data, mean_shares(50), 0.02, [200])
    parts, again = compiled_descent(weights, data, mean_shares(50), 0.02, [1, 70, 0, 129])
    assert (whole == parts).all()
    assert reached[0] > 0
    assert (reached == again).all()


def test_the_fast_update_is_the_first_that_reaches_one_half() -> None:
    data, weights = data_of(50, 3, 20, permute=False), filters_of(8, 20, scale=0.15)
    _, reached = compiled_descent(weights, data, mean_shares(50), None, [200])
    update = int(reached[0])
    at = [
        data["features"] @ plain_descent(weights, data, mean_shares(50), None, updates).T
        for updates in (update - 1, update)
    ]
    assert at[0][0].max() < 0.5 <= at[1][0].max()
    assert reached[1:] == pytest.approx(at[1].amax(1).tolist(), rel=1e-10)


def test_upsampling_is_a_weight_in_the_mean() -> None:
    data, weights = data_of(30, 3, 8, permute=False), filters_of(4, 8)
    chosen = torch.tensor([2, 3, 11])
    copies = torch.cat([torch.arange(30), chosen, chosen])
    repeated = patch_gradient(
        weights, data["inputs"][copies], data["targets"][copies], mean_shares(36)
    )
    times = torch.ones(30, dtype=torch.float64)
    times[chosen] = 3
    weighted = patch_gradient(weights, data["inputs"], data["targets"], times / times.sum())
    torch.testing.assert_close(repeated, weighted, rtol=1e-12, atol=1e-14)


def test_a_gradient_that_is_not_finite_stops_before_its_update() -> None:
    data = data_of(20, 3, 6, permute=False)
    weights = 1e160 * filters_of(4, 6)
    found, table = weights.numpy().copy(), patch_table(data["inputs"], data["targets"])
    shares = np.full(len(table.targets), 1 / 20)
    made = descend_patches(
        found, table, shares, Descent(0.1, -1.0, 4), data["features"].numpy(), (0, 5), np.zeros(3)
    )
    assert made == 0
    assert (found == weights.numpy()).all()


def test_at_the_stall_radius_the_perturbed_fast_alignment_is_zero() -> None:
    fast = torch.tensor([0.05, -0.02, 0.01], dtype=torch.float64)
    slow = torch.tensor([0.03, 0.04, -0.01], dtype=torch.float64)
    along_fast, along_slow = 1.5 * 0.9 * fast.square(), 1.5 * 0.7**3 * slow.square()
    norm = torch.cat([along_fast, along_slow]).norm()
    radius = stall_radius(fast, slow, (1.0, 0.7), 0.9)
    assert (fast - radius * along_fast / norm)[0].abs() < 1e-15
