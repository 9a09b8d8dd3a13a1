"""A run: one training of (recipe, variant, seed), and the folder that holds it."""

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from toolkit import history

__all__ = ["Run", "environment"]

_PACKAGES = (
    "bias-toolkit",
    "torch",
    "torchvision",
    "lightning",
    "torchmetrics",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
)


@dataclass(frozen=True)
class Run:
    """One training and its folder.

    Attributes:
        recipe: Name of the recipe.
        variant: Name of the variant.
        seed: The seed, which fixes data split, initial weights, order and augmentation.
        folder: Where everything of the run lies.
        resolved: The final configuration, interpolations resolved.
    """

    recipe: str
    variant: str
    seed: int
    folder: Path
    resolved: dict[str, Any]

    @property
    def name(self) -> str:
        """``variant/seed0``."""
        return f"{self.variant}/seed{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """Folder of ``last.ckpt`` and ``best.ckpt``."""
        return self.folder / "checkpoints"

    @property
    def checkpoint_rule(self) -> dict[str, Any]:
        """``monitor``, ``mode``, ``every_n_epochs`` and ``test``, defaults filled in."""
        defaults = {"monitor": None, "mode": "min", "every_n_epochs": 1, "test": "last"}
        return {**defaults, **self.resolved.get("checkpoint", {})}

    @property
    def wandb(self) -> dict[str, Any]:
        """``mode``, ``project``, ``entity`` and ``tags``, defaults filled in."""
        defaults: dict[str, Any] = {"mode": "auto", "project": None, "entity": None, "tags": []}
        return {**defaults, **self.resolved.get("wandb", {})}

    @property
    def num_ranks(self) -> int:
        """Processes that train this run together on this machine."""
        devices = self.resolved.get("trainer", {}).get("devices", 1)
        if isinstance(devices, list):
            return len(devices)
        return devices if isinstance(devices, int) and devices > 1 else 1

    def result(self) -> dict[str, Any] | None:
        """The content of ``result.json``, or ``None`` if the run never ended."""
        return history.read_json(self.folder / "result.json")

    def is_finished(self) -> bool:
        """Whether the run ended well."""
        result = self.result()
        return result is not None and result.get("status") == "finished"


@cache
def environment() -> dict[str, Any]:
    """Versions, commit and hardware of this process, as they go beside every result."""
    import torch  # 2 s, which whoever starts runs in other processes does not need

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "versions": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of the source tree that this package runs from, if it is one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
