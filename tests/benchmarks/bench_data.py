"""One epoch of CIFAR-10-sized data, ours against torchvision's dataset and DataLoader.

    python tests/benchmarks/bench_data.py

Both sides give shuffled, cropped, flipped and normalised float32 batches of 128 out of memory. The
baseline is its fastest form here: images already decoded, two persistent workers started and
warmed up before the clock starts, no label transform, its worker processes with one thread each
(PyTorch's own setting). Ours runs in the training process, by default with one thread, as runs side
by side have. Each figure is the best of several epochs; use an idle machine.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from toolkit.data import ArrayImages, FlipAndCrop

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH_SIZE = 128
WORKERS = 2


class PillowImages(Dataset[tuple[torch.Tensor, int]]):
    """What ``torchvision.datasets.CIFAR10.__getitem__`` does, with the images given."""

    def __init__(self, images: np.ndarray[Any, Any], labels: list[int]) -> None:
        self.images = images
        self.labels = labels
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[index])
        return self.transform(image), self.labels[index]


def baseline(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> DataLoader[Any]:
    """torchvision's data set behind a DataLoader with two workers."""
    return DataLoader(
        PillowImages(images, labels.tolist()),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=4,
    )


def ours(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Iterable[Any]:
    """The training loader of ``ArrayImages`` over the same images."""
    arrays = {"train_images": images, "train_labels": labels}
    data = ArrayImages(
        arrays | {"test_images": images[:100], "test_labels": labels[:100]},
        val_size=1,
        batch_size=BATCH_SIZE,
        augment=FlipAndCrop(padding=4),
    )
    data.setup()
    return data.train_dataloader()


def best_seconds(epoch: Callable[[], int], repeats: int) -> tuple[float, int]:
    """Seconds of the fastest of several epochs after one that is not timed, and its examples."""
    epoch()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        count = epoch()
        best = min(best, time.perf_counter() - start)
    return best, count


def count_examples(loader: Iterable[Any], key: str | int) -> Callable[[], int]:
    """A function that goes through the loader once."""
    return lambda: sum(len(batch[key]) for batch in loader)


def measure(examples: int, repeats: int, threads: int) -> dict[str, float]:
    """Images per second of each side, the baseline first."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(examples, 32, 32, 3), dtype=np.uint8)
    labels = rng.permutation(np.arange(examples) % 10)
    torch.set_num_threads(threads)
    rates = {}
    for name, loader, key in (
        (f"torchvision, {WORKERS} workers", baseline(images, labels), 0),
        (f"ArrayImages, {threads} thread(s)", ours(images, labels), "inputs"),
    ):
        seconds, count = best_seconds(count_examples(loader, key), repeats)
        rates[name] = count / seconds
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    rates = measure(**vars(parser.parse_args()))
    base = next(iter(rates.values()))
    rows = ["| data, CIFAR-10 size, flip and crop | images per second | ratio |", "|---|---:|---:|"]
    rows += [f"| {name} | {rate:,.0f} | {rate / base:.1f} |" for name, rate in rates.items()]
    sys.stdout.write("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
