"""Patches that carry a fast feature, a slow feature or noise: the data of the two-layer CNN."""

import math

import torch
from torch import Tensor

from toolkit.data.resident import ResidentData
from toolkit.data.sampler import SIGNALS, epoch_generator

__all__ = ["PatchSignals"]


class PatchSignals(ResidentData):
    """Examples of ``num_patches`` patches, two of which carry the label.

    For an example with label ``y`` in {-1, +1}: the fast patch is ``fast_strength * y * v_fast``
    with probability ``fast_presence``, else zeros; the slow patch is ``slow_strength * y *
    v_slow``, in every example; the others are Gaussian noise without a label. ``v_fast`` and
    ``v_slow`` are orthonormal, drawn once for training and test data.

    The batch, each tensor float64 unless said, with a leading dimension of 1:

    | key | shape | |
    | --- | --- | --- |
    | ``inputs``, ``test_inputs`` | ``(examples, patches, dim)`` | |
    | ``targets``, ``test_targets`` | ``(examples,)`` | -1 or +1 |
    | ``groups``, ``test_groups`` | ``(examples,)``, int64 | 1 without the fast feature (masked) |
    | ``indices`` | ``(examples,)``, int64 | |
    | ``features`` | ``(2, dim)`` | fast, slow |
    | ``strengths`` | ``(3,)`` | fast, slow strength, presence of the fast feature |

    Args:
        num_examples: Training examples, at least 1.
        num_test: Test examples, at least 1.
        num_patches: At least 2.
        dim: Dimension of a patch, at least 2.
        fast_strength: Above 0.
        slow_strength: Above 0.
        fast_presence: Above 0, at most 1.
        noise_std: Standard deviation per coordinate of a noise patch, at least 0.
        permute: Put the patches of each example in a random order; the model sums over them.
        seed: Of everything that is drawn.

    Raises:
        ValueError: If a number is out of its range.

    Reference:
        After Nguyen et al. 2024, arXiv:2404.17768, Figs. 2 and 3, where ``fast_strength`` is 1 and
        ``fast_presence`` 0.9. What stands in place of an absent fast feature, and the noise, are
        not known from there; zeros and the standard deviation 1/8 are choices made here.
    """

    def __init__(  # noqa: PLR0913 - the numbers that define the data
        self,
        *,
        num_examples: int = 500,
        num_test: int = 1000,
        num_patches: int = 3,
        dim: int = 50,
        fast_strength: float = 1.0,
        slow_strength: float = 0.7,
        fast_presence: float = 0.9,
        noise_std: float = 0.125,
        permute: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("num_examples", num_examples, 1),
            ("num_test", num_test, 1),
            ("num_patches", num_patches, 2),
            ("dim", dim, 2),
            ("noise_std", noise_std, 0),
        ):
            if not value >= least or math.isinf(value):
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        for name, value in (("fast_strength", fast_strength), ("slow_strength", slow_strength)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, got {value}.")
        if not 0 < fast_presence <= 1:
            raise ValueError(
                f"fast_presence must be above 0 and at most 1, got {fast_presence}. It is the "
                "share of the examples that have the fast feature."
            )
        self.num_examples = num_examples
        self.num_test = num_test
        self.num_patches = num_patches
        self.dim = dim
        self.strengths = (fast_strength, slow_strength, fast_presence)
        self.noise_std = noise_std
        self.permute = permute
        self.seed = seed

    def read(self) -> dict[str, Tensor]:
        """Draw the features, the training data and the test data."""
        generator = epoch_generator(self.seed, 0, SIGNALS)
        drawn = torch.randn(self.dim, 2, generator=generator, dtype=torch.float64)
        features = torch.linalg.qr(drawn).Q.T.contiguous()
        inputs, targets, groups = self._draw(self.num_examples, features, generator)
        test_inputs, test_targets, test_groups = self._draw(self.num_test, features, generator)
        return {
            "inputs": inputs,
            "targets": targets,
            "groups": groups,
            "indices": torch.arange(self.num_examples),
            "features": features,
            "strengths": torch.tensor(self.strengths, dtype=torch.float64),
            "test_inputs": test_inputs,
            "test_targets": test_targets,
            "test_groups": test_groups,
        }

    def _draw(
        self, count: int, features: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        fast, slow, presence = self.strengths
        targets = torch.randint(2, (count,), generator=generator).double() * 2 - 1
        present = torch.rand(count, generator=generator, dtype=torch.float64) < presence
        shape = (count, self.num_patches, self.dim)
        inputs = torch.empty(shape, dtype=torch.float64)
        inputs[:, 2:].normal_(0.0, self.noise_std, generator=generator)
        inputs[:, 0] = (fast * targets * present)[:, None] * features[0]
        inputs[:, 1] = (slow * targets)[:, None] * features[1]
        if self.permute:
            draws = torch.rand(count, self.num_patches, generator=generator)
            order = draws.argsort(1)[:, :, None].expand(shape)
            inputs = inputs.gather(1, order)
        return inputs, targets, (~present).long()
