"""USEFUL: find the examples that are learnt slowly, copy them, and train from the same start."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import lightning as L
import torch
from torch import Tensor

from callbacks._observing import is_skipped, record_values
from callbacks._original import OriginalMeans
from callbacks._scoring import (
    Reader,
    Scores,
    data_fingerprint,
    score_examples,
    scoring_loader,
)
from callbacks._selecting import (
    Settings,
    check_same_data,
    check_same_settings,
    check_settings,
    epochs_fault,
    log_selection,
)
from callbacks._separation import Separation
from callbacks._stages import Stages, is_trial, separation_record
from toolkit import distributed
from toolkit.data.reindex import num_examples
from toolkit.data.selection import UpsampledSet
from toolkit.data.upsampling import Selection
from toolkit.functional import Field, Fields

__all__ = ["UsefulUpsampling"]


class UsefulUpsampling(L.Callback):
    """Changes training: upsamples the examples that a short first training separates as slow.

    One ``trainer.fit`` runs two trainings. Stage one trains ``separation_epochs`` epochs of the
    run as it is, schedules defined on all epochs; scores every training example once, in
    evaluation mode, without augmentation; and clusters the logits of each class in two. The cluster
    with the higher mean loss is the slow one. Stage two starts from the same initial weights and
    random states, with new optimizers and schedules, which see its real number of updates, and
    trains all epochs on the data plus ``factor - 1`` further copies of the slow examples. With
    ``factor=1`` it is the plain run, bit for bit.

    Callbacks with an attribute ``runs_in_separation = True`` take part in stage one, as do
    Lightning's progress bars and ``GradientAccumulationScheduler``; all others (checkpoints, early
    stopping, averages of weights, observers) see stage two only. What changes training on purpose,
    such as MixUp, must have it. Stage one validates only if a schedule monitors a metric.

    The training loader is a torch ``DataLoader`` that draws each example once per epoch, or has a
    method ``with_indices(indices)``; mind that stage two's epochs end in another partial batch.
    Under several ranks the scores are merged by index, rank 0 clusters, and all get its result. On
    three ranks or more DDP, which has regrouped its buckets, may round stage two's first update
    differently from a plain run's.

    Files in ``dirpath``: ``useful.json``, the ids, clusters, mean losses and settings, which
    another run takes as ``selection_file``; and, until the fit ends, ``separation.ckpt``, from
    which the same command continues after a kill in stage one, while scoring, or before stage two
    has a checkpoint. Checkpoints of stage two hold the upsampled set: it is never selected anew.

    | key | meaning |
    | --- | --- |
    | ``separation/<key>`` | what the module and callbacks log in stage one |
    | ``separation/epochs`` | epochs of stage one |
    | ``separation/train_error`` | by epoch, with ``separation_epochs="auto"`` |
    | ``separation/selected_share``, ``separation/selected_count`` | what is upsampled |
    | ``separation/loss``, ``separation/acc`` | over all training examples, as scored |
    | ``separation/slow_count/<class>``, ``separation/fast_count/<class>`` | sizes of clusters |
    | ``separation/slow_loss/<class>``, ``separation/fast_loss/<class>`` | mean losses of clusters |
    | ``train/original_loss``, ``train/original_acc`` | stage two's training batches, each example \
weighted once however often it is copied; where batches hold indices and steps return logits |

    The slow cluster also collects mislabelled examples: with label noise train with MixUp, as the
    paper does. Stage two makes more updates per epoch: compare with ``selection="random"`` too.

    Args:
        separation_epochs: Length of stage one, at least 1 and below ``max_epochs``; ``"auto"``
            stops where the fall of the training error flattens, see
            :func:`toolkit.data.upsampling.flattening_epoch`.
        selection: ``slow``, or a control: ``fast``, ``random`` (as many per class as are slow),
            ``high_loss`` (as many as are slow, by loss), ``misclassified``; ``longer``: nothing is
            upsampled, and epochs are as long as with ``slow``; ``weighted``: nothing is upsampled,
            and slow examples weigh ``factor`` times the others in the loss, which is to multiply
            by ``loss_weights`` of the batches (mean 1), as our data and classifier do.
        factor: How often each selected example occurs; 2 is one extra copy.
        seed: Of k-means and of ``random``.
        selection_file: A ``useful.json`` of the same data: no stage one, its examples are
            upsampled, and the arguments above, ``factor`` apart, are not used.
        dirpath: Folder of the files; by default the trainer's ``default_root_dir``.
        scoring_dataloader: The training examples in order, without augmentation, or a callable
            that returns such a loader; by default the ``scoring_dataloader()`` of data module or
            module if there is one, else the training data set itself.
        fields: Other names, or callables, for ``inputs``, ``targets`` and ``indices`` of a batch
            and ``logits`` of outputs. A tuple or list holds inputs and targets, in this order;
            without indices the position in the data set counts.
        forward: Takes the module and a batch and returns logits; by default ``module(inputs)``.
        losses: Takes logits and targets, returns a loss per example; by default cross-entropy.
            With it targets need not be classes, which is not the paper's method: all examples are
            then clustered together.

    Raises:
        ValueError: If an argument is out of range; in ``fit``, also if data or files do not fit.
        RuntimeError: In ``fit``, with a strategy that shards the model.

    Reference:
        Nguyen et al. 2024, arXiv:2404.17768. Clusters per class, of which the one with the higher
        loss is upsampled, are the authors' words; k-means, the restart from the same weights and
        ``factor=2`` are known at second hand; logits, ``"auto"`` and ties are ours.
    """

    runs_in_separation = True  # to say in a checkpoint written in stage one that it is one
    logged_keys = ("separation/*", "train/original_loss", "train/original_acc")

    def __init__(  # noqa: PLR0913 - four numbers of the method, two files, four ways to read data
        self,
        separation_epochs: int | Literal["auto"] = "auto",
        *,
        selection: Selection = "slow",
        factor: int = 2,
        seed: int = 0,
        selection_file: str | None = None,
        dirpath: str | None = None,
        scoring_dataloader: Any = None,
        fields: Mapping[str, Field | None] | None = None,
        forward: Callable[[Any, Any], Any] | None = None,
        losses: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.settings = Settings(separation_epochs, selection, factor, seed)
        check_settings(self.settings, losses is not None)
        self.selection_file = selection_file
        self.dirpath = dirpath
        self.scoring_dataloader = scoring_dataloader
        names = ("inputs", "targets", "indices", "logits")
        self.reader = Reader(Fields(names, fields), forward, losses)
        self.upsampled: UpsampledSet | None = None
        self._loaded: dict[str, Any] | None = None
        self._stages: Stages | None = None
        self._means: OriginalMeans | None = None

    @classmethod
    def check_recipe(cls, resolved: Mapping[str, Any], node: Mapping[str, Any]) -> list[str]:
        """Faults that the arguments have only together with the rest of a recipe."""
        trainer = resolved.get("trainer") or {}
        fault = epochs_fault(node.get("separation_epochs", "auto"), trainer.get("max_epochs"))
        return [fault] if fault and not node.get("selection_file") else []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Put the loop of stage one in place, and refuse what cannot be right."""
        if stage != "fit":
            return
        fault = epochs_fault(self.settings.separation_epochs, trainer.max_epochs)
        if fault and self.selection_file is None and not is_trial(trainer):
            raise ValueError(fault)
        if trainer.strategy.restore_checkpoint_after_setup:
            raise RuntimeError(
                "UsefulUpsampling must run on one device or under DDP, got "
                f"{type(trainer.strategy).__name__}. It cannot restart a model in shards."
            )
        self.upsampled, self._means, self._loaded = None, None, None
        self._stages = Stages(trainer, self._needs_separation)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Run stage one, or check that the data are those of the stored set."""
        stages = self._stages
        if stages is None:
            return
        if trainer.ckpt_path is not None and self._loaded is None:
            raise ValueError(
                "a checkpoint to continue from must hold the state of UsefulUpsampling, got none "
                f"in {trainer.ckpt_path}. Start anew without a checkpoint."
            )
        given = scoring_loader(self.scoring_dataloader, trainer, pl_module)
        training = stages.given_loader()
        loader = training if given is None else given
        fingerprint = distributed.broadcast_object(
            data_fingerprint(
                loader, warn=given is None and distributed.is_main(), device=pl_module.device
            )
        )
        if stages.separating:
            score = functools.partial(
                score_examples, trainer, pl_module, loader, self.reader, num_examples(training)
            )
            self.upsampled = self._separate(trainer, pl_module, score, fingerprint)
        else:
            check_same_data(cast(UpsampledSet, self.upsampled), fingerprint)
            if self._loaded is None and self.upsampled is not None:
                with separation_record(trainer.loggers):
                    log_selection(trainer, self.upsampled)
        self._begin(trainer)
        self._close()  # the passage is over; its copy of the initial weights is not needed

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Add the batch to the means over the original data."""
        if self._means is not None and self.reader.losses is None and not is_skipped(outputs):
            self._means.read(self.reader.fields, outputs, batch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the means over the original data."""
        values = {} if self._means is None else self._means.compute()
        if values:
            record_values(trainer, pl_module, values)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remove the checkpoint of stage one: the training is complete."""
        if distributed.is_main():
            self._folder(trainer).joinpath("separation.ckpt").unlink(missing_ok=True)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give the trainer its loop back."""
        self._close()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the trainer its loop back."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The stage, and in stage two the upsampled set."""
        if self.upsampled is None:
            in_separation = self._stages is not None and self._stages.separating
            return {"stage": "separation"} if in_separation else self._loaded or {}
        sums = torch.zeros(3).double() if self._means is None else self._means.sums
        return {"stage": "training", "selection": self.upsampled.state(), "sums": sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until the fit starts."""
        self._loaded = state_dict

    def _needs_separation(self) -> bool:
        """Whether stage one comes first; if not, the upsampled set is put in place."""
        loaded = self._loaded or {}
        if loaded.get("stage") == "training":
            found = UpsampledSet.from_state(loaded["selection"])
            if self.selection_file is None:
                check_same_settings(found, self.settings)
        elif self.selection_file is not None:
            found = distributed.broadcast_object(UpsampledSet.read(self.selection_file))
            settings = {**found.settings, "factor": self.settings.factor}
            found = dataclasses.replace(found, settings=settings)
        else:
            return True
        self.upsampled = found
        if self._stages is not None:
            self._stages.source.use(found, self.settings.factor)
        return False

    def _separate(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        score: Callable[[], Scores],
        fingerprint: str,
    ) -> UpsampledSet:
        stages = cast(Stages, self._stages)
        if self._loaded is not None:
            stages.forget_checkpoint()
        identity = {
            "data": fingerprint,
            **dataclasses.asdict(self.settings),
            "max_epochs": trainer.max_epochs,
            "model": type(module).__qualname__,
        }
        path = None if is_trial(trainer) else self._folder(trainer) / "separation.ckpt"
        separation = Separation(
            trainer, module, self, stages, self.settings, score=score, path=path, identity=identity
        )
        return separation.run(continuing=self._loaded is not None)

    def _begin(self, trainer: L.Trainer) -> None:
        """Write the upsampled set, and begin to count."""
        found = cast(UpsampledSet, self.upsampled)
        if distributed.is_main() and not is_trial(trainer):
            found.save(self._folder(trainer) / "useful.json")
        self._means = OriginalMeans(found.indices(self.settings.factor))
        if self._loaded is not None and "sums" in self._loaded:
            self._means.sums = self._loaded["sums"]

    def _folder(self, trainer: L.Trainer) -> Path:
        return Path(trainer.default_root_dir if self.dirpath is None else self.dirpath)

    def _close(self) -> None:
        if self._stages is not None:
            self._stages.close()
            self._stages = None
