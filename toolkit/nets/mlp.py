"""A fully connected net with explicit sizes."""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["MLP"]


class MLP(nn.Module):
    """Linear layers with ReLU between them, on the flattened inputs.

    ``len(widths) + 1`` linear layers: two widths make the three-layer net.

    Args:
        in_features: Values of one input, such as 3 * 32 * 32.
        num_classes: Length of the logits.
        widths: Units after each layer but the last; none makes a linear classifier.

    Raises:
        ValueError: If a size is below 1.

    Example:
        >>> MLP(in_features=12, num_classes=10, widths=(8, 4))(torch.zeros(5, 3, 2, 2)).shape
        torch.Size([5, 10])
    """

    def __init__(self, in_features: int, num_classes: int, widths: Sequence[int] = ()) -> None:
        super().__init__()
        sizes = (in_features, *widths, num_classes)
        if min(sizes) < 1:
            raise ValueError(
                f"in_features, widths and num_classes must be at least 1, got {in_features}, "
                f"{list(widths)} and {num_classes}. Take the first and the last from the data."
            )
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.in_features = in_features

    def forward(self, inputs: Float[Tensor, " batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Logits.

        Raises:
            ValueError: If an input has another number of values than ``in_features``.
        """
        rows = torch.flatten(inputs, 1)
        if rows.shape[1] != self.in_features:
            raise ValueError(
                f"inputs must have {self.in_features} values each, got {rows.shape[1]} of shape "
                f"{tuple(inputs.shape[1:])}. Set in_features to that number."
            )
        logits: Tensor = self.layers(rows)
        return logits
