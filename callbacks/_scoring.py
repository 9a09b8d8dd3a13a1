"""One pass over the training data, in order and without augmentation, that leaves no trace."""

import contextlib
import hashlib
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor
from torch.utils.data import DataLoader

from callbacks._state import read_rng, set_rng
from toolkit import distributed
from toolkit.data.reindex import over_indices
from toolkit.data.upsampling import example_losses
from toolkit.functional import Fields
from toolkit.optim import kept_buffers

__all__ = [
    "Reader",
    "Scores",
    "data_fingerprint",
    "score_examples",
    "scoring_loader",
    "without_trace",
]

_SAMPLE = 32


@dataclass(frozen=True)
class Scores:
    """The training examples as the model sees them, in the order of their ids ``0..n-1``.

    Attributes:
        logits: Outputs, float32 ``(examples, outputs)``.
        targets: Class ids; all 0 where targets have no classes.
        losses: Loss per example.
        correct: Whether each is predicted rightly.
    """

    logits: Tensor
    targets: Tensor
    losses: Tensor
    correct: Tensor


@dataclass(frozen=True)
class Reader:
    """How a batch is read and the model is asked.

    Attributes:
        fields: ``inputs``, ``targets`` and ``indices`` of a batch, ``logits`` of outputs. A batch
            that is a tuple or a list holds inputs and targets first, in this order.
        forward: Takes the module and a batch and returns logits; by default the module is called
            with the inputs.
        losses: Takes logits and targets, returns a loss per example; by default cross-entropy. If
            given, targets need not be classes: all examples are then clustered together.
    """

    fields: Fields
    forward: Callable[[Any, Any], Any] | None = None
    losses: Callable[[Tensor, Tensor], Tensor] | None = None

    def read(self, name: str, batch: Any) -> Tensor:
        """A field of a batch."""
        position = {"inputs": 0, "targets": 1}[name]
        if isinstance(batch, tuple | list) and self.fields.is_default(name):
            value: Tensor = batch[position]
            return value
        return self.fields.read(name, batch)

    def logits(self, module: L.LightningModule, batch: Any) -> Tensor:
        """Logits of a batch, one row per example."""
        if self.forward is not None:
            outputs = self.forward(module, batch)
        else:
            outputs = module(self.read("inputs", batch))
        if not isinstance(outputs, Tensor):
            outputs = self.fields.read("logits", outputs, "what the model returns")
        return outputs.float().flatten(1) if outputs.ndim > 1 else outputs.float()[:, None]


def scoring_loader(given: Any, trainer: L.Trainer, module: L.LightningModule) -> Any:
    """The loader meant for scoring: the one given, else that of data module or module.

    Returns:
        ``None`` if there is none.
    """
    if given is not None:
        return given() if callable(given) and not hasattr(given, "__iter__") else given
    datamodule = trainer.datamodule  # type: ignore[attr-defined] # Lightning does not annotate it
    for owner in (datamodule, module):
        make: Any = getattr(owner, "scoring_dataloader", None)
        if make is not None:
            return make()
    return None


def score_examples(
    trainer: L.Trainer,
    module: L.LightningModule,
    loader: Any,
    reader: Reader,
    num_examples: int | None,
) -> Scores:
    """Logits, targets and losses of all training examples, the same on every rank.

    A ``DataLoader`` is divided over the ranks; another loader is read as it is on each. Examples
    that several ranks saw are counted once.

    Raises:
        ValueError: If the ids are not each of ``0..n-1`` once, targets are no class ids, or an
            output or loss is not finite.
    """
    batches, positions = _shared(loader)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    start = 0
    with without_trace(trainer, module):
        for raw in batches:
            batch = _to_device(trainer, module, raw)
            with trainer.precision_plugin.forward_context():
                logits = reader.logits(module, batch)
            targets = reader.read("targets", batch)
            ids = reader.fields.find("indices", batch)
            if ids is None:
                stop = start + len(logits)
                ids = torch.arange(start, stop) if positions is None else positions[start:stop]
                start = stop
            parts.append((ids.to(logits.device), logits, targets.to(logits.device)))
    ids, logits, targets = _merge(parts, module, num_examples)
    return _scored(ids, logits, targets, reader)


