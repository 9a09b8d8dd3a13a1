"""Small classes for the tests to name in recipes, as a user's own package would have them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Colour(Enum):
    RED = 1
    GREEN = 2


class Data:
    def __init__(self, batch_size: int = 32, root: str = "data", seed: int = 0) -> None:
        self.batch_size, self.root, self.seed = batch_size, root, seed


class Typed:
    """Takes one argument of each kind and keeps it."""

    def __init__(  # noqa: PLR0913
        self,
        *,
        text: str = "",
        flag: bool = False,
        count: int = 0,
        ratio: float = 0.0,
        maybe: int | None = 3,
        mode: Literal["slow", "fast"] = "slow",
        sizes: Sequence[int] = (),
        pair: tuple[int, int] = (0, 0),
        weights: Mapping[str, float] | None = None,
        colour: Colour = Colour.RED,
        path: Path = Path(),
        anything: Any = None,
        untyped=None,
        kind: type[nn.Module] = nn.Module,
        layers: list[nn.Module] | None = None,
        losses: dict[str, Callable[[Tensor, Tensor], Tensor]] | None = None,
    ) -> None:
        self.given = {key: value for key, value in locals().items() if key != "self"}


class Base:
    def __init__(self, width: int = 1, *, depth: int = 1) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}.")
        self.width, self.depth = width, depth

    @classmethod
    def wide(cls, depth: int = 1) -> "Base":
        return cls(100, depth=depth)


class Child(Base):
    def __init__(self, extra: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.extra = extra


class Callback:
    logged_keys = ("val/margin/*", "val/worst_group_acc")

    def __init__(self, every: int = 1, epochs: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}.")

    @classmethod
    def check_recipe(cls, resolved: dict[str, Any], node: dict[str, Any]) -> list[str]:
        most = resolved["trainer"].get("max_epochs", 0)
        if node.get("epochs", 1) < most:
            return []
        return [f"epochs must be below trainer.max_epochs = {most}, got {node['epochs']}."]


class Foreign:
    """A callback that does not say what it logs."""

    def on_train_start(self) -> None: ...


class Claim:
    def __init__(self, arm: str, baseline: str, metric: str, controls: Sequence[str] = ()) -> None:
        self.arm = arm


class Needy:
    def __init__(self, lr: float, steps: int, factory: Callable[[Optimizer, int], Any]) -> None: ...


class Wrapper:
    """An optimizer around another one, as SAM is."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        base: Callable[[Iterable[nn.Parameter]], Optimizer],
        rho: float = 0.1,
    ) -> None:
        self.params = list(params)
        self.base, self.rho = base(self.params), rho


class Model:
    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], Any],
        schedule: Callable[[Optimizer, int], LRScheduler] | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    ) -> None:
        self.net, self.optimizer, self.schedule, self.loss = net, optimizer, schedule, loss


def linear(width: int, *, bias: bool = True) -> nn.Module:
    return nn.Linear(width, width, bias=bias)


def decay(optimizer: Optimizer, num_updates: int, power: float = 1.0) -> Any:
    return num_updates, power


def one_argument(logits: Tensor) -> Tensor:
    return logits


number = 3
