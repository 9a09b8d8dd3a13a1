"""A loader over another list of a data set's examples: ours, or a plain torch ``DataLoader``."""

from collections.abc import Sized
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
)

from toolkit import distributed
from toolkit.data.selection import UpsampledSet

__all__ = [
    "lengthened",
    "loader_generators",
    "num_examples",
    "over_indices",
    "upsampled_loader",
    "weighted",
]

_BATCH_SIZE = 128
_KEPT = ("collate_fn", "pin_memory", "worker_init_fn", "in_order")
_WORKERS = (
    "num_workers",
    "timeout",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)


def num_examples(loader: Any) -> int | None:
    """Number of examples that a training loader draws from; ``None`` if it does not tell.

    Raises:
        TypeError: If :func:`over_indices` could not make another loader of it.
        ValueError: If it draws from a part of its arrays only.
    """
    if not hasattr(loader, "with_indices"):
        _check(loader)
        return len(loader.dataset)
    if not hasattr(loader, "arrays"):
        return None
    count, held = len(loader.arrays), len(loader.indices)
    if held != count:
        raise ValueError(
            f"a loader to upsample must hold each of its {count} examples once, got {held}. "
            "Select the examples in the arrays."
        )
    return count


def over_indices(
    loader: Any, indices: Int[Tensor, " positions"], *, ordered: bool = False, workers: bool = True
) -> Any:
    """A loader over ``dataset[i] for i in indices``, repeats allowed, with the same settings.

    A loader that has a method ``with_indices`` makes it itself. Of a torch ``DataLoader`` the data
    set is wrapped in a ``Subset`` and all else kept, so that over all positions in order it draws
    the same random numbers and gives the same batches.

    Args:
        loader: The loader.
        indices: Positions in the data set.
        ordered: In the order given, the partial last batch too, and without the loader's own
            generator; of a ``DataLoader`` only, whatever its sampler.
        workers: Keep the worker processes; of a ``DataLoader`` only.

    Raises:
        TypeError: If the loader is neither.
    """
    if hasattr(loader, "with_indices"):
        return loader.with_indices(indices)
    _check_dataset(loader) if ordered else _check(loader)
    subset: Dataset[Any] = Subset(loader.dataset, indices.tolist())
    names = (*_KEPT, *(_WORKERS if workers else ()), *(() if ordered else ("generator",)))
    settings = {name: getattr(loader, name) for name in names}
    batch_size = loader.batch_size
    if batch_size is None and loader.batch_sampler is not None:
        batch_size = _BATCH_SIZE  # the batch sampler's is not known; only an ordered pass gets here
    return DataLoader(
        subset,
        batch_size=batch_size,
        sampler=SequentialSampler(cast(Sized, subset)) if ordered else _sampler(loader, subset),
        drop_last=loader.drop_last and not ordered,
        **settings,
    )


def lengthened(loader: Any, length: int) -> Any:
    """A loader over the same examples whose epochs have ``length`` positions.

    A loader that has a method ``with_length`` makes it itself, ours by cutting epochs from one
    chain of permutations. An epoch of a shuffled torch ``DataLoader`` becomes whole permutations
    and a random piece of another one.

    Raises:
        TypeError: If the loader is neither, or a ``DataLoader`` on several ranks.
    """
    if hasattr(loader, "with_length"):
        return loader.with_length(length)
    _check(loader)
    if distributed.world_size() > 1:  # a sampler that divides the data has no such length
        raise TypeError(
            "a loader to train longer on must have a method with_length(length) on several "
            f"processes, got {type(loader).__name__} on {distributed.world_size()}. Add the "
            "method, or use one process."
        )
    if not isinstance(loader.sampler, RandomSampler):
        raise TypeError(
            "a loader to train longer on must have a method with_length(length) or be a torch "
            f"DataLoader with shuffle=True, got the sampler {type(loader.sampler).__name__}. "
            "Shuffle, or add the method."
        )
    settings = {name: getattr(loader, name) for name in (*_KEPT, *_WORKERS, "generator")}
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=RandomSampler(
            loader.dataset, num_samples=length, generator=loader.sampler.generator
        ),
        drop_last=loader.drop_last,
        **settings,
    )


def weighted(loader: Any, weights: Float[Tensor, " examples"]) -> Any:
    """A loader over the same examples whose batches hold these weights of their losses.

    Raises:
        TypeError: If the loader has no method ``with_loss_weights``.
    """
    if not hasattr(loader, "with_loss_weights"):
        raise TypeError(
            "a loader whose examples weigh differently must have a method "
            f"with_loss_weights(weights), got {type(loader).__name__}. Add the method, and let the "
            "loss read what it puts into the batches."
        )
    return loader.with_loss_weights(weights)


def upsampled_loader(loader: Any, found: UpsampledSet, factor: int) -> Any:
    """The loader with the selected examples copied; longer or weighted for these controls.

    Raises:
        TypeError: If no such loader can be made of it.
    """
    loader = over_indices(loader, found.indices(factor))
    length, weights = found.epoch_length(factor), found.loss_weights(factor)
    if length is not None:
        return lengthened(loader, length)
    return loader if weights is None else weighted(loader, weights)


def loader_generators(loader: Any) -> list[torch.Generator]:
    """The generators of a loader's own, whose states move while it is read."""
    found: list[torch.Generator] = []
    for holder in (loader, getattr(loader, "sampler", None)):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is g for g in found):
            found.append(generator)
    return found


def _sampler(loader: DataLoader[Any], dataset: Dataset[Any]) -> Sampler[int]:
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return DistributedSampler(
            dataset,
            num_replicas=sampler.num_replicas,
            rank=sampler.rank,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            drop_last=sampler.drop_last,
        )
    if isinstance(sampler, RandomSampler):
        return RandomSampler(cast(Sized, dataset), generator=sampler.generator)
    return SequentialSampler(cast(Sized, dataset))


def _check(loader: Any) -> None:
    _check_dataset(loader)
    sampler = loader.sampler
    stock = type(sampler) in (RandomSampler, SequentialSampler, DistributedSampler)
    drawn = isinstance(sampler, RandomSampler) and (
        sampler.replacement or sampler.num_samples != len(loader.dataset)
    )
    if not stock or drawn or type(loader.batch_sampler) is not BatchSampler:
        raise TypeError(
            "a loader to upsample must draw each example once per epoch, in order or shuffled, "
            f"in batches of one size, got {type(sampler).__name__} and "
            f"{type(loader.batch_sampler).__name__}. {_REMEDY}"
        )


def _check_dataset(loader: Any) -> None:
    if type(loader) is not DataLoader:
        name = type(loader).__name__
        raise TypeError(f"a loader to upsample must be one torch DataLoader, got {name}. {_REMEDY}")
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            "a loader to upsample must have a data set of known length, "
            f"got {type(dataset).__name__}. {_REMEDY}"
        )


_REMEDY = "Give it a method with_indices(indices) that returns a loader over those examples."
