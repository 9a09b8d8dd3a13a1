"""What the loss is like around the weights: Hessian eigenvalues, sharpness; and weight norms."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from toolkit.distributed import sum_across_ranks
from toolkit.metrics.margins import parameter_norm

__all__ = [
    "Spectrum",
    "hessian_products",
    "lanczos_eigenvalues",
    "loss_increase",
    "weight_norms",
]

LossSum = Callable[[Any], Tensor]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Largest eigenvalues of a symmetric matrix, and how far they are from being ones.

    Attributes:
        eigenvalues: Algebraically largest first, with their multiplicities, on the CPU.
        residuals: ``||H y - eigenvalue y||`` of the unit vector ``y`` found for each: some
            eigenvalue of the matrix is within it.
        num_products: Products with the matrix that were taken.
    """

    eigenvalues: Float64[Tensor, " wanted"]
    residuals: Float64[Tensor, " wanted"]
    num_products: int


def hessian_products(
    loss_sum: LossSum,
    chunks: Iterable[Any],
    parameters: Sequence[Tensor],
    vectors: Float[Tensor, "vectors size"],
) -> Float[Tensor, "vectors size"]:
    """Hessian of a loss, summed over chunks of examples and over ranks, times each vector.

    The loss must be twice differentiable by autograd. Each chunk is differentiated on its own, so
    memory is that of the largest one; products are added up in double precision. Nothing is left
    in ``grad``.

    Args:
        loss_sum: Takes a chunk, returns the sum of its examples' losses.
        chunks: This rank's, in any number.
        parameters: That require gradients; ``size`` elements altogether, in this order.
        vectors: The same on every rank.

    Example:
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> hessian_products(lambda c: c * w[0] ** 2 * w[1], [1.0, 2.0], [w], torch.eye(2))
        tensor([[12.,  6.],
                [ 6.,  0.]])
    """
    total = torch.zeros_like(vectors, dtype=_exact(vectors))
    directions = [_shaped(vector, parameters) for vector in vectors]
    for chunk in chunks:
        first = torch.autograd.grad(
            loss_sum(chunk), parameters, create_graph=True, materialize_grads=True
        )
        curved = [i for i, gradient in enumerate(first) if gradient.requires_grad]
        for row, direction in zip(total, directions, strict=True) if curved else ():
            product = torch.autograd.grad(
                [first[i] for i in curved],
                parameters,
                [direction[i] for i in curved],
                retain_graph=True,
                materialize_grads=True,
            )
            row += torch.cat([part.flatten() for part in product])
    return sum_across_ranks(total).to(vectors.dtype)


