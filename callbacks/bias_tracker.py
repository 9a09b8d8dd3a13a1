"""Accuracy, loss and count of each group and class, and what they come to."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import lightning as L
import torch
from torch import Tensor

from callbacks._groups import (
    NO_GROUP,
    DeclaredGroups,
    Leads,
    Value,
    as_mask,
    check_groups,
    keyed,
    members,
    warn_of_absent,
    warn_of_collapse,
)
from callbacks._observing import (
    Split,
    SplitObserver,
    check_schedule,
    is_due,
    is_skipped,
    record_values,
)
from toolkit.functional import Field, Fields, next_log_point
from toolkit.metrics import (
    SplitRows,
    classification_margin,
    group_means,
    group_summary,
    per_example_cross_entropy,
)

__all__ = ["BiasTracker"]

Loss = Callable[[Tensor, Tensor], Tensor]


class BiasTracker(SplitObserver):
    """Observes: accuracy and loss of each group and class, of all ranks, each example counted once.

    Groups are those of the batches (``groups``), or of a callable rule, or the classes where the
    data has no groups; with ``overlapping``, an example may be in several or none. Every declared
    group and class has its keys in every record and on every rank; one without examples has NaN and
    count 0, which a warning says once. Train values are those of the batches as trained, an
    example's last visit counting. Logged for each split (``train``, ``val``, ``test``):

    | key | value |
    | --- | --- |
    | ``val/group_acc/<name>``, ``val/group_loss/<name>`` | of the group's examples |
    | ``val/group_count/<name>`` | number of the group's examples |
    | ``val/group_error/<name>``, ``val/group_margin/<name>`` | as ``values`` says |
    | ``val/class_acc/<name>``, ``val/class_loss/...``, ``val/class_count/...`` | same per class |
    | ``val/worst_group_acc``, ``val/worst_group`` | lowest accuracy of a group, and its id |
    | ``val/mean_group_acc`` | plain mean over the groups that have examples |
    | ``val/weighted_group_acc`` | mean weighted by the groups' shares of the training set |
    | ``val/group_acc_gap`` | best minus worst group accuracy |
    | ``val/leading_group``, ``val/lead_changes`` | with ``lead_tolerance``: id of the group with \
