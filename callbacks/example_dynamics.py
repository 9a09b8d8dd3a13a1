"""How each example is learnt over the epochs: losses, correctness, margins, forgetting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from callbacks._observing import Split, SplitObserver, is_skipped, record_values
from toolkit import distributed
from toolkit.data.selection import UpsampledSet
from toolkit.functional import Field, Fields
from toolkit.metrics import (
    SCORES,
    ExampleHistory,
    ExampleRows,
    classification_margin,
    per_example_cross_entropy,
    score_means,
)

__all__ = ["ExampleDynamics"]

ObservedSplit = Literal["train", "val"]


class ExampleDynamics(SplitObserver):
    """Observes: loss, correctness and margin of each example in each epoch, and what they come to.

    Of ``train``, the values are those of the batches as trained, which costs no further pass:
    dropout, batch statistics and augmentation are on, the weights are those of the visit. Where an
    example comes several times in an epoch, as upsampled copies do, its last visit counts. Of
    ``val``, they are those of the epoch's last validation. Nothing is recorded in the separation
    stage of :class:`callbacks.UsefulUpsampling`: the epochs are those of the training proper.

    At the end of training rank 0 writes a NumPy archive, for all ranks:

    | array | content |
    | --- | --- |
    | ``loss``, ``margin`` | float32 ``(epochs, examples)``, NaN where not visited |
    | ``correct`` | uint8 ``(epochs, examples)``: 1, 0, or 255 where not visited |
    | ``forgetting_score`` | how often an example was right at one visit and wrong at the next |
    | ``first_learned`` | first epoch with a right prediction, from 1; epochs + 1 if in none |
    | ``learned_for_good`` | epoch from which on no prediction is wrong; epochs + 1 if none |
    | ``targets`` | class ids, -1 for an example never visited |
    | ``cluster`` | 0 (fast), 1 (slow) or -1 (not known), as ``UsefulUpsampling`` clustered |

    The loss is the cross-entropy, the margin the logit of the true class minus the largest other
    one. Scores are NaN for an example that was never visited. Their means are logged at the end:

    | key | value |
    | --- | --- |
    | ``train/forgetting_score``, ``train/first_learned``, ``train/learned_for_good`` | all |
    | ``train/forgetting_score/slow``, ``train/forgetting_score/fast``, ... | of each cluster |

    Memory: 9 bytes per example and epoch on rank 0, and in checkpoints as far as training has come
    (90 MB for 50,000 examples and 200 epochs); 112 bytes per example of its share on each device.

    Attributes:
        history: The arrays so far; on rank 0.

    Args:
        split: Which to observe, ``train`` or ``val``.
        path: Of the archive; by default ``examples.npz``, for ``val`` ``examples-val.npz``, in the
            trainer's ``default_root_dir``.
        num_examples: How many there are; by default as many as the split's data set holds.
        selection_file: A ``useful.json`` whose clusters to use; by default those that
            ``UsefulUpsampling`` finds in this trainer, for ``train``.
        fields: Where to find ``logits`` in a step's outputs, and ``targets`` and ``indices`` in a
            batch: keys or callables. There must be indices: positions in the data set, from 0.

    Raises:
        ValueError: If an argument is out of range; in ``fit``, also if an index is, or the
            clusters are those of another number of examples.

    Example:
        >>> fields = {"targets": lambda batch: batch[1], "indices": lambda batch: batch[2]}
        >>> ExampleDynamics(split="val", fields=fields).state_key
        'ExampleDynamics(split=val)'

    Reference:
        Toneva et al. 2019, arXiv:1812.05159 (forgetting); Nguyen et al. 2024, arXiv:2404.17768
        (the three scores of slow and fast examples).
    """

    logged_keys: tuple[str, ...] = tuple(
        f"{split}/{name}{detail}"
        for split in get_args(ObservedSplit)
        for name in SCORES
        for detail in ("", "/fast", "/slow")
    )

    def __init__(
        self,
        split: ObservedSplit = "train",
        *,
        path: str | None = None,
        num_examples: int | None = None,
        selection_file: str | None = None,
        fields: Mapping[str, Field | None] | None = None,
    ) -> None:
        self._fields = Fields(("logits", "targets", "indices"), fields)
        _check(split, path, num_examples, self._fields)
        self.split = split
        self.path = path
        self.num_examples = num_examples
        self.selection_file = selection_file
        self._size: int | None = None
        self._given: UpsampledSet | None = None
        self._forget()

    @property
    def state_key(self) -> str:
        """Tells the observers of both splits apart."""
        return f"ExampleDynamics(split={self.split})"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Start afresh; a checkpoint is restored after this."""
        if stage == "fit":
            self._forget()
            if self.selection_file is not None:
                self._given = distributed.broadcast_object(UpsampledSet.read(self.selection_file))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make room for all epochs, as far as their number and the data set's size are known."""
        self._rows.to(pl_module.device)
        self._size = self._declared_size(trainer)
        found = self._found(trainer)
        if found is not None and self._size not in (None, found.num_examples):
            raise ValueError(
                f"the clusters must be those of the {self._size} examples of {self.split}, got "
                f"clusters of {found.num_examples}. Give the selection_file of the same data."
            )
        if distributed.is_main():
            self.history.reserve(max(trainer.max_epochs or 0, 0), self._size or 0)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the archive, and log the means of the scores."""
        values: dict[str, Tensor] = {}
        if distributed.is_main() and self.history.num_epochs:
            self._write(trainer)
            found = self._found(trainer)
            known = None if found is None else self.history.padded(found.cluster)
            means = score_means(self.history.scores(), known)
            values = {f"{self.split}/{name}": mean for name, mean in means.items()}
        values = distributed.broadcast_object(values)
        if values:
            record_values(trainer, pl_module, values)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the archive where a checkpoint of the training's very end was continued from."""
        if distributed.is_main() and self.history.num_epochs and not self._written:
            self._write(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The arrays so far, and the rows of the epoch so far, of all ranks; called on each."""
        rows = self._rows.state_dict() if self.split == "train" else None
        return {"history": self.history.state_dict(), "rows": rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the arrays, and the rows of the epoch so far."""
        if distributed.is_main():
            self.history.load_state_dict(state_dict["history"])
        if state_dict["rows"] is not None:
            self._rows.load_state_dict(state_dict["rows"])

    def _forget(self) -> None:
        self.history = ExampleHistory()
        self._rows = ExampleRows(num_labels=2, num_values=3)
        self._size = self._given = None
        self._written = False

    def _begin(self, split: Split, pl_module: L.LightningModule) -> None:
        if split == self.split:
            self._rows.clear()

    @torch.no_grad()
    def _note(self, split: Split, trainer: L.Trainer, outputs: Any, batch: Any) -> None:
        if split != self.split or not _is_training(trainer) or is_skipped(outputs):
            return
        logits = self._fields.read("logits", outputs, f"the outputs of a {self.split} step")
        targets = self._fields.read("targets", batch)
        indices = self._fields.read("indices", batch)
        losses = per_example_cross_entropy(logits, targets)
        # As in the groups' metrics: with a NaN among the logits the largest one means nothing.
        correct = (logits.argmax(1) == targets) & ~losses.isnan()
        margins = classification_margin(logits, targets)
        self._rows.add(indices, labels=[indices, targets], values=[losses, correct, margins])

    def _log(self, split: Split, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the epoch into the arrays."""
        if split != self.split or not _is_training(trainer):
            return
        labels, values = self._rows.merged()
        self._rows.clear()
        if not len(labels):
            return
        indices, targets = labels.unbind(1)
        if self._size is not None and int(indices.max()) >= self._size:
            raise ValueError(
                f"indices must lie in 0..{self._size - 1}, the examples of the {self.split} data, "
                f"got {int(indices.max())}. Give num_examples if there are more."
            )
        if distributed.is_main():
            columns = dict(zip(("loss", "correct", "margin"), values.unbind(1), strict=True))
            self.history.put(trainer.current_epoch, indices, targets, **columns)

    def _write(self, trainer: L.Trainer) -> None:
        self._written = True
        if trainer.fast_dev_run:  # type: ignore[attr-defined] # set by a function
            return
        name = "examples.npz" if self.split == "train" else "examples-val.npz"
        path = Path(trainer.default_root_dir, name) if self.path is None else Path(self.path)
        found = self._found(trainer)
        self.history.save(path, None if found is None else found.cluster)

    def _found(self, trainer: L.Trainer) -> UpsampledSet | None:
        """What was clustered: as given, else by a callback that upsamples in this trainer."""
        if self.selection_file is not None or self.split != "train":
            return self._given
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined] # untyped
        found = (getattr(callback, "upsampled", None) for callback in callbacks)
        return next((one for one in found if isinstance(one, UpsampledSet)), None)

    def _declared_size(self, trainer: L.Trainer) -> int | None:
        if self.num_examples is not None:
            return self.num_examples
        loader = trainer.train_dataloader if self.split == "train" else trainer.val_dataloaders
        return _size_of(loader[0] if isinstance(loader, list | tuple) and loader else loader)


def _is_training(trainer: L.Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING


def _size_of(loader: Any) -> int | None:
    """Examples of the whole data set that a loader draws from, ``None`` where it does not tell."""
    if hasattr(loader, "arrays"):
        return len(loader.arrays)
    dataset: Any = loader.dataset if isinstance(loader, DataLoader) else None
    while isinstance(dataset, Subset):  # whose examples may have the indices of the whole
        dataset = dataset.dataset
    return len(dataset) if hasattr(dataset, "__len__") else None


def _check(split: str, path: str | None, num_examples: int | None, fields: Fields) -> None:
    if split not in get_args(ObservedSplit):
        raise ValueError(f"split must be one of {get_args(ObservedSplit)}, got {split!r}.")
    if path is not None and Path(path).suffix != ".npz":
        raise ValueError(f"path must be that of an .npz file, got {path}. Add .npz to its name.")
    if num_examples is not None and num_examples < 1:
        raise ValueError(f"num_examples must be at least 1, got {num_examples}. Leave it out.")
    if fields.is_absent("indices"):
        raise ValueError(
            "indices must be in the batches for ExampleDynamics, got fields={'indices': None}. Let "
            "the data set return an example's position too, such as "
            "TensorDataset(images, labels, torch.arange(len(labels)))."
        )
