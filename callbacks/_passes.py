"""What surrounds the two passes of SAM inside a LightningModule."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from toolkit.optim import SAM, kept_buffers
from toolkit.optim.passes import WHOLE, Chunk

__all__ = ["Passes", "kept_metrics", "num_rows"]

_MISSING = object()


class Passes:
    """The surroundings of one optimizer's two passes over one module.

    Args:
        trainer: Runs the fit.
        module: Whose methods, buffers and metrics are looked after.
        optimizer: Gets ``first_pass`` and ``second_pass`` until :meth:`detach`.
    """

    def __init__(self, trainer: L.Trainer, module: L.LightningModule, optimizer: SAM) -> None:
        self.trainer = trainer
        self.module = module
        self.optimizer = optimizer
        self.in_second = False
        self._outputs: list[Any] = []  # of the first passes, one per chunk
        self._counts: list[int] = []
        optimizer.first_pass = self._first
        optimizer.second_pass = self._second
        optimizer.name_parameters(module.named_parameters())

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        self.optimizer.first_pass = self.optimizer.second_pass = None
        self.optimizer.batch_size = None

    @contextmanager
    def _first(self) -> Iterator[None]:
        if not self._chunk.rows.start:
            self._outputs, self._counts = [], []
        strategy = self.trainer.strategy
        with ExitStack() as stack:
            self._replace(stack, training_step=partial(self._record, self.module.training_step))
            self._replace(stack, configure_gradient_clipping=_nothing)
            if self.optimizer.perturbation == "local" and isinstance(strategy, DDPStrategy):
                stack.enter_context(strategy.block_backward_sync())
            if not self._chunk.whole:
                self._count_rows(stack)
            yield

    @contextmanager
    def _second(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._replace(stack, training_step=partial(self._replay, self.module.training_step))
            if not self._chunk.last:
                self._replace(stack, configure_gradient_clipping=_nothing)
            for part in self.module.modules():
                if isinstance(part, L.LightningModule):
                    stack.enter_context(_replaced(part, log=_nothing, log_dict=_nothing))
            stack.enter_context(kept_buffers(self.module))
            stack.enter_context(kept_metrics(self.module))
            self.in_second = True
            try:
                yield
            finally:
                self.in_second = False
        if self._chunk.last:
            self._outputs, self._counts = [], []

    @property
    def _chunk(self) -> Chunk:
        chunk = self.optimizer.chunk
        return WHOLE if chunk is None else chunk

    @property
    def _count(self) -> int:
        rows = self._chunk.rows
        return 0 if self._chunk.whole else int(rows.stop - rows.start)

    def _replace(self, stack: ExitStack, **methods: Callable[..., Any]) -> None:
        stack.enter_context(_replaced(self.module, **methods))

    def _count_rows(self, stack: ExitStack) -> None:
        """Log means with the chunk's count of examples; Lightning would take the batch's."""
        rows = self._count

        def counted(log: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            log(*args, **{"batch_size": rows} | kwargs)

        log, log_dict = self.module.log, self.module.log_dict
        self._replace(stack, log=partial(counted, log), log_dict=partial(counted, log_dict))

    def _record(self, step: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(batch, Iterator):
            raise RuntimeError(
                "training_step must take a batch with SAM, which looks at it twice, got "
                "dataloader_iter. Write training_step(self, batch, batch_idx)."
            )
        outputs = step(self._rows(batch), *args, **kwargs)
        self._outputs.append(_map_tensors(Tensor.detach, outputs))
        self._counts.append(self._count)
        return outputs

    def _replay(self, step: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = step(self._rows(batch), *args, **kwargs)
        if outputs is None or any(first is None for first in self._outputs):
            return None  # the module skips this batch
        if not self._chunk.last:
            return outputs
        first = _joined(self._outputs, self._counts)
        if isinstance(outputs, Mapping):
            return {**first, "loss": _graft(first["loss"], outputs["loss"])}
        return _graft(first, outputs)

    def _rows(self, batch: Any) -> Any:
        rows, total = self._chunk.rows, self.optimizer.batch_size
        if self._chunk.whole:
            return batch
        return _map_tensors(lambda t: t[rows] if t.ndim and t.shape[0] == total else t, batch)


@contextmanager
def kept_metrics(module: nn.Module) -> Iterator[None]:
    """Whatever happens to the module's torchmetrics inside, they leave as they came in.

    Inside they work on copies of their states, so the states themselves are never touched. States
    that several metrics share stay shared.
    """
    metrics = [m for m in module.modules() if isinstance(m, Metric | MetricCollection)]
    before = [dict(vars(metric)) for metric in metrics]
    copies: dict[int, Any] = {}
    for metric in metrics:
        if isinstance(metric, Metric):
            for name, state in metric.metric_state.items():
                copy = state.clone() if isinstance(state, Tensor) else list(state)
                setattr(metric, name, copies.setdefault(id(state), copy))
    try:
        yield
    finally:
        for metric, attributes in zip(metrics, before, strict=True):
            vars(metric).clear()
            vars(metric).update(attributes)


def _graft(value: Tensor, gradient: Tensor) -> Tensor:
    """The first loss with the gradient of the second; both bit for bit, and NaN if either is."""
    return value + (gradient - gradient.detach())


def _joined(outputs: list[Any], counts: list[int]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], Mapping):
        return {key: _joined([o[key] for o in outputs], counts) for key in outputs[0]}
    if not isinstance(outputs[0], Tensor):
        return outputs[-1]
    if all(o.ndim and o.shape[0] == count for o, count in zip(outputs, counts, strict=True)):
        return torch.cat(outputs)
    if not outputs[0].is_floating_point():
        return outputs[-1]
    return sum(o * (n / sum(counts)) for o, n in zip(outputs, counts, strict=True))


def _map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def num_rows(batch: Any) -> int | None:
    """Rows of the first tensor of a batch that has any; ``None`` if none has."""
    found: list[int] = []

    def look(tensor: Tensor) -> Tensor:
        found.extend(tensor.shape[:1])
        return tensor

    _map_tensors(look, batch)
    return found[0] if found else None


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


@contextmanager
def _replaced(owner: nn.Module, **methods: Callable[..., Any]) -> Iterator[None]:
    """Give an instance other methods for a while; what compilation put there before comes back."""
    attributes = vars(owner)
    before = {name: attributes.get(name, _MISSING) for name in methods}
    attributes.update(methods)
    try:
        yield
    finally:
        for name, value in before.items():
            attributes.pop(name)
            if value is not _MISSING:
                attributes[name] = value
