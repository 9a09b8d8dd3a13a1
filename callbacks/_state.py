"""What a training starts from and can be taken back to: random states, weights, a file."""

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from toolkit import distributed
from toolkit.history import reading

__all__ = [
    "Rng",
    "gather_rng",
    "load_file",
    "own_rng",
    "read_rng",
    "reset_metrics",
    "restore_tensors",
    "same_rng",
    "set_rng",
    "tensors_hash",
    "tensors_of",
]

Rng = dict[str, Any]


def read_rng(device: torch.device) -> Rng:
    """The states of torch's, Python's and NumPy's generators, and of ``device`` if it is a GPU."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global generator is meant
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": random.getstate(),
        # Plain integers: torch.load(weights_only=True) takes no NumPy array.
        "numpy": (name, np.asarray(keys).tolist(), *rest),
    }


def set_rng(rng: Rng, device: torch.device) -> None:
    """Set what :func:`read_rng` read; a GPU's state only where there is one on both sides."""
    torch.set_rng_state(rng["torch"])
    if rng["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(rng["cuda"], device)
    version, numbers, gauss = rng["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(rng["numpy"]))  # noqa: NPY002


def same_rng(one: Rng, other: Rng) -> bool:
    """Whether two states are equal."""
    if (one["cuda"] is None) != (other["cuda"] is None):
        return False
    alike = torch.equal(one["torch"], other["torch"])
    if one["cuda"] is not None:
        alike = alike and torch.equal(one["cuda"], other["cuda"])
    return alike and one["python"] == other["python"] and one["numpy"] == other["numpy"]


def gather_rng(rng: Rng) -> list[Rng]:
    """The states of all ranks, in their order."""
    if distributed.world_size() == 1:
        return [rng]
    box: list[Any] = [None] * distributed.world_size()
    dist.all_gather_object(box, rng)
    return box


def own_rng(states: list[Rng]) -> Rng:
    """This rank's state out of those of all ranks."""
    return states[distributed.rank() % len(states)]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies on the CPU of all parameters and buffers, the non-persistent ones too."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value.detach().to("cpu", copy=True) for name, value in named.items()}


def restore_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put the copies back in place, bit for bit.

    Raises:
        ValueError: If the module has other parameters or buffers, or other shapes.
    """
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: tuple(value.shape) for name, value in named.items()}
    kept = {name: tuple(value.shape) for name, value in tensors.items()}
    if shapes != kept:
        names = [key for key in shapes | kept if shapes.get(key) != kept.get(key)]
        raise ValueError(
            f"the parameters and buffers must be those of the start, got changes in {names[:5]}. "
            "UsefulUpsampling cannot restart a model whose shape changes while it trains."
        )
    with torch.no_grad():
        for name, value in tensors.items():
            named[name].copy_(value)


def reset_metrics(module: nn.Module) -> None:
    """Empty every metric inside the module."""
    for kind in (Metric, MetricCollection):  # a collection shares states between its metrics
        for child in module.modules():
            if isinstance(child, kind):
                child.reset()


def tensors_hash(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, shapes and bits."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_file(path: Path) -> dict[str, Any] | None:
    """Rank 0's content of the file on every rank; ``None`` if there is no file."""
    content = None
    if distributed.is_main():
        for left in path.parent.glob(f".{path.name}.*.tmp"):  # of a killed write
            left.unlink(missing_ok=True)
        if path.exists():
            with reading(path, f"Delete {path.parent} to train that run again."):
                content = torch.load(path, map_location="cpu", weights_only=True)
    return distributed.broadcast_object(content)
