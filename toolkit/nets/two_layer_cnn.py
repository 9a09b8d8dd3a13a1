"""The two-layer CNN on patches: its output and gradient by formula, in torch and compiled."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "Descent",
    "PatchTable",
    "as_padded",
    "descend_patches",
    "patch_gradient",
    "patch_outputs",
    "patch_table",
    "stall_radius",
    "table_gradient",
    "table_outputs",
]

Array = NDArray[np.float64]

_FILTERS, _DIMENSIONS = 4, 5
"""The compiled loops work on tiles of so many filters and dimensions."""

_BLOCK = 504
"""Most examples in a block: with 40 filters its products (160 KB) stay in a core's L2 cache."""


def patch_outputs(
    weights: Float[Tensor, "*members filters dim"],
    inputs: Float[Tensor, "*members examples patches dim"],
) -> Float[Tensor, "*members examples"]:
    """``f(x) = sum_j sum_p (w_j . x_p) ** 3``: cubic activation, second layer fixed to ones.

    Reference:
        The two-layer CNN of Nguyen et al. 2024, arXiv:2404.17768.

    Example:
        >>> patch_outputs(torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 5.0], [-1.0, 0.0]]]))
        tensor([7.])
    """
    products = torch.einsum("...jk,...ipk->...ijp", weights, inputs)
    return products.pow(3).sum((-2, -1))


def patch_gradient(
    weights: Float[Tensor, "*members filters dim"],
    inputs: Float[Tensor, "*members examples patches dim"],
    targets: Float[Tensor, "*members examples"],
    shares: Float[Tensor, "*members examples"],
) -> Float[Tensor, "*members filters dim"]:
    """Gradient of ``sum_i shares_i log(1 + exp(-y_i f(x_i)))`` by formula.

    ``grad_{w_j} = -3 sum_i shares_i s_i y_i sum_p (w_j . x_ip)^2 x_ip`` with
    ``s_i = 1 / (1 + exp(y_i f_i))``.

    Args:
        weights: The filters.
        inputs: Patches.
        targets: -1 or +1.
        shares: What each example counts for, ``1 / examples`` for the mean.
    """
    products = torch.einsum("...jk,...ipk->...ijp", weights, inputs)
    outputs = products.pow(3).sum((-2, -1))
    factors = -3 * shares * targets * torch.sigmoid(-targets * outputs)
    return torch.einsum("...i,...ijp,...ipk->...jk", factors, products.square(), inputs)


class PatchTable(NamedTuple):
    """Patches of a data set, those that are equal up to sign stored once.

    The activation is odd, so a patch and its opposite share their inner products: in patch models
    whole columns of patches are ``+-strength * feature``, and only the noise is an example's own.

    Attributes:
        blocks: Own patches, ``(blocks, slots, padded dimension, examples of a block)``.
        shared: Patches that several examples have, ``(shared, padded dimension)``.
        counts: How often an example has each of them, opposites counted -1, ``(examples, shared)``.
        targets: -1 or +1; 0 for examples that pad the last block.
    """

    blocks: Array
    shared: Array
    counts: Array
    targets: Array


class Descent(NamedTuple):
    """How to descend.

    Attributes:
        lr: Learning rate.
        rho: Radius of SAM; below 0 for plain gradient descent.
        num_filters: Filters, those that pad left out.
    """

    lr: float
    rho: float
    num_filters: int


