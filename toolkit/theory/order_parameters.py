"""Order parameters of a student of several sub-populations, and which mixtures there can be."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

__all__ = ["Crossing", "OrderParameters", "check_products", "gram"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Crossing:
    """A change of which sub-population has the lower loss.

    Attributes:
        time: Steps over the dimension.
        leader: The sub-population that leads from then on.
    """

    time: float
    leader: int


@dataclass(frozen=True)
class OrderParameters:
    """A solution of the equations at some times.

    Attributes:
        times: Steps over the dimension, shape ``(times,)``.
        shift: ``M``, overlaps of student and centres, ``(times, clusters)``.
        teacher: ``R``, overlaps of student and teachers, ``(times, clusters)``.
        norm: ``Q``, squared norm of the student, ``(times,)``.
    """

    times: Float[np.ndarray, " times"]
    shift: Float[np.ndarray, " times clusters"]
    teacher: Float[np.ndarray, " times clusters"]
    norm: Float[np.ndarray, " times"]


def gram(centers: Array, alignments: Array, teachers: Array) -> Array:
    """Products of centres and teachers with one another, ``(2 clusters, 2 clusters)``."""
    return np.block([[centers, alignments.T], [alignments, teachers]])


def check_products(
    shares: Array, vectors: Mapping[str, Array], products: Mapping[str, Array]
) -> None:
    """Check the numbers that define a mixture.

    Args:
        shares: ``(clusters,)``.
        vectors: ``variances`` and ``biases``.
        products: ``centers``, ``alignments`` and ``teachers``.

    Raises:
        ValueError: If a shape or range is wrong, or no vectors have these products.
    """
    count = len(shares)
    shapes: dict[str, tuple[Array, tuple[int, ...]]]
    shapes = {name: (value, (count,)) for name, value in vectors.items()}
    shapes |= {name: (value, (count, count)) for name, value in products.items()}
    for name, (value, shape) in shapes.items():
        if value.shape != shape or not np.isfinite(value).all():
            raise ValueError(
                f"{name} must be finite numbers of shape {shape}, as {count} shares say, got shape "
                f"{value.shape}. Give one for each sub-population."
            )
    if (shares <= 0).any() or not np.isclose(shares.sum(), 1):
        raise ValueError(
            f"shares must be positive and sum to 1, got {shares}. Leave out what is empty."
        )
    if (vectors["variances"] <= 0).any():
        raise ValueError(f"variances must be positive, got {vectors['variances']}. Raise them.")
    matrix = gram(**products)
    ones = np.allclose(products["teachers"].diagonal(), 1)
    if not ones or not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] < -1e-9:
        raise ValueError(
            "centers, alignments and teachers must be products of some vectors, teachers of length "
            f"1, got {matrix.tolist()}. Lower the products."
        )
