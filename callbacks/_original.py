"""Training loss and accuracy on the data as they were before some examples were copied."""

from typing import Any

import torch
from torch import Tensor

from toolkit.distributed import sum_across_ranks
from toolkit.functional import Fields
from toolkit.metrics import per_example_cross_entropy

__all__ = ["OriginalMeans"]


class OriginalMeans:
    """Means over training batches in which each example counts once, however often it is copied.

    Args:
        indices: The upsampled data, each example at least once.
    """

    def __init__(self, indices: Tensor) -> None:
        self._weights = 1 / torch.bincount(indices).double()
        self.sums = torch.zeros(3, dtype=torch.float64)  # of weights, losses, right predictions

    def read(self, fields: Fields, outputs: Any, batch: Any) -> None:
        """Add a batch, if it holds indices and class ids, and its step returned logits."""
        logits = fields.find("logits", outputs)
        targets, indices = (fields.find(name, batch) for name in ("targets", "indices"))
        if logits is None or targets is None or indices is None:
            return
        if logits.ndim == 2 and logits.shape[1] > 1 and targets.ndim == 1:
            self.add(logits, targets, indices)

    def add(self, logits: Tensor, targets: Tensor, indices: Tensor) -> None:
        """Add a batch; the device is not waited for."""
        if self._weights.device != logits.device:
            self._weights = self._weights.to(logits.device)
            self.sums = self.sums.to(logits.device)
        weights = self._weights[indices]
        losses = per_example_cross_entropy(logits, targets)
        right = logits.argmax(1) == targets
        self.sums += torch.stack(
            [weights.sum(), weights @ losses.double(), weights @ right.double()]
        )

    def compute(self) -> dict[str, Tensor]:
        """The means over all ranks since the last call; nothing if there was no batch."""
        total, loss, right = sum_across_ranks(self.sums)
        self.sums = torch.zeros_like(self.sums)
        if not total > 0:
            return {}
        return {"train/original_loss": loss / total, "train/original_acc": right / total}
