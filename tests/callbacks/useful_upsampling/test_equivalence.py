"""What a fit with UsefulUpsampling equals, bit for bit."""

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, WeightAveraging
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from callbacks import UsefulUpsampling
from toolkit.data.selection import UpsampledSet

PER_EPOCH = 8  # 61 examples in batches of 8


def test_factor_one_is_the_plain_run(tmp_path: Path, project: ModuleType) -> None:
    plain_trainer, plain = project.fit(tmp_path / "plain")
    trainer, useful = project.fit(tmp_path, [UsefulUpsampling(2, factor=1)])
    assert project.digest(useful) == project.digest(plain)
    assert useful.num_batches == plain.num_batches + 2 * PER_EPOCH  # stage one was really run
    assert trainer.global_step == plain_trainer.global_step == 5 * PER_EPOCH
    assert useful.rates[2 * PER_EPOCH :] == plain.rates


def test_stage_one_is_the_plain_run_cut_short(tmp_path: Path, project: ModuleType) -> None:
    class Keep(L.Callback):
        runs_in_separation = True
        digests: dict[int, str]

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.digests[pl_module.num_batches] = project.digest(pl_module)

    keep = Keep()
    keep.digests = {}
    plain = Keep()
    plain.digests = {}
    project.fit(tmp_path, [UsefulUpsampling(2), keep])

    class Stop(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 1

    project.fit(tmp_path / "plain", [Stop(), plain])
    assert keep.digests[2 * PER_EPOCH] == plain.digests[2 * PER_EPOCH]


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"shuffle": False}])
def test_factor_one_is_the_plain_run_for_loaders_of_all_kinds(
    tmp_path: Path, project: ModuleType, settings: dict[str, Any]
) -> None:
    for estimate in (True, False):
        module = functools.partial(project.Project, estimate)
        _, plain = project.fit(tmp_path, module=module, train=project.loader(**settings))
        _, useful = project.fit(
            tmp_path,
            [UsefulUpsampling(1, factor=1)],
            module=module,
            train=project.loader(**settings),
        )
        assert project.digest(useful) == project.digest(plain)


def test_reloaded_loaders_are_upsampled_too(tmp_path: Path, project: ModuleType) -> None:
    callback = UsefulUpsampling(2)
    settings = {"reload_dataloaders_every_n_epochs": 1}
    train = project.loader(drop_last=True)
    _, useful = project.fit(tmp_path, [callback], train=train, **settings)
    assert callback.upsampled is not None
    indices = callback.upsampled.indices(2).tolist()
    train = project.loader(Subset(project.dataset(), indices), drop_last=True)
    _, plain = project.fit(tmp_path, train=train, **settings)
    assert project.digest(useful) == project.digest(plain)


def test_a_loader_with_its_own_generator_is_taken_back_to_its_start(
    tmp_path: Path, project: ModuleType
) -> None:
    def own() -> DataLoader[Any]:
        return project.loader(generator=torch.Generator().manual_seed(7))

    _, plain = project.fit(tmp_path, train=own())
    _, useful = project.fit(tmp_path, [UsefulUpsampling(2, factor=1)], train=own())
    assert project.digest(useful) == project.digest(plain)


