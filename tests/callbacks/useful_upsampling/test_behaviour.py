"""Reading data of any project, what is recorded, edge cases and messages."""

import contextlib
import fnmatch
import functools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

from callbacks import SharpnessAware, UsefulUpsampling
from callbacks._selecting import Settings, check_settings
from callbacks._stages import SeparationLoop, runs_in_separation
from toolkit.data import ArrayLoader, FlipAndCrop, LabelNoise
from toolkit.data.selection import UpsampledSet
from toolkit.data.upsampling import indices_hash
from toolkit.history import read_json
from toolkit.models import ImageClassifier
from toolkit.optim import SAM


def fit_images(project: ModuleType, folder: Path, *extra: L.Callback, **settings: Any) -> Any:
    data = project.Images(batch_size=16, augment=FlipAndCrop(), seed=3)
    arguments = {"datamodule": data, "train_dataloaders": None}
    settings = {"module": project.classifier, **settings}
    return project.fit(folder, extra, fit_arguments=arguments, **settings)


def test_our_data_and_model_with_factor_one_are_the_plain_run(
    project: ModuleType, tmp_path: Path
) -> None:
    _, plain = fit_images(project, tmp_path)
    callback = UsefulUpsampling(2, factor=1)
    trainer, useful = fit_images(project, tmp_path, callback)
    assert project.digest(useful) == project.digest(plain)
    # with every example once, the means over the original data are the plain ones
    for key in ("loss", "acc"):
        mean = float(trainer.callback_metrics[f"train/{key}"])
        original = float(trainer.callback_metrics[f"train/original_{key}"])
        assert original == pytest.approx(mean, rel=1e-6)


def test_weights_in_the_loss_are_copies_where_each_batch_is_the_whole_data(
    project: ModuleType, tmp_path: Path
) -> None:
    """The same weights to rounding, and as many updates as the plain run."""

    class Whole(project.Images):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(batch_size=500, seed=3)

    def fit(name: str, selection: Any, factor: int) -> Any:
        callback = UsefulUpsampling(2, selection=selection, factor=factor)
        arguments = {"datamodule": Whole(), "train_dataloaders": None}
        make = functools.partial(project.classifier, batch_statistics=False)
        folder = tmp_path / name
        _, module = project.fit(folder, [callback], module=make, fit_arguments=arguments)
        return callback.upsampled, module

    copies, copied = fit("a", "slow", 3)
    weights, weighted = fit("b", "weighted", 3)
    assert torch.equal(copies.selected, weights.selected)
    _, once = fit("c", "weighted", 1)
    states = [module.state_dict() for module in (copied, weighted, once)]
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(states[0]["net.0.weight"], states[2]["net.0.weight"], rtol=1e-3)
    with pytest.raises(TypeError, match="must have a method with_loss_weights"):
        project.fit(tmp_path / "d", [UsefulUpsampling(2, selection="weighted")])


@pytest.mark.parametrize(("mixup", "selection"), [(0.0, "slow"), (0.4, "slow"), (0.0, "random")])
def test_noisy_labels_without_mixup_warn(
    project: ModuleType, tmp_path: Path, mixup: float, selection: Any
) -> None:
    noise = LabelNoise("clean", fraction=0.1)
    data = project.Images(batch_size=16, seed=3, mixup=mixup, label_noise=noise)
    arguments = {"datamodule": data, "train_dataloaders": None}
    callback = UsefulUpsampling(2, selection=selection)
    expected = contextlib.nullcontext()  # warnings are errors here
    if not mixup and selection == "slow":
        message = r"10.0% of the training labels are noisy, and the slow .* Train with MixUp"
        expected = pytest.warns(UserWarning, match=message)  # type: ignore[assignment]
    with expected:
        project.fit(tmp_path, [callback], module=project.classifier, fit_arguments=arguments)


def test_both_passes_of_sam_see_the_same_mixture(project: ModuleType, tmp_path: Path) -> None:
    """``rho=0`` is the base optimizer, so both passes have one loss; factor 1 is the plain run."""

    def sam(rho: float) -> L.LightningModule:
        module: ImageClassifier = project.classifier()
        base = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
        module._optimizer = functools.partial(SAM, base=base, rho=rho)
        return module

    def digest(callbacks: Any, module: Any, **settings: Any) -> str:
        data = project.Images(batch_size=16, augment=FlipAndCrop(), seed=3, mixup=0.5)
        arguments = {"datamodule": data, "train_dataloaders": None, **settings}
        _, built = project.fit(tmp_path, callbacks, module=module, fit_arguments=arguments)
        return str(project.digest(built))

    plain = digest([], project.classifier)
    assert digest([SharpnessAware()], functools.partial(sam, 0.0)) == plain
    assert digest([SharpnessAware()], functools.partial(sam, 0.1)) != plain
    assert digest([UsefulUpsampling(2, factor=1)], project.classifier) == plain
    _, unmixed = fit_images(project, tmp_path)
    assert project.digest(unmixed) != plain


