"""One-pass SGD of a linear classifier on a mixture of sub-populations, one example an update."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from toolkit.compiled import compiled

__all__ = ["draw_examples", "online_sgd"]

Array = NDArray[np.float64]


def draw_examples(
    seed: int, block: int, count: int, dimension: int, shares: Array
) -> tuple[NDArray[np.int64], Array]:
    """Sub-populations ``(count,)`` and standard normal noise ``(count, dimension)`` of a block.

    They depend on the arguments and on nothing else, so that training can go on anywhere.
    """
    generator = np.random.Generator(np.random.SFC64([seed, block]))
    clusters = generator.choice(len(shares), size=count, p=shares)
    return clusters, generator.standard_normal((count, dimension))


@compiled
def online_sgd(
    student: Array,
    clusters: NDArray[np.int64],
    noise: Array,
    centers: Array,
    teachers: Array,
    spreads: Array,
    biases: Array,
    learning_rate: float,
) -> int:
    """An update of ``student`` for each example in turn, in place; how many were made.

    The example is ``x = centers[c] / sqrt(d) + spreads[c] * noise``, its label the sign of
    ``teachers[c] . x / sqrt(d) + biases[c]``; the update is that of half the squared error of
    ``student . x / sqrt(d)``, with step ``learning_rate``. Ends before an update that is not
    finite.

    Args:
        student: ``(dimension,)``, changed in place.
        clusters: Sub-population of each example, ``(examples,)``.
        noise: ``(examples, dimension)``; holds the examples afterwards.
        centers: ``(clusters, dimension)``.
        teachers: ``(clusters, dimension)``.
        spreads: Standard deviations, ``(clusters,)``.
        biases: Of the teachers, ``(clusters,)``.
        learning_rate: Positive.

    Reference:
        Jain et al. 2024, arXiv:2405.18296; in the scaling of :mod:`toolkit.theory.bias_dynamics`.
    """
    root = math.sqrt(len(student))
    for i in range(len(clusters)):
        c, x = clusters[i], noise[i]
        center, teacher, spread = centers[c], teachers[c], spreads[c]
        output, field = 0.0, 0.0
        for k in range(len(student)):
            x[k] = center[k] / root + spread * x[k]
            output += student[k] * x[k]
            field += teacher[k] * x[k]
        label = 1.0 if field / root + biases[c] > 0 else -1.0
        step = learning_rate / root * (label - output / root)
        if not math.isfinite(step):
            return i
        for k in range(len(student)):
            student[k] += step * x[k]
    return len(clusters)
