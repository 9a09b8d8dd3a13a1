"""The worst group's loss, by weights that follow the groups' losses."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from toolkit.distributed import sum_across_ranks, world_size

__all__ = ["GroupDRO"]


class GroupDRO(nn.Module):
    """Sum of the groups' mean losses, each times a weight that grows with that loss.

    At each update ``q_g <- q_g exp(step_size * L_g)`` for the groups ``g`` in the batch, then ``q``
    is scaled so that its sum stays; groups without an example in the batch keep their weight. The
    loss is ``sum_g q_g L_g`` with the new weights, over those of the groups seen so far: one that
    the training data lacks takes no part. All ranks' examples count, so every rank has the
    same weights; the returned value is this rank's share of the loss times the number of ranks,
    whose mean over ranks (what DDP makes of gradients) is the loss.

    The weights are a buffer, so they are saved with the model. With equal weights and ``step_size``
    0 it is the mean of the groups' mean losses.

    Args:
        num_groups: The number of groups, also of those without an example.
        step_size: Of the weights, at least 0.

    Raises:
        ValueError: If an argument is out of range, or a group id is.

    Example:
        >>> dro = GroupDRO(2, step_size=0.0)
        >>> losses, groups = torch.tensor([1.0, 1.0, 4.0]), torch.tensor([0, 0, 1])
        >>> float(dro(losses, groups))
        2.5

    Reference:
        Sagawa et al. 2020, arXiv:1911.08731, Algorithm 1. That absent groups keep their weight is
        ours: there they lose some to the scaling.
    """

    weights: Tensor
    seen: Tensor

    def __init__(self, num_groups: int, step_size: float = 0.01) -> None:
        super().__init__()
        if num_groups < 1 or not step_size >= 0:
            raise ValueError(
                f"num_groups must be at least 1 and step_size at least 0, got {num_groups} and "
                f"{step_size}. Take the number of groups from the data."
            )
        self.step_size = step_size
        self.register_buffer("weights", torch.full((num_groups,), 1 / num_groups))
        self.register_buffer("seen", torch.zeros(num_groups, dtype=torch.bool))
        self._update: int | None = None

    def forward(
        self,
        losses: Float[Tensor, " batch"],
        groups: Int[Tensor, " batch"],
        update: int | None = None,
    ) -> Float[Tensor, ""]:
        """This rank's share of the loss.

        Args:
            losses: Per example.
            groups: Ids in ``0..num_groups - 1``.
            update: Number of the update; a further call with the same number, such as SAM's second
                pass or another micro-batch, leaves the weights. ``None`` never does.
        """
        num_groups = len(self.weights)
        if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < num_groups:
            raise ValueError(
                f"group ids must lie in 0..{num_groups - 1}, got {int(groups.min())}.."
                f"{int(groups.max())}. Set num_groups to the number of groups of the data."
            )
        sums = torch.zeros(num_groups, dtype=losses.dtype, device=losses.device)
        counts = sums.index_add(0, groups, torch.ones_like(losses))
        sums = sums.index_add(0, groups, losses)
        totals, count = sum_across_ranks(torch.stack([sums.detach(), counts]))
        if self.training and (update is None or update != self._update):
            self._step(totals / count.clamp_min(1), count > 0)
            self._update = update
        weights = self.weights / self.weights[self.seen].sum() if self.seen.any() else self.weights
        share = weights.to(losses) / count.clamp_min(1)
        loss: Tensor = (share * sums).sum() * world_size()
        return loss

    @torch.no_grad()
    def _step(self, means: Tensor, present: Tensor) -> None:
        present = present.to(self.weights.device)
        self.seen |= present
        old = self.weights[present]
        # Shifted by the largest loss, which the scaling takes out again: exp must not overflow.
        exponent = self.step_size * means.to(self.weights)[present]
        new = old * (exponent - exponent.max()).exp()
        self.weights[present] = new * (old.sum() / new.sum())
