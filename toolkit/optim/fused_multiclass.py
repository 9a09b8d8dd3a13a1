"""Many full-batch updates of multiclass linear classifiers in one call, compiled."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toolkit.optim import fused_kernel
from toolkit.optim.full_batch import FullBatchMethod, State
from toolkit.optim.fused import check_double, check_weights, padded, run_compiled
from toolkit.optim.fused_types import (
    LOSS_CROSS_ENTROPY,
    LOSS_EXPONENTIAL,
    LOSS_PAIR_LOG,
    LOSS_POLYNOMIAL,
    MulticlassData,
)

__all__ = ["FusedMulticlass", "MulticlassLoss"]

MulticlassLoss = Literal["cross_entropy", "exponential", "pair_log", "polynomial"]

_LOSSES = {
    "cross_entropy": LOSS_CROSS_ENTROPY,
    "exponential": LOSS_EXPONENTIAL,
    "pair_log": LOSS_PAIR_LOG,
    "polynomial": LOSS_POLYNOMIAL,
}


class FusedMulticlass:
    """``run_updates`` with ``linear_gradient``, compiled: equal up to the order of sums.

    As :class:`toolkit.optim.FusedBinary`. The losses are those of :mod:`toolkit.losses`:
    ``CrossEntropy``, ``MulticlassExponential``, ``PairLogLoss(parameter)`` and
    ``GammaPhiLoss(parameter)``; no relative margin may be below -700.

    Args:
        inputs: ``X`` of each seed, in float64 on the CPU.
        targets: The classes.
        num_classes: Columns of ``W``.
        loss: Its name.
        parameter: The temperature of ``pair_log``, the power of ``polynomial``.
        divisor: Of the summed loss: the number of examples by default.

    Raises:
        ValueError: If the loss is another, a target is out of range, the parameter is not positive,
            or the inputs are not in float64 on the CPU.
    """

    def __init__(
        self,
        inputs: Float[Tensor, "seeds examples size"],
        targets: Int[Tensor, "seeds examples"],
        num_classes: int,
        loss: MulticlassLoss,
        parameter: float = 1.0,
        divisor: float | None = None,
    ) -> None:
        check_double(inputs, "inputs")
        if loss not in _LOSSES:
            raise ValueError(
                f"loss must be one of {', '.join(_LOSSES)}, got {loss!r}. For others use "
                "run_updates with linear_gradient."
            )
        if not (int(targets.min()) >= 0 and int(targets.max()) < num_classes):
            raise ValueError(
                f"targets must lie in 0..{num_classes - 1}, got {int(targets.min())}.."
                f"{int(targets.max())}. Check num_classes."
            )
        if not parameter > 0:
            raise ValueError(f"parameter must be positive, got {parameter}. 1 is the usual one.")
        self.seeds, examples, size = inputs.shape
        self.size = size * num_classes
        rows = inputs.detach().numpy()
        self._data = MulticlassData(
            rows=padded(rows),
            columns=padded(rows.transpose(0, 2, 1)),
            targets=targets.to(torch.int64, copy=True).numpy(),
            classes=num_classes,
            loss=_LOSSES[loss],
            # Of the exponentials' rate; the others have none.
            parameter=float(parameter) if loss in ("pair_log", "polynomial") else 1.0,
            divisor=float(examples if divisor is None else divisor),
        )

    def run(
        self,
        method: FullBatchMethod,
        weights: Float[Tensor, " *runs size"],
        state: State,
        rates: Float[Tensor, " count *rate_runs"],
        threads: int | None = None,
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """As :meth:`toolkit.optim.FusedBinary.run`, for ``W`` flattened row by row."""
        check_weights(weights, self.seeds, self.size)
        return run_compiled(
            fused_kernel.advance_multiclass, self._data, method, weights, state, rates, threads
        )