def test_random_numbers_drawn_by_another_callback_are_those_of_the_plain_run(
    tmp_path: Path, project: ModuleType
) -> None:
    class Draw(L.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            torch.rand(3)

    _, plain = project.fit(tmp_path, [Draw()])
    for callbacks in (
        [Draw(), UsefulUpsampling(2, factor=1)],
        [UsefulUpsampling(2, factor=1), Draw()],
    ):
        _, useful = project.fit(tmp_path, callbacks)
        assert project.digest(useful) == project.digest(plain)


@pytest.mark.parametrize("selection", ["slow", "fast", "random", "high_loss", "misclassified"])
def test_stage_two_is_a_plain_run_on_the_upsampled_data(
    tmp_path: Path, project: ModuleType, selection: Any
) -> None:
    callback = UsefulUpsampling(2, selection=selection, factor=3)
    train = project.loader(drop_last=True)
    trainer, useful = project.fit(tmp_path, [callback], train=train)
    assert callback.upsampled is not None
    indices = callback.upsampled.indices(3)
    assert 61 < len(indices) < 3 * 61
    upsampled = Subset(project.dataset(), indices.tolist())
    train = project.loader(upsampled, drop_last=True)
    plain_trainer, plain = project.fit(tmp_path, train=train)
    assert project.digest(useful) == project.digest(plain)
    assert trainer.global_step == plain_trainer.global_step
    assert useful.rates[-plain_trainer.global_step :] == plain.rates


def test_the_control_longer_trains_on_the_plain_data_for_as_many_updates_as_slow(
    tmp_path: Path, project: ModuleType
) -> None:
    slow, longer = UsefulUpsampling(2, factor=3), UsefulUpsampling(2, factor=3, selection="longer")
    with_slow, _ = project.fit(tmp_path, [slow], train=project.loader(drop_last=True))
    with_longer, useful = project.fit(tmp_path, [longer], train=project.loader(drop_last=True))
    assert slow.upsampled is not None
    assert longer.upsampled is not None
    assert torch.equal(slow.upsampled.selected, longer.upsampled.selected)
    assert with_slow.global_step == with_longer.global_step > 5 * (61 // 8)
    data = project.dataset()
    sampler = RandomSampler(data, num_samples=len(slow.upsampled.indices(3)))
    train = project.loader(data, shuffle=None, sampler=sampler, drop_last=True)
    _, plain = project.fit(tmp_path, train=train)
    assert project.digest(useful) == project.digest(plain)


def test_schedules_see_the_real_number_of_updates_of_each_stage(
    tmp_path: Path, project: ModuleType
) -> None:
    callback = UsefulUpsampling(2)
    _, module = project.fit(tmp_path, [callback])
    assert callback.upsampled is not None
    longer = -(-len(callback.upsampled.indices(2)) // 8)
    assert longer > PER_EPOCH
    assert module.promised == [5 * PER_EPOCH, 5 * longer]
    assert module.num_batches == 2 * PER_EPOCH + 5 * longer


def test_checkpoints_early_stopping_and_averages_have_no_memory_of_stage_one(
    tmp_path: Path, project: ModuleType
) -> None:
    def callbacks(folder: Path) -> list[Any]:
        return [
            EarlyStopping("train_loss", patience=1, mode="max"),  # stops at once: the loss falls
            ModelCheckpoint(folder, monitor="train_loss", save_top_k=-1),
            WeightAveraging(),
        ]

    def summary(trainer: Any) -> Any:
        stopping, checkpoint, _ = trainer.callbacks[-3:]
        averaging = next(c for c in trainer.callbacks if isinstance(c, WeightAveraging))
        stopping = next(c for c in trainer.callbacks if isinstance(c, EarlyStopping))
        checkpoint = next(c for c in trainer.callbacks if isinstance(c, ModelCheckpoint))
        names = sorted(Path(path).name for path in checkpoint.best_k_models)
        step = averaging._latest_update_step
        return stopping.stopped_epoch, stopping.best_score, checkpoint.best_model_score, names, step

    plain_trainer, plain = project.fit(tmp_path, callbacks(tmp_path / "a"))
    trainer, useful = project.fit(
        tmp_path, [UsefulUpsampling(2, factor=1), *callbacks(tmp_path / "b")]
    )
    assert summary(trainer) == summary(plain_trainer)
    assert project.digest(useful) == project.digest(plain)
    assert plain_trainer.current_epoch < project.EPOCHS


def test_validation_runs_in_stage_two_only(tmp_path: Path, project: ModuleType) -> None:
    class Count(L.Callback):
        runs_in_separation = True
        epochs = 0

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.epochs += 1

    count = Count()
    settings = {"num_sanity_val_steps": 2}
    callbacks = [UsefulUpsampling(2, factor=1), count]
    trainer, useful = project.fit(tmp_path, callbacks, module=project.Validated, **settings)
    assert count.epochs == 1 + project.EPOCHS  # the sanity check, and stage two
    _, plain = project.fit(tmp_path, module=project.Validated, **settings)
    assert project.digest(useful) == project.digest(plain)
    assert trainer.limit_val_batches == 1.0


def test_a_schedule_on_a_validation_metric_keeps_validation_on(
    tmp_path: Path, project: ModuleType
) -> None:
    class Plateau(project.Validated):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            config = {"scheduler": schedule, "monitor": "val_loss"}
            return {"optimizer": optimizer, "lr_scheduler": config}

    _, plain = project.fit(tmp_path, module=Plateau)
    _, useful = project.fit(tmp_path, [UsefulUpsampling(2, factor=1)], module=Plateau)
    assert project.digest(useful) == project.digest(plain)


def test_metrics_inside_the_module_start_stage_two_empty(
    tmp_path: Path, project: ModuleType
) -> None:
    class Measured(project.Project):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.accuracy = MulticlassAccuracy(3)
            self.seen: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.accuracy.update(self(batch[0]).detach(), batch[1])
            return super().training_step(batch, batch_idx)

        def on_train_end(self) -> None:
            self.seen.append(float(self.accuracy.compute()))

    _, plain = project.fit(tmp_path, module=Measured)
    _, useful = project.fit(tmp_path, [UsefulUpsampling(2, factor=1)], module=Measured)
    assert useful.seen[1] == plain.seen[0]
    assert useful.seen[0] != useful.seen[1]


def test_a_reused_optimizer_is_refused(tmp_path: Path, project: ModuleType) -> None:
    class Reusing(project.Project):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            if not hasattr(self, "kept"):
                self.kept = torch.optim.SGD(self.parameters(), lr=0.1)
            return self.kept

    with pytest.raises(RuntimeError, match="configure_optimizers must make a new optimizer each"):
        project.fit(tmp_path, [UsefulUpsampling(2)], module=Reusing)


def test_the_trainer_is_whole_after_a_fit_and_can_fit_again(
    tmp_path: Path, project: ModuleType
) -> None:
    callback = UsefulUpsampling(2)
    trainer, module = project.fit(tmp_path, [callback])
    assert type(trainer.fit_loop).__name__ == "_FitLoop"
    assert trainer.callbacks == [callback]
    assert "setup_optimizers" not in vars(trainer.strategy)
    first = project.digest(module)
    L.seed_everything(1, verbose=False)
    again = project.Project()
    trainer = L.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(again, project.loader())
    assert project.digest(again) == first


def test_an_own_loop_without_lightning_gives_the_same_weights(
    tmp_path: Path, project: ModuleType
) -> None:
    """The independent reference: section 3 of the spec by hand, for a net without random layers."""

    class Linear(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 3)

        def forward(self, inputs: Any) -> Any:
            return self.net(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    callback = UsefulUpsampling(2)
    train = project.loader(shuffle=False)
    _, module = project.fit(tmp_path, [callback], module=Linear, train=train, max_epochs=4)
    L.seed_everything(1, verbose=False)
    net = Linear().net

    def train_by_hand(net: nn.Module, data: Any, epochs: int) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(epochs):
            for inputs, targets in DataLoader(data, batch_size=8):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs), targets).backward()
                optimizer.step()

    data = project.dataset()
    start = {key: value.clone() for key, value in net.state_dict().items()}
    train_by_hand(net, data, epochs=2)
    inputs, targets = data.tensors
    with torch.no_grad():
        losses = nn.functional.cross_entropy(net(inputs), targets, reduction="none")
    net.load_state_dict(start)
    found = callback.upsampled
    assert found is not None
    for k in range(3):  # the sign of the selection
        slow, fast = ((found.cluster == side) & (targets == k) for side in (1, 0))
        assert losses[slow].mean() > losses[fast].mean()
        assert float(found.mean_losses[k, 1]) == pytest.approx(float(losses[slow].mean()), rel=1e-5)
    copies = [i for i in range(61) if found.cluster[i] == 1]
    train_by_hand(net, Subset(data, [*range(61), *copies]), epochs=4)
    for mine, theirs in zip(module.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_replacing_loaders_and_odd_samplers_are_refused_before_training(
    tmp_path: Path, project: ModuleType
) -> None:
    data = project.dataset()
    odd = DataLoader(data, sampler=RandomSampler(data, replacement=True), batch_size=8)
    module = project.Project(estimate=False)
    with pytest.raises(TypeError, match="a loader to upsample must draw each example once per"):
        project.fit(tmp_path, [UsefulUpsampling(2)], train=odd, module=lambda: module)
    assert module.num_batches == 0
    with pytest.raises(TypeError, match="must be one torch DataLoader, got list"):
        project.fit(tmp_path, [UsefulUpsampling(2)], train=[project.loader(), project.loader()])


def test_the_largest_share_of_a_checkpoint_is_plain_and_loads_with_weights_only(
    tmp_path: Path, project: ModuleType
) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", save_last=True)
    callback = UsefulUpsampling(2)
    project.fit(tmp_path, [callback, checkpoint])
    content = torch.load(tmp_path / "kept" / "last.ckpt", weights_only=True)
    state = content["callbacks"]["UsefulUpsampling"]
    assert state["stage"] == "training"
    found = UpsampledSet.from_state(state["selection"])
    assert callback.upsampled is not None
    assert torch.equal(found.selected, callback.upsampled.selected)
    assert not (tmp_path / "separation.ckpt").exists()


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_tensor_datasets_alike_but_of_other_length_are_refused_on_resume(
    tmp_path: Path, project: ModuleType
) -> None:
    def callbacks() -> list[Any]:
        return [UsefulUpsampling(2), ModelCheckpoint(tmp_path / "kept", save_last=True)]

    project.fit(tmp_path, callbacks(), max_epochs=3)
    last = {"ckpt_path": tmp_path / "kept" / "last.ckpt"}
    shorter = TensorDataset(*project.dataset()[:60])
    with pytest.raises(
        ValueError, match="must hold the 61 examples that were selected from, got 60"
    ):
        project.fit(tmp_path, callbacks(), train=project.loader(shorter), fit_arguments=last)
    other = project.loader(project.dataset(seed=5))
    with pytest.raises(ValueError, match="training data must be those that the examples were sel"):
        project.fit(tmp_path, callbacks(), train=other, fit_arguments=last)
