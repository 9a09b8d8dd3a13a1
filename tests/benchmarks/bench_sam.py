"""A step of SAM in steps of its base optimizer, in a plain PyTorch loop and under Lightning.

    python tests/benchmarks/bench_sam.py

Two passes cannot take less than twice one pass; what is above that, apart from noise, are the copy
of the weights, the perturbation and the buffers. Each row compares like with like: two plain loops,
or two fits, of the same net on the same ready batches, a few steps of each in turn. The plain loop
keeps BatchNorm's statistics in the second pass, as the documentation says. Nets are in
channels-last layout, the faster one here.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

import lightning as L
import torch
from measuring import Row, Seconds, Stopwatch, alternate, compare, machine, one_thread, quiet, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from callbacks import SharpnessAware
from toolkit.models import ImageClassifier
from toolkit.nets import SmallCNN, timm_net
from toolkit.optim import SAM, kept_buffers

Batch = dict[str, Tensor]
SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.0005)
WITH_SAM = partial(SAM, base=SGD, rho=0.05)


def small_cnn() -> nn.Module:
    """1.07 billion multiplications per step of 128 images."""
    return SmallCNN(in_channels=3, widths=(16, 32, 64))


def resnet18() -> nn.Module:
    """CIFAR's ResNet-18."""
    net = timm_net("resnet18", num_classes=10, input_size=32)
    return net.to(memory_format=torch.channels_last)


class PlainSteps:
    """Steps in a plain loop.

    Args:
        net: Is trained.
        make: Makes the optimizer.
        batches: Are gone through at each call.
    """

    def __init__(
        self, net: nn.Module, make: Callable[..., Optimizer], batches: list[Batch]
    ) -> None:
        self.net = net
        self.optimizer = make(net.parameters())
        self.batches = batches
        if isinstance(self.optimizer, SAM):
            self.optimizer.second_pass = lambda: kept_buffers(net)

    def __call__(self) -> None:
        for batch in self.batches:
            if isinstance(self.optimizer, SAM):
                self.optimizer.step(partial(self._loss, batch))
            else:
                self._loss(batch)
                self.optimizer.step()

    def _loss(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.net(batch["inputs"]), batch["targets"])
        loss.backward()
        return loss


class FitSteps:
    """Steps under Lightning: each call is a fit of one epoch, timed from its start to its end.

    Args:
        net: Is trained.
        make: Makes the optimizer.
        batches: Are gone through at each call.
    """

    def __init__(
        self, net: nn.Module, make: Callable[..., Optimizer], batches: list[Batch]
    ) -> None:
        self.module = ImageClassifier(net, make)
        self.batches = batches
        self.callbacks = [SharpnessAware()] if make is WITH_SAM else []

    def __call__(self) -> Seconds:
        timer = EpochTimer()
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[timer, *self.callbacks],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(self.module, DataLoader(self.batches, batch_size=None))
        return timer.watch.lap()


class EpochTimer(L.Callback):
    """From the start to the end of a fit's only epoch."""

    def __init__(self) -> None:
        self.watch = Stopwatch()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.watch.start()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.watch.stop()


def measure(repetitions: int = 5) -> list[Row]:
    """Both nets, in a plain loop and under Lightning."""
    one_thread()
    quiet()
    rows = []
    for name, make_net, target, steps, repeats in (
        ("small CNN", small_cnn, 2.3, 10, 2 * repetitions),
        ("ResNet-18", resnet18, 2.05, 1, repetitions),
    ):
        batches = ready_batches(steps)
        for how, kind in (("plain loop", PlainSteps), ("under Lightning", FitSteps)):
            sides = [kind(make_net(), make, batches) for make in (WITH_SAM, SGD)]
            ours, baseline = alternate(sides, repeats)
            rows.append(
                compare(f"SAM step, {name}, {how}", ours, baseline, at_most=target, per=steps)
            )
    return rows


def ready_batches(count: int) -> list[Batch]:
    """Batches of 128 random images."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "inputs": torch.randn(128, 3, 32, 32, generator=generator),
            "targets": torch.randint(10, (128,), generator=generator),
        }
        for _ in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    rows = measure(**vars(parser.parse_args()))
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
