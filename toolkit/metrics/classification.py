"""Mean loss and accuracy of a pass over the data."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

__all__ = ["LossAndAccuracy"]


class LossAndAccuracy(Metric):
    """Mean loss and accuracy over all examples of all ranks, batches weighted by their size.

    ``compute`` returns ``(loss, accuracy)``, the accuracy in ``[0, 1]``; both are NaN if there
    was no example.

    Example:
        >>> metric = LossAndAccuracy()
        >>> metric.update(torch.tensor(0.5), torch.eye(2), torch.tensor([0, 0]))
        >>> [value.item() for value in metric.compute()]
        [0.5, 0.5]
    """

    full_state_update = False
    loss_sum: Tensor
    correct: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Sums in double precision: a float32 sum stops counting at 2**24 examples.
        for name in ("loss_sum", "correct", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        loss: Float[Tensor, ""],
        logits: Float[Tensor, "batch classes"],
        targets: Int[Tensor, " batch"],
    ) -> None:
        """Add a batch, given the mean of its losses."""
        self.loss_sum += loss.detach() * len(targets)
        self.correct += (logits.detach().argmax(1) == targets).sum()
        self.count += len(targets)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy since the last reset."""
        return self.loss_sum / self.count, self.correct / self.count

    def set_dtype(self, dst_type: str | torch.dtype) -> "LossAndAccuracy":
        """Leave the sums in double precision, whatever the module is converted to."""
        return self
