"""Score a finished run on its test data or on given data: ``python -m toolkit.evaluate RUN``."""

import argparse
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.table import Table
from torch import Tensor

from toolkit import config, history
from toolkit.console import LastingConsole, accept_any_text
from toolkit.data import ArrayLoader, ImageArrays, ImageData
from toolkit.data.files import ArraySource
from toolkit.metrics.groups import group_means, group_summary, per_example_cross_entropy
from toolkit.saving import save_atomically

__all__ = ["evaluate", "load_run", "main"]


def evaluate(
    run: Path,
    checkpoint: str | None = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """Loss, accuracy and error of a run's model, over all and per class and group.

    Computed in single precision, whatever the run's. Where the run has groups they are those of its
    data; given data of a run without groups may bring its own.

    Args:
        run: Folder of a run, such as ``runs/quickstart/sgd/seed0``.
        checkpoint: ``last`` or ``best``; by default the one whose test metrics are in
            ``result.json``, which the recipe's ``checkpoint.test`` says.
        data: An ``.npz`` file with ``images``, ``labels`` and perhaps ``groups`` and
            ``group_names``; by default the test data of the run's recipe. The images are of the
            type of the training images (uint8 or floating point) and normalised as they were.

    Returns:
        ``loss``, ``acc``, ``error``, ``count``; ``classes`` and, where the data has groups,
        ``groups``: per name ``acc``, ``loss``, ``count``; then ``worst_group_acc`` and the like,
        see :func:`toolkit.metrics.group_summary`.

    Raises:
        ValueError: If the run, the checkpoint or the data is missing or does not fit, in one line.
    """
    return _scores(*load_run(run, checkpoint), data)


def load_run(run: Path, checkpoint: str | None = None) -> tuple[L.LightningModule, ImageData]:
    """The model of a finished run with the weights of a checkpoint, and its data module.

    Args:
        run: Folder of a run.
        checkpoint: As for :func:`evaluate`.

    Raises:
        ValueError: If the folder holds no finished run, or no such checkpoint.
    """
    result = history.read_json(run / "result.json")
    if not isinstance(result, dict) or result.get("status") != "finished":
        raise ValueError(
            f"RUN must be the folder of a finished run, such as runs/quickstart/sgd/seed0, got "
            f"{run}. Train it first."
        )
    resolved = config.read_yaml(run / "recipe.yaml")
    weights = _checkpoint(run, checkpoint, resolved)
    datamodule = config.build(resolved, "data")
    if not isinstance(datamodule, ImageData):
        raise ValueError(
            f"data must be a toolkit.data.ImageData, got {type(datamodule).__name__}. Use "
            "trainer.test for other data modules."
        )
    datamodule.check()
    model: L.LightningModule = config.build(resolved, "model")
    try:
        state = torch.load(weights, weights_only=True, map_location="cpu")["state_dict"]
        model.load_state_dict(state)
    except (RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{weights} must hold weights of the run's model, got an error in loading them: "
            f"{' '.join(str(error).split())}. Train the run again, or go back to the code that "
            "trained it."
        ) from error
    return model.eval(), datamodule


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 2 for a bad run, file or argument."""
    accept_any_text()
    options = _parser().parse_args(arguments)
    try:
        model, datamodule = load_run(options.run, options.checkpoint)
        scores = _scores(model, datamodule, options.data)
        if options.export is not None:
            save_atomically(model.cpu().state_dict(), options.export)
        if options.json is not None:
            history.write_json(scores, options.json)
    except (ValueError, OSError) as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 2
    console = LastingConsole()
    console.print(_shown(scores))
    if options.export is not None:
        console.print(f"weights: {options.export}", markup=False, soft_wrap=True)
    return 0


def _checkpoint(run: Path, name: str | None, resolved: dict[str, Any]) -> Path:
    """The file of the checkpoint that was asked for."""
    folder = run / "checkpoints"
    if name is None:
        rule = (resolved.get("checkpoint") or {}).get("test", "last")
        name = rule if (folder / f"{rule}.ckpt").exists() else "last"
    path = folder / f"{name}.ckpt"
    if not path.exists():
        monitor = " Set checkpoint.monitor to have a best one." if name == "best" else ""
        raise ValueError(f"checkpoint must exist, got {path}.{monitor}")
    return path


def _scores(model: L.LightningModule, datamodule: ImageData, data: Path | None) -> dict[str, Any]:
    arrays = datamodule.test if data is None else _given(data, datamodule)
    loader = ArrayLoader(arrays, datamodule.eval_batch_size, normalize=datamodule.normalize)
    logits = _logits(model, loader)
    targets = arrays.targets
    losses = per_example_cross_entropy(logits, targets)
    correct = logits.argmax(1) == targets
    acc = correct.double().mean().item()
    scores: dict[str, Any] = {
        "loss": losses.double().mean().item(),
        "acc": acc,
        "error": 1 - acc,
        "count": len(targets),
        "classes": _table(correct, losses, targets, _class_names(datamodule)),
    }
    if arrays.groups is not None:
        scores["groups"] = _table(correct, losses, arrays.groups, arrays.group_names)
        means = group_means(correct, losses, arrays.groups, len(arrays.group_names))
        summary = group_summary(means.acc, _train_counts(datamodule, arrays.group_names))
        scores |= {name: value.item() for name, value in summary.items()}
    return scores


def _train_counts(datamodule: ImageData, names: Sequence[str]) -> Tensor | None:
    """Training examples of each group; ``None`` where the training data has not these groups."""
    groups = datamodule.train.groups
    if groups is None or tuple(names) != datamodule.group_names:
        return None
    return groups.bincount(minlength=len(names))


def _given(path: Path, datamodule: ImageData) -> ImageArrays:
    """The user's own data, which must fit the run's."""
    if not path.is_file():
        raise ValueError(f"data must be an existing .npz file, got {path}. Check the path.")
    source = ArraySource(str(path.resolve()), Path.cwd(), cache=None)
    groups = source.read("groups") if source.has("groups") else None
    names: Sequence[Any] = datamodule.group_names
    if not names and groups is not None and source.has("group_names"):
        names = source.read("group_names").tolist()
    arrays = ImageArrays.build(
        source.read("images"),
        source.read("labels"),
        num_classes=datamodule.num_classes,
        class_names=datamodule.class_names,
        groups=groups,
        group_names=() if groups is None else names,
        name=path.name,
    )
    if arrays.shape != datamodule.input_shape:
        raise ValueError(
            f"images of {path} must have the shape {datamodule.input_shape} (channels, height, "
            f"width) that the run was trained on, got {arrays.shape}. Resize or convert them."
        )
    dtype = datamodule.train.images.dtype
    if arrays.images.dtype != dtype:
        raise ValueError(
            f"images of {path} must be {dtype} as those that the run was trained on, got "
            f"{arrays.images.dtype}. Convert them to the same range of values."
        )
    return arrays


def _logits(model: L.LightningModule, loader: ArrayLoader) -> Tensor:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    with torch.inference_mode():
        return torch.cat([model(batch["inputs"].to(device)).cpu() for batch in loader])


def _table(
    correct: Tensor, losses: Tensor, ids: Tensor, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    means = group_means(correct, losses, ids, len(names))
    columns = {key: getattr(means, key).tolist() for key in ("acc", "loss", "count")}
    return {name: {key: columns[key][k] for key in columns} for k, name in enumerate(names)}


def _class_names(datamodule: ImageData) -> Sequence[str]:
    return datamodule.class_names or [f"class{k}" for k in range(datamodule.num_classes)]


def _shown(scores: dict[str, Any]) -> Table:
    table = Table("", "error %", "loss", "examples")

    def row(name: str, values: dict[str, float]) -> None:
        error, count = 100 * (1 - values["acc"]), int(values["count"])
        cells = (f"{error:.2f}", f"{values['loss']:.4f}") if count else ("", "")
        table.add_row(name, *cells, str(count))

    row("all", scores)
    for kind, title in (("classes", "class"), ("groups", "group")):
        for name, values in scores.get(kind, {}).items():
            row(name if name.startswith(title) else f"{title} {name}", values)
    if "worst_group_acc" in scores:
        name = list(scores["groups"])[int(scores["worst_group"])]
        worst = 100 * (1 - scores["worst_group_acc"])
        table.caption = f"worst group: {name}, error {worst:.2f} %"
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m toolkit.evaluate", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("run", type=Path, help="folder of a finished run, such as runs/quickstart/sgd/seed0")
    add(
        "--checkpoint",
        choices=("last", "best"),
        help="which weights; by default those that the recipe tests",
    )
    add("--data", type=Path, metavar="NPZ", help="images, labels and perhaps groups to score on")
    add("--export", type=Path, metavar="FILE", help="write the plain state_dict")
    add("--json", type=Path, metavar="FILE", help="write the scores")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
