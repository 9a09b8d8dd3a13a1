"""Mirror descent and mirror flow: equivalences, limits, common path, how runs stop."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from toolkit.optim import (
    GradientDescent,
    ImplicitMirrorFlow,
    MirrorDescent,
    TimeChangedMirrorFlow,
    binary_gradient,
    power_rates,
    run_updates,
    stop_reason,
)
from toolkit.theory import (
    AbsLog,
    ExpSquare,
    HyperbolicCosine,
    HyperbolicEntropy,
    Potential,
    Power,
    QuadraticForm,
    max_margin_of_constraints,
)

TOY = torch.tensor([[1, 0.5], [2, 1.5], [1.5, 3], [3, 0.8], [2.5, 2.5]], dtype=torch.float64)
MATRIX = torch.tensor([[1.0, 0.4], [0.4, 2.0]], dtype=torch.float64)
POTENTIALS: dict[str, Potential] = {
    "l2": Power(2.0),
    "p = 3": Power(3.0),
    "p = 1.5": Power(1.5),
    "hyperbolic entropy": HyperbolicEntropy(),
    "abs log": AbsLog(),
    "cosh": HyperbolicCosine(),
    "exp square": ExpSquare(),
    "quadratic form": QuadraticForm(MATRIX),
}
Flow = TimeChangedMirrorFlow | ImplicitMirrorFlow


def gaussian(seed: int, count: int = 10) -> Tensor:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, count))
    return torch.from_numpy(rng.choice([-1.0, 1.0], count)[:, None] * inputs)


def follow(flow: Flow, weights: Tensor, updates: int) -> tuple[Tensor, dict[str, Tensor]]:
    state = flow.init(weights)
    for _ in range(updates):
        weights, state = flow.update(weights, state)
    return weights, state


def degrees(one: Tensor, other: Tensor) -> float:
    one, other = one / one.norm(), other / other.norm()
    along = float(one @ other)
    return math.degrees(math.atan2(float((one - along * other).norm()), along))


def own_limit(name: str) -> Tensor:
    return max_margin_of_constraints(TOY, POTENTIALS[name].norm).direction


def test_half_the_square_gives_gradient_descent() -> None:
    rows = gaussian(0)
    start = 0.1 * gaussian(1)[0]
    gradient, rates = binary_gradient(rows, "logistic"), power_rates(0.2, 0.3, count=50)
    mirror = MirrorDescent(Power(2.0))
    found, _ = run_updates(mirror, gradient, start, mirror.init(start), rates)
    expected, _ = run_updates(GradientDescent(), gradient, start, {}, rates)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_quadratic_form_is_gradient_descent_in_other_coordinates() -> None:
    factor = torch.linalg.cholesky(MATRIX)
    start = torch.zeros(2, dtype=torch.float64)
    rates = power_rates(0.05, count=50)
    mirror = MirrorDescent(QuadraticForm(MATRIX))
    found, _ = run_updates(
        mirror, binary_gradient(TOY, "exponential"), start, mirror.init(start), rates
    )
    scaled = torch.linalg.solve_triangular(factor, TOY.mT, upper=False).mT
    other, _ = run_updates(
        GradientDescent(), binary_gradient(scaled, "exponential"), start, {}, rates
    )
    torch.testing.assert_close(factor.mT @ found, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", POTENTIALS)
def test_each_potential_goes_to_its_own_direction_and_not_to_others(name: str) -> None:
    flow = TimeChangedMirrorFlow(POTENTIALS[name], TOY)
    weights, _ = follow(flow, torch.zeros(2, dtype=torch.float64), 1000)
    own = degrees(weights, own_limit(name))
    slow = name in ("hyperbolic entropy", "abs log", "p = 1.5")
    assert own < (8.0 if slow else 1.0)
    others = {"l2", "hyperbolic entropy", "cosh"}
    for other in others:
        if degrees(own_limit(other), own_limit(name)) > 1:
            assert own < degrees(weights, own_limit(other))


@pytest.mark.parametrize("name", ["l2", "p = 3", "hyperbolic entropy", "cosh"])
def test_all_integrators_follow_the_same_path(name: str) -> None:
    potential = POTENTIALS[name]
    start = torch.zeros(2, dtype=torch.float64)
    plain = MirrorDescent(potential)
    gradient = binary_gradient(TOY, "exponential")
    reference, _ = run_updates(
        plain, gradient, start, plain.init(start), power_rates(0.004, count=1000)
    )
    flows: tuple[tuple[Flow, float], ...] = (
        (TimeChangedMirrorFlow(potential, TOY, max_change=0.02), 0.01),
        (ImplicitMirrorFlow(potential, TOY, max_change=0.02, max_share=0.0), 0.01),
    )
    for flow, tolerance in flows:
        weights, state = start, flow.init(start)
        while float(weights.norm()) < float(reference.norm()):
            before = weights
            weights, state = flow.update(weights, state)
        share = (reference.norm() - before.norm()) / (weights.norm() - before.norm())
        at_the_same_norm = before + share * (weights - before)
        assert float((at_the_same_norm - reference).norm()) < tolerance * float(reference.norm())
        # 1000 updates of rate 0.004.
        assert float(state["log_time"].exp()) == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("potential", [HyperbolicCosine(), ExpSquare(), Power(10.0)])
def test_implicit_steps_get_far_where_the_potential_is_stiff(potential: Potential) -> None:
    rows = gaussian(0)
    flow = ImplicitMirrorFlow(potential, rows)
    weights, state = follow(flow, 0.1 * gaussian(1)[0], 400)
    assert int(state["stopped"]) == 0
    gamma = max_margin_of_constraints(rows, potential.norm).margin
    assert float((rows @ weights).min() / potential.norm(weights)) > 0.8 * gamma


def test_margins_change_by_no_more_than_the_bound() -> None:
    rows = TOY
    flows: tuple[Flow, ...] = (
        TimeChangedMirrorFlow(Power(3.0), rows, loss="logistic"),
        ImplicitMirrorFlow(Power(3.0), rows),
    )
    for flow in flows:
        weights = torch.zeros(2, dtype=torch.float64)
        state = flow.init(weights)
        for _ in range(60):
            moved, state = flow.update(weights, state)
            margins = rows @ weights
            allowed = max(0.2, 0.02 * float(margins.min()))
            assert float((rows @ moved - margins).abs().max()) <= allowed + 1e-12
            weights = moved
        assert float((rows @ weights).min()) > 0.2


def test_runs_side_by_side_are_runs_alone() -> None:
    rows = torch.stack([gaussian(seed) for seed in range(3)])
    start = torch.zeros(2, 3, 10, dtype=torch.float64)
    start[1] = 0.1 * gaussian(9)[:3]
    for kind in (TimeChangedMirrorFlow, ImplicitMirrorFlow):
        together, _ = follow(kind(HyperbolicCosine(), rows), start, 30)
        for setting in range(2):
            for seed in range(3):
                alone, _ = follow(kind(HyperbolicCosine(), rows[seed]), start[setting, seed], 30)
                torch.testing.assert_close(together[setting, seed], alone, rtol=1e-6, atol=1e-8)
    assert not start[0].any()


@pytest.mark.parametrize("kind", [TimeChangedMirrorFlow, ImplicitMirrorFlow])
def test_a_run_that_overflows_stops_says_so_and_stays(kind: type[Flow]) -> None:
    start = torch.full((2,), 25.0, dtype=torch.float64)
    flow = kind(ExpSquare(), TOY)
    weights, state = start, flow.init(start)
    for _ in range(5000):
        weights, state = flow.update(weights, state)
        if int(state["stopped"]):
            break
    reason = stop_reason(int(state["stopped"]))
    assert reason is not None
    assert "largest float" in reason
    assert weights.isfinite().all()
    assert float(weights.abs().max()) == pytest.approx(26.2, abs=0.3)
    still, after = flow.update(weights, state)
    assert torch.equal(still, weights)
    assert all(torch.equal(after[key], state[key]) for key in ("dual", "log_time", "stopped"))


def test_a_step_that_cannot_be_made_small_enough_ends_the_run() -> None:
    weights = torch.zeros(2, dtype=torch.float64)
    flow = TimeChangedMirrorFlow(Power(2.0), TOY, max_halvings=2)
    state = {**flow.init(weights), "step": torch.tensor(1e9, dtype=torch.float64)}
    still, after = flow.update(weights, state)
    assert torch.equal(still, weights)
    reason = stop_reason(int(after["stopped"]))
    assert reason is not None
    assert "small enough" in reason


# Angles to the own limit in degrees after 100, 1000 and 10 000 explicit steps from 0 on TOY, by an
# independent implementation whose first step is another.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "angles"),
    [
        ("l2", (4.6, 0.45, 0.05)),
        ("p = 3", (1.3, 0.01, 0.0)),
        ("p = 1.5", (10.6, 2.9, 0.86)),
        ("hyperbolic entropy", (24.0, 7.5, 2.4)),
        ("abs log", (22.5, 7.2, 2.3)),
        ("cosh", (6.4, 0.75, 0.07)),
    ],
)
def test_angles_on_the_toy_data_are_the_known_ones(name: str, angles: tuple[float, ...]) -> None:
    flow = TimeChangedMirrorFlow(POTENTIALS[name], TOY)
    weights = torch.zeros(2, dtype=torch.float64)
    state = flow.init(weights)
    for update in range(10_000):
        weights, state = flow.update(weights, state)
        if update + 1 in (100, 1000, 10_000):
            expected = angles[round(math.log10(update + 1)) - 2]
            found = degrees(weights, own_limit(name))
            assert found == pytest.approx(expected, rel=0.025, abs=0.05)


# Ratios to the optimum on 50 Gaussian examples of 50 features, seed 0, after 1000 and 10 000 steps.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("potential", "ratios"),
    [
        (Power(2.0), (0.985, 0.999)),
        (Power(3.0), (0.944, 0.998)),
        (Power(1.5), (0.983, 0.999)),
        (Power(1.1), (0.835, 0.948)),
        (HyperbolicEntropy(), (0.947, 0.983)),
        (HyperbolicEntropy(1e-3), (0.881, 0.951)),
        (HyperbolicCosine(), (0.866, 0.907)),
    ],
)
def test_ratios_on_gaussian_data_are_the_known_ones(
    potential: Potential, ratios: tuple[float, float]
) -> None:
    rows = gaussian(0, 50)
    flow = TimeChangedMirrorFlow(potential, rows)
    weights = torch.zeros(50, dtype=torch.float64)
    state = flow.init(weights)
    gamma = max_margin_of_constraints(rows, potential.norm).margin
    for updates, expected in zip((1000, 9000), ratios, strict=True):
        for _ in range(updates):
            weights, state = flow.update(weights, state)
        found = float((rows @ weights).min() / potential.norm(weights)) / gamma
        assert found == pytest.approx(expected, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("potential", "ratios"),
    [
        (HyperbolicCosine(), (0.33, 0.82, 0.978)),
        (Power(3.0), (0.57, 0.93, 0.993)),
        (HyperbolicEntropy(), (0.50, 0.86, 0.961)),
    ],
)
def test_implicit_steps_reach_the_known_ratios(
    potential: Potential, ratios: tuple[float, ...]
) -> None:
    rows = gaussian(0, 50)
    flow = ImplicitMirrorFlow(potential, rows)
    weights = torch.zeros(50, dtype=torch.float64)
    state = flow.init(weights)
    gamma = max_margin_of_constraints(rows, potential.norm).margin
    for margin, expected in zip((1.0, 10.0, 100.0), ratios, strict=True):
        while float((rows @ weights).min()) < margin:
            weights, state = flow.update(weights, state)
        found = float((rows @ weights).min() / potential.norm(weights)) / gamma
        assert found == pytest.approx(expected, abs=0.012)
