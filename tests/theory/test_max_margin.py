"""Max margins against published-precision references, closed forms, certificates, invariances."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from toolkit.theory import (
    LpNorm,
    MaxMargin,
    Norm,
    NotSeparableError,
    QuadraticNorm,
    max_margin,
    max_margin_of_constraints,
    multiclass_max_margin,
    signed_inputs,
)

# Computed independently (HiGHS by hand, CLARABEL, OSQP) for the data of `gaussian` and `official`.
GAMMA = {
    math.inf: (2.4999903805, 1.2566943473, 1.4434934003, 2.6256079793, 1.6941262876),
    2.0: (0.5707529783, 0.3049766454, 0.3300710995, 0.6356551658, 0.3858570969),
    1.0: (0.1144302860, 0.0556290449, 0.0653601390, 0.1363071075, 0.0724621094),
}
MULTICLASS_GAMMA = (
    0.1077981249, 0.0838030308, 0.0946777021, 0.1618328069, 0.1428925177,
    0.1838498515, 0.1020972692, 0.1317801573, 0.1154329030, 0.0745053540,
)  # fmt: skip
MULTICLASS_ACCURACY = (0.93, 0.87, 0.87, 0.88, 0.94, 0.84, 0.89, 0.89, 0.91, 0.87)
TOY = torch.tensor([[1, 0.5], [2, 1.5], [1.5, 3], [3, 0.8], [2.5, 2.5]], dtype=torch.float64)


def gaussian(seed: int, examples: int = 50, size: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((examples, size)), rng.choice([-1.0, 1.0], examples)


def official(seed: int, examples: int = 100, size: int = 10) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.RandomState(seed)
    inputs = generator.randn(2 * examples, size)
    return inputs, (inputs @ generator.randn(size, 3)).argmax(1)


def assert_certified(found: MaxMargin, constraints: Tensor, tolerance: float = 1e-9) -> None:
    """The two bounds hold by arithmetic of this test alone, and meet."""
    direction = found.direction.flatten()
    assert float(found.norm(direction)) == pytest.approx(1, abs=1e-12)
    assert float((constraints @ direction).min()) == pytest.approx(found.margin, abs=1e-12)
    assert float(found.weights.min()) >= 0
    assert float(found.weights.sum()) == pytest.approx(1, abs=1e-12)
    upper = float(found.norm.dual(found.weights @ constraints))
    assert upper == pytest.approx(found.upper, abs=1e-12)
    assert 0 <= found.gap <= tolerance * found.margin


@pytest.mark.parametrize("p", GAMMA)
@pytest.mark.parametrize("seed", range(5))
def test_margins_of_gaussian_data_agree_with_the_reference(p: float, seed: int) -> None:
    inputs, labels = gaussian(seed)
    found = max_margin(inputs, labels, p)
    assert found.margin == pytest.approx(GAMMA[p][seed], abs=1e-8)
    assert_certified(found, signed_inputs(inputs, labels))


@pytest.mark.parametrize(("seed", "gamma"), [(0, 0.9648811), (1, 0.5145153)])
def test_the_l3_margin_agrees_with_the_reference(seed: int, gamma: float) -> None:
    # The reference has seven digits.
    assert max_margin(*gaussian(seed), 3.0).margin == pytest.approx(gamma, abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_multiclass_margins_and_their_accuracy_agree_with_the_reference(seed: int) -> None:
    inputs, labels = official(seed)
    found = multiclass_max_margin(inputs[:100], labels[:100])
    assert found.margin == pytest.approx(MULTICLASS_GAMMA[seed], abs=1e-8)
    predicted = (inputs[100:] @ found.direction.numpy()).argmax(1)
    assert (predicted == labels[100:]).mean() == pytest.approx(MULTICLASS_ACCURACY[seed], abs=1e-9)
    # Columns of the Frobenius solution add up to nothing: the data cannot tell them apart.
    assert float(found.direction.sum(1).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("p", "gamma", "direction"),
    [
        (1.0, 1.0, (1.0, 0.0)),
        (2.0, math.sqrt(1.25), (2 / math.sqrt(5), 1 / math.sqrt(5))),
        (math.inf, 1.5, (1.0, 1.0)),
        # One support vector x: the margin is the dual norm of x.
        (3.0, (1 + 0.5**1.5) ** (2 / 3), None),
        (1.5, (1 + 0.5**3) ** (1 / 3), None),
    ],
)
def test_a_single_support_vector_has_the_closed_form(
    p: float, gamma: float, direction: tuple[float, float] | None
) -> None:
    found = max_margin_of_constraints(TOY, p)
    assert found.margin == pytest.approx(gamma, abs=1e-10)
    assert found.unique
    if direction is not None:
        assert found.direction.tolist() == pytest.approx(direction, abs=1e-9)


@pytest.mark.parametrize("p", [1.0, 1.02, 1.1, 1.5, 2.0, 2.5, 3.0, 6.0, 20.0, 100.0, math.inf])
@pytest.mark.parametrize(("examples", "size"), [(20, 30), (30, 5), (7, 7)])
def test_every_answer_carries_a_certificate(p: float, examples: int, size: int) -> None:
    inputs = np.random.default_rng(examples).standard_normal((examples, size))
    labels = np.where(inputs[:, 0] + 0.1 * inputs[:, 1] > 0, 1, -1)
    for norm in (p, LpNorm(p, torch.linspace(0.5, 2, size))):
        assert_certified(max_margin(inputs, labels, norm), signed_inputs(inputs, labels), 1e-8)


def test_a_weighted_norm_is_the_plain_one_of_scaled_inputs() -> None:
    inputs, labels = gaussian(0, 12, 15)
    weights = torch.linspace(0.2, 3, 15, dtype=torch.float64)
    for p in (1.0, 1.5, 2.0, 3.0):
        scaled = max_margin(inputs / weights.numpy() ** (1 / p), labels, p)
        found = max_margin(inputs, labels, LpNorm(p, weights))
        assert found.margin == pytest.approx(scaled.margin, rel=1e-9)


def test_the_quadratic_norm_is_the_weighted_one_for_a_diagonal_matrix() -> None:
    inputs, labels = gaussian(0, 12, 15)
    weights = torch.linspace(0.2, 3, 15, dtype=torch.float64)
    found = max_margin(inputs, labels, QuadraticNorm(torch.diag(weights)))
    expected = max_margin(inputs, labels, LpNorm(2.0, weights))
    assert found.margin == pytest.approx(expected.margin, rel=1e-10)
    torch.testing.assert_close(found.direction, expected.direction, atol=1e-9, rtol=0)
    full = torch.randn(15, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = full @ full.mT + 0.1 * torch.eye(15)
    certified = max_margin(inputs, labels, QuadraticNorm(matrix))
    assert_certified(certified, signed_inputs(inputs, labels))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_multiclass_margins_in_other_entrywise_norms_are_certified(p: float) -> None:
    inputs, labels = official(3, 20, 6)
    found = multiclass_max_margin(inputs[:20], labels[:20], p)
    scores = torch.from_numpy(inputs[:20]) @ found.direction
    true = scores.gather(1, torch.from_numpy(labels[:20, None]))
    rivals = scores.scatter(1, torch.from_numpy(labels[:20, None]), -torch.inf)
    assert float((true[:, 0] - rivals.amax(1)).min()) == pytest.approx(found.margin, abs=1e-12)
    assert found.gap < 1e-9


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, 3.0, math.inf, QuadraticNorm(torch.eye(8) * 4)])
def test_units_and_order_of_the_data_are_irrelevant(norm: float | Norm) -> None:
    inputs, labels = gaussian(1, 8, 8)
    found = max_margin(inputs, labels, norm)
    for scale in (1e-3, 1e3):
        scaled = max_margin(scale * inputs[::-1].copy(), labels[::-1].copy(), norm)
        assert scaled.margin == pytest.approx(scale * found.margin, rel=1e-8)
        torch.testing.assert_close(scaled.direction, found.direction, atol=1e-7, rtol=0)


def test_two_classes_of_the_multiclass_problem_are_the_binary_one() -> None:
    inputs, labels = gaussian(2, 10, 12)
    both = multiclass_max_margin(inputs, (labels > 0).astype(int))
    binary = max_margin(inputs, labels)
    # W = (-v, v) has the margin 2 z and the norm sqrt 2 of v.
    assert both.margin == pytest.approx(math.sqrt(2) * binary.margin, rel=1e-10)


def test_a_face_of_maximisers_is_not_called_unique() -> None:
    # x = (1, 0) alone: in l_inf the second weight may be anything in [-1, 1].
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    assert not max_margin_of_constraints(rows, math.inf).unique
    # x = (1, 1): in l_1 the sum of the weights is all that counts.
    assert not max_margin_of_constraints(torch.tensor([[1.0, 1.0]]), 1.0).unique
    assert max_margin_of_constraints(torch.tensor([[1.0, 1.0]]), math.inf).unique
    assert max_margin_of_constraints(rows, 2.0).unique


def test_data_that_cannot_be_separated_are_named_with_the_least_violation() -> None:
    inputs = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, -1.0]]
    with pytest.raises(
        NotSeparableError, match=r"must be separable.*least total slack of"
    ) as error:
        max_margin(inputs, [1, 1, -1, 1])
    violation = error.value.violation
    rows = signed_inputs(inputs, [1, 1, -1, 1])
    assert violation.residual < 1e-9
    assert float((violation.certificate @ rows).abs().max()) < 1e-9
    assert float(violation.certificate.sum()) == pytest.approx(1)
    hinge = (1 - rows @ violation.weights).clamp(min=0).sum()
    assert violation.total_slack == pytest.approx(float(hinge))
    assert (
        violation.violated.tolist() == (rows @ violation.weights <= 1e-9).nonzero()[:, 0].tolist()
    )


def test_no_other_weights_violate_less() -> None:
    inputs, labels = gaussian(0, 40, 3)
    with pytest.raises(NotSeparableError) as error:
        max_margin(inputs, labels)
    rows = signed_inputs(inputs, labels)
    best = error.value.violation
    generator = torch.Generator().manual_seed(0)
    nearby = best.weights + 0.1 * torch.randn(500, 3, generator=generator, dtype=torch.float64)
    assert float((1 - nearby @ rows.mT).clamp(min=0).sum(1).min()) >= best.total_slack - 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, 0 * y), r"labels must be -1 or \+1, got 0"),
        (lambda x, y: (x, abs(y)), r"labels must hold both -1 and \+1, got only \+1"),
        (lambda x, y: (x * math.nan, y), r"inputs must be finite, got 40 NaN"),
        (lambda x, y: (x, y * math.inf), r"labels must be finite, got 10 NaN or infinite"),
        (lambda x, y: (x[0], y), r"got \(4,\) and \(10,\)"),
        (lambda x, y: (x, y[1:]), r"got \(10, 4\) and \(9,\)"),
        (lambda x, y: (x[:0], y[:0]), r"got \(0, 4\) and \(0,\)"),
    ],
)
def test_bad_data_are_refused(change: Callable[..., object], message: str) -> None:
    inputs, labels = gaussian(0, 10, 4)
    with pytest.raises(ValueError, match=message):
        max_margin(*change(inputs, labels))


def test_bad_classes_are_refused() -> None:
    inputs = np.eye(4)
    with pytest.raises(ValueError, match="got none of class 1"):
        multiclass_max_margin(inputs, [0, 0, 2, 2])
    with pytest.raises(ValueError, match=r"whole numbers in 0\.\.2, got -1"):
        multiclass_max_margin(inputs, [0, -1, 2, 2])
    with pytest.raises(ValueError, match=r"whole numbers in 0\.\.1, got 2"):
        multiclass_max_margin(inputs, [0, 1, 2, 2], num_classes=2)
    with pytest.raises(ValueError, match="got none of class 1"):
        multiclass_max_margin(inputs, [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LpNorm(0.5), "p must be at least 1, got 0.5"),
        (lambda: LpNorm(math.nan), "p must be at least 1, got nan"),
        (lambda: LpNorm(2.0, [1.0, 0.0]), "weights must be positive"),
        (lambda: QuadraticNorm(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "positive definite"),
        (lambda: QuadraticNorm(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "must be symmetric"),
        (lambda: max_margin_of_constraints(TOY, LpNorm(2.0, [1.0])), "one per coordinate, got 1"),
        (lambda: max_margin_of_constraints(TOY, QuadraticNorm(torch.eye(3))), "size 2, got 3"),
    ],
)
def test_bad_norms_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "norm", [LpNorm(1.0), LpNorm(3.0, torch.tensor([1.0, 2.0, 0.5])), LpNorm(math.inf),
             QuadraticNorm(torch.diag(torch.tensor([1.0, 4.0, 9.0])))]
)  # fmt: skip
def test_no_vector_of_norm_one_exceeds_the_dual_norm(norm: Norm) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    slope = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    reached = float((vectors @ slope / norm(vectors)).max())
    assert 0.97 * float(norm.dual(slope)) <= reached <= float(norm.dual(slope)) + 1e-12


def test_a_convex_solver_finds_the_same_margins() -> None:
    cvxpy = pytest.importorskip("cvxpy", reason="cvxpy is not installed; it is optional")
    inputs, labels = gaussian(0, 20, 25)
    rows = signed_inputs(inputs, labels).numpy()
    for p in (1.0, 1.5, 2.0, 3.0, math.inf):
        weights = cvxpy.Variable(25)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(weights, p)), [rows @ weights >= 1]).solve()
        expected = 1 / np.linalg.norm(weights.value, p)
        assert max_margin(inputs, labels, p).margin == pytest.approx(expected, rel=1e-5)


def test_margins_grow_with_p_from_the_l1_to_the_maximum_norm() -> None:
    inputs, labels = gaussian(0)
    exponents = [1.0, 1.01, 1.05, 1.2, 1.3, 1.9, 2.0, 2.1, 4.0, 7.9, 8.0, 30.0, 300.0, math.inf]
    margins = [max_margin(inputs, labels, p).margin for p in exponents]
    assert margins == sorted(margins)
    # The l_p ball of 50 dimensions lies between those of the neighbours.
    for lower, upper, p, q in zip(margins, margins[1:], exponents, exponents[1:], strict=False):
        assert upper <= lower * 50 ** (1 / p - 1 / q) * (1 + 1e-9)


def test_a_p_too_near_to_1_is_refused_if_it_cannot_be_certified() -> None:
    with pytest.raises(RuntimeError, match="the margin's bounds must meet, got"):
        max_margin(*gaussian(0), 1.0001)
