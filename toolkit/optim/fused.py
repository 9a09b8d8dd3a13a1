"""Many full-batch updates of linear classifiers in one call, compiled, runs side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.optim import fused_kernel
from toolkit.optim.full_batch import (
    Adam,
    FullBatchMethod,
    GradientDescent,
    LogDomainAdam,
    Momentum,
    NormalizedGradientDescent,
    SignDescent,
    Signum,
    State,
)
from toolkit.optim.fused_types import (
    METHOD_ADAM,
    METHOD_GD,
    METHOD_LOG_ADAM,
    METHOD_MOMENTUM,
    METHOD_NORMALIZED,
    METHOD_SIGN,
    METHOD_SIGNUM,
    Array,
    Data,
    MulticlassData,
    Runs,
)
from toolkit.optim.linear_gradients import BinaryLoss

__all__ = ["FusedBinary"]

_METHODS: dict[type[FullBatchMethod], int] = {
    GradientDescent: METHOD_GD,
    Momentum: METHOD_MOMENTUM,
    NormalizedGradientDescent: METHOD_NORMALIZED,
    SignDescent: METHOD_SIGN,
    Signum: METHOD_SIGNUM,
    Adam: METHOD_ADAM,
    LogDomainAdam: METHOD_LOG_ADAM,
}


class FusedBinary:
    """``run_updates`` with ``binary_gradient``, compiled: equal up to the order of sums.

    A run's data stay in the processor's cache for all updates of a call; runs are shared out to
    threads. The result does not depend on their number. Sums run in ascending order, see
    :mod:`toolkit.optim.fused_kernel`; each update agrees with the reference to about 1e-15 of its
    size. The first call on a machine compiles for some seconds, which is kept on disk.

    Args:
        signed: Rows ``y_i x_i`` of each seed, in float64 on the CPU.
        loss: ``exponential`` or ``logistic``, of which the mean over examples is taken.

    Raises:
        ValueError: If the loss is another, or the data are not in float64 on the CPU.

    Example:
        >>> from toolkit.optim import power_rates
        >>> fused = FusedBinary(torch.tensor([[[1.0, 0.5], [2.0, 1.5]]]).double(), "exponential")
        >>> weights = torch.zeros(1, 2, dtype=torch.float64)
        >>> moved, _ = fused.run(GradientDescent(), weights, {}, power_rates(0.1))
        >>> moved
        tensor([[0.1500, 0.1000]], dtype=torch.float64)
    """

    def __init__(self, signed: Float[Tensor, "seeds examples size"], loss: BinaryLoss) -> None:
        if loss not in ("exponential", "logistic"):
            raise ValueError(
                f"loss must be 'exponential' or 'logistic', got {loss!r}. For others use "
                "run_updates with linear_gradient."
            )
        check_double(signed, "signed")
        self.loss = loss
        self.shape = signed.shape
        rows = signed.detach().numpy()
        self._data = Data(padded(rows), padded(rows.transpose(0, 2, 1)), loss == "exponential")

    def run(
        self,
        method: FullBatchMethod,
        weights: Float[Tensor, " *runs size"],
        state: State,
        rates: Float[Tensor, " count *rate_runs"],
        threads: int | None = None,
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """One update per learning rate; the arguments stay as they are.

        Args:
            method: One of this package's full-batch methods.
            weights: The last leading dimension is the seeds; further ones are settings.
            state: From ``method.init`` or an earlier call.
            rates: Per update, and per run unless shared.
            threads: At most so many; by default as many as torch uses.

        Returns:
            The weights and the state after the last update.

        Raises:
            ValueError: If the weights do not fit the data, or the method is none of those.
        """
        seeds, _, size = self.shape
        check_weights(weights, seeds, size)
        return run_compiled(
            fused_kernel.advance, self._data, method, weights, state, rates, threads
        )


def run_compiled(
    advance: Callable[..., None],
    data: Data | MulticlassData,
    method: FullBatchMethod,
    weights: Tensor,
    state: State,
    rates: Tensor,
    threads: int | None,
) -> tuple[Tensor, State]:
    """Share the runs out to threads; see :meth:`FusedBinary.run`."""
    if type(method) not in _METHODS:
        names = ", ".join(kind.__name__ for kind in _METHODS)
        raise ValueError(
            f"method must be one of {names}, got {type(method).__name__}. For others use "
            "run_updates."
        )
    runs = _copied(method, weights, state, rates)
    count = len(runs.weights)
    workers = max(1, min(threads or torch.get_num_threads(), count))
    work = partial(advance, _METHODS[type(method)], data, runs)
    if workers == 1:
        work(0, count)
    else:
        bounds = [count * worker // workers for worker in range(workers + 1)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, bounds[:-1], bounds[1:]))
    return _shaped(runs.weights, weights), {
        name: _shaped(getattr(runs, name), value) for name, value in state.items()
    }


def check_weights(weights: Tensor, seeds: int, size: int) -> None:
    """Refuse weights that do not end in the data's shape."""
    check_double(weights, "weights")
    if weights.shape[-2:] != (seeds, size):
        raise ValueError(
            f"weights must end in (seeds, size) = ({seeds}, {size}), got shape "
            f"{tuple(weights.shape)}. Put settings in front."
        )


def check_double(values: Tensor, name: str) -> None:
    """Refuse what the compiled updates cannot take."""
    if values.dtype != torch.float64 or values.device.type != "cpu":
        raise ValueError(
            f"{name} must be float64 on the CPU, got {values.dtype} on {values.device}. Use "
            "run_updates elsewhere."
        )


def padded(rows: Array) -> Array:
    """A copy whose rows are a multiple of 64 bytes, and begin at one."""
    count, examples, size = rows.shape
    width = -(-size // 8) * 8
    buffer = np.zeros(count * examples * width + 8)
    skipped = (-buffer.ctypes.data // 8) % 8
    copy = buffer[skipped : skipped + count * examples * width]
    copy = copy.reshape(count, examples, width)
    copy[:, :, :size] = rows
    return copy


def _copied(method: FullBatchMethod, weights: Tensor, state: State, rates: Tensor) -> Runs:
    shape, size = weights.shape[:-1], weights.shape[-1]
    count = shape.numel()

    def flat(value: Tensor, width: tuple[int, ...]) -> Array:
        copy: Array = value.detach().reshape(count, *width).numpy().copy()
        return copy

    settings = torch.zeros(*shape, 3, dtype=torch.float64)
    names = ("beta", "beta2", "eps") if hasattr(method, "beta") else ("beta1", "beta2", "eps")
    for column, name in enumerate(names):
        settings[..., column] = torch.as_tensor(getattr(method, name, 0.0), dtype=torch.float64)
    zeros = torch.zeros_like(weights)
    scale = state.get("log_scale", zeros[..., 0])
    expanded = rates.double().reshape(
        len(rates), *[1] * (len(shape) - rates.ndim + 1), *rates.shape[1:]
    )
    return Runs(
        weights=flat(weights, (size,)),
        first=flat(state.get("first", zeros), (size,)),
        second=flat(state.get("second", zeros), (size,)),
        log_scale=flat(scale, ()),
        settings=flat(settings, (3,)),
        rates=flat(expanded.expand(len(rates), *shape).movedim(0, -1), (len(rates),)),
    )


def _shaped(values: Array, like: Tensor) -> Tensor:
    return torch.from_numpy(values).reshape(like.shape)
