"""Margins of the examples during training, validation and tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import lightning as L
import torch
from torch import Tensor

from callbacks._observing import (
    Split,
    SplitObserver,
    check_schedule,
    is_due,
    is_skipped,
    record_values,
)
from toolkit.functional import Field, Fields
from toolkit.metrics import (
    SplitRows,
    classification_margin,
    logit_normalized_margin,
    margin_summary,
    parameter_norm,
)

__all__ = ["MarginLogger"]

Normalize = Literal["none", "l1", "l2", "linf", "logits"]


class MarginLogger(SplitObserver):
    """Observes: the margins of each split's examples, of all ranks, each example counted once.

    The margin is the logit of the true class minus the largest other one. Train margins are those
    of the batches as trained, which costs no further pass: dropout, batch statistics and
    augmentation are on, the weights are those of the example's last visit in the epoch. For margins
    of the final weights without them look at ``val``. Logged at the end of an epoch, for each split
    (``train``, ``val``, ``test``):

    | key | value |
    | --- | --- |
    | ``train/margin/min``, ``train/margin/mean`` | smallest, mean margin |
    | ``train/margin/q10``, ``train/margin/median``, ... | quantiles over the examples |
    | ``train/margin/nonpositive_share`` | share of margins <= 0: the error, ties are errors |
    | ``train/normalized_margin/min``, ... | the same of the normalised margin |
    | ``train/margin/min/class3``, ... | with ``per_class``: each of the above per class |

    All are NaN where a logit of one of the examples is NaN, or a class has no example. Normalised
    by ``logits``, each margin is divided by the norm of the example's centred logits, which is free
    of the scale of any net. Normalised by ``l1``, ``l2`` or ``linf`` it is divided by that norm of
    all trainable parameters at the end of the epoch: the quantity of max-margin theory for linear
    models, see :func:`toolkit.metrics.parameter_norm`. Without ``indices`` every row counts, copies
    too. Of several validation loaders the first is observed.

    Args:
        every: Epochs between two records; the last epoch, and evaluation outside of ``fit``, are
            always recorded. Between records a step costs nothing.
        quantiles: Each in [0, 1]; 0.5 is called ``median``.
        normalize: Which normalised margin to add; ``none`` for the plain one only.
        splits: Which to observe.
        per_class: Whether to add each value per class.
        fields: Where to find ``logits`` in a step's outputs, and ``targets`` and ``indices`` in a
            batch: keys or callables; ``indices: None`` where the data has none.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> MarginLogger(normalize="logits", fields={"targets": lambda batch: batch[1]}).state_key
        'MarginLogger(normalize=logits, splits=train+val, every=1)'
    """

    logged_keys: tuple[str, ...] = tuple(
        f"{split}/{kind}/{statistic}{detail}"
        for split in get_args(Split)
        for kind in ("margin", "normalized_margin")
        for statistic in ("min", "mean", "median", "q*", "nonpositive_share")
        for detail in ("", "/class*")
    )

    def __init__(
        self,
        every: int = 1,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        normalize: Normalize = "none",
        splits: Sequence[Split] = ("train", "val"),
        *,
        per_class: bool = False,
        fields: Mapping[str, Field | None] | None = None,
    ) -> None:
        check_schedule(every, splits)
        _check(quantiles, normalize)
        self.every = every
        self.quantiles = tuple(quantiles)
        self.normalize = normalize
        self.splits = tuple(splits)
        self.per_class = per_class
        self._fields = Fields(("logits", "targets", "indices"), fields)
        self._rows = self._empty_rows()

    @property
    def state_key(self) -> str:
        """Tells several loggers of one trainer apart."""
        splits = "+".join(self.splits)
        return f"MarginLogger(normalize={self.normalize}, splits={splits}, every={self.every})"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Start afresh; a checkpoint is restored after this."""
        self._rows = self._empty_rows()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Move to the module's device."""
        self._rows.to(pl_module.device)

    def state_dict(self) -> dict[str, Any]:
        """The margins of the epoch so far, of all ranks; called on every rank."""
        return self._rows.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the margins of the epoch so far."""
        self._rows.load_state_dict(state_dict)

    def _empty_rows(self) -> SplitRows:
        num_values = 2 if self.normalize == "logits" else 1
        by_index = not self._fields.is_absent("indices")
        return SplitRows(self.splits, num_labels=1, num_values=num_values, by_index=by_index)

    def _begin(self, split: Split, pl_module: L.LightningModule) -> None:
        self._rows.begin(split, pl_module.device)

    @torch.no_grad()
    def _note(self, split: Split, trainer: L.Trainer, outputs: Any, batch: Any) -> None:
        if split not in self._rows or not is_due(trainer, self.every) or is_skipped(outputs):
            return
        logits = self._fields.read("logits", outputs, f"the outputs of a {split} step")
        targets = self._fields.read("targets", batch)
        indices = self._fields.read_unless_absent("indices", batch)
        margins = [classification_margin(logits, targets)]
        if self.normalize == "logits":
            margins.append(logit_normalized_margin(logits, targets))
        self._rows.add(split, logits, indices, labels=[targets], values=margins)

    def _log(self, split: Split, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if split not in self._rows or not is_due(trainer, self.every):
            return
        labels, margins, num_classes = self._rows.take(split)
        if num_classes == 0:  # no batch on any rank
            return
        values: dict[str, Tensor] = {}
        for kind, column in self._kinds(margins, pl_module).items():
            values |= self._summary(f"{split}/{kind}", column, labels[:, 0], num_classes)
        record_values(trainer, pl_module, values)

    def _kinds(self, margins: Tensor, pl_module: L.LightningModule) -> dict[str, Tensor]:
        kinds = {"margin": margins[:, 0]}
        if self.normalize == "logits":
            kinds["normalized_margin"] = margins[:, 1]
        elif self.normalize != "none":
            trainable = (p for p in pl_module.parameters() if p.requires_grad)
            norm = parameter_norm(trainable, self.normalize).to(margins)
            kinds["normalized_margin"] = margins[:, 0] / norm
        return kinds

    def _summary(
        self, prefix: str, margins: Tensor, targets: Tensor, num_classes: int
    ) -> dict[str, Tensor]:
        everyone = margin_summary(margins, torch.zeros_like(targets), 1, self.quantiles)
        values = {f"{prefix}/{name}": value[0] for name, value in everyone.items()}
        if self.per_class:
            classes = margin_summary(margins, targets, num_classes, self.quantiles)
            for name, per_class in classes.items():
                for index, value in enumerate(per_class):
                    values[f"{prefix}/{name}/class{index}"] = value
        return values


def _check(quantiles: Sequence[float], normalize: str) -> None:
    if not all(0 <= quantile <= 1 for quantile in quantiles):
        raise ValueError(f"quantiles must lie in [0, 1], got {list(quantiles)}. 10 % is 0.1.")
    if normalize not in get_args(Normalize):
        raise ValueError(f"normalize must be one of {get_args(Normalize)}, got {normalize!r}.")