the lowest loss, and how often it has changed by then |

    ``weighted_group_acc`` needs the training set's group counts: from ``train_group_counts``, else
    from the data module's ``train.groups`` (``train.targets`` if the classes are the groups); it
    is left out where neither is there. Other declarations come from the data module's
    ``group_names`` (or ``num_groups``), ``class_names`` and ``num_classes``. Without ``indices``
    every row counts, copies too. Of several validation loaders the first is observed. To pick the
    best checkpoint by a group, name a key as its monitor, ``val/worst_group_acc`` say. A warning
    tells if all predictions come to be of one class.

    Args:
        every: Epochs between two records; the last epoch, and evaluation outside of ``fit``, are
            always recorded.
        updates_per_decade: If given, ``train`` is recorded on a log-spaced grid of updates with so
            many points per factor of ten instead of at epochs, and once at the end of training:
            over the examples visited since the last point, at their last visit. ``val`` stays with
            the epochs.
        splits: Which to observe.
        group_names: One name per group id; needed where groups are read under another name or by
            a rule, and no data module declares them.
        train_group_counts: Number of training examples of each group.
        values: What to log of each group and class.
        lead_tolerance: Log which group leads; another takes the lead if its loss is lower by more
            than this, at least 0.
        overlapping: ``groups`` is a boolean matrix ``(batch, groups)`` of at most 63 groups, which
            ``group_names`` names.
        per_class: Whether to add the ``class_*`` keys.
        loss: Takes logits and targets, returns one loss per example, shape ``(batch,)``.
        fields: Where to find ``logits`` in a step's outputs, and ``targets``, ``groups`` and
            ``indices`` in a batch: keys or callables; ``indices: None`` where the data has none,
            ``groups: None`` to take the classes.

    Raises:
        ValueError: If an argument is out of range; in training, if groups are not declared, or an
            id is out of range.

    Example:
        >>> rule = lambda batch: batch["targets"] * 2 + batch["colour"]
        >>> BiasTracker(group_names=["a", "b", "c", "d"], fields={"groups": rule}).every
        1
    """

    logged_keys: tuple[str, ...] = tuple(
        f"{split}/{name}"
        for split in get_args(Split)
        for name in (
            *(f"{kind}_{value}/*" for kind in ("group", "class") for value in get_args(Value)),
            "worst_group_acc",
            "worst_group",
            "mean_group_acc",
            "weighted_group_acc",
            "group_acc_gap",
            "leading_group",
            "lead_changes",
        )
    )

    def __init__(  # noqa: PLR0913 - when, what, of whom, and how to read it
        self,
        every: int = 1,
        updates_per_decade: int | None = None,
        splits: Sequence[Split] = ("train", "val", "test"),
        group_names: Sequence[str] | None = None,
        train_group_counts: Sequence[int] | None = None,
        *,
        values: Sequence[Value] = ("acc", "loss", "count"),
        lead_tolerance: float | None = None,
        overlapping: bool = False,
        per_class: bool = True,
        loss: Loss = per_example_cross_entropy,
        fields: Mapping[str, Field | None] | None = None,
    ) -> None:
        self.every = every
        self.updates_per_decade = updates_per_decade
        self.splits = tuple(splits)
        self.group_names = None if group_names is None else tuple(group_names)
        self.train_group_counts = train_group_counts
        self.values = tuple(values)
        self.lead_tolerance = lead_tolerance
        self.overlapping = overlapping
        self.per_class = per_class
        self.loss = loss
        self._fields = Fields(("logits", "targets", "groups", "indices"), fields)
        by_default = self._fields.is_default("groups") or self._fields.is_absent("groups")
        self._groups_are_required = self.group_names is not None or not by_default
        self._warned: set[str] = set()
        check_schedule(every, splits)
        check_groups(self, has_groups=not self._fields.is_absent("groups"))
        self._forget()

    @property
    def state_key(self) -> str:
        """Tells several trackers of one trainer apart."""
        settings = f"splits={'+'.join(self.splits)}, groups={self.group_names}"
        return f"BiasTracker({settings}, updates_per_decade={self.updates_per_decade})"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Start afresh; a checkpoint is restored after this."""
        self._forget()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find the place on the grid of updates."""
        self._rows.to(pl_module.device)
        if self.updates_per_decade is not None:
            self._next_update = next_log_point(trainer.global_step, self.updates_per_decade)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Note the batch, and log if the grid of updates says so."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self.updates_per_decade is not None and trainer.global_step >= self._next_update:
            self._next_update = next_log_point(trainer.global_step, self.updates_per_decade)
            self._log("train", trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the epoch, unless the grid of updates says when."""
        if self.updates_per_decade is None:
            super().on_train_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the updates after the last point of the grid."""
        if self.updates_per_decade is not None and trainer.global_step > self._logged_update:
            self._log("train", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The train rows not yet logged, of all ranks, and who led; called on every rank."""
        return {
            "rows": self._rows.state_dict(),
            "logged_update": self._logged_update,
            "leads": self._leads.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the train rows and who led."""
        self._rows.load_state_dict(state_dict["rows"])
        self._logged_update = state_dict["logged_update"]
        self._leads.load_state_dict(state_dict["leads"])

    def _forget(self) -> None:
        by_index = not self._fields.is_absent("indices")
        columns = 2 + ("margin" in self.values)
        self._rows = SplitRows(self.splits, num_labels=2, num_values=columns, by_index=by_index)
        self._leads = Leads(self.lead_tolerance)
        self._next_update = 1
        self._logged_update = 0

    def _is_due(self, split: Split, trainer: L.Trainer) -> bool:
        if split not in self._rows:
            return False
        on_grid = split == "train" and self.updates_per_decade is not None
        return on_grid or is_due(trainer, self.every)

    def _begin(self, split: Split, pl_module: L.LightningModule) -> None:
        if split != "train" or self.updates_per_decade is None:
            self._rows.begin(split, pl_module.device)

    @torch.no_grad()
    def _note(self, split: Split, trainer: L.Trainer, outputs: Any, batch: Any) -> None:
        if not self._is_due(split, trainer) or is_skipped(outputs):
            return
        logits = self._fields.read("logits", outputs, f"the outputs of a {split} step")
        targets = self._fields.read("targets", batch)
        indices = self._fields.read_unless_absent("indices", batch)
        losses = self.loss(logits, targets)
        if losses.shape != targets.shape:
            raise ValueError(
                f"loss must return one value per example, shape {tuple(targets.shape)}, "
                f"got {tuple(losses.shape)}. Use reduction='none'."
            )
        labels = [targets, self._groups(batch, targets)]
        values = [losses, logits.argmax(1) == targets]
        if "margin" in self.values:
            values.append(classification_margin(logits, targets))
        self._rows.add(split, logits, indices, labels=labels, values=values)

    def _groups(self, batch: Any, targets: Tensor) -> Tensor:
        """The batch's group ids, or a mark in their place where it has none."""
        if self.overlapping:
            return as_mask(self._fields.read("groups", batch), self.group_names or ())
        if self._groups_are_required:
            return self._fields.read("groups", batch)
        groups = self._fields.find("groups", batch)
        return torch.full_like(targets, NO_GROUP) if groups is None else groups

    def _log(self, split: Split, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._is_due(split, trainer):
            return
        labels, columns, num_classes = self._rows.take(split)
        if split == "train":
            self._logged_update = trainer.global_step
        if not len(labels):
            return
        values = self._values(split, trainer, labels, columns, num_classes)
        record_values(trainer, pl_module, {f"{split}/{name}": v for name, v in values.items()})

    def _values(
        self, split: Split, trainer: L.Trainer, labels: Tensor, columns: Tensor, num_classes: int
    ) -> dict[str, Tensor]:
        losses, correct = columns[:, 0], columns[:, 1] > 0
        margins = columns[:, 2] if "margin" in self.values else None
        targets, groups = labels.unbind(1)
        by_class = bool((groups == NO_GROUP).all()) and not self.overlapping
        declared = self._declared(trainer, num_classes, by_class=by_class)
        names, classes = declared.group_names(), declared.class_names()
        who = members(groups, len(names)) if self.overlapping else targets if by_class else groups
        means = group_means(correct, losses, who, len(names), margins)
        per_class = group_means(correct, losses, targets, len(classes), margins)
        values = keyed("group", names, means, self.values)
        if self.per_class:
            values |= keyed("class", classes, per_class, self.values)
        values |= group_summary(means.acc, declared.train_counts())
        values |= self._leads.after(split, means.loss)
        on_grid = split == "train" and self.updates_per_decade is not None
        if not on_grid:
            warn_of_absent(split, names, means, self._warned)
            warn_of_collapse(split, classes, per_class, self._warned)
        return values

    def _declared(self, trainer: L.Trainer, num_classes: int, *, by_class: bool) -> DeclaredGroups:
        return DeclaredGroups(
            getattr(trainer, "datamodule", None),
            num_classes,
            by_class=by_class,
            # A rule's groups, or those under another key, are not the data module's.
            own_groups=not self._fields.is_default("groups"),
            names=self.group_names,
            counts=self.train_group_counts,
        )