def lanczos_eigenvalues(
    product: Callable[[Tensor], Tensor],
    like: Float[Tensor, " size"],
    num_eigenvalues: int = 5,
    *,
    max_products: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Spectrum:
    """Largest eigenvalues of a symmetric matrix by block Lanczos with full re-orthogonalisation.

    Blocks of as many vectors as eigenvalues are wanted find each with its multiplicity, which
    blocks of one cannot. Every block is made orthogonal to all earlier ones, twice; they are kept,
    up to ``max_products`` vectors. It ends where all residuals are below ``tolerance`` times their
    eigenvalue (or what rounding allows), where the vectors span all that the matrix makes of
    them, or at ``max_products``. The start is drawn on the CPU by a generator of its own. All is
    NaN where a product is not finite.

    Args:
        product: Takes ``(vectors, size)``, returns the matrix times each row.
        like: Of the vectors' size, dtype and device; its values are not read.
        num_eigenvalues: How many, at least 1; there are at most ``size``.
        max_products: At least ``num_eigenvalues``; as many more are spent on the residuals.
        tolerance: Relative, positive.
        seed: Of the start.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> matrix = torch.diag(torch.tensor([3.0, 3.0, 1.0, 0.5, -7.0]))
        >>> found = lanczos_eigenvalues(lambda rows: rows @ matrix, torch.zeros(5), 3)
        >>> [round(value, 3) for value in found.eigenvalues.tolist()]
        [3.0, 3.0, 1.0]

    Reference:
        Golub and Underwood 1977, The block Lanczos method for computing eigenvalues, in
        Mathematical Software III.
    """
    _check_search(num_eigenvalues, max_products, tolerance)
    wanted = min(num_eigenvalues, len(like))
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(wanted, len(like), generator=generator, dtype=torch.float64).to(like)
    space = _KrylovSpace(like, limit=min(max_products, len(like)))
    block = space.new_directions(start, negligible=0.0)
    while True:
        images = product(block)
        if not bool(images.isfinite().all()):
            undefined = torch.full((wanted,), torch.nan, dtype=torch.float64)
            return Spectrum(undefined, undefined, space.count + len(block))
        rest = space.add(block, images)
        values, mixes = space.ritz(wanted)
        left = (mixes[-len(block) :].T.to(rest) @ rest).norm(dim=1).double().cpu()
        enough = (tolerance * values.abs()).clamp_min(50 * space.rounding)
        block = space.new_directions(rest, negligible=100 * space.rounding)
        if bool((left <= enough).all()) or not len(block):
            break
    vectors = mixes.T.to(like) @ space.basis
    misses = product(vectors) - values.to(like)[:, None] * vectors
    return Spectrum(values, misses.norm(dim=1).double().cpu(), space.count + wanted)


class _KrylovSpace:
    """Orthonormal vectors, and what the matrix is on the space that they span."""

    def __init__(self, like: Tensor, limit: int) -> None:
        self.count = 0
        self._limit = limit
        self._rows = like.new_zeros(limit, len(like))
        self._matrix = torch.zeros(limit, limit, dtype=torch.float64)
        self._largest = 0.0

    @property
    def basis(self) -> Tensor:
        return self._rows[: self.count]

    @property
    def rounding(self) -> float:
        """What of a product may be no more than rounding."""
        return torch.finfo(self._rows.dtype).eps * self._largest

    def add(self, block: Tensor, images: Tensor) -> Tensor:
        """Take a block in, given its products; returns what of these lies outside the space."""
        new = slice(self.count, self.count + len(block))
        self._rows[new] = block
        self.count = new.stop
        self._largest = max(self._largest, float(images.norm(dim=1).max()))
        for _ in range(2):
            parts = self.basis @ images.T
            self._matrix[: self.count, new] += parts.double().cpu()
            images = images - parts.T @ self.basis
        self._matrix[new, : self.count] = self._matrix[: self.count, new].T.clone()
        return images

    def ritz(self, wanted: int) -> tuple[Tensor, Tensor]:
        """The largest eigenvalues on the space, descending; their vectors in it as columns."""
        values, mixes = torch.linalg.eigh(self._matrix[: self.count, : self.count])
        return values.flip(0)[:wanted], mixes.flip(1)[:, :wanted]

    def new_directions(self, rows: Tensor, negligible: float) -> Tensor:
        """Rows made orthogonal to the space and to each other, as many as there is room for."""
        kept = rows.new_zeros(0, rows.shape[1])
        for row in rows:
            length = float(self._outside(row, kept).norm())
            if length > negligible and self.count + len(kept) < self._limit:
                again = self._outside(self._outside(row, kept) / length, kept)
                kept = torch.cat([kept, (again / again.norm())[None]])
        return kept

    def _outside(self, row: Tensor, others: Tensor) -> Tensor:
        for span in (self.basis, others):
            row = row - (span @ row) @ span
        return row


def loss_increase(
    loss_sum: LossSum, chunks: Sequence[Any], parameters: Sequence[Tensor], rho: float
) -> Float64[Tensor, ""]:
    """By how much the examples' summed loss rises at ``w + rho g / ||g||``, ``g`` its gradient.

    Loss and gradient are sums over the chunks of all ranks, so these examples share one step. The
    mean of it over sets of m examples, divided by m, is the m-sharpness. The weights are put back
    from a copy, bit for bit, whatever happens; nothing is left in ``grad``.

    Args:
        loss_sum: Takes a chunk, returns the sum of its examples' losses.
        chunks: This rank's, perhaps none.
        parameters: That require gradients.
        rho: Length of the step, at least 0.

    Example:
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> loss_increase(lambda c: c * (w @ w) / 2, [1.0], [w], rho=1.0)
        tensor(5.5000, dtype=torch.float64)

    Reference:
        Foret et al. 2021, arXiv:2010.01412, section 4.2; Andriushchenko and Flammarion 2022,
        arXiv:2206.06232 (m-sharpness).
    """
    exact = _exact(parameters[0])
    before = torch.zeros((), dtype=exact, device=parameters[0].device)
    total = before.new_zeros(sum(parameter.numel() for parameter in parameters))
    for chunk in chunks:
        loss = loss_sum(chunk)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        total += torch.cat([gradient.flatten() for gradient in gradients])
        before += loss.detach()
    total = sum_across_ranks(total)
    step = _shaped(total * (rho / total.norm().clamp_min(torch.finfo(exact).tiny)), parameters)
    after = torch.zeros_like(before)
    copies = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        try:
            for parameter, move in zip(parameters, step, strict=True):
                parameter += move
            for chunk in chunks:
                after += loss_sum(chunk)
        finally:
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.copy_(copy)
    return sum_across_ranks(after - before).double().cpu()


def weight_norms(named: Mapping[str, Tensor]) -> dict[str, Float64[Tensor, ""]]:
    """L1 and L2 norm of all parameters as one vector, and without biases and norm layers.

    Those left out have fewer than two axes: biases, and scales of normalisation layers.

    Args:
        named: The parameters by name.

    Returns:
        ``l1``, ``l2``, and, where any is left, ``l1/no_bias_norm`` and ``l2/no_bias_norm``.

    Example:
        >>> weight, bias = torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])
        >>> {k: v.item() for k, v in weight_norms({"weight": weight, "bias": bias}).items()}
        {'l1': 19.0, 'l2': 13.0, 'l1/no_bias_norm': 7.0, 'l2/no_bias_norm': 5.0}
    """
    every = list(named.values())
    kept = [parameter for parameter in every if parameter.ndim >= 2]
    norms = {}
    for detail, chosen in (("", every), ("/no_bias_norm", kept)):
        if chosen:
            norms[f"l1{detail}"] = parameter_norm(chosen, "l1")
            norms[f"l2{detail}"] = parameter_norm(chosen, "l2")
    return norms


def _shaped(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """A vector cut into pieces of the parameters' shapes and dtypes."""
    pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [
        piece.view(parameter.shape).to(parameter)
        for piece, parameter in zip(pieces, parameters, strict=True)
    ]


def _exact(like: Tensor) -> torch.dtype:
    # Apple's GPUs have no double precision.
    return torch.float32 if like.device.type == "mps" else torch.float64


def _check_search(num_eigenvalues: int, max_products: int, tolerance: float) -> None:
    if num_eigenvalues < 1:
        raise ValueError(f"num_eigenvalues must be at least 1, got {num_eigenvalues}.")
    if max_products < num_eigenvalues:
        raise ValueError(
            f"max_products must be at least the {num_eigenvalues} eigenvalues wanted, got "
            f"{max_products}. 100 is usual."
        )
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}. 0.001 is usual.")
