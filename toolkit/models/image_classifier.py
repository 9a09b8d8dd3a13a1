"""Classifier of images over any net: cross-entropy, accuracy, optimiser and schedule."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import lightning as L
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from toolkit.losses import GroupDRO
from toolkit.metrics import LossAndAccuracy

__all__ = ["ImageClassifier", "OptimizerFactory", "ScheduleFactory"]

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
ScheduleFactory = Callable[[Optimizer, int], LRScheduler]
Loss = Callable[[Tensor, Tensor], Tensor]


class ImageClassifier(L.LightningModule):
    """Classifier whose steps return ``{"loss", "logits"}``, so that callbacks can read them.

    A batch is a mapping with ``inputs`` ``(batch, channels, height, width)`` and ``targets``
    ``(batch,)``; where it holds ``weight`` (see :class:`toolkit.data.ArrayLoader`), the training
    loss is multiplied by it, which makes a partial last batch that is divided unevenly over ranks
    count each example once. ``mix_targets`` ``(batch,)`` with ``mix_share`` (0-d) mean that the
    inputs were mixed, and share the loss between the two classes; ``loss_weights`` ``(batch,)``
    multiply the examples' losses, whose sum is still divided by the number of examples.

    Logged, each a mean over examples of all ranks:

    | key | when |
    | --- | --- |
    | ``train/loss``, ``train/acc`` | training epochs, on the batches as trained |
    | ``val/loss``, ``val/acc``, ``val/error`` | validation epochs |
    | ``test/loss``, ``test/acc``, ``test/error`` | tests |
    | ``train/group_weight/<id>`` | training epochs, with ``group_dro``: its weights |

    Args:
        net: Maps ``inputs`` to logits ``(batch, classes)``.
        optimizer: Takes the parameters, returns the optimiser.
        schedule: Takes the optimiser and the number of updates of the run, returns a schedule
            that steps at every update; ``None`` keeps the learning rate.
        loss: Takes logits and targets, returns one loss per example, or their mean.
        group_dro: Trains on the weighted sum of the groups' losses in place of the mean; batches
            must hold ``groups``. ``train/loss`` is still the mean.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        schedule: ScheduleFactory | None = None,
        loss: Loss = nn.functional.cross_entropy,
        group_dro: GroupDRO | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.group_dro = group_dro
        self._optimizer = optimizer
        self._schedule = schedule
        self.means = nn.ModuleDict({f"{split}_means": LossAndAccuracy() for split in _SPLITS})

    def forward(self, inputs: Float[Tensor, " batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Logits of a batch."""
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Mean loss of the batch, and its logits."""
        logits = self(batch["inputs"])
        losses = self._training_losses(logits, batch)
        loss = losses.mean()
        self._means("train").update(loss, logits, batch["targets"])
        if self.group_dro is not None:
            loss = self.group_dro(losses, _groups(batch), self.trainer.global_step)
        elif "weight" in batch:
            loss = loss * batch["weight"]
        return {"loss": loss, "logits": logits}

    def on_train_epoch_end(self) -> None:
        """Log the means of the epoch."""
        self._log_means("train")
        if self.group_dro is not None:
            weights = enumerate(self.group_dro.weights)
            self.log_dict({f"train/group_weight/{group}": weight for group, weight in weights})

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Mean loss of the batch, and its logits."""
        return self._evaluate("val", batch)

    def on_validation_epoch_end(self) -> None:
        """Log the means over the validation set."""
        self._log_means("val")

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Mean loss of the batch, and its logits."""
        return self._evaluate("test", batch)

    def on_test_epoch_end(self) -> None:
        """Log the means over the test set."""
        self._log_means("test")

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser, and its schedule over the run's real number of updates."""
        optimizer = self._optimizer(self.parameters())
        if self._schedule is None:
            return optimizer
        schedule = self._schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _training_losses(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Losses of a batch that may be mixed and weighted, or their mean where that will do."""
        weights = batch.get("loss_weights")
        is_plain = weights is None and self.group_dro is None
        loss = self.loss if is_plain else partial(_per_example, self.loss)
        losses = loss(logits, batch["targets"])
        if "mix_targets" in batch:
            share = batch["mix_share"]
            losses = share * losses + (1 - share) * loss(logits, batch["mix_targets"])
        return losses if weights is None else losses * weights

    def _evaluate(self, split: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        logits = self(batch["inputs"])
        loss = self.loss(logits, batch["targets"]).mean()
        self._means(split).update(loss, logits, batch["targets"])
        return {"loss": loss, "logits": logits}

    def _log_means(self, split: str) -> None:
        means = self._means(split)
        loss, acc = means.compute()  # over all ranks: torchmetrics has reduced the sums
        means.reset()
        values = {f"{split}/loss": loss, f"{split}/acc": acc}
        if split != "train":
            values[f"{split}/error"] = 1 - acc
        self.log_dict(values)

    def _means(self, split: str) -> LossAndAccuracy:
        means = self.means[f"{split}_means"]
        return cast(LossAndAccuracy, means)


def _groups(batch: dict[str, Tensor]) -> Tensor:
    if "groups" not in batch:
        raise ValueError(
            f"a batch must hold groups where group_dro is set, got {list(batch)}. Give the data "
            "groups, or leave group_dro out."
        )
    return batch["groups"]


def _per_example(loss: Loss, logits: Tensor, targets: Tensor) -> Tensor:
    """One loss per example.

    Raises:
        ValueError: If the function gives their mean.
    """
    if loss is nn.functional.cross_entropy:
        return nn.functional.cross_entropy(logits, targets, reduction="none")
    losses = loss(logits, targets)
    if losses.shape != targets.shape:
        raise ValueError(
            f"loss must return one loss per example where examples weigh differently, got shape "
            f"{tuple(losses.shape)} for {len(targets)} examples. Set its reduction to none."
        )
    return losses


_SPLITS = ("train", "val", "test")