def test_sam_with_factor_one_is_the_plain_run(project: ModuleType, tmp_path: Path) -> None:
    def sam() -> L.LightningModule:
        module: ImageClassifier = project.classifier()
        base = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
        module._optimizer = functools.partial(SAM, base=base, rho=0.1)
        return module

    # The useful callback comes first: stage one has to start the other one.
    for order in (1, -1):
        _, plain = fit_images(project, tmp_path, SharpnessAware(), module=sam)
        both = [UsefulUpsampling(2, factor=1), SharpnessAware()][::order]
        _, useful = fit_images(project, tmp_path, *both, module=sam)
        assert project.digest(useful) == project.digest(plain)


def test_means_over_the_original_data_weight_each_example_once(
    project: ModuleType, tmp_path: Path
) -> None:
    class Collect(L.Callback):
        losses: dict[int, list[float]]

        def on_train_epoch_start(self, *args: Any) -> None:
            self.losses = {}

        def on_train_batch_end(self, trainer: Any, module: Any, *step: Any) -> None:
            outputs, batch, _ = step
            loss_of = nn.CrossEntropyLoss(reduction="none")
            losses = loss_of(outputs["logits"], batch["targets"])
            for index, loss in zip(batch["indices"].tolist(), losses.tolist(), strict=True):
                self.losses.setdefault(index, []).append(loss)

    collect = Collect()
    callback = UsefulUpsampling(1, factor=4)
    trainer, _ = fit_images(project, tmp_path, callback, collect)
    found = callback.upsampled
    assert found is not None
    counts = {index: len(losses) for index, losses in collect.losses.items()}
    selected = set(found.selected.tolist())
    assert counts == {i: 4 if i in selected else 1 for i in range(70)}
    means = [np.mean(losses) for losses in collect.losses.values()]
    assert float(trainer.callback_metrics["train/original_loss"]) == pytest.approx(np.mean(means))
    assert float(trainer.callback_metrics["train/loss"]) != pytest.approx(np.mean(means), rel=1e-3)


def test_the_faint_examples_are_slow(project: ModuleType, tmp_path: Path) -> None:
    """The trap of methods of this kind: to copy what is learnt already."""
    callback = UsefulUpsampling(2)
    fit_images(project, tmp_path, callback, max_epochs=4)
    assert callback.upsampled is not None
    slow = (callback.upsampled.cluster == 1).double()
    faint = torch.arange(70) % 3 == 0
    assert slow[faint].mean() > 0.6
    assert slow[~faint].mean() < 0.3


def test_the_data_module_is_scored_without_augmentation_in_eval_mode(
    project: ModuleType, tmp_path: Path
) -> None:
    callback = UsefulUpsampling(2)
    data = project.Images(batch_size=16, augment=FlipAndCrop(), seed=3)

    class Look(L.Callback):
        runs_in_separation = True
        loss = 0.0

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if isinstance(trainer.fit_loop, SeparationLoop):
                pl_module.eval()
                with torch.no_grad():
                    loader = ArrayLoader(data.train, 70, normalize=data.normalize)
                    batch = next(iter(loader))
                    logits = pl_module(batch["inputs"])
                self.loss = float(nn.functional.cross_entropy(logits, batch["targets"]))
                pl_module.train()

    look = Look()
    arguments = {"datamodule": data, "train_dataloaders": None}
    project.fit(tmp_path, [callback, look], module=project.classifier, fit_arguments=arguments)
    assert callback.upsampled is not None
    assert callback.upsampled.loss == pytest.approx(look.loss, rel=1e-6)


