"""A fixed part of the training data, read in order and without augmentation, again and again."""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from callbacks._passes import _map_tensors, num_rows
from callbacks._scoring import Reader, _to_device, scoring_loader
from toolkit import distributed
from toolkit.data.reindex import over_indices
from toolkit.data.selection import UpsampledSet

__all__ = ["ProbedData", "loss_sum"]

Piece = tuple[Any, Tensor]  # a batch, and its examples' places among those that are probed


class ProbedData:
    """This rank's batches of the examples to probe, in pieces, on the module's device.

    Examples are spread evenly over the data set, the same on any number of ranks. A ``DataLoader``
    is divided over the ranks, a loader with ``with_indices`` divides itself, any other is read as
    it is on each rank. Where not all examples are wanted, they are read once and kept.

    Args:
        trainer: The trainer.
        module: Its module.
        given: The loader to read, see :func:`callbacks._scoring.scoring_loader`; by default the
            training loader.
        reader: Finds ``indices`` in a batch.
        num_examples: How many to probe; ``None`` is all.
        chunk_size: Examples of a piece.
    """

    def __init__(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        given: Any,
        reader: Reader,
        *,
        num_examples: int | None,
        chunk_size: int,
    ) -> None:
        self._trainer, self._module, self._reader = trainer, module, reader
        self._chunk_size = chunk_size
        found = scoring_loader(given, trainer, module)
        loader = trainer.train_dataloader if found is None else found
        if isinstance(loader, list | tuple | dict):
            raise ValueError(
                f"the data to probe must come from one loader, got a {type(loader).__name__} of "
                "them. Give dataloader=, the one to probe."
            )
        size = _size(loader, trainer, is_training=found is None)
        self._limit = num_examples if size is None else None
        self._chosen: Tensor | None = None
        if size is not None:
            count = size if num_examples is None else min(num_examples, size)
            self._chosen = torch.linspace(0, size - 1, count, dtype=torch.float64).round().long()
        self._own: Tensor | None = None
        self._loader = self._share(loader)
        self._kept: list[Piece] | None = None
        if num_examples is not None:
            self._kept = list(self._read())
        rows = torch.tensor(self._count_rows(), device=module.device)
        self.count = int(distributed.sum_across_ranks(rows))
        if self.count == 0:
            raise ValueError("the data to probe must hold at least one example, got none.")

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _ in self._pieces())

    def sets(self, m: int) -> Iterator[list[Any]]:
        """This rank's pieces of each set of ``m`` consecutive examples, perhaps none of a set."""
        split = (part for piece in self._pieces() for part in _split_at(piece, m))
        grouped = groupby(split, key=lambda part: int(part[1][0]) // m)
        number, pieces = next(grouped, (-1, iter(())))
        for wanted in range(-(-self.count // m)):
            if number != wanted:
                yield []
                continue
            yield [batch for batch, _ in pieces]
            number, pieces = next(grouped, (-1, iter(())))

    def _pieces(self) -> Iterator[Piece]:
        return self._read() if self._kept is None else iter(self._kept)

    def _count_rows(self) -> int:
        if self._chosen is not None and self._own is not None:
            return len(self._own)
        return sum(len(places) for _, places in self._pieces())

    def _share(self, loader: Any) -> Any:
        """A loader over this rank's share of the chosen examples."""
        if self._chosen is None:
            return loader
        if type(loader) is not DataLoader:
            return loader.with_indices(self._chosen)  # it divides itself over the ranks
        rank, world = distributed.rank(), distributed.world_size()
        self._own = torch.arange(len(self._chosen))[rank::world]
        return over_indices(loader, self._chosen[self._own], ordered=True)

    def _read(self) -> Iterator[Piece]:
        start, last, limit = 0, -1, self._limit
        for raw in self._loader:
            rows = num_rows(raw) or 0
            places = self._places(raw, start, rows)
            _check_order(places, last)
            start, last = start + rows, int(places[-1]) if rows else last
            if limit is not None:
                places = places[places < limit]
            for first in range(0, len(places), self._chunk_size):
                part = slice(first, min(first + self._chunk_size, len(places)))
                piece = _rows_of(raw, part, rows)
                yield _to_device(self._trainer, self._module, piece), places[part]
            if limit is not None and len(places) < rows:
                return

    def _places(self, batch: Any, start: int, rows: int) -> Tensor:
        """Which of the chosen examples a batch's are."""
        if self._own is not None:
            return self._own[start : start + rows]
        indices = self._reader.fields.find("indices", batch)
        if self._chosen is None or indices is None:
            rank, world = distributed.rank(), distributed.world_size()
            return torch.arange(start, start + rows) * world + rank
        return torch.searchsorted(self._chosen, indices.cpu())


def loss_sum(module: L.LightningModule, reader: Reader) -> Callable[[Any], Tensor]:
    """The sum of a batch's losses in double precision, differentiable; for a module's batches."""

    def summed(batch: Any) -> Tensor:
        if reader.forward is None:
            outputs = module(reader.read("inputs", batch))
        else:
            outputs = reader.forward(module, batch)
        if not isinstance(outputs, Tensor):
            raise TypeError(
                "the module must return the tensor of logits for its inputs, got "
                f"{type(outputs).__name__}. Give forward=, which takes the module and a batch."
            )
        targets = reader.read("targets", batch)
        if reader.losses is not None:
            losses = reader.losses(outputs, targets)
        else:
            exact = outputs if outputs.dtype == torch.float64 else outputs.float()
            losses = F.cross_entropy(exact, targets.long(), reduction="none")
        rows = num_rows(batch)
        if losses.shape[:1] != (rows,):
            raise ValueError(
                f"losses must return one loss for each of the {rows} examples, got shape "
                f"{tuple(losses.shape)}. Use reduction='none'."
            )
        return losses.sum() if losses.device.type == "mps" else losses.double().sum()

    return summed


def _size(loader: Any, trainer: L.Trainer, *, is_training: bool) -> int | None:
    """Examples that a loader can be asked for by position; ``None`` if it cannot."""
    if hasattr(loader, "with_indices") and hasattr(loader, "arrays"):
        return len(loader.arrays)
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return None
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined] # untyped
    for callback in callbacks if is_training else ():
        found = getattr(callback, "upsampled", None)
        if isinstance(found, UpsampledSet):  # its list begins with each example once
            return found.num_examples
    return len(loader.dataset)  # type: ignore[arg-type] # DataLoader asks for its length too


def _split_at(piece: Piece, m: int) -> Iterator[Piece]:
    """A piece, cut where a new set of ``m`` begins."""
    batch, places = piece
    sets = (places // m).tolist()
    first = 0
    for _, members in groupby(sets):
        stop = first + len(list(members))
        yield _rows_of(batch, slice(first, stop), len(sets)), places[first:stop]
        first = stop


def _check_order(places: Tensor, last: int) -> None:
    if len(places) and (int(places[0]) <= last or bool((places[1:] <= places[:-1]).any())):
        raise ValueError(
            "the data to probe must come in order, each example once, got indices that repeat or "
            "go back. Give dataloader= without shuffling."
        )


def _rows_of(batch: Any, rows: slice, total: int) -> Any:
    if (rows.start, rows.stop) == (0, total):
        return batch
    return _map_tensors(lambda t: t[rows] if t.ndim and t.shape[0] == total else t, batch)