@contextlib.contextmanager
def without_trace(trainer: L.Trainer, module: L.LightningModule) -> Iterator[None]:
    """Evaluation mode without gradients; modes, buffers and random states are put back.

    Lightning's stage is ``predicting`` meanwhile, so that batch hooks which augment while
    ``trainer.training`` do not.
    """
    modes = [(child, child.training) for child in module.modules()]
    rng, stage = read_rng(module.device), trainer.state.stage
    trainer.state.stage = RunningStage.PREDICTING
    module.eval()
    try:
        with torch.no_grad(), kept_buffers(module):
            yield
    finally:
        trainer.state.stage = stage
        set_rng(rng, module.device)
        for child, training in modes:
            child.training = training


def data_fingerprint(loader: Any, *, warn: bool, device: torch.device) -> str:
    """A hash that changes with the data: of all of it in memory, else of 32 spread examples.

    What changes from one reading to the next (random transforms) is left out of the hash.

    Args:
        loader: The scoring loader.
        warn: Whether to warn of random transforms.
        device: Whose random state is left as it was.
    """
    whole = getattr(getattr(loader, "arrays", None), "fingerprint", None)
    if whole is not None:
        return str(whole)
    if type(loader) is not DataLoader:
        return "unknown"
    dataset = cast(Sized, loader.dataset)
    positions = torch.linspace(0, len(dataset) - 1, min(_SAMPLE, len(dataset))).long()
    rng = read_rng(device)
    readings = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - transforms of others draw from the global generator
        sample = over_indices(loader, positions, ordered=True, workers=False)
        readings.append([leaf for batch in sample for leaf in _leaves(batch)])
    set_rng(rng, device)
    digest = hashlib.sha256(str(len(dataset)).encode())
    stable = [torch.equal(one, other) for one, other in zip(*readings, strict=True)]
    for leaf, same in zip(readings[0], stable, strict=True):
        if same:
            digest.update(leaf.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    if warn and not all(stable):
        warnings.warn(
            "the training data set changes its examples at random, so they are scored as "
            "augmented. Give scoring_dataloader: the same examples, in order, without "
            "augmentation.",
            stacklevel=2,
        )
    return digest.hexdigest()


def _shared(loader: Any) -> tuple[Iterable[Any], Tensor | None]:
    """This rank's batches, and the positions of their examples where we choose them."""
    if type(loader) is not DataLoader:
        return loader, None
    rank, world = distributed.rank(), distributed.world_size()
    positions = torch.arange(len(cast(Sized, loader.dataset)))[rank::world]
    return over_indices(loader, positions, ordered=True), positions


def _to_device(trainer: L.Trainer, module: L.LightningModule, batch: Any) -> Any:
    """What Lightning does with a batch before a step."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _merge(
    parts: list[tuple[Tensor, Tensor, Tensor]],
    module: L.LightningModule,
    num_examples: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """All ranks' rows, one per id, in the order of the ids."""
    if not parts:
        raise ValueError("the scoring data must hold at least one example on each process, got 0.")
    rows = [torch.cat(column) for column in zip(*parts, strict=True)]
    own = rows[0].sort().values
    repeated = int((own[1:] == own[:-1]).sum())
    ids, logits, targets = (distributed.gather_rows(column).cpu() for column in rows)
    ids, order = ids.sort(stable=True)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[1:] = ids[1:] != ids[:-1]
    ids, order = ids[first], order[first]
    count = len(ids) if num_examples is None else num_examples
    problem = torch.tensor(float(repeated), device=module.device)
    repeated = int(distributed.max_across_ranks(problem))
    if repeated or len(ids) != count or not torch.equal(ids, torch.arange(count)):
        raise ValueError(
            f"scoring must see each id of 0..{count - 1} once, got {len(ids)} different ids and "
            f"{repeated} repeats. Give a scoring_dataloader with the training data in order, every "
            "example once; fields={'indices': None} uses positions as ids."
        )
    return ids, logits[order], targets[order]


def _scored(ids: Tensor, logits: Tensor, targets: Tensor, reader: Reader) -> Scores:
    classes = targets.ndim == 1 and not targets.is_floating_point()
    if reader.losses is None and not classes:
        raise ValueError(
            f"targets must be class ids, integers of shape (batch,), got {targets.dtype} of shape "
            f"{('batch', *targets.shape[1:])}. For other targets give losses, a callable that "
            "returns one loss per example; all examples are then clustered together, which is not "
            "the paper's method."
        )
    if reader.losses is None:
        losses, correct = example_losses(logits, targets.long())
    else:
        losses = reader.losses(logits, targets).detach().float()
        correct = logits.argmax(1) == targets if classes else torch.ones_like(ids).bool()
    return Scores(logits, targets.long() if classes else torch.zeros_like(ids), losses, correct)


def _leaves(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from _leaves(value)
