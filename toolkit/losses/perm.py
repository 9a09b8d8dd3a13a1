"""Losses of the relative margins alone: the PERM template, shared by most losses of classifiers."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["PERMLoss", "relative_margins"]


def relative_margins(
    logits: Float[Tensor, " *batch classes"], targets: Int[Tensor, " *batch"]
) -> Float[Tensor, " *batch rivals"]:
    """``u_k = S_y - S_k`` for the other classes ``k`` in ascending order; all positive if right.

    Half-precision logits are taken to float32 first.

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> relative_margins(torch.tensor([[3.0, 1.0, 4.0]]), torch.tensor([0]))
        tensor([[ 2., -1.]])
    """
    if logits.shape[-1] < 2:
        raise ValueError(
            f"logits must have at least 2 classes, got shape {tuple(logits.shape)}. For a single "
            "logit z of class 1 give the two logits 0 and z."
        )
    exact = logits if logits.dtype == torch.float64 else logits.float()
    true = exact.gather(-1, targets.long().unsqueeze(-1))
    return true - exact.gather(-1, _rivals(targets, logits.shape[-1]))


class PERMLoss(nn.Module, ABC):
    """Loss ``psi(u)`` of the relative margins ``u``, symmetric in them; one value per example.

    Permutation-equivariant and relative-margin-based: renaming the classes renames the losses, and
    only differences of scores count. Called with logits ``(*batch, classes)`` and targets
    ``(*batch,)``, so that it serves as the ``loss`` of :class:`toolkit.models.ImageClassifier`.

    A subclass defines ``psi`` and its negative derivatives. The gradient by the true class's logit
    is minus the sum of the others', hence it survives as long as they do: torch's own
    cross-entropy in float32 loses it beyond a margin of 16.6.

    Reference:
        Wang and Scott 2024, JMLR 25; Ravi, Scott, Soudry, Wang 2024, arXiv:2411.01350.
    """

    @abstractmethod
    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """The loss of relative margins."""

    @abstractmethod
    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``q_k = -d psi / d u_k``, in closed form."""

    def log_rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``log q_k``, where the subclass knows it at margins at which ``q_k`` underflows."""
        return self.rival_weights(margins).log()

    def forward(
        self, logits: Float[Tensor, " *batch classes"], targets: Int[Tensor, " *batch"]
    ) -> Float[Tensor, " *batch"]:
        """One loss per example."""
        return self.psi(relative_margins(logits, targets))

    def logit_gradient(
        self, logits: Float[Tensor, " *batch classes"], targets: Int[Tensor, " *batch"]
    ) -> Float[Tensor, " *batch classes"]:
        """Gradient of each loss by its logits, in closed form: ``q_k``, and ``-sum q`` at ``y``."""
        return _spread(self.rival_weights(relative_margins(logits, targets)), targets)

    def scaled_logit_gradient(
        self,
        logits: Float[Tensor, " *runs examples classes"],
        targets: Int[Tensor, " *runs examples"],
    ) -> tuple[Float[Tensor, " *runs examples classes"], Float[Tensor, " *runs"]]:
        """:meth:`logit_gradient` as ``values * exp(log_scale)``, with largest values of about 1.

        Does not underflow where :meth:`log_rival_weights` does not. Where all weights are 0 the
        values are, and the scale is 1.

        Returns:
            The values, and one ``log_scale`` per run.
        """
        logs = self.log_rival_weights(relative_margins(logits, targets))
        scale = logs.amax((-2, -1))
        scale = torch.where(scale == -torch.inf, 0.0, scale)
        return _spread((logs - scale[..., None, None]).exp(), targets), scale


def _rivals(targets: Tensor, num_classes: int) -> Tensor:
    """Classes other than the target, ascending."""
    others = torch.arange(num_classes - 1, device=targets.device)
    return others + (others >= targets.unsqueeze(-1)).long()


def _spread(weights: Tensor, targets: Tensor) -> Tensor:
    """From the rivals' weights to all classes'."""
    num_classes = weights.shape[-1] + 1
    spread = weights.new_zeros(*weights.shape[:-1], num_classes)
    spread.scatter_(-1, _rivals(targets, num_classes), weights)
    return spread.scatter_(-1, targets.long().unsqueeze(-1), -weights.sum(-1, keepdim=True))
