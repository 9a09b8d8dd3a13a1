"""The equations against their closed forms, against simulated SGD, and against known cases."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from toolkit.theory import TeacherMixture

Array = NDArray[np.float64]

SINGLE = TeacherMixture.opposite(0.8, (0.5, 1.0), 0.0, (0.0, 0.0), 0.9)
DOUBLE = TeacherMixture.opposite(0.26, (1.1, 0.17), 10.0, (-0.12, 0.13), 0.55)
SHIFTED = TeacherMixture.opposite(0.8, (0.5, 2.0), 1.0, (0.3, -0.2), 0.6)
SPURIOUS = TeacherMixture.opposite(0.5, (0.5, 0.5), 4.0, (0.5, 0.5), 1.0)
THREE = TeacherMixture(
    [0.5, 0.3, 0.2],
    [0.5, 1.0, 1.5],
    [[1.0, 0.2, -0.3], [0.2, 0.8, 0.0], [-0.3, 0.0, 0.6]],
    [[0.3, 0.1, 0.0], [0.0, -0.2, 0.1], [0.2, 0.0, 0.1]],
    [[1.0, 0.4, 0.3], [0.4, 1.0, 0.5], [0.3, 0.5, 1.0]],
    [0.2, 0.0, -0.3],
)


def simulate(
    mixture: TeacherMixture, dimension: int, end: float, learning_rate: float, runs: int
) -> tuple[Array, Array, Array]:
    """Shift, teacher and norm at time ``end`` of independent runs of one-pass SGD from zeros."""
    generator = np.random.default_rng(0)
    centers, teachers = mixture.vectors(dimension, generator)
    student = np.zeros((runs, dimension))
    for _ in range(round(end * dimension)):
        cluster = generator.choice(len(mixture.shares), size=runs, p=mixture.shares)
        noise = generator.standard_normal((runs, dimension))
        spread = np.sqrt(mixture.variances[cluster])[:, None]
        inputs = centers[cluster] / np.sqrt(dimension) + spread * noise
        scores = (teachers[cluster] * inputs).sum(1) / np.sqrt(dimension)
        labels = np.sign(scores + mixture.biases[cluster])
        outputs = (student * inputs).sum(1) / np.sqrt(dimension)
        student += learning_rate / np.sqrt(dimension) * (labels - outputs)[:, None] * inputs
    return (
        student @ centers.T / dimension,
        student @ teachers.T / dimension,
        (student**2).sum(1) / dimension,
    )


@pytest.mark.parametrize(("mixture", "rate"), [(SHIFTED, 0.3), (DOUBLE, 0.05), (THREE, 0.2)])
def test_simulated_sgd_follows_the_equations(mixture: TeacherMixture, rate: float) -> None:
    path = mixture.solve([0.0, 3.0], rate)
    shift, teacher, norm = simulate(mixture, 400, 3.0, rate, runs=12)
    np.testing.assert_allclose(shift.mean(0), path.shift[-1], atol=0.03)
    np.testing.assert_allclose(teacher.mean(0), path.teacher[-1], atol=0.03)
    np.testing.assert_allclose(norm.mean(), path.norm[-1], atol=0.03)


def test_runs_spread_around_the_equations_as_one_over_the_root_of_the_dimension() -> None:
    exact = SHIFTED.solve([0.0, 2.0], 0.3)

    def deviation(dimension: int) -> float:
        _, teacher, _ = simulate(SHIFTED, dimension, 2.0, 0.3, runs=48)
        return float(np.sqrt(((teacher - exact.teacher[-1]) ** 2).mean()))

    small, large = deviation(50), deviation(800)
    assert 0.7 < np.log(small / large) / np.log(np.sqrt(800 / 50)) < 1.3


@pytest.mark.parametrize("mixture", [SINGLE, DOUBLE, SHIFTED, SPURIOUS, THREE])
def test_long_training_ends_at_the_fixed_point(mixture: TeacherMixture) -> None:
    path, limit = mixture.solve([0.0, 3000.0], 0.05), mixture.limit(0.05)
    np.testing.assert_allclose(path.shift[-1], limit.shift[-1], atol=1e-6)
    np.testing.assert_allclose(path.teacher[-1], limit.teacher[-1], atol=1e-6)
    np.testing.assert_allclose(path.norm[-1], limit.norm[-1], atol=1e-6)


def test_known_losses_of_a_mixture_without_shift() -> None:
    losses = SINGLE.mse(SINGLE.solve([0.0, 8.0, 15.0, 30.0, 100.0], 0.1))
    known = [[0.5, 0.5], [0.329, 0.297], [0.262, 0.242], [0.212, 0.231], [0.195, 0.256]]
    np.testing.assert_allclose(losses, known, atol=6e-4)


def test_the_lead_changes_once_without_a_shift_and_twice_with_one() -> None:
    assert [round(found.time) for found in SINGLE.crossings(0.1, 300.0)] == [23]
    found = DOUBLE.crossings(0.05, 1000.0)
    assert [crossing.leader for crossing in found] == [0, 1]
    np.testing.assert_allclose([crossing.time for crossing in found], [8.4, 83.4], rtol=0.03)
    swapped = DOUBLE.crossings(0.05, 1000.0, pair=(1, 0))
    assert [crossing.leader for crossing in swapped] == [0, 1]


def test_the_first_and_the_last_leader_are_those_of_the_rule() -> None:
    """Without shift: first the larger variance, last the larger share times its root."""
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    for share, variance in itertools.product(shares, (0.1, 0.25, 0.5, 0.8, 1.5, 3.0)):
        mixture = TeacherMixture.opposite(share, (variance, 1.0), 0.0, (0.0, 0.0), 0.999)
        first = mixture.mse(mixture.solve([0.0, 1.0], 0.001))[-1].argmin()
        last = mixture.mse(mixture.limit(0.001))[-1].argmin()
        assert first == (0 if variance > 1 else 1)
        assert last == (0 if share * np.sqrt(variance) > 1 - share else 1), (share, variance)


def test_a_shift_is_followed_first_and_unlearned_later() -> None:
    times = np.concatenate([[0.0], np.geomspace(0.02, 300, 200)])
    path = SPURIOUS.solve(times, 0.1)
    cosine = path.shift[1:, 0] / np.sqrt(4 * path.norm[1:])
    assert cosine.max() > 2 * cosine[-1]
    assert cosine[0] < cosine.max()
    np.testing.assert_allclose([cosine[0], cosine.max(), cosine[-1]], [0.22, 0.79, 0.29], atol=0.01)


def test_the_norm_diverges_from_the_largest_learning_rate_on() -> None:
    limit = SINGLE.largest_learning_rate
    np.testing.assert_allclose(limit, 2 * (0.8 * 0.5 + 0.2) / (0.8 * 0.25 + 0.2))
    assert SINGLE.solve([0.0, 4000.0], 0.99 * limit).norm[-1] < 1e3
    assert SINGLE.solve([0.0, 4000.0], 1.01 * limit).norm[-1] > 1e3
    with pytest.raises(ValueError, match="learning_rate must be below 3"):
        SINGLE.limit(limit)


def test_timescales_are_those_of_the_linear_equations() -> None:
    found = SHIFTED.timescales(0.3)
    mean, second = 0.8 * 0.5 + 0.2 * 2, 0.8 * 0.25 + 0.2 * 4
    np.testing.assert_allclose(found["shift"], [1 / (0.3 * (1 + mean)), 1 / (0.3 * mean)])
    np.testing.assert_allclose(found["teacher"], [1 / (0.3 * mean)])
    np.testing.assert_allclose(found["norm"], [1 / (0.3 * (2 * mean - 0.3 * second))])


def test_error_without_shift_is_the_angle_to_the_teacher() -> None:
    path = SINGLE.solve([0.0, 8.0, 100.0], 0.1)
    error = SINGLE.error(path)
    assert np.isnan(error[0]).all()  # a student of zeros classifies nothing
    angle = np.arccos(path.teacher[1:] / np.sqrt(path.norm[1:, None])) / np.pi
    np.testing.assert_allclose(error[1:], angle, atol=1e-6)


def test_error_is_that_of_sampled_examples() -> None:
    path = THREE.solve([0.0, 4.0], 0.2)
    generator = np.random.default_rng(1)
    gram = np.block(
        [
            [THREE.teachers, path.teacher[-1][:, None]],
            [path.teacher[-1][None], path.norm[-1:, None]],
        ]
    )
    fields = generator.multivariate_normal(np.zeros(4), gram, size=400_000)
    for cluster in range(3):
        spread = np.sqrt(THREE.variances[cluster])
        offset = THREE.alignments[cluster, cluster] + THREE.biases[cluster]
        labels = offset + spread * fields[:, cluster] > 0
        predictions = path.shift[-1, cluster] + spread * fields[:, 3] > 0
        np.testing.assert_allclose(
            THREE.error(path)[-1, cluster], (labels != predictions).mean(), atol=4e-3
        )


def test_vectors_have_the_products_of_the_mixture() -> None:
    centers, teachers = SHIFTED.vectors(30, np.random.default_rng(0))
    np.testing.assert_allclose(centers @ centers.T / 30, SHIFTED.centers, atol=1e-12)
    np.testing.assert_allclose(teachers @ centers.T / 30, SHIFTED.alignments, atol=1e-12)
    np.testing.assert_allclose(teachers @ teachers.T / 30, SHIFTED.teachers, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.2, (1.0, 1.0), 0.0, (0.0, 0.0), 0.5), "shares must be positive and sum to 1"),
        ((0.5, (1.0, -1.0), 0.0, (0.0, 0.0), 0.5), "variances must be positive"),
        ((0.5, (1.0, 1.0, 1.0), 0.0, (0.0, 0.0), 0.5), r"variances must be finite .* shape \(2,\)"),
        ((0.5, (1.0, 1.0), 0.1, (0.9, 0.0), 0.5), "must be products of some vectors"),
        ((0.5, (1.0, np.nan), 0.0, (0.0, 0.0), 0.5), "variances must be finite"),
    ],
)
def test_impossible_mixtures_are_refused(arguments: tuple, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        TeacherMixture.opposite(*arguments)
