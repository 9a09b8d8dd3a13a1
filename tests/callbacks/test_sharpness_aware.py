import copy
import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import CatMetric, MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision

from callbacks import SharpnessAware
from callbacks._passes import kept_metrics
from toolkit.optim import ASAM, SAM, cosine, kept_buffers

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
Batch = dict[str, Tensor]


class Module(L.LightningModule):
    """BatchNorm, dropout, metrics of every kind, and logging in every way."""

    def __init__(self, optimizer: Any, scheduled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        self.acc = MulticlassAccuracy(3, average="micro")
        self.rows = CatMetric()
        self.both = MetricCollection(
            [MulticlassAccuracy(3, average="macro"), MulticlassPrecision(3, average="macro")]
        )
        self.optimizer = optimizer
        self.scheduled = scheduled
        self.steps: list[Tensor] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        logits = self.net(batch["inputs"])
        loss = nn.functional.cross_entropy(logits, batch["targets"])
        self.steps.append(loss.detach())
        self.acc(logits, batch["targets"])
        self.rows(batch["targets"])
        self.both.update(logits, batch["targets"])
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"acc": self.acc, "twice": 2 * loss}, on_step=False, on_epoch=True)
        return {"loss": loss, "logits": logits, "name": "batch"}

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters())
        if not self.scheduled:
            return optimizer
        schedule = cosine(optimizer, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Watch(L.Callback):
    """What other callbacks get to see."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.tracked: list[int] = []
        self.updates: list[int] = []
        self.gradients: list[Tensor] = []
        self.at_zero_grad = 0

    def on_before_zero_grad(self, *args: Any) -> None:
        self.at_zero_grad += 1

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.gradients.append(pl_module.net[0].weight.grad.clone())

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.outputs.append(outputs)
        self.updates.append(trainer.global_step)


class Memory(Logger):
    """A logger that keeps what it is sent."""

    name, version = "memory", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def data(size: int = 10, number: int = 40) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    rows = [
        {
            "inputs": torch.randn(4, generator=generator),
            "targets": torch.randint(0, 3, (), generator=generator),
        }
        for _ in range(number)
    ]
    return DataLoader(rows, batch_size=size)


def trainer(*callbacks: L.Callback, epochs: int = 2, logger: Any = False, **settings: Any) -> Any:
    return L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False} | settings,
    )


def fitted(module: L.LightningModule, *callbacks: L.Callback, **settings: Any) -> Any:
    run = trainer(*callbacks, **settings)
    torch.manual_seed(5)
    run.fit(module, data())
    return run


def by_hand(module: Module, loader: Any, epochs: int = 2, clip: Any = None) -> Module:
    """The same training in a plain loop: no Trainer, no callback."""
    module = copy.deepcopy(module)
    optimizer = module.configure_optimizers()
    optimizer.second_pass = lambda: kept_buffers(module.net)
    if clip is not None:

        def clip_second(*_: Any) -> None:
            clip(module.parameters())

        optimizer.base.register_step_pre_hook(clip_second)
    torch.manual_seed(5)
    for _ in range(epochs):
        for batch in loader:

            def closure(rows: slice = slice(None), batch: Batch = batch) -> Tensor:
                optimizer.zero_grad()
                logits = module.net(batch["inputs"][rows])
                loss = nn.functional.cross_entropy(logits, batch["targets"][rows])
                loss.backward()
                return loss

            optimizer.step(closure, batch_size=len(batch["targets"]))
    return module


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


SETTINGS: list[dict[str, Any]] = [
    {},
    {"gradient_clip_val": 0.1},
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    {"precision": "bf16-mixed"},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_rho_zero_is_the_base_optimizer_bit_for_bit(settings: dict[str, Any]) -> None:
    found = []
    for optimizer in (SGD, partial(SAM, base=SGD, rho=0.0)):
        module, watch, memory = Module(optimizer, scheduled=True), Watch(), Memory()
        surround = [SharpnessAware()] if optimizer is not SGD else []
        run = fitted(module, watch, *surround, logger=memory, **settings)
        found.append((module, watch, memory, run, torch.rand(1)))
    (plain, plain_watch, plain_memory, plain_run, plain_draw), (sam, watch, memory, run, draw) = (
        found
    )
    assert len(sam.steps) == 2 * len(plain.steps) == 16
    assert_same(sam, plain)
    assert memory.rows == plain_memory.rows
    assert memory.rows
    for ours, theirs in zip(watch.outputs, plain_watch.outputs, strict=True):
        assert ours["name"] == theirs["name"]
        assert torch.equal(ours["loss"], theirs["loss"])
        assert torch.equal(ours["logits"], theirs["logits"])
    assert run.callback_metrics == plain_run.callback_metrics
    assert torch.equal(sam.rows.compute(), plain.rows.compute())
    assert watch.updates == plain_watch.updates == list(range(1, 9))
    assert torch.equal(draw, plain_draw)


CLIPS: dict[str, tuple[dict[str, Any], Any]] = {
    "none": ({}, None),
    "norm": (
        {"gradient_clip_val": 0.1},
        partial(nn.utils.clip_grad_norm_, max_norm=0.1),
    ),
    "value": (
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        partial(nn.utils.clip_grad_value_, clip_value=0.01),
    ),
}


@pytest.mark.parametrize("m", [None, 4])
@pytest.mark.parametrize("clip", CLIPS)
def test_a_fit_equals_a_plain_loop_that_clips_the_second_gradient(clip: str, m: int | None) -> None:
    settings, function = CLIPS[clip]
    module = Module(partial(SAM, base=SGD, rho=0.2, m=m))
    reference = by_hand(module, data(), clip=function)
    fitted(module, SharpnessAware(), **settings)
    assert_same(module.net, reference.net)


def test_the_second_pass_leaves_no_trace_in_buffers_metrics_logs_and_outputs() -> None:
    module, watch, memory = Module(partial(SAM, base=SGD, rho=0.3)), Watch(), Memory()
    run = fitted(module, SharpnessAware(), watch, logger=memory, epochs=1)
    first, second = module.steps[::2], module.steps[1::2]
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert [float(o["loss"]) for o in watch.outputs] == [float(loss) for loss in first]
    assert all(not o["loss"].requires_grad for o in watch.outputs)
    assert all(not o["logits"].requires_grad for o in watch.outputs)
    assert module.net[1].num_batches_tracked == 4
    assert module.rows.update_count == 4
    assert torch.equal(module.rows.compute(), torch.cat([b["targets"] for b in data()]))
    accuracy = [
        (o["logits"].argmax(1) == b["targets"]).float().mean()
        for o, b in zip(watch.outputs, data(), strict=True)
    ]
    assert float(run.callback_metrics["acc"]) == pytest.approx(float(sum(accuracy)) / 4)
    assert float(run.callback_metrics["loss_epoch"]) == pytest.approx(float(sum(first)) / 4)
    logged = [row["loss_step"] for _, row in memory.rows if "loss_step" in row]
    assert logged == [float(loss) for loss in first]
    assert run.global_step == 4
    assert watch.updates == [1, 2, 3, 4]


def test_clipping_leaves_the_first_gradient_alone() -> None:
    module, watch = Module(partial(SAM, base=SGD, rho=0.3)), Watch()
    fitted(module, SharpnessAware(), watch, gradient_clip_val=1e-4)
    assert len(watch.gradients) == 16
    assert all(g.norm() > 1e-4 for g in watch.gradients)
    last = torch.stack([p.grad.norm() for p in module.parameters()]).norm()
    assert float(last) == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize("m", [None, 4])
def test_the_modules_own_clipping_is_asked_once_per_update(m: int | None) -> None:
    class Clips(Module):
        asked = 0

        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            self.asked += 1

    module = Clips(partial(SAM, base=SGD, m=m))
    fitted(module, SharpnessAware())
    assert module.asked == 8


def test_chunks_give_the_outputs_and_logs_of_the_first_passes_over_the_whole_batch() -> None:
    class Plain(Module):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            logits = self.net[4](self.net[0](batch["inputs"]))  # nothing that depends on others
            loss = nn.functional.cross_entropy(logits, batch["targets"])
            self.log("loss", loss, on_step=False, on_epoch=True)
            counts = torch.bincount(batch["targets"], minlength=3)
            return {
                "loss": loss,
                "nested": {"logits": logits},
                "counts": counts,
                "classes": torch.ones(7),
                "batch_idx": batch_idx,
            }

    module = Plain(partial(SAM, base=partial(torch.optim.SGD, lr=0.0), rho=0.2, m=4))
    watch = Watch()
    run = fitted(module, SharpnessAware(), watch, epochs=1)
    losses = []
    for outputs, batch in zip(watch.outputs, data(), strict=True):
        logits = module.net[4](module.net[0](batch["inputs"]))
        losses.append(nn.functional.cross_entropy(logits, batch["targets"]).item())
        torch.testing.assert_close(outputs["nested"]["logits"], logits.detach())
        assert outputs["loss"].item() == pytest.approx(losses[-1], rel=1e-6)
        assert torch.equal(outputs["classes"], torch.ones(7))
        assert outputs["counts"].sum() == 2  # of the last chunk
    assert float(run.callback_metrics["loss"]) == pytest.approx(sum(losses) / 4, rel=1e-6)
    assert run.global_step == 4


def test_chunks_cut_tensors_at_any_depth_and_leave_the_rest_whole() -> None:
    seen = []

    class Nested(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            (inputs, extra), targets = batch
            seen.append((len(inputs), len(extra["weights"]), extra["scale"].shape, len(targets)))
            return nn.functional.cross_entropy(self.net(inputs), targets)

    rows = torch.randn(10, 4), {"weights": torch.ones(10), "scale": torch.tensor(2.0)}
    batch = (rows, torch.randint(0, 3, (10,)))
    watch = Watch()
    run = trainer(SharpnessAware(), watch, epochs=1)
    run.fit(Nested(partial(SAM, base=SGD, m=4)), DataLoader([batch], batch_size=None))
    assert [counts[0] for counts in seen] == [4, 4, 4, 4, 2, 2]
    assert all(c == (c[0], c[0], torch.Size([]), c[0]) for c in seen)
    assert set(watch.outputs[0]) == {"loss"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("compiled", ["net", "module"])
def test_compiled_nets_and_modules_train_the_same(compiled: str) -> None:
    module = Module(partial(SAM, base=SGD, rho=0.2))
    reference = by_hand(module, data())
    if compiled == "net":
        module.net.compile(backend="eager")
        fitted(module, SharpnessAware())
    else:
        fitted(torch.compile(module, backend="eager"), SharpnessAware())
    for a, b in zip(module.net.parameters(), reference.net.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert module.net[1].num_batches_tracked == 8


def test_asam_learns_the_names_from_the_module() -> None:
    module = Module(partial(ASAM, base=SGD, rho=0.5))
    fitted(module, SharpnessAware())
    reference = Module(partial(ASAM, base=SGD, rho=0.5, variant="all_parameters"))
    fitted(reference, SharpnessAware())
    assert not torch.equal(module.net[0].weight, reference.net[0].weight)


@pytest.mark.filterwarnings("ignore:.*`training_step` returned `None`")
def test_a_step_that_returns_nothing_is_skipped_as_the_base_optimizer_skips_it() -> None:
    class Skips(Module):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            outputs = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else outputs

    finals = []
    for optimizer in (SGD, partial(SAM, base=SGD, rho=0.0)):
        module = Skips(optimizer)
        fitted(module, *([SharpnessAware()] if optimizer is not SGD else []))
        finals.append(module)
    assert_same(*finals)


def test_a_nan_in_either_pass_shows_in_the_loss_that_others_see() -> None:
    class Breaks(Module):
        calls = 0

        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            outputs = super().training_step(batch, batch_idx)
            self.calls += 1
            return {"loss": outputs["loss"] * (float("nan") if self.calls == 2 else 1.0)}

    watch = Watch()
    fitted(Breaks(partial(SAM, base=SGD)), SharpnessAware(), watch, epochs=1)
    assert watch.outputs[0]["loss"].isnan()


def test_resumed_equals_uninterrupted_although_it_starts_with_a_wrong_rate(tmp_path: Path) -> None:
    class Half(L.Callback):
        """Keeps epoch 2's start, random numbers included, or goes back to those."""

        def __init__(self, keep: bool) -> None:
            self.keep = keep

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if self.keep and trainer.current_epoch == 1:
                trainer.save_checkpoint(tmp_path / "half.ckpt")

        def on_train_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step == 8 and self.keep:
                torch.save(torch.get_rng_state(), tmp_path / "random.pt")
            elif trainer.global_step == 8:
                torch.set_rng_state(torch.load(tmp_path / "random.pt"))

    whole = Module(partial(SAM, base=SGD, rho=0.2), scheduled=True)
    fitted(whole, SharpnessAware(), Half(keep=True), epochs=4)
    assert torch.load(tmp_path / "half.ckpt", weights_only=True)["global_step"] == 8
    wrong = partial(torch.optim.SGD, lr=3.0)
    resumed = Module(partial(SAM, base=wrong, rho=0.2), scheduled=True)
    run = trainer(SharpnessAware(), Half(keep=False), epochs=4)
    run.fit(resumed, data(), ckpt_path=str(tmp_path / "half.ckpt"))
    assert run.global_step == 16
    assert_same(resumed, whole)
    state = torch.load(tmp_path / "half.ckpt", weights_only=True)["optimizer_states"][0]["state"]
    assert len(state) == 6
    assert all(entry["momentum_buffer"].abs().sum() > 0 for entry in state.values())


def test_a_schedule_drives_the_rate_once_per_update() -> None:
    rates = []

    class Rates(L.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            rates.append(trainer.optimizers[0].base.param_groups[0]["lr"])

    fitted(Module(partial(SAM, base=SGD), scheduled=True), SharpnessAware(), Rates())
    expected = [0.05 * (1 + torch.tensor(torch.pi * u / 8).cos().item()) for u in range(1, 9)]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_the_callback_leaves_module_and_optimizer_as_it_found_them() -> None:
    class Breaks(Module):
        calls = 0

        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            self.calls += 1
            if self.calls == 4:
                raise KeyError("second pass of the second update")
            return super().training_step(batch, batch_idx)

    module = Breaks(partial(SAM, base=SGD, rho=0.3))
    run = trainer(SharpnessAware(), epochs=1)
    with pytest.raises(KeyError, match="second pass"):
        run.fit(module, data())
    assert not {"log", "log_dict", "training_step", "configure_gradient_clipping"} & set(
        vars(module)
    )
    assert module.net[1].num_batches_tracked == 2
    assert run.optimizers[0].second_pass is None
    module = Module(partial(SAM, base=SGD, m=5))
    run = fitted(module, SharpnessAware())
    assert run.optimizers[0].first_pass is run.optimizers[0].second_pass is None
    assert run.optimizers[0].batch_size is None


def test_an_optimizer_that_comes_within_the_fit_is_surrounded_too() -> None:
    optimizers = []

    class Restart(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.strategy.optimizers = [pl_module.configure_optimizers()]
            optimizers.append(trainer.optimizers[0])

    module = Module(partial(SAM, base=SGD, rho=0.2))
    fitted(module, SharpnessAware(), Restart())
    assert optimizers[0] is not optimizers[1]
    assert all(optimizer.second_pass is None for optimizer in optimizers)
    assert module.net[1].num_batches_tracked == 8


def test_hooks_that_fire_twice_are_named_once_if_used(caplog: pytest.LogCaptureFixture) -> None:
    class Hooked(Module):
        def on_after_backward(self) -> None:
            pass

    logging.getLogger("lightning.pytorch.utilities.rank_zero").addHandler(caplog.handler)
    watch = Watch()
    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
        fitted(Hooked(partial(SAM, base=SGD)), watch, SharpnessAware(), epochs=1)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").removeHandler(caplog.handler)
    told = {r.getMessage() for r in caplog.records if "two passes" in r.getMessage()}
    (line,) = told
    assert line == (
        "SAM makes two passes per update; these fire in both: Hooked.on_after_backward, "
        "Watch.on_before_zero_grad, Watch.on_before_optimizer_step."
    )
    assert watch.at_zero_grad == 8


@pytest.mark.parametrize("kind", [SAM, ASAM])
def test_sam_refuses_to_step_in_a_trainer_without_the_callback(kind: Any) -> None:
    message = f"{kind.__name__} must have its callback.*Please add callbacks.SharpnessAware\\(\\)"
    with pytest.raises(RuntimeError, match=message):
        fitted(Module(partial(kind, base=SGD)))


def test_the_callback_without_sam_warns_and_changes_nothing() -> None:
    plain = Module(SGD)
    fitted(plain)
    module = Module(SGD)
    with pytest.warns(UserWarning, match=r"SharpnessAware must come with SAM.*got SGD"):
        fitted(module, SharpnessAware())
    assert_same(module, plain)


class Manual(Module):
    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self.automatic_optimization = False


class Fetches(Module):
    def training_step(self, dataloader_iter: Any) -> Any:
        return super().training_step(next(dataloader_iter)[0], 0)


def scaling() -> dict[str, Any]:
    return {"plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))}


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "manual": (Manual, dict, "automatic_optimization must be True with SAM.*got False"),
    "accumulation": (
        Module,
        lambda: {"accumulate_grad_batches": 2},
        "accumulate_grad_batches must be 1 with SAM.*got 2. Use a larger batch_size",
    ),
    "16-mixed": (Module, scaling, "precision must not scale.*got '16-mixed'.*'bf16-mixed'"),
    "dataloader_iter": (Fetches, dict, "training_step must take a batch with SAM"),
}


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
@pytest.mark.parametrize("case", REFUSED)
def test_what_sam_cannot_be_right_under_is_refused(case: str) -> None:
    kind, settings, message = REFUSED[case]
    with pytest.raises(RuntimeError, match=re.compile(message, re.DOTALL)):
        fitted(kind(partial(SAM, base=SGD)), SharpnessAware(), **settings())


def test_accumulation_that_a_schedule_turns_on_is_refused_too() -> None:
    later = GradientAccumulationScheduler({1: 2})
    with pytest.raises(RuntimeError, match="accumulate_grad_batches must be 1 with SAM"):
        fitted(Module(partial(SAM, base=SGD)), later, SharpnessAware())


def test_sharded_strategies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer()
    monkeypatch.setattr(L.Trainer, "strategy", property(lambda self: FSDPStrategy()))
    monkeypatch.setattr(L.Trainer, "precision_plugin", None)
    with pytest.raises(RuntimeError, match=r"strategy must be a single device or DDP.*got FSDP"):
        SharpnessAware().setup(run, Module(SGD), "fit")
    SharpnessAware().setup(run, Module(SGD), "test")


def test_metrics_leave_as_they_came_in_and_share_what_they_shared() -> None:
    module = nn.ModuleDict({"mean": MeanMetric(), "rows": CatMetric()})
    module["both"] = MetricCollection(
        [MulticlassAccuracy(3, average="macro"), MulticlassPrecision(3, average="macro")]
    )

    def update(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        values = torch.rand(5, generator=generator)
        module["mean"](values)
        module["rows"](values)
        targets = torch.randint(0, 3, (5,), generator=generator)
        module["both"].update(torch.rand(5, 3, generator=generator), targets)

    update(0)
    leader, follower = module["both"].values(copy_state=False)
    assert leader.tp is follower.tp
    state, values = leader.tp, [module[name].compute() for name in module]
    state_before = state.clone()

    def fail_inside() -> None:
        with kept_metrics(module):
            update(1)
            assert module["mean"].compute() != values[0]
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert leader.tp is follower.tp is state
    assert torch.equal(state, state_before)
    assert module["mean"].update_count == module["rows"].update_count == 1
    for name, before in zip(module, values, strict=True):
        torch.testing.assert_close(module[name].compute(), before, rtol=0, atol=0)
    update(1)
    twin = MeanMetric()
    for seed in (0, 1):
        twin(torch.rand(5, generator=torch.Generator().manual_seed(seed)))
    assert module["mean"].compute() == twin.compute()