def patch_table(
    inputs: Float[Tensor, "examples patches dim"], targets: Float[Tensor, " examples"]
) -> PatchTable:
    """Sort the patches of a data set into shared and own ones; patches of zeros are dropped."""
    num_examples, per_example, dim = inputs.shape
    flat = inputs.numpy().reshape(-1, dim)
    first = (flat != 0).argmax(1)
    signs = np.sign(flat[np.arange(len(flat)), first])  # 0 for a patch of zeros
    upright = flat * np.where(signs < 0, -1.0, 1.0)[:, None] + 0.0  # no negative zeros
    ids: dict[bytes, int] = {}  # 20 times faster than numpy.unique over rows
    kind = np.array([ids.setdefault(row.tobytes(), len(ids)) for row in upright])
    kinds = np.frombuffer(b"".join(ids), np.float64).reshape(-1, dim)
    many = (np.bincount(kind) > 1) & (kinds != 0).any(1)
    kind = kind.reshape(num_examples, per_example)
    signs = signs.reshape(num_examples, per_example)
    length, size = _padded_examples(num_examples)
    counts = np.zeros((length, int(many.sum())))
    rows, columns = np.nonzero(many[kind])
    np.add.at(counts, (rows, (np.cumsum(many) - 1)[kind[rows, columns]]), signs[rows, columns])
    is_own = ~many[kind] & (signs != 0)
    rows, columns = np.nonzero(is_own)
    own = np.zeros((length, int(is_own.sum(1).max()), _padded_dim(dim)))
    own[rows, (is_own.cumsum(1) - 1)[rows, columns], :dim] = inputs.numpy()[rows, columns]
    blocks = own.reshape(length // size, size, *own.shape[1:]).transpose(0, 2, 3, 1)
    signed = np.zeros(length)
    signed[:num_examples] = targets.numpy()
    return PatchTable(np.ascontiguousarray(blocks), as_padded(kinds[many], 1), counts, signed)


def as_padded(rows: Array, multiple: int = _FILTERS) -> Array:
    """``rows`` ``(rows, dim)`` with zeros up to multiples of ``multiple`` rows and 5 columns."""
    count = -(-rows.shape[0] // multiple) * multiple
    padded = np.zeros((count, _padded_dim(rows.shape[1])))
    padded[: rows.shape[0], : rows.shape[1]] = rows
    return padded


def table_outputs(weights: Array, table: PatchTable) -> Array:
    """Outputs ``(examples,)``, zeros that pad included, of filters ``(filters, dim)``."""
    # Compiling, or loading what was compiled, takes a second, which other nets need not pay.
    from toolkit.nets import patch_kernel

    result: Array = patch_kernel.outputs(as_padded(weights), table)
    return result


def table_gradient(weights: Array, table: PatchTable, shares: Array) -> Array:
    """Gradient ``(filters, dim)``; ``shares`` is as long as the table's targets."""
    from toolkit.nets import patch_kernel

    padded = as_padded(weights)
    result = np.empty_like(padded)
    patch_kernel.gradient(padded, table, shares, result)
    return result[: weights.shape[0], : weights.shape[1]]


def descend_patches(
    weights: Array,
    table: PatchTable,
    shares: Array,
    settings: Descent,
    features: Array,
    span: tuple[int, int],
    reached: Array,
) -> int:
    """Make exact full-batch updates of gradient descent or SAM, in place.

    SAM: ``E = rho * g / |g|`` with ``g`` the gradient at ``W`` and one norm over all filters, then
    ``W <- W - lr * (gradient at W + E)``. With ``rho = 0`` both gradients are computed, and the
    weights are those of gradient descent, bit for bit.

    Args:
        weights: ``(filters, dim)``.
        table: The training data.
        shares: What each example counts for in the mean; 0 for those that pad.
        settings: Learning rate and radius.
        features: ``(2, dim)``, the fast and the slow feature.
        span: Updates done before, and to do now.
        reached: ``[update, fast, slow]``: the number of updates after which the largest inner
            product of a filter and the fast feature is at least 1/2 for the first time, and that
            of both features then; ``reached[0] < 0`` until then. Kept up to date.

    Returns:
        The number of updates made: fewer than asked for if a gradient was not finite; the weights
        are those before it.
    """
    from toolkit.nets import patch_kernel

    padded = as_padded(weights)
    directions = as_padded(features, 1)
    made: int = patch_kernel.descend(padded, table, shares, settings, directions, span, reached)
    weights[:] = padded[: weights.shape[0], : weights.shape[1]]
    return made


def stall_radius(
    fast: Float[Tensor, "*members filters"],
    slow: Float[Tensor, "*members filters"],
    strengths: tuple[float, float],
    presence: float,
) -> Float[Tensor, "*members"]:
    """Radius at which SAM stalls: its perturbation takes the largest fast alignment to 0.

    With ``c_e = 1.5 presence strength_e^3`` and ``c_d = 1.5 strength_d^3`` the early gradient of
    filter ``j`` is ``(c_e a_j^2, c_d b_j^2)`` along the features; ``S`` is its norm over all
    filters, and the radius is ``S / (c_e max_j a_j)``. At the initial weights it is an upper bound,
    since it falls toward ``max_j a_j`` while one filter takes over.

    Args:
        fast: Inner products ``a_j`` of the filters and the fast feature.
        slow: Inner products ``b_j`` of the filters and the slow feature.
        strengths: Of the fast and of the slow feature.
        presence: Share of the examples that have the fast feature.

    Example:
        >>> one = torch.tensor([0.04], dtype=torch.float64)
        >>> round(stall_radius(one, 0 * one, (1.0, 0.7), 0.9).item(), 6)
        0.04
    """
    along_fast = 1.5 * presence * strengths[0] ** 3
    along_slow = 1.5 * strengths[1] ** 3
    squares = (along_fast * fast.square()).square() + (along_slow * slow.square()).square()
    return squares.sum(-1).sqrt() / (along_fast * fast.amax(-1))


def _padded_examples(num_examples: int) -> tuple[int, int]:
    """Examples after padding, and those of a block."""
    num_blocks = max(1, math.ceil(num_examples / _BLOCK))
    size = math.ceil(num_examples / num_blocks / 8) * 8
    size += 8 * (size % 128 == 0)  # rows a power of two apart would share a few lines of the cache
    return num_blocks * size, size


def _padded_dim(dim: int) -> int:
    return -(-dim // _DIMENSIONS) * _DIMENSIONS
