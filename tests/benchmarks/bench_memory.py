"""Memory over the epochs of a fit with per-example records on.

    python tests/benchmarks/bench_memory.py

MarginLogger and BiasTracker note every training and validation example of every epoch, with the
record and everything else that a run has. Compared are epoch 3 and the last: the resident memory of
the process, and the number of live objects, tensors among them. One epoch's records of 22,000
examples take 2 MiB; kept from each epoch, they would add 50 MiB.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import lightning as L
from bench_training import fit_with
from measuring import Row, machine, one_thread, quiet, table

TINY = "{_target_: toolkit.nets.SmallCNN, in_channels: 3, widths: [4], kernel_size: 1}"
RULE = "monitor: val/error, mode: min"
FIRST = 3


class Watch(L.Callback):
    """Reads a number when an epoch begins, and at the end of training.

    Args:
        read: Returns the number.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read
        self.values: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gc.collect()
        self.values.append(self.read())

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gc.collect()
        self.values.append(self.read())


def resident() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def objects() -> float:
    """Containers, tensors and other objects that Python's collector knows."""
    return float(len(gc.get_objects()))


def measure(epochs: int = 30) -> list[Row]:
    """Both numbers, each in a fit of its own."""
    one_thread()
    quiet()
    memory, count = Watch(resident), Watch(objects)
    fit_with(memory, TINY, updates=156, epochs=epochs, rule=RULE)
    fit_with(count, TINY, updates=4, epochs=epochs, rule=RULE)
    return [
        flat("resident MiB", memory.values, at_most=1.02),
        flat("live objects", count.values, at_most=1.001),
    ]


def flat(what: str, values: list[float], at_most: float) -> Row:
    """The last value against that after epoch 3; the spread is over all epochs from there on."""
    kept = [value / values[FIRST] for value in values[FIRST:]]
    return Row(
        name=f"memory, {what}, epoch {len(values) - 1} against {FIRST}",
        ours=f"{values[-1]:,.0f}",
        baseline=f"{values[FIRST]:,.0f}",
        ratio=f"{kept[-1]:.4f}",
        spread=f"{min(kept):.4f} to {max(kept):.4f} ({len(kept)})",
        wall="",
        target=f"<= {at_most}",
        met=kept[-1] <= at_most,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    rows = measure(**vars(parser.parse_args()))
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
