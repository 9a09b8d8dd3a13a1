"""What is wrong with a recipe: one line per fault, all faults in one error."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Fault", "RecipeError", "one_line"]


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a recipe.

    Args:
        key: Dotted key in the recipe, for example ``model.optimizer.lr``; may be empty.
        message: What was given and what is accepted, as one or two sentences.
        suggestion: The nearest right word, or ``None``.
        file: File the key is written in, or ``command line``; may be empty.
        line: Line of that file, from 1.
        variants: Variants that have the fault; empty if it is not about some variants only.
    """

    key: str
    message: str
    suggestion: str | None = None
    file: str = ""
    line: int | None = None
    variants: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        head = "".join(f"{part}: " for part in (place, self.key) if part)
        if self.variants:
            plural = "variants" if len(self.variants) > 1 else "variant"
            head += f"({plural} {', '.join(self.variants)}) "
        tail = f" Did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"{head}{self.message}{tail}"


class RecipeError(ValueError):
    """A recipe, or the command line over it, is wrong; ``str`` gives one line per fault.

    Args:
        faults: What is wrong; at least one, equal ones are kept once.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(dict.fromkeys(faults))
        super().__init__("\n".join(str(fault) for fault in self.faults))

    def __reduce__(self) -> tuple[type["RecipeError"], tuple[tuple[Fault, ...]]]:
        return type(self), (self.faults,)  # the default would rebuild it from the text


def one_line(error: BaseException, limit: int = 300) -> str:
    """Type and text of an exception on one line of at most ``limit`` characters."""
    text = " ".join(str(error).split())
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