def test_useful_json_is_plain_and_makes_another_run_the_same(
    project: ModuleType, tmp_path: Path
) -> None:
    callback = UsefulUpsampling(2, dirpath=str(tmp_path / "here"))
    _, first = project.fit(tmp_path, [callback])
    path = tmp_path / "here" / "useful.json"
    content = json.loads(path.read_text())
    assert content["num_examples"] == 61
    assert content["settings"] == {
        "separation_epochs": 2, "selection": "slow", "factor": 2, "seed": 0,
    }  # fmt: skip
    slow = [i for i, name in enumerate(content["cluster"]) if name == "slow"]
    assert content["selected"] == slow
    for row in content["classes"]:
        sides = row["slow"], row["fast"]
        assert sides[0]["mean_loss"] > sides[1]["mean_loss"]
        assert sum(side["count"] for side in sides) == len(range(row["class"], 61, 3))
    given = UsefulUpsampling(selection_file=str(path))
    _, second = project.fit(tmp_path / "second", [given])
    assert project.digest(second) == project.digest(first)
    assert second.num_batches == first.num_batches - 2 * 8  # no stage one
    assert read_json(tmp_path / "second" / "useful.json") == content
    other = project.loader(project.dataset(seed=8))
    with pytest.raises(ValueError, match="the training data must be those that the examples"):
        project.fit(tmp_path / "third", [given], train=other)
    assert not (tmp_path / "third").exists()


def test_stage_one_and_its_results_are_recorded_under_their_own_names(
    project: ModuleType, tmp_path: Path
) -> None:
    logger = CSVLogger(tmp_path, name="log")
    logged: list[tuple[set[str], int | None]] = []
    write = logger.log_metrics
    logger.log_metrics = lambda metrics, step=None: (  # type: ignore[method-assign]
        logged.append((set(metrics), step)), write(metrics, step)
    )[1]  # fmt: skip
    callback = UsefulUpsampling(2)
    project.fit(tmp_path, [callback], logger=logger)
    names = [keys - {"epoch"} for keys, _ in logged]
    assert names[:2] == [{"separation/train_loss"}] * 2
    results = {"epochs", "selected_share", "selected_count", "loss", "acc"}
    for k in range(3):
        results |= {f"{side}_{what}/{k}" for side in ("slow", "fast") for what in ("count", "loss")}
    assert names[2] == {f"separation/{key}" for key in results}
    assert names[3:] == [{"train_loss"}] * 5
    patterns = UsefulUpsampling.logged_keys
    assert all(any(fnmatch.fnmatch(k, p) for p in patterns) for keys in names[:3] for k in keys)
    assert [step for _, step in logged[:3]] == [7, 15, 15]


