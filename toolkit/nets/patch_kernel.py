"""Compiled loops of the two-layer CNN: many updates of one net on data that stays in the cache.

``toolkit.nets.two_layer_cnn`` has the same mathematics in torch. Arrays here are padded: filters to
a multiple of 4, dimensions to one of 5, both with zeros, which change no result.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.compiled import compiled

__all__ = ["alignment", "descend", "gradient", "outputs"]

Array = NDArray[np.float64]


def _multiply(weights: Array, patches: Array, products: Array) -> None:
    """``products[j, i] = sum_k weights[j, k] * patches[k, i]`` in tiles of 4 times 5."""
    for j in range(0, weights.shape[0], 4):
        p0, p1, p2, p3 = products[j], products[j + 1], products[j + 2], products[j + 3]
        for i in range(patches.shape[1]):
            p0[i], p1[i], p2[i], p3[i] = 0.0, 0.0, 0.0, 0.0
        for k in range(0, weights.shape[1], 5):
            a0, a1, a2, a3, a4 = weights[j, k : k + 5]
            b0, b1, b2, b3, b4 = weights[j + 1, k : k + 5]
            c0, c1, c2, c3, c4 = weights[j + 2, k : k + 5]
            d0, d1, d2, d3, d4 = weights[j + 3, k : k + 5]
            x0, x1, x2, x3, x4 = (
                patches[k],
                patches[k + 1],
                patches[k + 2],
                patches[k + 3],
                patches[k + 4],
            )
            for i in range(patches.shape[1]):
                u0, u1, u2, u3, u4 = x0[i], x1[i], x2[i], x3[i], x4[i]
                p0[i] += a0 * u0 + a1 * u1 + a2 * u2 + a3 * u3 + a4 * u4
                p1[i] += b0 * u0 + b1 * u1 + b2 * u2 + b3 * u3 + b4 * u4
                p2[i] += c0 * u0 + c1 * u1 + c2 * u2 + c3 * u3 + c4 * u4
                p3[i] += d0 * u0 + d1 * u1 + d2 * u2 + d3 * u3 + d4 * u4


def _accumulate(products: Array, patches: Array, result: Array) -> None:
    """``result[j, k] += sum_i products[j, i] * patches[k, i]`` in tiles of 4 times 5."""
    for j in range(0, result.shape[0], 4):
        p0, p1, p2, p3 = products[j], products[j + 1], products[j + 2], products[j + 3]
        for k in range(0, result.shape[1], 5):
            x0, x1, x2, x3, x4 = (
                patches[k],
                patches[k + 1],
                patches[k + 2],
                patches[k + 3],
                patches[k + 4],
            )
            a0, a1, a2, a3, a4 = 0.0, 0.0, 0.0, 0.0, 0.0
            b0, b1, b2, b3, b4 = 0.0, 0.0, 0.0, 0.0, 0.0
            c0, c1, c2, c3, c4 = 0.0, 0.0, 0.0, 0.0, 0.0
            d0, d1, d2, d3, d4 = 0.0, 0.0, 0.0, 0.0, 0.0
            for i in range(patches.shape[1]):
                u0, u1, u2, u3, u4 = x0[i], x1[i], x2[i], x3[i], x4[i]
                a0, a1, a2 = a0 + p0[i] * u0, a1 + p0[i] * u1, a2 + p0[i] * u2
                a3, a4 = a3 + p0[i] * u3, a4 + p0[i] * u4
                b0, b1, b2 = b0 + p1[i] * u0, b1 + p1[i] * u1, b2 + p1[i] * u2
                b3, b4 = b3 + p1[i] * u3, b4 + p1[i] * u4
                c0, c1, c2 = c0 + p2[i] * u0, c1 + p2[i] * u1, c2 + p2[i] * u2
                c3, c4 = c3 + p2[i] * u3, c4 + p2[i] * u4
                d0, d1, d2 = d0 + p3[i] * u0, d1 + p3[i] * u1, d2 + p3[i] * u2
                d3, d4 = d3 + p3[i] * u3, d4 + p3[i] * u4
            sums = ((a0, a1, a2, a3, a4), (b0, b1, b2, b3, b4),
                    (c0, c1, c2, c3, c4), (d0, d1, d2, d3, d4))  # fmt: skip
            for row in range(4):
                for column in range(5):
                    result[j + row, k + column] += sums[row][column]


multiply = compiled(_multiply)
accumulate = compiled(_accumulate)


def _shared_products(weights: Array, shared: Array, products: Array, cubes: Array) -> None:
    """Inner products of filters and shared patches, and their cubes summed over filters."""
    for s in range(shared.shape[0]):
        cubes[s] = 0.0
        for j in range(weights.shape[0]):
            total = 0.0
            for k in range(weights.shape[1]):
                total += weights[j, k] * shared[s, k]
            products[s, j] = total
            cubes[s] += total * total * total


shared_products = compiled(_shared_products)


def _block_outputs(weights: Array, block: Array, products: Array, result: Array) -> None:
    """The part of the outputs that own patches give; leaves the inner products in ``products``."""
    result[:] = 0.0
    for slot in range(block.shape[0]):
        multiply(weights, block[slot], products[slot])
        for j in range(weights.shape[0]):
            row = products[slot, j]
            for i in range(row.shape[0]):
                result[i] += row[i] * row[i] * row[i]


block_outputs = compiled(_block_outputs)


def _outputs(weights: Array, data: Any) -> Array:
    """``f`` of every example, those that pad included, ``(examples,)``."""
    num_blocks, num_slots, _, size = data.blocks.shape
    inner = np.empty((data.shared.shape[0], weights.shape[0]))
    cubes = np.empty(data.shared.shape[0])
    products = np.empty((num_slots, weights.shape[0], size))
    result = np.empty(num_blocks * size)
    shared_products(weights, data.shared, inner, cubes)
    for b in range(num_blocks):
        part = result[b * size : (b + 1) * size]
        block_outputs(weights, data.blocks[b], products, part)
        for i in range(size):
            for s in range(cubes.shape[0]):
                part[i] += data.counts[b * size + i, s] * cubes[s]
    return result


outputs = compiled(_outputs)


def _weigh(data: Any, b: int, shares: Array, cubes: Array, factors: Array, totals: Array) -> None:
    """Turn the outputs of a block's own patches into what each example weighs in the gradient.

    Args:
        data: The patches.
        b: Number of the block.
        shares: As in :func:`gradient`.
        cubes: Of the shared patches.
        factors: The outputs; afterwards ``-3 shares s y``.
        totals: To which the factors are added by shared patch.
    """
    size = factors.shape[0]
    for i in range(size):
        n = b * size + i
        output = factors[i]
        for s in range(cubes.shape[0]):
            output += data.counts[n, s] * cubes[s]
        y = data.targets[n]
        factors[i] = -3.0 * shares[n] * y / (1.0 + math.exp(y * output))
        for s in range(cubes.shape[0]):
            totals[s] += data.counts[n, s] * factors[i]


weigh = compiled(_weigh)


def _add_block(products: Array, block: Array, factors: Array, result: Array) -> None:
    """Add a block's part of the gradient; spoils ``products``."""
    for slot in range(block.shape[0]):
        for j in range(products.shape[1]):
            row = products[slot, j]
            for i in range(row.shape[0]):
                row[i] = factors[i] * row[i] * row[i]
        accumulate(products[slot], block[slot], result)


