"""Curvature against exact Hessians and known spectra; sharpness against closed forms."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from toolkit.metrics import hessian_products, lanczos_eigenvalues, loss_increase, weight_norms

# torch's own, when it first differentiates forwards.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")


def symmetric(spectrum, seed=0):
    """A matrix with these eigenvalues in directions drawn at random."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.standard_normal((len(spectrum), len(spectrum))))
    return torch.from_numpy(axes * np.asarray(spectrum, float) @ axes.T)


def largest_of(matrix, count=5, **settings):
    like = matrix.new_zeros(len(matrix))
    return lanczos_eigenvalues(lambda rows: rows @ matrix, like, count, **settings)


class Small:
    """A net of 31 parameters on 20 examples, in double precision, and its loss in two ways."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(20, 4, dtype=torch.float64, generator=generator)
        self.targets = torch.arange(20) % 3
        layers = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2, bias=False), nn.Linear(2, 1)
        self.net = nn.Sequential(*layers).double()
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.parameters = list(self.net.parameters())
        self.chunks = [slice(0, 7), slice(7, 8), slice(8, 20)]

    def loss_sum(self, rows):
        return self._loss(self.net(self.inputs[rows]), rows)

    def _loss(self, outputs, rows):
        return (outputs[:, 0].sigmoid() - self.targets[rows]).square().sum()

    def hessian(self):
        names = [name for name, _ in self.net.named_parameters()]
        shapes = [p.shape for p in self.parameters]

        def of_vector(vector):
            parts = torch.split(vector, [shape.numel() for shape in shapes])
            weights = {
                n: part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)
            }
            rows = slice(None)
            return self._loss(functional_call(self.net, weights, (self.inputs,)), rows)

        return torch.func.hessian(of_vector)(
            torch.cat([p.detach().flatten() for p in self.parameters])
        )


@pytest.fixture
def small():
    return Small()


@FORWARD_MODE
def test_products_are_those_of_the_exact_hessian(small):
    exact = small.hessian()
    products = hessian_products(
        small.loss_sum, small.chunks, small.parameters, torch.eye(31, dtype=torch.float64)
    )
    torch.testing.assert_close(products, exact, rtol=1e-10, atol=1e-10)
    assert all(parameter.grad is None for parameter in small.parameters)


@FORWARD_MODE
def test_eigenvalues_of_a_net_are_those_of_its_exact_hessian(small):
    exact = torch.linalg.eigvalsh(small.hessian()).flip(0)
    assert exact[-1] < 0 < exact[4]  # a saddle: the largest are not the largest in size

    def product(vectors):
        return hessian_products(small.loss_sum, small.chunks, small.parameters, vectors)

    found = lanczos_eigenvalues(product, torch.zeros(31, dtype=torch.float64), tolerance=1e-8)
    torch.testing.assert_close(found.eigenvalues, exact[:5], rtol=1e-8, atol=1e-8)


def test_a_loss_that_is_linear_in_some_or_all_parameters_has_no_curvature_there():
    w, v = (torch.tensor([2.0], requires_grad=True) for _ in range(2))
    products = hessian_products(lambda c: c * (w * 3).sum() + v.sum(), [1.0], [w, v], torch.eye(2))
    assert products.tolist() == [[0, 0], [0, 0]]
    products = hessian_products(lambda c: (w**2).sum() + v.sum(), [1.0], [w, v], torch.eye(2))
    assert products.tolist() == [[2, 0], [0, 0]]


@pytest.mark.parametrize(
    "spectrum",
    [
        [9, 5, 4, 3, 2, *np.linspace(-1, 1, 95)],
        [7, 7, 7, 3, 3, 3, *np.linspace(-1, 1, 44)],  # multiplicities inside and across the five
        [2] * 40,  # the space of every start is that start
        [5, 5, 5, 5, 5, 5, 5, 1, 0, -20],  # more often than there are vectors in a block
        [4, 2, 1, 0, 0, 0, 0, 0],
        [-1, -2, -3, -4, -5, -6, -70],
        [3, 2, 1, 0.5, 0.25, 0.125, 0],  # two of seven are left for the second block
        [3, 2, 1, 0.5, 0.25],
        [0] * 12,
    ],
)
def test_known_spectra_are_found_with_their_multiplicities(spectrum):
    found = largest_of(symmetric(spectrum), tolerance=1e-9)
    expected = sorted(spectrum, reverse=True)[:5]
    np.testing.assert_allclose(found.eigenvalues, expected, rtol=1e-9, atol=1e-9)
    assert found.residuals.max() < 1e-6
    assert found.num_products <= len(spectrum) + 5


@pytest.mark.parametrize("spectrum", [[3.0], [3.0, -1.0], [2.0, 2.0, 1.0]])
def test_fewer_dimensions_than_eigenvalues_give_as_many_as_there_are(spectrum):
    found = largest_of(symmetric(spectrum))
    np.testing.assert_allclose(found.eigenvalues, spectrum)


def test_single_precision_finds_them_as_far_as_it_reaches():
    spectrum = [100, 50, 20, 10, 1, *np.linspace(0, 0.9, 295)]
    found = largest_of(symmetric(spectrum).float(), max_products=200)
    assert found.num_products < 205
    np.testing.assert_allclose(found.eigenvalues, spectrum[:5], rtol=1e-4)


def test_too_few_products_say_so_in_their_residuals():
    spectrum = np.linspace(1, 2, 400)
    found = largest_of(symmetric(spectrum), max_products=15)
    assert found.num_products == 20
    distances = np.abs(found.eigenvalues.numpy()[:, None] - spectrum).min(1)
    assert found.residuals.max() > 0.01
    assert (distances <= found.residuals.numpy() + 1e-12).all()


def test_the_start_is_fixed_and_draws_nothing_of_the_global_generator():
    matrix = symmetric(np.linspace(0, 1, 60))
    before = torch.get_rng_state()
    found = [largest_of(matrix, max_products=20) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(found[0].eigenvalues, found[1].eigenvalues)
    other = largest_of(matrix, max_products=20, seed=1)
    assert not torch.equal(found[0].eigenvalues, other.eigenvalues)


def test_a_product_that_is_not_finite_gives_nan():
    found = lanczos_eigenvalues(lambda rows: rows * torch.nan, torch.zeros(9), 3)
    assert found.eigenvalues.isnan().tolist() == [True] * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "num_eigenvalues must be at least 1, got 0."),
        ({"max_products": 4}, "max_products must be at least the 5 eigenvalues wanted, got 4."),
        ({"tolerance": 0.0}, "tolerance must be positive, got 0.0."),
    ],
)
def test_bad_searches_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        largest_of(torch.eye(6), **settings)


def test_the_rise_on_a_quadratic_is_the_closed_form():
    """Of 0.5 wAw + bw it is rho |g| + 0.5 rho^2 gAg / |g|^2, whatever the chunks."""
    matrix, rho = symmetric([4.0, 1.0, -0.5, 3.0]), 0.3
    slope = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    w = torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    gradient = matrix @ w.detach() + slope
    expected = rho * gradient.norm() + 0.5 * rho**2 * (gradient @ matrix @ gradient) / (
        gradient @ gradient
    )
    kept = w.detach().clone()
    for chunks in ([1.0], [0.25, 0.5, 0.25]):
        rise = loss_increase(lambda c: c * (0.5 * w @ matrix @ w + slope @ w), chunks, [w], rho)
        torch.testing.assert_close(rise, expected)
        assert torch.equal(w.detach(), kept)
        assert w.grad is None


def test_at_a_stationary_point_or_without_examples_nothing_rises():
    w = torch.zeros(3, requires_grad=True)
    assert loss_increase(lambda c: (w**2).sum(), [1.0], [w], rho=0.5) == 0
    assert loss_increase(lambda c: (w**2).sum(), [], [w], rho=0.5) == 0


def test_weights_are_put_back_bit_for_bit_after_an_error():
    w = torch.tensor([0.1, 3.0], requires_grad=True)
    kept = w.detach().clone()

    def loss(chunk):
        if not torch.equal(w.detach(), kept):
            raise KeyError("at the perturbed weights")
        return (w**2).sum()

    with pytest.raises(KeyError):
        loss_increase(loss, [1.0], [w], rho=0.7)
    assert torch.equal(w.detach(), kept)


def test_norms_with_and_without_biases_and_norm_layers():
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 1))
    for parameter in net.parameters():
        nn.init.constant_(parameter, -2.0)
    # Weights: 2 of the convolution, 2 of the linear layer. The rest: 2 + 1 biases, 4 of the norm.
    norms = {name: float(norm) for name, norm in weight_norms(dict(net.named_parameters())).items()}
    assert norms == pytest.approx({
        "l1": 22, "l2": 2 * 11**0.5, "l1/no_bias_norm": 8, "l2/no_bias_norm": 4,
    })  # fmt: skip
    assert set(weight_norms({"bias": net[0].bias})) == {"l1", "l2"}
