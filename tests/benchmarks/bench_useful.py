"""USEFUL's scoring, two clusters per class included, in plain passes over the same 50,000 images.

    python tests/benchmarks/bench_useful.py

Ours is what follows stage one: a pass in evaluation mode that gathers and normalises each batch,
losses, ten starts of k-means in each class, and the selection. The baseline is the pass alone in
its fastest form: inference mode, normalised before the clock starts, batches of 128 images, which
are the fastest here. The two take turns, batch by batch. Images are noise around ten prototypes,
which the net learns in part first, so that k-means meets outputs such as it meets in use.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import lightning as L
import torch
from measuring import Row, Seconds, Stopwatch, compare, machine, one_thread, quiet, table
from torch import Tensor, nn

from callbacks._scoring import Reader, score_examples
from callbacks._selecting import Settings, selected_set
from toolkit.data import ArrayLoader, ImageArrays
from toolkit.functional import Fields
from toolkit.models import ImageClassifier
from toolkit.nets import SmallCNN

EXAMPLES = 50_000
BATCH_SIZE = 128
READER = Reader(Fields(("inputs", "targets", "indices", "logits")))
SETTINGS = Settings(separation_epochs=1, selection="slow", factor=2, seed=0)


def images(count: int) -> ImageArrays:
    """Ten prototypes under noise of several strengths, so that examples differ in difficulty."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 10
    prototypes = torch.randint(256, (10, 3, 4, 4), generator=generator).float()
    prototypes = torch.nn.functional.interpolate(prototypes, size=32, mode="bilinear")
    pixels = torch.empty(count, 3, 32, 32, dtype=torch.uint8)
    for rows in torch.arange(count).split(1000):
        noise = torch.randn(len(rows), 3, 32, 32, generator=generator)
        strength = 50 + 250 * torch.rand(len(rows), 1, 1, 1, generator=generator)
        noisy = prototypes[targets[rows]] + strength * noise
        pixels[rows] = noisy.clamp(0, 255).to(torch.uint8)
    return ImageArrays(images=pixels, targets=targets, num_classes=10)


class TakingTurns:
    """The scoring loader; before each of its batches the plain pass does its own.

    Args:
        loader: Is gone through.
        net: Is asked by the plain pass.
        inputs: The loader's inputs, ready.
    """

    def __init__(self, loader: ArrayLoader, net: nn.Module, inputs: list[Tensor]) -> None:
        self.loader = loader
        self.net = net
        self.inputs = inputs
        self.our_watch = Stopwatch()
        self.plain_watch = Stopwatch()

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        batches, outputs = iter(self.loader), []
        for inputs in self.inputs:
            self.our_watch.stop()
            with self.plain_watch, torch.inference_mode():
                outputs.append(self.net(inputs))
            self.our_watch.start()
            yield next(batches)
        self.our_watch.stop()
        with self.plain_watch:
            torch.cat(outputs)
        self.our_watch.start()


def score(trainer: L.Trainer, module: L.LightningModule, turns: TakingTurns) -> None:
    """What the callback does after stage one."""
    with turns.our_watch:
        scores = score_examples(trainer, module, turns, READER, len(turns.loader.arrays))
        selected_set(scores, SETTINGS, 1, (), fingerprint="")


class AtTheEnd(L.Callback):
    """Calls a function with trainer and module when training ends, while they are connected."""

    def __init__(self, function: Callable[[L.Trainer, L.LightningModule], None]) -> None:
        self.function = function

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.function(trainer, pl_module)


def measure(repetitions: int = 5, examples: int = EXAMPLES) -> list[Row]:
    """Train for 40 updates, then score in turn with plain passes."""
    one_thread()
    quiet()
    arrays = images(examples)
    inputs = [batch["inputs"] for batch in ArrayLoader(arrays, BATCH_SIZE)]
    ours: list[Seconds] = []
    baseline: list[Seconds] = []

    def repeat(trainer: L.Trainer, module: L.LightningModule) -> None:
        turns = TakingTurns(ArrayLoader(arrays, BATCH_SIZE), module.net, inputs)
        for repetition in range(repetitions + 1):
            score(trainer, module, turns)
            taken = turns.our_watch.lap(), turns.plain_watch.lap()
            if repetition:  # the first one imports scikit-learn
                ours.append(taken[0])
                baseline.append(taken[1])

    net = SmallCNN(in_channels=3, widths=(16, 32, 64))
    optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    trainer = L.Trainer(
        max_epochs=1,
        limit_train_batches=40,
        accelerator="cpu",
        callbacks=[AtTheEnd(repeat)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ImageClassifier(net, optimizer), ArrayLoader(arrays, 128, shuffle=True))
    return [compare("USEFUL's scoring, small CNN", ours, baseline, at_most=1.1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    rows = measure(**vars(parser.parse_args()))
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