def test_scoring_leaves_no_trace(project: ModuleType, tmp_path: Path) -> None:
    """Of two runs with a separation of some epochs, one scores before it and after each."""

    class Odd(nn.Module):
        """Draws random numbers and moves a buffer, in evaluation too."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs: Any) -> Any:
            self.calls += 1
            return inputs + 0.0 * torch.rand(1) + 0 * np.random.rand()  # noqa: NPY002

    class Noisy(project.Project):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net.append(Odd())
            self.seen: list[Any] = []

        def on_train_epoch_start(self) -> None:
            modes = {name: child.training for name, child in self.named_modules()}
            grads = [p.grad is None for p in self.parameters()]
            calls = float(self.net[-1].calls)
            # Not Python's generator: beartype draws from it.
            state = int(torch.get_rng_state().sum()), np.random.rand()  # noqa: NPY002
            self.seen.append((modes, calls, state, grads))

    def seen(epochs: Any, folder: str) -> Any:
        _, module = project.fit(
            tmp_path / folder, [UsefulUpsampling(epochs, factor=1)], module=Noisy, max_epochs=40
        )
        return module.seen

    fixed, auto = seen(3, "b"), seen("auto", "c")
    assert len(auto) in range(42, 45)  # 2..4 epochs of stage one, each scored
    common = min(len(auto), len(fixed)) - 40
    assert common >= 2
    assert auto[:common] == fixed[:common]
    assert auto[-40:] == fixed[-40:]


class Dictionaries(Dataset[dict[str, Any]]):
    """Names of its own, ids of its own order, and random crops in the data set."""

    def __init__(self, data: Any, *, noise: float = 0.0) -> None:
        self.data, self.noise = data, noise

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        inputs, target = self.data[index]
        inputs = inputs + self.noise * torch.randn(inputs.shape)
        return {"pixels": inputs, "label": target, "id": index}


def named(project: ModuleType) -> Any:
    class Named(project.Project):  # type: ignore[name-defined,misc]
        def forward(self, inputs: Any) -> Any:
            return {"scores": self.net(inputs)}

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.num_batches += 1
            return nn.functional.cross_entropy(self(batch["pixels"])["scores"], batch["label"])

    return Named


def test_names_and_callables_read_any_batch(project: ModuleType, tmp_path: Path) -> None:
    train = project.loader(Dictionaries(project.dataset()))
    fields = {"inputs": "pixels", "targets": "label", "indices": "id", "logits": "scores"}
    by_name = UsefulUpsampling(2, fields=fields)
    project.fit(tmp_path / "a", [by_name], module=named(project), train=train)
    by_call = UsefulUpsampling(
        2,
        fields={"targets": lambda batch: batch["label"], "indices": None},
        forward=lambda module, batch: module.net(batch["pixels"]),
    )
    project.fit(tmp_path / "b", [by_call], module=named(project), train=train)
    assert by_name.upsampled is not None
    assert by_call.upsampled is not None
    assert torch.equal(by_name.upsampled.cluster, by_call.upsampled.cluster)
    with pytest.raises(ValueError, match="a batch must hold the tensor 'inputs', got"):
        project.fit(tmp_path / "c", [UsefulUpsampling(2)], module=named(project), train=train)
    with pytest.raises(ValueError, match=r"fields must be among .* Did you mean 'targets'"):
        UsefulUpsampling(2, fields={"target": "label"})


def test_random_transforms_in_the_data_set_warn_unless_a_scoring_loader_is_given(
    project: ModuleType, tmp_path: Path
) -> None:
    fields = {"inputs": "pixels", "targets": "label", "logits": "scores"}
    train = project.loader(Dictionaries(project.dataset(), noise=0.1), drop_last=True)
    clean = project.loader(Dictionaries(project.dataset()), shuffle=False)
    with pytest.warns(UserWarning, match=r"changes its examples at random, .* Give scoring_data"):
        project.fit(
            tmp_path / "a", [UsefulUpsampling(2, fields=fields)], module=named(project), train=train
        )
    given = [clean, lambda: clean]
    sets = []
    for number, scoring in enumerate(given):  # warnings are errors here
        callback = UsefulUpsampling(2, fields=fields, scoring_dataloader=scoring)
        project.fit(tmp_path / f"b{number}", [callback], module=named(project), train=train)
        sets.append(callback.upsampled)
    assert isinstance(sets[0], UpsampledSet)
    assert isinstance(sets[1], UpsampledSet)
    assert torch.equal(sets[0].cluster, sets[1].cluster)


def test_ids_must_be_each_position_once(project: ModuleType, tmp_path: Path) -> None:
    fields = {"inputs": "pixels", "targets": "label", "indices": "id", "logits": "scores"}

    class Twice(Dictionaries):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {**super().__getitem__(index), "id": index // 2}

    train = project.loader(Twice(project.dataset()))
    with pytest.raises(ValueError, match=r"must see each id of 0..60 once, got 31 different"):
        project.fit(
            tmp_path, [UsefulUpsampling(2, fields=fields)], module=named(project), train=train
        )
    short = project.loader(Dictionaries(project.dataset(40)))
    callback = UsefulUpsampling(2, fields={**fields, "indices": None}, scoring_dataloader=short)
    train = project.loader(Dictionaries(project.dataset()))
    with pytest.raises(ValueError, match=r"scoring must see each id of 0..60 once, got 40"):
        project.fit(tmp_path / "b", [callback], module=named(project), train=train)


@pytest.mark.filterwarnings("ignore:the selected share")
def test_targets_without_classes_need_losses(project: ModuleType, tmp_path: Path) -> None:
    class Regression(project.Project):  # type: ignore[name-defined,misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.mse_loss(self(batch[0]), batch[1])

    inputs, targets = project.dataset().tensors
    data = torch.utils.data.TensorDataset(inputs, nn.functional.one_hot(targets).float())
    train = project.loader(data)
    with pytest.raises(ValueError, match=r"must be class ids, .* \('batch', 3\). For other"):
        project.fit(tmp_path / "a", [UsefulUpsampling(2)], module=Regression, train=train)
    callback = UsefulUpsampling(
        2, losses=lambda logits, targets: (logits - targets).square().mean(1)
    )
    project.fit(tmp_path / "b", [callback], module=Regression, train=train)
    assert callback.upsampled is not None
    assert callback.upsampled.sizes.shape == (1, 2)
    assert int(callback.upsampled.sizes.sum()) == 61


def test_no_selection_goes_on_and_says_so(project: ModuleType, tmp_path: Path) -> None:
    """Also a class with one example, and an outcome that other methods fail on after hours."""
    inputs, targets = project.dataset(6).tensors
    few = torch.utils.data.TensorDataset(torch.cat([inputs[:3]] * 2), targets)
    train = project.loader(few)
    callback = UsefulUpsampling(2)
    with (
        pytest.warns(UserWarning, match=r"classes \[0, 1, 2\] have fewer than 2 examples or fewer"),
        pytest.warns(UserWarning, match="no example was selected; training goes on"),
    ):
        _, useful = project.fit(tmp_path, [callback], train=train)
    _, plain = project.fit(tmp_path / "plain", train=train)
    assert project.digest(useful) == project.digest(plain)


def test_an_unusual_share_warns(project: ModuleType, tmp_path: Path) -> None:
    everything = UsefulUpsampling(1, selection="misclassified")

    class Wrong(project.Project):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    with pytest.warns(UserWarning, match=r"usually within 0.05 and 0.6, got 0\..* too early"):
        project.fit(tmp_path, [everything], module=Wrong)

    inputs, targets = project.dataset().tensors
    inputs = inputs + 10 * nn.functional.one_hot(targets, 6)
    mislabelled = torch.cat([targets[:1] + 1, targets[1:]])
    apart = torch.utils.data.TensorDataset(inputs, mislabelled)
    few = UsefulUpsampling(4, selection="misclassified")
    with pytest.warns(UserWarning, match=r"usually within 0.05 and 0.6, got 0\.0.* too late"):
        project.fit(tmp_path / "late", [few], train=project.loader(apart))


def test_the_order_of_scoring_decides_nothing(project: ModuleType, tmp_path: Path) -> None:
    """Rows are sorted by id before they are clustered, wherever they were read."""

    class Shuffled(Dictionaries):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return super().__getitem__((index * 17 + 5) % len(self))  # 61 is prime

    fields = {"inputs": "pixels", "targets": "label", "indices": "id", "logits": "scores"}
    train = project.loader(Dictionaries(project.dataset()))
    found = []
    for kind in (Dictionaries, Shuffled):
        scoring = project.loader(kind(project.dataset()), shuffle=False)
        callback = UsefulUpsampling(2, fields=fields, scoring_dataloader=scoring)
        folder = tmp_path / kind.__name__
        _, module = project.fit(folder, [callback], module=named(project), train=train)
        assert callback.upsampled is not None
        found.append((indices_hash(callback.upsampled.selected), project.digest(module)))
    assert found[0] == found[1]


def test_outputs_that_are_not_finite_stop_with_the_ids(project: ModuleType, tmp_path: Path) -> None:
    class Infinite(project.Project):  # type: ignore[name-defined,misc]
        def forward(self, inputs: Any) -> Any:
            logits = self.net(inputs)
            return (
                logits if self.training else logits + torch.where(inputs[:, :1] > 2.9, torch.inf, 0)
            )

    bad = torch.nonzero(project.dataset().tensors[0][:, 0] > 2.9).flatten().tolist()
    assert 0 < len(bad) < 10
    message = f"outputs and losses must be finite, got {len(bad)} that"
    with pytest.raises(ValueError, match=message) as caught:
        project.fit(tmp_path, [UsefulUpsampling(2)], module=Infinite)
    assert str(bad) in str(caught.value)


@pytest.mark.parametrize(("epochs", "total"), [(5, 5), (9, 5)])
def test_the_separation_must_end_before_the_training(
    project: ModuleType, tmp_path: Path, epochs: int, total: int
) -> None:
    message = f"separation_epochs must be between 1 and trainer.max_epochs - 1 = 4, got {epochs}"
    with pytest.raises(ValueError, match=message):
        project.fit(tmp_path / "new", [UsefulUpsampling(epochs)], max_epochs=total)
    assert not (tmp_path / "new").exists()
    resolved = {"trainer": {"max_epochs": total}}
    assert UsefulUpsampling.check_recipe(resolved, {"separation_epochs": epochs}) == [
        f"{message}. Separate early: the first 5-10 % of the epochs."
    ]


def test_recipes_without_a_fault_have_none() -> None:
    check = UsefulUpsampling.check_recipe
    assert check({"trainer": {"max_epochs": 5}}, {"separation_epochs": 4}) == []
    assert check({"trainer": {"max_epochs": 5}}, {}) == []
    assert check({}, {"separation_epochs": 4}) == []
    given = {"separation_epochs": 9, "selection_file": "useful.json"}
    assert check({"trainer": {"max_epochs": 3}}, given) == []
    [fault] = check({"trainer": {"max_epochs": 1}}, {})
    assert fault.startswith("trainer.max_epochs must be at least 2 for a separation stage, got 1.")
    [fault] = check({"trainer": {"max_epochs": 5}}, {"separation_epochs": 0})
    assert "got 0" in fault
    [fault] = check({"trainer": {"max_epochs": -1}}, {})
    assert fault.startswith("separation_epochs must be a number where trainer.max_epochs is with")
    assert check({"trainer": {"max_epochs": -1}}, {"separation_epochs": 9}) == []


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="separation_epochs must be at least 1 or 'auto', got 0"):
        UsefulUpsampling(0)
    with pytest.raises(ValueError, match=r"factor must be at least 1, got 0. 2 is one extra copy"):
        UsefulUpsampling(1, factor=0)
    with pytest.raises(ValueError, match="selection must not be 'misclassified' where losses is"):
        UsefulUpsampling(1, selection="misclassified", losses=lambda a, b: a[:, 0])
    settings = Settings(1, "slow", 2, 0)
    object.__setattr__(settings, "selection", "hard")  # as without checks of types
    with pytest.raises(ValueError, match="selection must be one of slow, fast, random, high_loss"):
        check_settings(settings, has_losses=False)


def test_stage_one_that_ends_early_is_refused(project: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"train all its epochs, got 1 of 2. Raise max_st"):
        project.fit(tmp_path, [UsefulUpsampling(2)], max_steps=8)


def test_a_fast_development_run_passes_through_both_stages(
    project: ModuleType, tmp_path: Path
) -> None:
    _, module = project.fit(tmp_path, [UsefulUpsampling(2)], fast_dev_run=True)
    assert module.num_batches == 2
    assert list(tmp_path.iterdir()) == []


def test_who_takes_part_in_stage_one() -> None:
    class Own(L.Callback):
        pass

    own = Own()
    assert not runs_in_separation(own)
    own.runs_in_separation = True  # type: ignore[attr-defined]
    assert runs_in_separation(own)
    assert runs_in_separation(L.pytorch.callbacks.TQDMProgressBar())
    assert not runs_in_separation(L.pytorch.callbacks.LearningRateMonitor())


def test_progress_bars_and_accumulation_schedules_work_over_both_stages(
    project: ModuleType, tmp_path: Path
) -> None:
    def accumulate() -> L.Callback:
        return L.pytorch.callbacks.GradientAccumulationScheduler({0: 2, 1: 4, 3: 1})

    def module() -> Any:
        return project.Project(estimate=False)

    _, plain = project.fit(tmp_path, [accumulate()], module=module)
    _, useful = project.fit(
        tmp_path,
        [UsefulUpsampling(3, factor=1), accumulate(), L.pytorch.callbacks.RichProgressBar()],
        module=module,
        enable_progress_bar=True,
    )
    assert project.digest(useful) == project.digest(plain)


def test_manual_optimization_works(project: ModuleType, tmp_path: Path) -> None:
    class Manual(project.Project):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(estimate=False)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.num_batches += 1
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(self(batch[0]), batch[1]))
            optimizer.step()

    _, plain = project.fit(tmp_path, module=Manual)
    trainer, useful = project.fit(tmp_path, [UsefulUpsampling(2, factor=1)], module=Manual)
    assert project.digest(useful) == project.digest(plain)
    assert trainer.global_step == 40


def test_a_loader_from_the_module_or_a_data_module_is_found(
    project: ModuleType, tmp_path: Path
) -> None:
    class Data(L.LightningDataModule):
        def train_dataloader(self) -> DataLoader[Any]:
            return project.loader()

    callback = UsefulUpsampling(2)
    _, first = project.fit(tmp_path / "a", [callback])
    arguments = {"train_dataloaders": None, "datamodule": Data()}
    _, second = project.fit(tmp_path / "b", [UsefulUpsampling(2)], fit_arguments=arguments)
    assert project.digest(first) == project.digest(second)

    class Scored(Data):
        def scoring_dataloader(self) -> DataLoader[Any]:
            raise LookupError("asked")

    arguments = {"train_dataloaders": None, "datamodule": Scored()}
    with pytest.raises(LookupError, match="asked"):
        project.fit(tmp_path / "c", [UsefulUpsampling(2)], fit_arguments=arguments)
