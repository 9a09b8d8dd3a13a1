import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from toolkit.data import ArrayLoader, ImageArrays
from toolkit.data.reindex import (
    lengthened,
    loader_generators,
    num_examples,
    over_indices,
    upsampled_loader,
)
from toolkit.data.selection import UpsampledSet
from toolkit.data.upsampling import (
    example_losses,
    flattening_epoch,
    indices_hash,
    select_examples,
    separate_examples,
    upsampled_indices,
)


def two_blobs(count: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of two classes; of each, every fourth example is near the boundary, loss high."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 2
    margin = torch.where(torch.arange(count) % 8 < 2, -0.5, 5.0)
    logits = F.one_hot(targets, 2) * margin[:, None]
    logits = logits + 0.1 * torch.randn(count, 2, generator=draw)
    return logits, F.cross_entropy(logits, targets, reduction="none"), targets


def test_the_cluster_with_the_higher_mean_loss_is_slow() -> None:
    logits, losses, targets = two_blobs()
    found = separate_examples(logits, losses, targets)
    near = torch.arange(40) % 8 < 2
    assert torch.equal(found.cluster == 1, near)
    for k in range(2):
        member = targets == k
        assert found.sizes[k].tolist() == [15, 5]
        assert found.mean_losses[k, 1] > found.mean_losses[k, 0]
        expected = losses[member & near].double().mean()
        assert float(found.mean_losses[k, 1]) == pytest.approx(float(expected), rel=1e-12)
    assert found.skipped == ()


def test_negated_losses_swap_slow_and_fast() -> None:
    logits, losses, targets = two_blobs()
    found = separate_examples(logits, losses, targets)
    swapped = separate_examples(logits, -losses, targets)
    assert torch.equal(swapped.cluster, 1 - found.cluster)


def test_labels_of_k_means_decide_nothing() -> None:
    logits, losses, targets = two_blobs()
    first = separate_examples(logits, losses, targets, seed=0)
    for seed in range(1, 8):  # the labels swap for some of these seeds
        assert torch.equal(separate_examples(logits, losses, targets, seed).cluster, first.cluster)


def test_equal_mean_losses_make_the_smaller_cluster_slow() -> None:
    logits = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1]])
    found = separate_examples(logits, torch.full((5,), 0.3), torch.zeros(5).long())
    assert found.cluster.tolist() == [0, 0, 0, 1, 1]


def test_equal_mean_losses_and_sizes_make_the_cluster_of_the_lowest_id_slow() -> None:
    for first in (0.0, 5.0):
        logits = torch.tensor([[first], [first], [5.0 - first], [5.0 - first]])
        losses = torch.tensor([0.3, 0.3, 0.3 + 5e-9, 0.3])
        found = separate_examples(logits, losses, torch.zeros(4).long())
        assert found.cluster.tolist() == [1, 1, 0, 0]


def test_a_class_with_one_example_or_one_output_is_not_clustered() -> None:
    logits = torch.tensor([[1.0], [2.0], [9.0], [4.0], [4.0], [4.0]])
    losses = torch.tensor([0.1, 0.2, 9.0, 1.0, 2.0, 3.0])
    targets = torch.tensor([0, 0, 1, 3, 3, 3])
    found = separate_examples(logits, losses, targets)
    assert found.cluster.tolist() == [0, 1, -1, -1, -1, -1]
    assert found.skipped == (1, 3)  # class 2 has no example at all
    assert found.sizes.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    assert found.mean_losses[1:].isnan().all()


def test_outputs_too_close_to_cluster_are_one_output() -> None:
    logits = torch.tensor([[1.0], [1.0], [1.0 + 2**-23]])
    found = separate_examples(logits, torch.arange(3.0), torch.zeros(3).long())
    assert found.cluster.tolist() in ([-1, -1, -1], [0, 0, 1])


