"""From scores to the set of examples to upsample, and what is said about it."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import lightning as L

from callbacks._scoring import Scores
from toolkit.data.selection import UpsampledSet
from toolkit.data.upsampling import Selection, select_examples, separate_examples

__all__ = [
    "Settings",
    "check_same_data",
    "check_same_settings",
    "check_settings",
    "epochs_fault",
    "log_selection",
    "log_values",
    "selected_set",
    "warn_of_noise",
]

_USUAL_SHARE = (0.05, 0.6)


@dataclass(frozen=True)
class Settings:
    """The numbers and names that the upsampled set depends on."""

    separation_epochs: int | Literal["auto"]
    selection: Selection
    factor: int
    seed: int


def check_settings(settings: Settings, has_losses: bool) -> None:
    """Raise ``ValueError`` if a setting is out of range."""
    epochs = settings.separation_epochs
    if epochs != "auto" and (not isinstance(epochs, int) or epochs < 1):
        raise ValueError(
            f"separation_epochs must be at least 1 or 'auto', got {epochs!r}. 5 to 10 % of all "
            "epochs is usual."
        )
    if settings.selection not in get_args(Selection):
        names = ", ".join(get_args(Selection))
        raise ValueError(f"selection must be one of {names}, got {settings.selection!r}.")
    if settings.factor < 1:
        raise ValueError(
            f"factor must be at least 1, got {settings.factor}. 2 is one extra copy; 1 is none."
        )
    if settings.selection == "misclassified" and has_losses:
        raise ValueError(
            "selection must not be 'misclassified' where losses is given, since targets may have "
            "no classes. Use 'high_loss'."
        )


def check_same_data(found: UpsampledSet, fingerprint: str) -> None:
    """Raise ``ValueError`` if a set was selected from other data than those with this hash."""
    if fingerprint != found.fingerprint:
        raise ValueError(
            "the training data must be those that the examples were selected from, got fingerprint "
            f"{fingerprint[:12]}, there {found.fingerprint[:12]}. Use the same data, or start anew."
        )


def check_same_settings(found: UpsampledSet, settings: Settings) -> None:
    """Raise ``ValueError`` if a checkpoint's set was found with other settings than these."""
    there, now = found.settings, asdict(settings)
    changed = [key for key in now if there[key] != now[key]]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} must be as in the checkpoint, got "
            f"{[now[key] for key in changed]}, there {[there[key] for key in changed]}. Start anew "
            "without a checkpoint."
        )


def epochs_fault(separation: Any, max_epochs: Any) -> str | None:
    """What is wrong with the length of stage one, given that of the whole training."""
    if not isinstance(max_epochs, int):
        return None
    if max_epochs < 0:
        return (
            None
            if separation != "auto"
            else (
                "separation_epochs must be a number where trainer.max_epochs is without limit, got "
                "'auto'. Give either."
            )
        )
    if max_epochs < 2:
        return (
            f"trainer.max_epochs must be at least 2 for a separation stage, got {max_epochs}. "
            "Train longer, or give selection_file."
        )
    if isinstance(separation, int) and not 1 <= separation < max_epochs:
        return (
            f"separation_epochs must be between 1 and trainer.max_epochs - 1 = {max_epochs - 1}, "
            f"got {separation}. Separate early: the first 5-10 % of the epochs."
        )
    return None


def selected_set(
    scores: Scores,
    settings: Settings,
    epochs: int,
    errors: tuple[float, ...],
    fingerprint: str,
) -> UpsampledSet:
    """Cluster, select, and warn of what is unusual.

    Args:
        scores: Of all training examples.
        settings: See there.
        epochs: Epochs of the separation stage.
        errors: Training errors by epoch, where they chose it.
        fingerprint: Of the data.

    Raises:
        ValueError: If an output or a loss is not finite.
    """
    clusters = separate_examples(scores.logits, scores.losses, scores.targets, settings.seed)
    selected = select_examples(
        settings.selection,
        clusters,
        targets=scores.targets,
        losses=scores.losses,
        correct=scores.correct,
        seed=settings.seed,
    )
    found = UpsampledSet(
        selected=selected,
        cluster=clusters.cluster,
        sizes=clusters.sizes,
        mean_losses=clusters.mean_losses,
        skipped=clusters.skipped,
        loss=float(scores.losses.double().mean()),
        error=1 - float(scores.correct.double().mean()),
        errors=errors,
        epochs=epochs,
        settings=asdict(settings),
        fingerprint=fingerprint,
    )
    _warn(found, settings.selection)
    return found


def log_selection(trainer: L.Trainer, found: UpsampledSet) -> None:
    """Hand the sizes and mean losses of an upsampled set to the loggers."""
    values: dict[str, int | float] = {
        "epochs": found.epochs,
        "selected_share": found.share,
        "selected_count": len(found.selected),
        "loss": found.loss,
        "acc": 1 - found.error,
    }
    for k, (sizes, losses) in enumerate(zip(found.sizes, found.mean_losses, strict=True)):
        for i, side in enumerate(("fast", "slow")):
            values[f"{side}_count/{k}"] = int(sizes[i])
            if int(sizes[i]):
                values[f"{side}_loss/{k}"] = float(losses[i])
    log_values(trainer, values)


def log_values(trainer: L.Trainer, values: Mapping[str, int | float]) -> None:
    """Hand values to the loggers, as of the last epoch and update done."""
    row = {**values, "epoch": max(trainer.current_epoch - 1, 0)}
    for logger in trainer.loggers:
        logger.log_metrics(row, step=max(trainer.global_step - 1, 0))


def warn_of_noise(trainer: L.Trainer, selection: Selection) -> None:
    """Warn if the data module knows of wrong labels and nothing is mixed.

    It knows by ``true_targets`` and ``train.targets``, as :class:`toolkit.data.ImageData` has them.
    """
    data: Any = trainer.datamodule  # type: ignore[attr-defined] # Lightning does not annotate it
    true = getattr(data, "true_targets", None)
    is_mixed = bool(getattr(data, "mixup", False))
    if selection in ("random", "longer") or true is None or is_mixed:
        return
    share = float((true.cpu() != data.train.targets.cpu()).double().mean())
    if share > 0:
        warnings.warn(
            f"{share:.1%} of the training labels are noisy, and the slow examples collect them. "
            "Train with MixUp, data.mixup=0.2 say, as the paper does.",
            stacklevel=2,
        )


def _warn(found: UpsampledSet, selection: Selection) -> None:
    """Warn of sets with which the run goes on, but not as one might think."""
    if found.skipped:
        warnings.warn(
            f"classes {list(found.skipped)[:10]} have fewer than 2 examples or fewer than 2 "
            "different outputs; none of their examples is upsampled.",
            stacklevel=2,
        )
    low, high = _USUAL_SHARE
    if not len(found.selected):
        warnings.warn(
            "no example was selected; training goes on with the data as they are.", stacklevel=2
        )
    elif selection != "fast" and not low <= found.share <= high:
        late = "late" if found.share < low else "early"
        warnings.warn(
            f"the selected share is usually within {low} and {high}, got {found.share:.3f}. "
            f"The separation epoch, {found.epochs}, is probably too {late}.",
            stacklevel=2,
        )
