"""Score a finished run on its test data or on given data: ``python -m toolkit.evaluate RUN``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from toolkit import config, history
from toolkit.data import ArrayLoader, ImageArrays, ImageData
from toolkit.data.files import ArraySource
from toolkit.metrics.groups import group_means, group_summary, per_example_cross_entropy

__all__ = ["evaluate", "load_run", "main"]


def evaluate(
    run: Path,
    checkpoint: str = "last",
    data: Path | None = None,
) -> dict[str, Any]:
    """Loss, accuracy and error of a run's model, over all and per class and group.

    Args:
        run: Folder of a run, such as ``runs/quickstart/sgd/seed0``.
        checkpoint: ``last`` or ``best``.
        data: An ``.npz`` file with ``images``, ``labels`` and perhaps ``groups``; by default the
            test data of the run's recipe. The images are normalised as the training images were.

    Returns:
        ``loss``, ``acc``, ``error``, ``count``; ``classes`` and, where the data has groups,
        ``groups``: per name ``acc``, ``loss``, ``count``; then ``worst_group_acc`` and the like.

    Raises:
        ValueError: If the run, the checkpoint or the data is missing or does not fit, in one line.
    """
    model, datamodule = load_run(run, checkpoint)
    arrays = datamodule.test if data is None else _given(data, datamodule)
    loader = ArrayLoader(arrays, datamodule.eval_batch_size, normalize=datamodule.normalize)
    logits = _logits(model, loader)
    targets = arrays.targets.cpu()
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
        groups = arrays.groups.cpu()
        names = datamodule.group_names
        scores["groups"] = _table(correct, losses, groups, names)
        means = group_means(correct, losses, groups, len(names))
        counts = datamodule.train.groups
        weights = None if counts is None else counts.cpu().bincount(minlength=len(names))
        summary = group_summary(means.acc, weights)
        scores |= {name: value.item() for name, value in summary.items()}
    return scores


def load_run(run: Path, checkpoint: str = "last") -> tuple[L.LightningModule, ImageData]:
    """The model of a finished run with the weights of a checkpoint, and its data module.

    Raises:
        ValueError: If the folder holds no finished run, or no such checkpoint.
    """
    result = history.read_json(run / "result.json")
    if result is None or result["status"] != "finished":
        raise ValueError(
            f"RUN must be the folder of a finished run, such as runs/quickstart/sgd/seed0, got "
            f"{run}. Train it first."
        )
    weights = run / "checkpoints" / f"{checkpoint}.ckpt"
    if not weights.exists():
        raise ValueError(f"{weights} must exist. Set checkpoint.monitor for a best checkpoint.")
    resolved = config.read_yaml(run / "recipe.yaml")
    datamodule = config.build(resolved, "data")
    if not isinstance(datamodule, ImageData):
        raise ValueError(f"data must be a toolkit.data.ImageData, got {type(datamodule).__name__}.")
    datamodule.check()
    model: L.LightningModule = config.build(resolved, "model")
    state = torch.load(weights, weights_only=True, map_location="cpu")["state_dict"]
    model.load_state_dict(state)
    return model.eval(), datamodule


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 2 for a bad run, file or argument."""
    options = _parser().parse_args(arguments)
    try:
        scores = evaluate(options.run, options.checkpoint, options.data)
        if options.export is not None:
            model, _ = load_run(options.run, options.checkpoint)
            torch.save(model.state_dict(), options.export)
    except (ValueError, OSError) as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 2
    if options.json is not None:
        history.write_json(scores, options.json)
    console = Console()
    console.print(_shown(scores))
    if options.export is not None:
        console.print(f"weights: {options.export}", markup=False, soft_wrap=True)
    return 0


def _given(path: Path, datamodule: ImageData) -> ImageArrays:
    """The user's own data, which must fit the run's."""
    source = ArraySource(str(path.resolve()), Path.cwd(), cache=None)
    grouped = datamodule.group_names and source.has("groups")
    arrays = ImageArrays.build(
        source.read("images"),
        source.read("labels"),
        num_classes=datamodule.num_classes,
        class_names=datamodule.class_names,
        groups=source.read("groups") if grouped else None,
        group_names=datamodule.group_names if grouped else (),
        name=path.name,
    )
    if arrays.shape != datamodule.input_shape:
        raise ValueError(
            f"images of {path} must have the shape {datamodule.input_shape} (channels, height, "
            f"width) that the run was trained on, got {arrays.shape}."
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
    return datamodule.class_names or [str(k) for k in range(datamodule.num_classes)]


def _shown(scores: dict[str, Any]) -> Table:
    table = Table("", "error %", "loss", "examples")
    table.add_row(
        "all", f"{100 * scores['error']:.2f}", f"{scores['loss']:.4f}", str(scores["count"])
    )
    for kind in ("classes", "groups"):
        for name, row in scores.get(kind, {}).items():
            error, loss, count = 100 * (1 - row["acc"]), row["loss"], int(row["count"])
            table.add_row(f"{kind[:-1]} {name}", f"{error:.2f}", f"{loss:.4f}", str(count))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m toolkit.evaluate", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("run", type=Path, help="folder of a finished run, such as runs/quickstart/sgd/seed0")
    add("--checkpoint", choices=("last", "best"), default="last", help="which weights")
    add("--data", type=Path, metavar="NPZ", help="images, labels and perhaps groups to score on")
    add("--export", type=Path, metavar="FILE", help="write the plain state_dict")
    add("--json", type=Path, metavar="FILE", help="write the scores")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
