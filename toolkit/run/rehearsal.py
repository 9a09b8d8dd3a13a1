"""Builds what runs need, to find what does not fit together before a folder is made."""

import warnings
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch

from toolkit import config
from toolkit.data import EpochSampler, ImageData, ResidentData
from toolkit.models import ImageClassifier, JointModel
from toolkit.run.crews import trains_jointly
from toolkit.run.folder import Run
from toolkit.run.training import make_trainer, quiet

__all__ = ["rehearse"]

_LATER = ("deterministic", "benchmark")
"""Arguments of the trainer that change this process too, which may be a notebook."""


def rehearse(runs: Iterable[Run], num_ranks: int | None = None) -> None:
    """Read the data, and build model, callbacks and trainer, once for each distinct node.

    Nothing is written.

    Args:
        runs: The runs to come.
        num_ranks: Processes that a launcher has started; by default each run starts its own.

    Raises:
        ValueError: In one line, if something is wrong or does not fit the rest.
    """
    quiet()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the runs themselves tell them
        _rehearse(runs, num_ranks)


def _rehearse(runs: Iterable[Run], num_ranks: int | None) -> None:
    datamodule: Any = None
    seen: set[str] = set()
    for run in sorted(runs, key=lambda run: repr(run.resolved["data"])):  # one held at a time
        nodes = run.resolved
        if _is_new(nodes["data"], seen):
            datamodule = _data(run)
        _check_batches(datamodule, num_ranks or run.num_ranks)
        if num_ranks is not None and trains_jointly(run):
            raise ValueError(
                "a model whose runs train as one program must be started without a launcher, got "
                f"{num_ranks} processes. Use --jobs."
            )
        if _is_new((nodes["data"], nodes["model"]), seen):
            _check_model(run, datamodule)
        if num_ranks is None and _is_new((nodes["trainer"], nodes["callbacks"]), seen):
            _check_trainer(run)


def _is_new(nodes: Any, seen: set[str]) -> bool:
    key = repr(nodes)
    is_new = key not in seen
    seen.add(key)
    return is_new


def _data(run: Run) -> Any:
    datamodule = _built(run, "data", L.LightningDataModule)
    check = getattr(datamodule, "check", None)
    if callable(check):
        check()
    return datamodule


def _check_batches(datamodule: Any, num_ranks: int) -> None:
    """Check that each batch can be divided over the ranks."""
    if isinstance(datamodule, ImageData):
        sampler = datamodule.train_dataloader().sampler
        if isinstance(sampler, EpochSampler):
            sampler.check_division(num_ranks)


def _check_model(run: Run, datamodule: Any) -> None:
    """Push two images through a classifier: do their size and number of classes fit?

    A joint model looks at the data itself.
    """
    state = torch.get_rng_state()
    model = _built(run, "model", L.LightningModule)
    torch.set_rng_state(state)
    if isinstance(model, JointModel):
        if not isinstance(datamodule, ResidentData):
            raise ValueError(
                f"data must be a toolkit.data.ResidentData for {type(model).__name__}, got "
                f"{type(datamodule).__name__}. Name another in the recipe."
            )
        model.prepare(datamodule.batch)
        return
    if not (isinstance(model, ImageClassifier) and isinstance(datamodule, ImageData)):
        return
    batch = next(iter(datamodule.scoring_dataloader()))
    inputs = batch["inputs"][:2].to(next(model.parameters(), batch["inputs"]).dtype)
    try:
        with torch.inference_mode():
            logits = model.eval()(inputs)
    except (RuntimeError, ValueError, TypeError) as error:
        shape = tuple(datamodule.input_shape)
        raise ValueError(
            f"model must take the data's images of {shape} (channels, height, width), got "
            f"{config.one_line(error)}"
        ) from error
    if logits.ndim != 2 or logits.shape[1] < datamodule.num_classes:
        raise ValueError(
            f"model must give at least one logit for each of the data's {datamodule.num_classes} "
            f"classes, got logits of shape {tuple(logits.shape)} for 2 images. Set num_classes."
        )


def _check_trainer(run: Run) -> None:
    for name in run.resolved["callbacks"]:
        _built(run, f"callbacks.{name}", L.Callback)
    settings = {key: v for key, v in run.resolved["trainer"].items() if key not in _LATER}
    make_trainer({**run.resolved, "trainer": settings}, [], [], logger=False)


def _built(run: Run, key: str, kind: type) -> Any:
    part = config.build(run.resolved, key)
    if not isinstance(part, kind):
        raise ValueError(f"{key} must make a {kind.__name__}, got a {type(part).__name__}.")
    return part
