"""What kind of solution training finds: norms of the weights, curvature, sharpness."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from callbacks._observing import record_values
from callbacks._probing import ProbedData, loss_sum
from callbacks._scoring import Reader, without_trace
from toolkit.functional import Field, Fields
from toolkit.metrics import hessian_products, lanczos_eigenvalues, loss_increase, weight_norms

__all__ = ["SolutionProbe"]

_WANTED = 5
_UNSURE = 0.05  # of an eigenvalue; what is not found to this is warned of


class SolutionProbe(L.Callback):
    """Observes: norms of the weights, largest Hessian eigenvalues of the training loss, sharpness.

    The loss is the mean cross-entropy over a fixed part of the training data, without
    augmentation, in evaluation mode (BatchNorm with its running statistics, no dropout) and without
    autocast; the optimizer's weight decay is no part of it. Parameters are those that are trained.

    | key | value |
    | --- | --- |
    | ``train/weight_norm/l1``, ``train/weight_norm/l2`` | norms of all parameters as one vector |
    | ``train/weight_norm/l1/no_bias_norm``, ... | without biases and normalisation layers |
    | ``train/hessian/eigenvalue1``, ``train/hessian/eigenvalue5`` | the largest and the 5th |
    | ``train/hessian/ratio`` | their quotient |
    | ``train/m_sharpness`` | mean rise of the loss of ``m`` examples at ``w + rho g / ||g||`` |

    Eigenvalues are counted with multiplicity, and NaN where there are fewer parameters or a
    derivative is not finite. A warning tells of those that ``max_products`` products did not find
    to 5 %. Sharpness steps along the gradient ``g`` of each set of ``m`` examples, the last set
    perhaps smaller, and is weighted by size: what SAM adds to the loss that it minimises.

    Several ranks share the work, and find what one process finds, up to rounding. A product costs
    less than three passes over the examples; memory is that of one chunk's second derivatives, and
    of ``max_products`` vectors of all parameters, 4.5 GB for 11 million and 100.

    Args:
        every: Epochs between two probes; by default there is one, at the end of training, which
            always has one.
        num_examples: Examples probed, spread evenly over the training data; ``None`` is all.
        chunk_size: Examples differentiated at once.
        rho: Length of the step of the sharpness, positive.
        m: Examples that share a step.
        max_products: Hessian-vector products that the eigenvalues may cost, at least 5.
        dataloader: The training examples in order, without augmentation, or a callable that returns
            such a loader; by default the ``scoring_dataloader()`` of data module or module if there
            is one, else the training data set itself.
        fields: Other names, or callables, for ``inputs``, ``targets`` and ``indices`` of a batch. A
            tuple or list holds inputs and targets, in this order.
        forward: Takes the module and a batch and returns logits; by default ``module(inputs)``.
        losses: Takes logits and targets, returns a loss per example; by default cross-entropy.

    Raises:
        ValueError: If an argument is out of range; in ``fit``, if the data cannot be read in order.
        RuntimeError: In ``fit``, with a strategy that shards the model, or a model that cannot be
            differentiated twice.

    Reference:
        Nguyen et al. 2024, arXiv:2404.17768 (norm and eigenvalues of USEFUL's and SAM's
        solutions; the details here are ours); Foret et al. 2021, arXiv:2010.01412 (m-sharpness).
    """

    logged_keys: tuple[str, ...] = (
        *(f"train/weight_norm/{norm}{of}" for norm in ("l1", "l2") for of in ("", "/no_bias_norm")),
        *(f"train/hessian/{name}" for name in ("eigenvalue1", f"eigenvalue{_WANTED}", "ratio")),
        "train/m_sharpness",
    )

    def __init__(  # noqa: PLR0913 - when, how much, two quantities' numbers, three ways to read
        self,
        every: int | None = None,
        *,
        num_examples: int | None = 1000,
        chunk_size: int = 256,
        rho: float = 0.05,
        m: int = 128,
        max_products: int = 100,
        dataloader: Any = None,
        fields: Mapping[str, Field | None] | None = None,
        forward: Callable[[Any, Any], Any] | None = None,
        losses: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        counts = {"every": every, "num_examples": num_examples, "chunk_size": chunk_size, "m": m}
        _check(counts, rho, max_products)
        self.every = every
        self.num_examples = num_examples
        self.chunk_size = chunk_size
        self.rho = rho
        self.m = m
        self.max_products = max_products
        self.dataloader = dataloader
        self._reader = Reader(Fields(("inputs", "targets", "indices"), fields), forward, losses)
        self._probed_update = -1

    @property
    def state_key(self) -> str:
        """Tells several probes of one trainer apart."""
        settings = f"every={self.every}, num_examples={self.num_examples}"
        return f"SolutionProbe({settings}, rho={self.rho}, m={self.m})"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse what cannot be right."""
        self._probed_update = -1
        if stage == "fit" and trainer.strategy.restore_checkpoint_after_setup:
            raise RuntimeError(
                "SolutionProbe must run on one device or under DDP, got "
                f"{type(trainer.strategy).__name__}. It needs all parameters on each device."
            )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Probe where the epoch is due."""
        if self.every is not None and (trainer.current_epoch + 1) % self.every == 0:
            self._probe(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Probe the final weights, unless the last epoch's end did."""
        if self._probed_update != trainer.global_step:
            self._probe(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The update of the last probe."""
        return {"probed_update": self._probed_update}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self._probed_update = state_dict["probed_update"]

    def _probe(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._probed_update = trainer.global_step
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not named:
            return
        values = {f"weight_norm/{name}": norm for name, norm in weight_norms(named).items()}
        with without_trace(trainer, module), _differentiable(module):
            data = ProbedData(
                trainer,
                module,
                self.dataloader,
                self._reader,
                num_examples=self.num_examples,
                chunk_size=self.chunk_size,
            )
            summed = loss_sum(module, self._reader)
            values |= self._curvature(data, summed, list(named.values()))
            rises = [
                loss_increase(summed, pieces, list(named.values()), self.rho)
                for pieces in data.sets(self.m)
            ]
            values["m_sharpness"] = torch.stack(rises).sum() / data.count
        numbers = {f"train/{name}": value.detach().double().cpu() for name, value in values.items()}
        record_values(trainer, module, numbers)

    def _curvature(
        self, data: ProbedData, summed: Callable[[Any], Tensor], parameters: list[Tensor]
    ) -> dict[str, Tensor]:
        first = parameters[0]
        dtype = torch.promote_types(first.dtype, torch.float32)
        like = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=first.device)

        def product(vectors: Tensor) -> Tensor:
            return hessian_products(summed, data, parameters, vectors) / data.count

        found = lanczos_eigenvalues(product, like, _WANTED, max_products=self.max_products)
        values = torch.full((_WANTED,), torch.nan, dtype=torch.float64)
        values[: len(found.eigenvalues)] = found.eigenvalues
        unsure = found.residuals > _UNSURE * found.eigenvalues.abs()
        if bool(unsure.any()) and len(like) > self.max_products:
            rank_zero_warn(
                f"eigenvalue {int(unsure.nonzero()[0]) + 1} of the Hessian was not found to "
                f"{100 * _UNSURE:.0f} % by {found.num_products} products. Raise max_products, now "
                f"{self.max_products}."
            )
        largest, fifth = values[0], values[-1]
        return {
            "hessian/eigenvalue1": largest,
            f"hessian/eigenvalue{_WANTED}": fifth,
            "hessian/ratio": largest / fifth,
        }


@contextlib.contextmanager
def _differentiable(module: L.LightningModule) -> Iterator[None]:
    """Gradients on, autocast off, attention by kernels that can be differentiated twice."""
    kind = module.device.type
    try:
        with (
            torch.enable_grad(),
            torch.autocast(kind, enabled=False),
            sdpa_kernel(SDPBackend.MATH),
        ):
            yield
    except RuntimeError as error:
        text = str(error)
        if "double backward" in text or "is not implemented" in text:
            raise RuntimeError(
                "the model must be twice differentiable for SolutionProbe, got "
                f"{' '.join(text.split())[:200]} Probe the model without torch.compile and fused "
                "operations."
            ) from error
        raise


def _check(counts: Mapping[str, int | None], rho: float, max_products: int) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")
    if not (rho > 0 and math.isfinite(rho)):
        raise ValueError(f"rho must be positive and finite, got {rho}. 0.05 is usual.")
    if max_products < _WANTED:
        raise ValueError(f"max_products must be at least {_WANTED}, got {max_products}.")
