"""The examples that a run upsamples: what a checkpoint and ``useful.json`` hold."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from toolkit.data.upsampling import indices_hash, upsampled_indices
from toolkit.history import read_json, write_json

__all__ = ["UpsampledSet"]

_NAMES = {0: "fast", 1: "slow", -1: None}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_FORMAT = 1


@dataclass(frozen=True)
class UpsampledSet:
    """Which examples to upsample, and how they were found.

    Attributes:
        selected: Their positions, ascending.
        cluster: Per example 0 (fast), 1 (slow) or -1 (not clustered).
        sizes: Per class the number of fast and of slow examples.
        mean_losses: Per class the mean loss of the fast and of the slow examples, NaN without any.
        skipped: Classes that were not clustered.
        loss: Mean loss over all examples when they were scored.
        error: Share of wrong predictions then.
        errors: Training errors by epoch, if the separation epoch was chosen by them.
        epochs: Epochs of the separation stage.
        settings: Plain numbers and names that it depends on.
        fingerprint: Of the data.
    """

    selected: Int[Tensor, " selected"]
    cluster: Int[Tensor, " examples"]
    sizes: Int[Tensor, "classes 2"]
    mean_losses: Float64[Tensor, "classes 2"]
    skipped: tuple[int, ...]
    loss: float
    error: float
    errors: tuple[float, ...]
    epochs: int
    settings: dict[str, Any]
    fingerprint: str

    @property
    def num_examples(self) -> int:
        """Examples of the training data."""
        return len(self.cluster)

    @property
    def share(self) -> float:
        """Selected share of the training data."""
        return len(self.selected) / max(self.num_examples, 1)

    def indices(self, factor: int) -> Int[Tensor, " upsampled"]:
        """The index list of the upsampled data; each example once for the controls that copy none.

        These are ``longer`` and ``weighted``.
        """
        copies = 1 if self._kind in ("longer", "weighted") else factor
        return upsampled_indices(self.num_examples, self.selected, copies)

    def epoch_length(self, factor: int) -> int | None:
        """Positions of an epoch for the control ``longer``, else ``None``: those of the list."""
        is_longer = self._kind == "longer"
        return self.num_examples + (factor - 1) * len(self.selected) if is_longer else None

    def loss_weights(self, factor: int) -> Float[Tensor, " examples"] | None:
        """Weights of the examples' losses for the control ``weighted``, else ``None``.

        They are ``factor`` to 1, and their mean over the data is 1: over all examples the weighted
        mean of the losses is the plain mean over the data with ``factor - 1`` further copies.
        """
        if self._kind != "weighted" or factor == 1:
            return None
        weights = torch.ones(self.num_examples, dtype=torch.float64)
        weights[self.selected] = float(factor)
        return weights / weights.mean()

    @property
    def _kind(self) -> str:
        return str(self.settings.get("selection"))

    def state(self) -> dict[str, Any]:
        """Tensors and plain values, for a checkpoint that ``weights_only=True`` can load."""
        values = {**vars(self), "skipped": list(self.skipped), "errors": list(self.errors)}
        return {
            **values,
            "cluster": self.cluster.to(torch.int8),
            "hash": indices_hash(self.selected),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "UpsampledSet":
        """What :meth:`state` gave."""
        values = {key: state[key] for key in cls.__dataclass_fields__}
        values["cluster"] = values["cluster"].long()
        for key in ("skipped", "errors"):
            values[key] = tuple(values[key])
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON: plain numbers and names, an absent value as ``null``."""
        sides = ("fast", "slow")
        classes = [
            {
                "class": k,
                **{
                    side: {"count": int(self.sizes[k, i]), "mean_loss": float(losses[i])}
                    for i, side in enumerate(sides)
                },
            }
            for k, losses in enumerate(self.mean_losses)
        ]
        content = {
            "format": _FORMAT,
            "settings": self.settings,
            "separation_epochs": self.epochs,
            "num_examples": self.num_examples,
            "fingerprint": self.fingerprint,
            "share": self.share,
            "loss": self.loss,
            "error": self.error,
            "errors": self.errors,
            "classes": classes,
            "skipped_classes": self.skipped,
            "selected": self.selected,
            "selected_hash": indices_hash(self.selected),
            "cluster": [_NAMES[k] for k in self.cluster.tolist()],  # by id, 0 .. num_examples - 1
        }
        write_json(content, path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "UpsampledSet":
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: If there is no such file, or the selected ids are not those written.
        """
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            found = "nothing" if content is None else "something else"
            raise ValueError(
                f"{Path(path)} must be a useful.json of format {_FORMAT}, got {found}. Give the "
                "file that UsefulUpsampling wrote."
            )
        selected = torch.tensor(content["selected"], dtype=torch.int64)
        if indices_hash(selected) != content["selected_hash"]:
            raise ValueError(
                f"the selected ids in {Path(path)} must have the hash that the file names, got "
                "another. The file was changed; write it again."
            )
        classes = [[row["fast"], row["slow"]] for row in content["classes"]]
        means = [[_number(side["mean_loss"]) for side in row] for row in classes]
        sizes = [[side["count"] for side in row] for row in classes]
        return cls(
            selected=selected,
            cluster=torch.tensor([_NUMBERS[name] for name in content["cluster"]]),
            sizes=torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2),
            mean_losses=torch.tensor(means, dtype=torch.float64).reshape(-1, 2),
            skipped=tuple(content["skipped_classes"]),
            loss=_number(content["loss"]),
            error=_number(content["error"]),
            errors=tuple(content["errors"]),
            epochs=content["separation_epochs"],
            settings=content["settings"],
            fingerprint=content["fingerprint"],
        )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