def test_the_clusters_are_a_minimum_of_the_sum_of_squares() -> None:
    """The independent reference: every split of twelve points."""
    draw = torch.Generator().manual_seed(3)
    points = torch.randn(12, 3, generator=draw).double()
    found = separate_examples(
        points.float(), torch.rand(12, generator=draw), torch.zeros(12).long()
    )

    def spread(side: Tensor) -> float:
        parts = (points[side], points[~side])
        return sum(float(((part - part.mean(0)) ** 2).sum()) for part in parts)

    splits = ((torch.tensor([code >> i & 1 for i in range(12)]) == 1) for code in range(1, 2**11))
    assert spread(found.cluster == 1) == pytest.approx(min(map(spread, splits)), rel=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_stop_with_the_ids(value: float) -> None:
    logits, losses, targets = two_blobs()
    logits[3, 1], losses[17] = value, value
    with pytest.raises(ValueError, match=re.escape("got 2 that are not, of the examples [3, 17].")):
        separate_examples(logits, losses, targets)


def test_selections_are_what_they_say() -> None:
    logits, losses, targets = two_blobs()
    clusters = separate_examples(logits, losses, targets)
    correct = torch.ones(40).bool()
    correct[[4, 30]] = False

    def select(selection: Any, seed: int = 0, losses: Tensor = losses) -> list[int]:
        chosen = select_examples(
            selection, clusters, targets=targets, losses=losses, correct=correct, seed=seed
        )
        return [int(i) for i in chosen]

    near = [i for i in range(40) if i % 8 < 2]
    assert select("slow") == near
    assert select("fast") == [i for i in range(40) if i % 8 >= 2]
    assert select("misclassified") == [4, 30]
    assert select("high_loss") == near
    assert select("high_loss", losses=torch.zeros(40)) == list(range(10))  # ties: lowest ids
    drawn = select("random")
    assert drawn == sorted(set(drawn))
    assert drawn != near
    assert select("random", seed=1) != drawn
    assert [sum(int(targets[i]) == k for i in drawn) for k in range(2)] == [5, 5]


def test_random_selection_takes_every_example_equally_often() -> None:
    logits, losses, targets = two_blobs()
    clusters = separate_examples(logits, losses, targets)
    counts = torch.zeros(40)
    for seed in range(400):
        counts[
            select_examples(
                "random", clusters, targets=targets, losses=losses, correct=targets > -1, seed=seed
            )
        ] += 1
    # 100 expected, binomial with standard deviation 8.7
    assert counts.min() > 60
    assert counts.max() < 140


def test_factor_one_copies_nothing_and_counts_are_the_factor() -> None:
    assert torch.equal(upsampled_indices(5, torch.tensor([1, 2]), 1), torch.arange(5))
    counts = torch.bincount(upsampled_indices(5, torch.tensor([1, 2]), 4))
    assert counts.tolist() == [1, 4, 4, 1, 1]
    with pytest.raises(ValueError, match="factor must be at least 1, got 0"):
        upsampled_indices(5, torch.tensor([1]), 0)
    with pytest.raises(ValueError, match=re.escape("selected must lie in 0..4, got 1..5")):
        upsampled_indices(5, torch.tensor([1, 5]), 2)


def test_upsampling_equals_weights_in_the_full_batch_loss() -> None:
    logits, losses, targets = two_blobs()
    selected = torch.tensor([0, 3, 7])
    indices = upsampled_indices(40, selected, 5)
    weights = torch.ones(40).index_fill(0, selected, 5.0)
    copied = F.cross_entropy(logits.double()[indices], targets[indices])
    weighted = (weights.double() * losses.double()).sum() / weights.sum()
    assert float(copied) == pytest.approx(float(weighted), rel=1e-6)


def _weighted_set(selected: list[int], count: int, selection: str = "weighted") -> UpsampledSet:
    return UpsampledSet(
        selected=torch.tensor(selected),
        cluster=torch.zeros(count).long(),
        sizes=torch.zeros(1, 2).long(),
        mean_losses=torch.zeros(1, 2).double(),
        skipped=(),
        loss=0.0,
        error=0.0,
        errors=(),
        epochs=1,
        settings={"selection": selection},
        fingerprint="",
    )


@pytest.mark.parametrize("factor", [2, 3, 5])
def test_weights_in_the_full_batch_loss_equal_copies(factor: int) -> None:
    """And so do their gradients, to rounding."""
    draw = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(30, 4, generator=draw).double(), torch.arange(30) % 3
    found = _weighted_set([1, 4, 7, 20, 21], 30)
    weights = found.loss_weights(factor)
    assert weights is not None
    assert float(weights.mean()) == pytest.approx(1, rel=1e-12)
    assert torch.equal(found.indices(factor), torch.arange(30))
    copied = _weighted_set([1, 4, 7, 20, 21], 30, "slow").indices(factor)
    matrix = torch.randn(4, 3, generator=draw).double().requires_grad_()
    losses = F.cross_entropy(inputs @ matrix, targets, reduction="none")
    pairs = [
        (value, *torch.autograd.grad(value, matrix, retain_graph=True))
        for value in ((losses * weights).mean(), losses[copied].mean())
    ]
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_factor_one_and_other_selections_have_no_weights() -> None:
    assert _weighted_set([1], 4).loss_weights(1) is None
    assert _weighted_set([1], 4, "slow").loss_weights(2) is None


def test_loaders_that_cannot_weigh_are_refused() -> None:
    data = TensorDataset(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(TypeError, match=r"must have a method with_loss_weights.*, got DataLoader"):
        upsampled_loader(DataLoader(data), _weighted_set([1], 4), 2)


def test_example_losses_of_one_column_are_those_of_two() -> None:
    logits = torch.tensor([[1.5], [-0.5], [0.2]])
    targets = torch.tensor([1, 1, 0])
    losses, correct = example_losses(logits, targets)
    expected, right = example_losses(torch.cat([torch.zeros(3, 1), logits], 1), targets)
    torch.testing.assert_close(losses, expected)
    assert correct.tolist() == right.tolist() == [True, False, False]
    with pytest.raises(ValueError, match=re.escape("targets must lie in 0..1, the columns of the")):
        example_losses(logits, torch.tensor([0, 2, 1]))


def test_the_separation_epoch_is_where_the_error_flattens() -> None:
    falling = [0.9, 0.6, 0.4, 0.3, 0.28, 0.27, 0.27]
    assert flattening_epoch(falling, 100) == 5
    assert flattening_epoch(falling[:5], 100) is None
    assert flattening_epoch(falling, 30) == 3  # at most 10 %
    assert flattening_epoch([0.9], 30) is None
    assert flattening_epoch(falling, 400) is None  # at least 2 %
    assert flattening_epoch([*falling, 0.27, 0.27], 400) == 8
    assert flattening_epoch([0.9, 0.5], 5) == 1
    steady = [1 - 0.05 * epoch for epoch in range(15)]
    assert flattening_epoch(steady[:10], 100) is None
    assert flattening_epoch(steady[:11], 100) == 10  # never flat: the upper end


def test_the_hash_of_a_list_depends_on_every_id() -> None:
    assert indices_hash(torch.tensor([1, 2])) == indices_hash(torch.tensor([1, 2]))
    assert indices_hash(torch.tensor([1, 2])) != indices_hash(torch.tensor([1, 3]))


def example_set() -> UpsampledSet:
    return UpsampledSet(
        selected=torch.tensor([1, 4]),
        cluster=torch.tensor([0, 1, -1, 0, 1]),
        sizes=torch.tensor([[2, 2], [0, 0]]),
        mean_losses=torch.tensor([[0.1, 0.7], [float("nan")] * 2]).double(),
        skipped=(1,),
        loss=0.4,
        error=0.2,
        errors=(0.9, 0.3),
        epochs=2,
        settings={"selection": "slow", "factor": 2},
        fingerprint="abc",
    )


def assert_same(one: UpsampledSet, other: UpsampledSet) -> None:
    for key, value in vars(one).items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(getattr(other, key), value, rtol=0, atol=0, equal_nan=True)
        else:
            assert getattr(other, key) == value


def test_an_upsampled_set_survives_json_and_a_checkpoint(tmp_path: Path) -> None:
    found = example_set()
    found.save(tmp_path / "useful.json")
    assert_same(found, UpsampledSet.read(tmp_path / "useful.json"))
    torch.save(found.state(), tmp_path / "state.ckpt")
    assert_same(
        found, UpsampledSet.from_state(torch.load(tmp_path / "state.ckpt", weights_only=True))
    )
    assert found.share == 0.4
    text = (tmp_path / "useful.json").read_text()
    assert "NaN" not in text
    assert '"slow"' in text


def test_a_missing_or_edited_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "useful.json"
    with pytest.raises(ValueError, match=r"must be a useful.json of format 1, got nothing"):
        UpsampledSet.read(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"must be as it was written, got a damaged file"):
        UpsampledSet.read(path)
    example_set().save(path)
    path.write_text(re.sub(r'("selected": \[\s*)1,', r"\g<1>0,", path.read_text()))
    with pytest.raises(ValueError, match="must have the hash that the file names"):
        UpsampledSet.read(path)


def numbers(count: int = 10) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def read(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("shuffle", [True, False])
def test_over_all_positions_a_loader_gives_the_same_batches(shuffle: bool) -> None:
    loader = DataLoader(numbers(), batch_size=4, shuffle=shuffle, drop_last=True)
    again = over_indices(loader, torch.arange(10))
    torch.manual_seed(0)
    first = read(loader)
    torch.manual_seed(0)
    assert read(again) == first
    assert len(first) == 2


def test_settings_of_a_loader_are_kept() -> None:
    generator = torch.Generator()
    loader = DataLoader(
        numbers(), batch_size=4, shuffle=True, num_workers=2, collate_fn=list, generator=generator,
        prefetch_factor=3, persistent_workers=True, timeout=5.0, worker_init_fn=print,
    )  # fmt: skip
    again = over_indices(loader, torch.tensor([1, 1, 2]))
    for name in (
        "num_workers", "collate_fn", "generator", "prefetch_factor", "persistent_workers",
        "timeout", "worker_init_fn", "batch_size", "drop_last", "pin_memory",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(loader, name)
    assert again.sampler.generator is generator
    assert loader_generators(again) == [generator]
    assert len(again.dataset) == 3
    ordered = over_indices(loader, torch.arange(3), ordered=True, workers=False)
    assert ordered.num_workers == 0
    assert ordered.generator is None


def test_an_ordered_pass_sees_the_partial_batch_and_any_sampler() -> None:
    data = numbers()
    loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=True))
    ordered = read(over_indices(loader, torch.arange(10), ordered=True))
    assert [i for batch in ordered for i in batch] == list(range(10))


def test_a_distributed_sampler_is_made_again_over_the_list() -> None:
    data = numbers()
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    again = over_indices(
        DataLoader(data, sampler=sampler, batch_size=2), torch.tensor([5, 6, 7, 8])
    )
    assert read(again) == [[6, 8]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class OwnLoader(DataLoader[Any]):
    pass


def test_loaders_that_cannot_be_upsampled_are_refused() -> None:
    data = numbers()
    for loader, kind in (
        (OwnLoader(data), "got OwnLoader"),
        (DataLoader(Stream()), "got Stream"),
        (DataLoader(data, sampler=RandomSampler(data, num_samples=3)), "got RandomSampler"),
        (DataLoader(data, sampler=[1, 2]), "got list"),
        (DataLoader(data, batch_size=None), "and NoneType"),
    ):
        with pytest.raises(TypeError, match=f"a loader to upsample must .*{kind}"):
            over_indices(loader, torch.arange(3))
        with pytest.raises(TypeError, match=r"Give it a method with_indices\(indices\)"):
            num_examples(loader)


def test_our_loader_makes_the_other_one_itself() -> None:
    arrays = ImageArrays(
        images=torch.zeros(5, 1, 2, 2).byte(), targets=torch.arange(5), num_classes=5
    )
    loader = ArrayLoader(arrays, 2)
    assert num_examples(loader) == 5
    assert [b["indices"].tolist() for b in over_indices(loader, torch.tensor([4, 4, 1]))] == [
        [4, 4],
        [1],
    ]
    with pytest.raises(ValueError, match="must hold each of its 5 examples once, got 2"):
        num_examples(loader.with_indices(torch.tensor([0, 1])))


def test_subsets_of_subsets_keep_positions() -> None:
    inner = Subset(numbers(), [7, 8, 9])
    loader = DataLoader(inner, batch_size=2, sampler=SequentialSampler(inner))
    assert num_examples(loader) == 3
    assert read(over_indices(loader, torch.tensor([2, 0]))) == [[9, 7]]


def test_a_lengthened_loader_draws_whole_permutations_and_a_piece() -> None:
    loader = DataLoader(numbers(), batch_size=4, shuffle=True, generator=torch.Generator())
    longer = lengthened(loader, 23)
    drawn = [i for batch in read(longer) for i in batch]
    assert len(drawn) == 23
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == list(range(10))
    assert len(set(drawn[20:])) == 3
    assert longer.generator is loader.generator
    arrays = ImageArrays(
        images=torch.zeros(5, 1, 2, 2).byte(), targets=torch.arange(5), num_classes=5
    )
    ours = ArrayLoader(arrays, 2, shuffle=True)
    assert sum(len(batch["indices"]) for batch in lengthened(ours, 7)) == 7


def test_loaders_that_cannot_be_lengthened_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="with shuffle=True, got the sampler SequentialSampler"):
        lengthened(DataLoader(numbers()), 20)
    monkeypatch.setattr("toolkit.distributed.world_size", lambda: 2)
    with pytest.raises(TypeError, match="on several processes, got DataLoader on 2"):
        lengthened(DataLoader(numbers(), shuffle=True), 20)
