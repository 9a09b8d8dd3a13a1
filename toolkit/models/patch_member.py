"""One run of the two-layer CNN within a program: its data, its descent, what is measured of it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int
from numpy.typing import NDArray
from torch import Tensor

from toolkit.data.upsampling import (
    Selection,
    example_losses,
    select_examples,
    separate_examples,
    upsampled_indices,
)
from toolkit.nets.two_layer_cnn import (
    Descent,
    PatchTable,
    descend_patches,
    patch_table,
    stall_radius,
    table_gradient,
    table_outputs,
)

__all__ = ["PatchMember"]

Array = NDArray[np.float64]

_STRIDE = 50
"""Updates between two looks at whether the fast feature has been learnt."""


class PatchMember:
    """The data of one run, as the compiled loops take it.

    Args:
        batch: The run's tensors, see :class:`toolkit.data.PatchSignals`.
        initial: The filters before the first update, ``(filters, dim)``.
        descent: Learning rate and radius.
        seed: Of k-means and of a random selection.

    Attributes:
        selected_share: Share of the training examples that were upsampled.
    """

    def __init__(
        self, batch: Mapping[str, Tensor], initial: Array, descent: Descent, seed: int
    ) -> None:
        self.initial = initial
        self.descent = descent
        self.seed = seed
        self.selected_share = 0.0
        self._train: PatchTable = patch_table(batch["inputs"], batch["targets"])
        self._test: PatchTable = patch_table(batch["test_inputs"], batch["test_targets"])
        self._targets: Array = batch["targets"].numpy()
        self._test_targets: Array = batch["test_targets"].numpy()
        self._masked = batch["groups"].numpy() == 1
        self._test_masked = batch["test_groups"].numpy() == 1
        self._features: Array = batch["features"].numpy()
        self._fast, self._slow, self._presence = batch["strengths"].tolist()
        self._set_shares(np.ones(len(self._targets)))

    def descend(self, weights: Array, span: tuple[int, int], reached: Array) -> int:
        """Updates in place; see :func:`toolkit.nets.two_layer_cnn.descend_patches`."""
        return descend_patches(
            weights, self._train, self._shares, self.descent, self._features, span, reached
        )

    def observe(self, weights: Array) -> dict[str, float]:
        """Alignments, contributions, loss, gradient norm and test accuracies by key.

        They are infinite or NaN where the filters are too large.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return self._observed(weights)

    def _observed(self, weights: Array) -> dict[str, float]:
        inner = weights @ self._features.T
        fast, slow = (float(value) for value in inner.max(0))
        cubes = (inner**3).sum(0)
        of_fast, of_slow = self._fast**3 * float(cubes[0]), self._slow**3 * float(cubes[1])
        test_outputs = table_outputs(weights, self._test)[: len(self._test_targets)]
        hits = self._test_targets * test_outputs > 0
        slope = table_gradient(weights, self._train, self._shares)
        return {
            "train/loss": self.loss(weights),
            "train/grad_norm": float(np.sqrt((slope * slope).sum())),
            "train/alignment/fast": fast,
            "train/alignment/slow": slow,
            "train/alignment/gap": fast - slow,
            "train/alignment/ratio": _ratio(slow, fast),
            "train/contribution/fast": of_fast,
            "train/contribution/slow": of_slow,
            "train/contribution/gap": of_fast - of_slow,
            "test/acc": float(hits.mean()),
            "test/error": float(1 - hits.mean()),
            "test/masked_acc": _ratio(
                float(hits[self._test_masked].sum()), float(self._test_masked.sum())
            ),
        }

    def loss(self, weights: Array) -> float:
        """Mean logistic loss on the training data."""
        with np.errstate(over="ignore", invalid="ignore"):
            losses = np.logaddexp(0.0, -self._targets * self._outputs(weights))
            return float((self._shares[: len(losses)] * losses).sum())

    def outputs_at(self, updates: Sequence[int]) -> list[Float64[Tensor, " examples"]]:
        """Outputs on the training data after so many updates, ascending, from the start."""
        weights, done, found = self.initial.copy(), 0, []
        for update in updates:
            self.descend(weights, (done, update - done), np.zeros(3))
            done = update
            found.append(torch.from_numpy(self._outputs(weights)))
        return found

    def fast_update(self, limit: int) -> int | None:
        """Updates after which the fast feature is learnt, from the initial filters."""
        weights, done, reached = self.initial.copy(), 0, np.full(3, -1.0)
        while done < limit and reached[0] < 0:
            self.descend(weights, (done, min(_STRIDE, limit - done)), reached)
            done += _STRIDE
        return None if reached[0] < 0 else int(reached[0])

    def select(
        self, outputs: Float64[Tensor, " examples"], selection: Selection
    ) -> Int[Tensor, " selected"]:
        """Examples that the clusters of the outputs pick out, within each class."""
        labels = torch.from_numpy(self._targets > 0).long()
        losses, correct = example_losses(outputs[:, None], labels)
        clusters = separate_examples(outputs[:, None], losses, labels, self.seed)
        return select_examples(
            selection, clusters, targets=labels, losses=losses, correct=correct, seed=self.seed
        )

    def separation(self, outputs: Float64[Tensor, " examples"]) -> tuple[float, float]:
        """Precision and recall of the slow clusters against the examples without fast feature."""
        chosen = np.zeros(len(self._targets), dtype=bool)
        chosen[self.select(outputs, "slow").numpy()] = True
        both = float((chosen & self._masked).sum())
        return _ratio(both, float(chosen.sum())), _ratio(both, float(self._masked.sum()))

    def upsample(self, selected: Int[Tensor, " selected"], factor: int) -> None:
        """Count each selected example ``factor`` times, which full batch is its weight."""
        self.selected_share = len(selected) / len(self._targets)
        indices = upsampled_indices(len(self._targets), selected, factor)
        self._set_shares(np.bincount(indices.numpy()).astype(np.float64))

    def theory(self) -> tuple[float, float]:
        """The radius at which SAM stalls at the initial filters, and ``kappa``.

        ``kappa`` is the initial speed of the fast feature over that of the slow one; below 1 the
        roles are swapped.
        """
        inner = torch.from_numpy(self.initial @ self._features.T)
        strengths = (self._fast, self._slow)
        radius = stall_radius(inner[:, 0], inner[:, 1], strengths, self._presence).item()
        fast, slow = inner.amax(0).tolist()
        return radius, _ratio(self._presence * self._fast**3 * fast, self._slow**3 * slow)

    def _outputs(self, weights: Array) -> Array:
        return table_outputs(weights, self._train)[: len(self._targets)]

    def _set_shares(self, times: Array) -> None:
        self._shares = np.zeros(len(self._train.targets))
        self._shares[: len(times)] = times / times.sum()


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
