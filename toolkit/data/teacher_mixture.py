"""A mixture of two sub-populations, each with its own teacher: vectors with exact overlaps."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from toolkit.data.resident import ResidentData
from toolkit.theory import TeacherMixture

__all__ = ["GaussianGroups"]


class GaussianGroups(ResidentData):
    """Two Gaussian sub-populations around ``+v`` and ``-v`` with a teacher each.

    The batch, float64, each with a leading dimension of 1:

    | key | shape | |
    | --- | --- | --- |
    | ``centers``, ``teachers`` | ``(2, dimension)`` | drawn with the overlaps asked for |
    | ``shares``, ``variances``, ``biases`` | ``(2,)`` | of the sub-populations |
    | ``overlaps`` | ``(3, 2, 2)`` | of centres, teachers with centres, teachers; over d |

    Examples are drawn while a model trains, each one once.

    Args:
        dimension: ``d``, at least 4.
        share: Of the first sub-population, between 0 and 1.
        variances: Of the two.
        shift: ``v . v / d``, at least 0.
        alignments: The two teachers' products with ``v``, over ``d``.
        overlap: The product of the two teachers, over ``d``.
        biases: Of the two teachers.
        seed: Of the vectors.

    Raises:
        ValueError: :meth:`check` raises it if no vectors have these overlaps.

    Reference:
        Jain et al. 2024, arXiv:2405.18296; see :class:`toolkit.theory.TeacherMixture`.
    """

    group_names = ("plus", "minus")

    def __init__(
        self,
        *,
        dimension: int = 1000,
        share: float = 0.5,
        variances: Sequence[float] = (1.0, 1.0),
        shift: float = 0.0,
        alignments: Sequence[float] = (0.0, 0.0),
        overlap: float = 1.0,
        biases: Sequence[float] = (0.0, 0.0),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.dimension = dimension
        self.mixture_arguments = (share, variances, shift, alignments, overlap, biases)
        self.seed = seed

    def read(self) -> dict[str, Tensor]:
        """Draw the vectors."""
        mixture = TeacherMixture.opposite(*self.mixture_arguments)
        centers, teachers = mixture.vectors(self.dimension, np.random.default_rng(self.seed))
        arrays = {
            "centers": centers,
            "teachers": teachers,
            "shares": mixture.shares,
            "variances": mixture.variances,
            "biases": mixture.biases,
            "overlaps": np.stack([mixture.centers, mixture.alignments, mixture.teachers]),
        }
        return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
