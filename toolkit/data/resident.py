"""Data that stays in memory as one batch, for models whose runs train as one program."""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import lightning as L
import torch
from torch import Tensor

__all__ = ["ResidentBatch", "ResidentData", "joined_batch"]


class ResidentBatch:
    """Gives the same batch again and again.

    Args:
        batch: What to give.
        times: How often; ``None`` is without end: the model says when training is over.
    """

    def __init__(self, batch: Mapping[str, Tensor], times: int | None = None) -> None:
        self.batch = dict(batch)
        self.times = times

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if self.times is None:
            return itertools.repeat(self.batch)
        return itertools.repeat(self.batch, self.times)


class ResidentData(L.LightningDataModule):
    """Data of which every training step gets the whole, training and test part in one batch.

    Each tensor of :attr:`batch` has a leading dimension of members, 1 for a single run; see
    :class:`toolkit.models.JointModel`. A subclass reads, and may add :meth:`check` to validate.
    """

    @abstractmethod
    def read(self) -> dict[str, Tensor]:
        """The tensors of one run, without the dimension of members.

        Raises:
            ValueError: If something is missing or wrong, in one line.
        """

    @cached_property
    def batch(self) -> dict[str, Tensor]:
        """The batch of this run alone."""
        return {key: value[None] for key, value in self.read().items()}

    def check(self) -> None:
        """Read the data once; nothing of a run is written.

        Raises:
            ValueError: If something is wrong, in one line.
        """
        _ = self.batch

    def train_dataloader(self) -> ResidentBatch:
        """The batch, without end."""
        return ResidentBatch(self.batch)

    def test_dataloader(self) -> ResidentBatch:
        """The batch, once."""
        return ResidentBatch(self.batch, times=1)


def joined_batch(batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The batches of several members as one, along the leading dimension."""
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
