"""Sharpness-aware minimisation (SAM) over any torch optimizer."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from toolkit.distributed import world_size
from toolkit.optim.passes import WHOLE, Chunk, RandomState, chunks
from toolkit.optim.perturbation import sam_perturbation

__all__ = ["SAM"]

Context = Callable[[], AbstractContextManager[Any]]


class SAM(Optimizer):
    """The base optimizer's step with the gradient taken at the worst point nearby.

    ``e = rho * g / ||g||`` from the gradient ``g`` at the weights ``w``; the base optimizer then
    steps from ``w`` with the gradient at ``w + e``. :meth:`step` runs the closure itself, twice, on
    the same batch and with the same random numbers (Python, NumPy, CPU, CUDA), and puts the
    weights back from a copy, also after an exception. Weight decay in the base optimizer is
    evaluated at ``w`` and no part of ``e``. With ``rho=0`` it is the base optimizer, bit for bit.

    State and parameter groups are the base optimizer's own, so a schedule over SAM drives the base
    optimizer, and a checkpoint of SAM is one of the base optimizer.

    In Lightning add ``callbacks.SharpnessAware()``. In a loop of one's own, attributes say what
    surrounds the passes: ``first_pass`` and ``second_pass``, each a function that returns a context
    manager. With BatchNorm set ``optimizer.second_pass = lambda: kept_buffers(model)``. Clip the
    gradient of the second pass only, in a hook for ``optimizer.base.register_step_pre_hook`` (which
    must return nothing).

    Several ranks: under ``DistributedDataParallel``, ``perturbation="global"`` perturbs with the
    gradient of the global batch; ``"local"``, the papers' form, with each rank's own, for which
    ``first_pass`` must be the model's ``no_sync``. The second gradient is always averaged.

    Args:
        params: As for any torch optimizer.
        base: Takes the parameters, returns the optimizer that makes the step.
        rho: Radius of the neighbourhood, ``>= 0``; 0.02 to 0.2 is usual, outside
            0.005 to 0.5 a warning says so.
        perturbation: Whose gradient perturbs the weights.
        m: Examples per perturbation: the batch is cut into chunks of ``m``, each with its own
            perturbation, and one step is made with the mean of their gradients over examples.
            Under ``"global"`` it counts the examples of all ranks, under ``"local"`` those of one.
            ``None`` is the whole batch. In a loop of one's own the closure then takes the rows, a
            slice.

    Raises:
        ValueError: If ``rho`` is negative or not finite, ``m`` is not positive, or the base
            optimizer needs a closure itself.

    Example:
        >>> w = nn.Parameter(torch.tensor([2.0, 1.0]))
        >>> optimizer = SAM([w], partial(torch.optim.SGD, lr=0.1), rho=0.1)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = 0.5 * (w[0] ** 2 + 10 * w[1] ** 2)
        ...     loss.backward()
        ...     return loss
        >>> print(f"{optimizer.step(closure).item():.1f}", w.data)
        7.0 tensor([ 1.7980, -0.0981])

    Reference:
        Foret et al. 2021, arXiv:2010.01412. Andriushchenko and Flammarion 2022, arXiv:2206.06232
        (``m``).
    """

    first_pass: Context | None
    second_pass: Context | None
    chunk: Chunk | None  # the rows of the pass that is running
    _usual_rho = (0.005, 0.5)

    def __init__(
        self,
        params: Iterable[Any],
        base: Callable[[Iterable[nn.Parameter]], Optimizer],
        rho: float = 0.05,
        perturbation: Literal["global", "local"] = "global",
        m: int | None = None,
    ) -> None:
        _check_settings(rho, self._usual_rho, m)
        self.base = base(params)
        if isinstance(self.base, LBFGS | SAM):
            raise ValueError(
                f"The base optimizer must step without a closure, got {type(self.base).__name__}. "
                "Use one such as torch.optim.SGD or torch.optim.AdamW."
            )
        super().__init__(self.base.param_groups, self.base.defaults)
        self.rho = rho
        self.perturbation = perturbation
        self.m = m
        self.batch_size: int | None = None  # rows of the coming batch, where step is not told
        self._forget_surroundings()
        self._share()

    def step(
        self, closure: Callable[..., Any] | None = None, *, batch_size: int | None = None
    ) -> Any:
        """Run both passes and make one step of the base optimizer.

        Args:
            closure: Zeroes the gradients, computes the loss, calls ``backward``, returns the loss.
                If ``m`` is set, it takes the rows to do so for.
            batch_size: The number of rows of the batch on this rank; needed if ``m`` is set.

        Returns:
            The loss of the first pass, at the weights before the step.

        Raises:
            RuntimeError: If there is no closure, or what surrounds the passes is missing: the
                callback in Lightning, ``no_sync`` for local perturbation on several ranks, the
                batch size where ``m`` is set.
        """
        closure = self._checked(closure)
        parts = self._chunks(self.batch_size if batch_size is None else batch_size)
        losses = []
        with torch.no_grad():
            try:
                for part in parts:
                    self.chunk, self._folded = part, part.whole
                    losses.append(self._two_passes(closure))
                    self.fold()
            finally:
                self.chunk = None
                self._sum.clear()
            self.base.step()
        if len(losses) == 1 or any(loss is None for loss in losses):
            return losses[0]
        return sum(part.weight * loss for part, loss in zip(parts, losses, strict=True))

    def fold(self) -> None:
        """Add the chunk's second gradient to the sum over chunks; the last leaves it as ``grad``.

        ``step`` calls it after each second pass. Code that reads the gradient within the closure
        (clipping) calls it before; a second call for the same chunk does nothing.
        """
        if self._folded or self.chunk is None:
            return
        self._folded = True
        for parameter in self._parameters():
            if parameter.grad is not None:
                part = parameter.grad * self.chunk.weight
                self._sum[parameter] = self._sum.get(parameter, 0) + part
        if self.chunk.last:
            for parameter, total in self._sum.items():
                parameter.grad = total

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state: the perturbation leaves none."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the base optimizer and share its groups again."""
        self.base.load_state_dict(state_dict)
        self._share()

    def name_parameters(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Tell the parameters' names, as ``model.named_parameters()``; SAM has no use for them."""

    def _perturbation(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return sam_perturbation(gradients, self.rho)

    def _two_passes(self, closure: Callable[..., Any]) -> Any:
        devices = {parameter.device for parameter in self._parameters()}
        before = RandomState(devices)
        if self._sum:
            self.zero_grad()
        loss = self._run(closure, self.first_pass)
        after = RandomState(devices)
        with self._perturbed():
            self.zero_grad()  # the passes' gradients never mix, whatever the closure does
            before.restore()
            try:
                self._run(closure, self.second_pass)
            finally:
                after.restore()
        return loss

    def _run(self, closure: Callable[..., Any], surroundings: Context | None) -> Any:
        with (surroundings or nullcontext)(), torch.enable_grad():
            if self.m is None or self.chunk is None or _from_lightning(closure):
                return closure()
            return closure(self.chunk.rows)

    @contextmanager
    def _perturbed(self) -> Iterator[None]:
        parameters = [p for p in self._parameters() if p.grad is not None]
        if not parameters:  # nothing depends on the loss, or the step was skipped
            yield
            return
        copies = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(copies, parameters)
        try:
            gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
            torch._foreach_add_(parameters, self._perturbation(parameters, gradients))
            del gradients  # else they would take memory all through the second pass
            torch.clear_autocast_cache()  # it would hand the second pass the old weights, cast
            yield
        finally:
            torch._foreach_copy_(parameters, copies)
            torch.clear_autocast_cache()

    def _chunks(self, batch_size: int | None) -> list[Chunk]:
        if self.m is None:
            return [WHOLE]
        if batch_size is None:
            raise RuntimeError(
                f"SAM.step must know the batch size to divide it where m is set, got m={self.m} "
                "alone. Call step(closure, batch_size=len(inputs))."
            )
        return chunks(batch_size, self.m, self.perturbation, next(self._parameters()).device)

    def _checked(self, closure: Callable[..., Any] | None) -> Callable[..., Any]:
        name = type(self).__name__
        if closure is None:
            raise RuntimeError(
                f"{name}.step must be given a closure, which it runs twice, got None. Pass a "
                "function that zeroes the gradients, computes the loss, calls backward and returns "
                "the loss; in Lightning use precision='bf16-mixed', as 16-mixed passes on none."
            )
        if self.second_pass is None and _from_lightning(closure):
            raise RuntimeError(
                f"{name} must have its callback in a Lightning Trainer, got a Trainer without it. "
                "Please add callbacks.SharpnessAware() to the Trainer's callbacks."
            )
        if self.perturbation == "local" and world_size() > 1 and self.first_pass is None:
            raise RuntimeError(
                "A local perturbation must come from a first pass that does not average gradients, "
                "got no first_pass. Set optimizer.first_pass = model.no_sync."
            )
        if self.param_groups is not self.base.param_groups or self.state is not self.base.state:
            raise RuntimeError(
                f"{name} and its base optimizer must share one list of parameter groups and one "
                "state, got two: schedules would change a dead copy. Load states through "
                f"{name}.load_state_dict and change groups in place."
            )
        return closure

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _share(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    def _forget_surroundings(self) -> None:
        self.first_pass = None
        self.second_pass = None
        self.chunk = None
        self._folded = True
        self._sum: dict[Tensor, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("base", "rho", "perturbation", "m", "batch_size", "eta", "variant", "_names")
        return super().__getstate__() | {k: v for k, v in vars(self).items() if k in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_surroundings()
        self._share()


def _check_settings(rho: float, usual: tuple[float, float], m: int | None) -> None:
    if not (rho >= 0 and math.isfinite(rho)):
        raise ValueError(f"rho must be finite and at least 0, got {rho}. 0 is the base optimizer.")
    if m is not None and m < 1:
        raise ValueError(f"m must be at least 1, got {m}. Leave it out to take the whole batch.")
    if rho > 0 and not usual[0] <= rho <= usual[1]:
        warnings.warn(f"rho is usually in [{usual[0]}, {usual[1]}], got {rho}.", stacklevel=4)


def _from_lightning(closure: Callable[..., Any]) -> bool:
    """Whether Lightning's precision plugin made the closure: a partial of its own bound method."""
    while isinstance(closure, partial):
        owner = getattr(closure.func, "__self__", None)
        if any(c.__module__.startswith(_LIGHTNING) for c in type(owner).__mro__):
            return True
        closure = closure.func
    return False


_LIGHTNING = ("lightning.", "pytorch_lightning.")
