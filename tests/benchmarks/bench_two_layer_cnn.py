"""30 seeds of the two-layer CNN under GD and SAM, as programs and in a plain NumPy loop.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_two_layer_cnn.py

600 full-batch updates at N = 500, P = 3, d = 50, J = 40, in float64. Ours are two programs under
Lightning, from joined models to trained ones. The plain loop goes through the runs one after the
other: products by BLAS over all patches at once, products instead of powers. In its fastest form it
works in buffers that are allocated once; as one would write it first, each operation makes a fresh
array. All sides have one thread, record next to nothing, and end with the same filters. A
repetition is ten seeds of each in turn.
"""

import argparse
import sys

import lightning as L
import numpy as np
import torch
from measuring import Row, Seconds, Stopwatch, alternate, compare, machine, one_thread, quiet, table
from numpy.typing import NDArray

from toolkit.data import PatchSignals
from toolkit.data.resident import ResidentBatch, joined_batch
from toolkit.models import TwoLayerCNN
from toolkit.models.joint import join_models

Array = NDArray[np.float64]
UPDATES, LR, RHO = 600, 0.1, 0.03


class PlainLoop:
    """One run in NumPy.

    Args:
        data: Patches and targets.
        weights: The initial filters.
        in_buffers: Whether to work in arrays that are allocated once.
    """

    def __init__(self, data: PatchSignals, weights: Array, *, in_buffers: bool) -> None:
        self.in_buffers = in_buffers
        batch = data.batch
        inputs: Array = batch["inputs"][0].numpy()
        self.count, self.patches, dim = inputs.shape
        self.rows = np.ascontiguousarray(inputs.reshape(-1, dim))
        self.targets: Array = batch["targets"][0].numpy()
        self.initial = weights
        self.products = np.empty((len(self.rows), len(weights)))
        self.squares = np.empty_like(self.products)
        self.slope, self.point = np.empty_like(weights), np.empty_like(weights)

    def gradient(self, weights: Array) -> Array:
        """Of the mean logistic loss."""
        return self._in_buffers(weights) if self.in_buffers else self._plainly(weights)

    def _plainly(self, weights: Array) -> Array:
        products = self.rows @ weights.T
        squares = products * products
        outputs = (squares * products).sum(1).reshape(self.count, self.patches).sum(1)
        factors = (-3 / self.count) * self.targets / (1 + np.exp(self.targets * outputs))
        slope: Array = (squares * np.repeat(factors, self.patches)[:, None]).T @ self.rows
        return slope

    def _in_buffers(self, weights: Array) -> Array:
        np.dot(self.rows, weights.T, out=self.products)
        np.multiply(self.products, self.products, out=self.squares)
        cubes = np.einsum("ij,ij->i", self.squares, self.products)
        outputs = cubes.reshape(self.count, self.patches).sum(1)
        factors = (-3 / self.count) * self.targets / (1 + np.exp(self.targets * outputs))
        np.multiply(self.squares, np.repeat(factors, self.patches)[:, None], out=self.squares)
        return np.dot(self.squares.T, self.rows, out=self.slope)

    def train(self, rho: float | None) -> Array:
        """The filters after all updates."""
        weights = self.initial.copy()
        for _ in range(UPDATES):
            slope = self.gradient(weights)
            if rho is not None:
                np.multiply(slope, rho / np.sqrt(np.vdot(slope, slope)), out=self.point)
                self.point += weights
                slope = self.gradient(self.point)
            np.multiply(slope, LR, out=self.point)
            weights -= self.point
        return weights


class Programs:
    """Runs under Lightning, those of one optimiser as one program.

    Args:
        seeds: One run each for GD and for SAM.
    """

    def __init__(self, seeds: range) -> None:
        self.data = {seed: PatchSignals(seed=seed) for seed in seeds}
        self.initial = {seed: self._model(seed, None) for seed in seeds}

    def train(self) -> list[TwoLayerCNN]:
        """Both programs, trained."""
        return [self._train(rho) for rho in (None, RHO)]

    def _train(self, rho: float | None) -> TwoLayerCNN:
        joint = join_models([self._model(seed, rho) for seed in self.data])
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        batch = joined_batch([data.batch for data in self.data.values()])
        trainer.fit(joint, train_dataloaders=ResidentBatch(batch))
        return joint

    @staticmethod
    def _model(seed: int, rho: float | None) -> TwoLayerCNN:
        torch.manual_seed(seed)
        return TwoLayerCNN(rho=rho, lr=LR, updates=UPDATES, log_per_decade=1)


def measure(num_seeds: int = 30, per_turn: int = 10) -> list[Row]:
    """Programs against loops, in their fastest form and in their first."""
    one_thread()
    quiet()
    seeds = [range(first, first + per_turn) for first in range(0, num_seeds, per_turn)]
    turns = _Turns([seeds[0], *seeds])
    sides = (turns.ours, turns.buffered, turns.plain)
    ours, buffered, plain = alternate(sides, len(seeds))
    name = f"two-layer CNN, {2 * per_turn} runs of {UPDATES} updates"
    return [
        compare(f"{name}, loop in buffers", ours, buffered, at_most=0.2),
        compare(f"{name}, loop with fresh arrays", ours, plain, at_most=0.2),
    ]


class _Turns:
    """The sides, each on the seeds of the turn."""

    def __init__(self, seeds: list[range]) -> None:
        self.left = iter(seeds)
        self.programs: Programs
        self.found: list[Array] = []

    def ours(self) -> Seconds:
        """Train the programs of the next seeds; making the data is not timed."""
        self.programs = Programs(next(self.left))
        _ = [data.batch for data in self.programs.data.values()]
        watch = Stopwatch()
        with watch:
            trained = self.programs.train()
        self.found = [of for model in trained for of in model.weights.numpy()]
        return watch.lap()

    def buffered(self) -> Seconds:
        """The loop in its fastest form."""
        return self._loop(in_buffers=True)

    def plain(self) -> Seconds:
        """The loop with fresh arrays."""
        return self._loop(in_buffers=False)

    def _loop(self, *, in_buffers: bool) -> Seconds:
        loops = [
            PlainLoop(data, self.programs.initial[seed].weights[0].numpy(), in_buffers=in_buffers)
            for seed, data in self.programs.data.items()
        ]
        watch = Stopwatch()
        with watch:
            found = [loop.train(rho) for rho in (None, RHO) for loop in loops]
        worst = max(float(np.abs(a - b).max()) for a, b in zip(self.found, found, strict=True))
        if not worst < 1e-10:
            raise RuntimeError(f"all sides must end with the same filters, got {worst} between.")
        return watch.lap()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seeds", type=int, default=30)
    rows = measure(**vars(parser.parse_args()))
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