add_block = compiled(_add_block)


def _squared_norm(rows: Array) -> float:
    total = 0.0
    for j in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            total += rows[j, k] * rows[j, k]
    return total


squared_norm = compiled(_squared_norm)


def _gradient(weights: Array, data: Any, shares: Array, result: Array) -> float:
    """The gradient of the mean logistic loss into ``result``; returns its squared norm.

    Args:
        weights: ``(filters, dimension)``.
        data: A :class:`toolkit.nets.two_layer_cnn.PatchTable`.
        shares: What each example counts for in the mean; 0 for those that pad.
        result: Like ``weights``.
    """
    num_blocks, num_slots, _, size = data.blocks.shape
    num_filters, num_shared = weights.shape[0], data.shared.shape[0]
    inner, cubes = np.empty((num_shared, num_filters)), np.empty(num_shared)
    products = np.empty((num_slots, num_filters, size))
    factors, totals = np.empty(size), np.zeros(num_shared)
    shared_products(weights, data.shared, inner, cubes)
    result[:] = 0.0
    for b in range(num_blocks):
        block_outputs(weights, data.blocks[b], products, factors)
        weigh(data, b, shares, cubes, factors, totals)
        add_block(products, data.blocks[b], factors, result)
    for s in range(num_shared):
        for j in range(num_filters):
            factor = totals[s] * inner[s, j] * inner[s, j]
            for k in range(weights.shape[1]):
                result[j, k] += factor * data.shared[s, k]
    return squared_norm(result)  # type: ignore[no-any-return] # a float


gradient = compiled(_gradient)


def _alignment(weights: Array, direction: Array, num_filters: int) -> float:
    """The largest inner product of a filter and a direction."""
    largest = -math.inf
    for j in range(num_filters):
        total = 0.0
        for k in range(weights.shape[1]):
            total += weights[j, k] * direction[k]
        largest = max(largest, total)
    return largest


alignment = compiled(_alignment)


def _descend(
    weights: Array,
    data: Any,
    shares: Array,
    settings: Any,
    directions: Array,
    span: tuple[int, int],
    reached: Array,
) -> int:
    """Make full-batch updates of gradient descent or SAM in place; the number that were made.

    It is below what was asked for if a gradient was not finite; the weights are those before it.

    Args:
        weights: ``(filters, dimension)``.
        data: A :class:`toolkit.nets.two_layer_cnn.PatchTable`.
        shares: As in :func:`gradient`.
        settings: A :class:`toolkit.nets.two_layer_cnn.Descent`.
        directions: ``(2, dimension)``, the fast and the slow feature.
        span: Updates done before, and to do now.
        reached: ``[update, fast, slow]``: the number of updates after which the alignment with the
            fast feature was at least 1/2 for the first time, and both alignments then;
            ``reached[0] < 0`` until then.
    """
    slope, point = np.empty_like(weights), np.empty_like(weights)
    for made in range(span[1]):
        squared = gradient(weights, data, shares, slope)
        if settings.rho >= 0.0 and squared > 0.0:
            point[:] = weights + settings.rho / math.sqrt(squared) * slope
            squared = gradient(point, data, shares, slope)
        if not math.isfinite(squared):
            return made
        weights -= settings.lr * slope
        if reached[0] < 0.0:
            fast = alignment(weights, directions[0], settings.num_filters)
            if fast >= 0.5:
                reached[0] = span[0] + made + 1
                reached[1] = fast
                reached[2] = alignment(weights, directions[1], settings.num_filters)
    return span[1]


descend = compiled(_descend)
