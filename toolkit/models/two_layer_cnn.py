"""Two-layer CNN on patch data: full-batch gradient descent or SAM, several runs as one program."""

import itertools
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from toolkit.data.upsampling import Selection
from toolkit.models.joint import JointModel
from toolkit.models.patch_member import PatchMember
from toolkit.nets.two_layer_cnn import Descent, patch_outputs

__all__ = ["TwoLayerCNN"]

_UNKNOWN = (math.nan, math.nan)
_STALLED = 0.9


class TwoLayerCNN(JointModel):
    """Filters with cubic activation over patches, second layer fixed to ones, logistic loss.

    ``f(x) = sum_j sum_p (w_j . x_p)^3``, trained in float64 by exact full-batch gradient descent,
    or by SAM with one norm over all filters. The data is a
    :class:`toolkit.data.PatchSignals` or has its keys. An *alignment* is the largest inner product
    of a filter and a feature, and the *fast update* the number of updates after which that of the
    fast feature is at least 1/2.

    With ``selection`` each run first trains to its fast update, clusters the outputs of each class
    at ``select_at`` times that update, and starts again from the same filters on data in which the
    selected examples occur ``factor`` times, which full batch is their weight in the mean.

    | recorded key | |
    | --- | --- |
    | ``train/loss``, ``train/grad_norm`` | mean logistic loss, norm of its gradient |
    | ``train/alignment/fast``, ``/slow`` | alignments |
    | ``train/alignment/gap``, ``/ratio`` | fast - slow, slow / fast |
    | ``train/contribution/fast``, ``/slow``, ``/gap`` | ``strength^3 sum_j (w_j . v)^3`` |
    | ``test/acc``, ``test/error``, ``test/masked_acc`` | masked: without the fast feature |

    | key of the result only | |
    | --- | --- |
    | ``fast_update``, ``ratio_at_fast_update`` | none if that was not reached |
    | ``stalled`` | 1 if the loss is above 0.9 log 2 at the end, else 0 |
    | ``theory/stall_radius``, ``theory/kappa`` | at the initial filters |
    | ``separation/precision/<at>``, ``/recall/<at>`` | slow clusters against masked examples |
    | ``useful/selected`` | share of the training examples that were selected |

    Args:
        num_filters: At least 1.
        dim: Dimension of a patch.
        lr: Learning rate, above 0.
        rho: Radius of SAM, at least 0; ``None`` is gradient descent.
        init_std: Standard deviation of the initial filters, above 0.
        selection: Which examples to upsample; ``None`` trains on the data as it is.
        factor: How often a selected example occurs.
        select_at: When to select, in units of the fast update.
        separation_at: When to compare the slow clusters with the masked examples, likewise.
        seed: Of the k-means and of a random selection.
        updates: Updates of the training.
        updates_per_step: See :class:`toolkit.models.JointModel`.
        log_per_decade: Likewise.

    Raises:
        ValueError: If a number is out of its range.

    Reference:
        Nguyen et al. 2024, arXiv:2404.17768; SAM: Foret et al. 2021, arXiv:2010.01412.
    """

    needs_cpu = True
    logged_keys = (
        "train/loss", "train/grad_norm", "train/alignment/fast", "train/alignment/slow",
        "train/alignment/gap", "train/alignment/ratio", "train/contribution/fast",
        "train/contribution/slow", "train/contribution/gap", "test/acc", "test/error",
        "test/masked_acc", "fast_update", "ratio_at_fast_update", "stalled",
        "theory/stall_radius", "theory/kappa", "separation/precision/*", "separation/recall/*",
        "useful/selected",
    )  # fmt: skip

    initial: Tensor
    lr: Tensor
    rho: Tensor
    seed: Tensor
    reached: Tensor

    def __init__(  # noqa: PLR0913 - the numbers that define a run
        self,
        *,
        num_filters: int = 40,
        dim: int = 50,
        lr: float = 0.1,
        rho: float | None = None,
        init_std: float = 0.02,
        selection: Selection | None = None,
        factor: int = 2,
        select_at: float = 0.9,
        separation_at: Sequence[float] = (),
        seed: int = 0,
        updates: int = 600,
        updates_per_step: int = 1000,
        log_per_decade: int = 20,
    ) -> None:
        super().__init__(updates, updates_per_step, log_per_decade)
        for name, value, is_right, bound in (
            ("num_filters", num_filters, num_filters >= 1, "at least 1"),
            ("dim", dim, dim >= 1, "at least 1"),
            ("lr", lr, 0 < lr < math.inf, "above 0"),
            ("rho", rho, rho is None or 0 <= rho < math.inf, "at least 0, or null without SAM"),
            ("init_std", init_std, 0 < init_std < math.inf, "above 0"),
            ("factor", factor, factor >= 1, "at least 1"),
            ("select_at", select_at, select_at > 0, "above 0"),
            ("separation_at", separation_at, all(at > 0 for at in separation_at), "above 0"),
        ):
            if not is_right:
                raise ValueError(f"{name} must be {bound}, got {value}.")
        self.selection = selection
        self.factor = factor
        self.select_at = select_at
        self.separation_at = tuple(sorted(separation_at))
        drawn = init_std * torch.randn(1, num_filters, dim, dtype=torch.float64)
        self.weights = nn.Parameter(drawn, requires_grad=False)
        self.register_buffer("initial", drawn.clone())
        radius = -1.0 if rho is None else rho
        for key, number in (("lr", lr), ("rho", radius)):
            self.register_buffer(key, torch.tensor([number], dtype=torch.float64))
        self.register_buffer("seed", torch.tensor([seed]))
        self.register_buffer("reached", torch.full((1, 3), -1.0, dtype=torch.float64))
        self._parts: list[PatchMember] = []

    def forward(self, inputs: Float[Tensor, "members examples patches dim"]) -> Tensor:
        """Outputs ``(members, examples)``."""
        return patch_outputs(self.weights, inputs)

    def settings(self) -> dict[str, Hashable]:
        """What all members of a program have to share."""
        own = {key: getattr(self, key) for key in ("selection", "factor", "select_at")}
        return {**super().settings(), **own, "separation_at": self.separation_at}

    def prepare(self, batch: Mapping[str, Tensor]) -> None:
        """Check the data, and find the patches that several examples share."""
        inputs = batch["inputs"]
        if inputs.device.type != "cpu":
            raise ValueError(f"trainer.accelerator must be cpu, got data on {inputs.device}.")
        if inputs.shape[-1] != self.weights.shape[-1]:
            raise ValueError(
                f"model.dim must be the dimension of the data's patches, {inputs.shape[-1]}, got "
                f"{self.weights.shape[-1]}. Set both to one number."
            )
        if not bool((batch["targets"].abs() == 1).all()):
            raise ValueError("targets must be -1 or +1, got others. Convert them.")
        self._parts = [
            PatchMember(
                {key: value[m] for key, value in batch.items()},
                self.initial[m].numpy(),
                Descent(float(self.lr[m]), float(self.rho[m]), self.weights.shape[1]),
                int(self.seed[m]),
            )
            for m in range(self.num_members)
        ]

    def begin(self, batch: Mapping[str, Tensor]) -> None:
        """Warn of what leaves the theory, and find what to upsample."""
        self._warn()
        if self.selection is not None:
            self.map_members(self._upsample, range(self.num_members))

    def advance(self, num_updates: int) -> Int[Tensor, " members"]:
        """Make full-batch updates."""
        made = torch.zeros(self.num_members, dtype=torch.int64)

        def descend(m: int) -> None:
            span = (int(self.updates_done[m]), num_updates)
            weights, reached = self.weights[m].numpy(), self.reached[m].numpy()
            made[m] = self._parts[m].descend(weights, span, reached)

        self.map_members(descend, self.active.nonzero().flatten().tolist())
        return made

    def observe(self) -> dict[str, Float[Tensor, " members"]]:
        """Alignments, contributions, loss, gradient norm and test accuracies."""

        def observe(m: int) -> dict[str, float]:
            return self._parts[m].observe(self.weights[m].numpy())

        return _gathered(self.map_members(observe, range(self.num_members)))

    def summarize(self) -> dict[str, Float[Tensor, " members"]]:
        """The fast update, the theory at the start, and separations."""
        return _gathered(self.map_members(self._summarize, range(self.num_members)))

    def _summarize(self, m: int) -> dict[str, float]:
        part = self._parts[m]
        update, fast, slow = self.reached[m].tolist()
        found = update >= 0
        radius, kappa = part.theory()
        values = {
            "fast_update": update if found else math.nan,
            "ratio_at_fast_update": slow / fast if found else math.nan,
            "stalled": float(part.loss(self.weights[m].numpy()) > _STALLED * math.log(2)),
            "theory/stall_radius": radius,
            "theory/kappa": kappa,
        }
        if self.selection is not None:
            values["useful/selected"] = part.selected_share
        updates = [round(at * update) for at in self.separation_at] if found else []
        pairs = [part.separation(outputs) for outputs in part.outputs_at(updates)]
        for at, pair in zip(self.separation_at, pairs or itertools.repeat(_UNKNOWN), strict=False):
            values[f"separation/precision/{at:g}"], values[f"separation/recall/{at:g}"] = pair
        return values

    def _upsample(self, m: int) -> None:
        """Train to the fast update, and upsample what is selected just before it."""
        part = self._parts[m]
        update = part.fast_update(self.updates)
        if update is None:
            warnings.warn(
                "the fast feature must be learnt within the updates for examples to be selected, "
                "got a run in which it was not. It trains on the data as it is.",
                stacklevel=2,
            )
            return
        (outputs,) = part.outputs_at([round(self.select_at * update)])
        part.upsample(part.select(outputs, self.selection or "slow"), self.factor)

    def _warn(self) -> None:
        """Of initial filters and radii that leave the theory, once for all members."""
        theory = [part.theory() for part in self._parts]
        over = [m for m, (radius, _) in enumerate(theory) if self.rho[m] > max(0.0, 0.5 * radius)]
        if over:
            worst = max(over, key=lambda m: float(self.rho[m]) / theory[m][0])
            warnings.warn(
                "rho must be at most half the radius at which SAM stalls for the theory to hold, "
                f"got {float(self.rho[worst]):g} where that radius is {theory[worst][0]:.2g} "
                "at the start. The fast feature may not be learnt.",
                stacklevel=3,
            )
        swapped = [int(self.seed[m]) for m, (_, kappa) in enumerate(theory) if kappa < 1]
        if swapped:
            warnings.warn(
                "the fast feature must start faster than the slow one, got initial filters with "
                f"which it does not, seed {', '.join(map(str, sorted(set(swapped))))}. Their roles "
                "are swapped there; leave these seeds out.",
                stacklevel=3,
            )


def _gathered(members: Sequence[Mapping[str, float]]) -> dict[str, Tensor]:
    """Numbers of the members by key, as float64."""
    return {
        key: torch.tensor([of[key] for of in members], dtype=torch.float64) for key in members[0]
    }
