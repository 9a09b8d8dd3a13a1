"""Rows per example: merged by index, flat in memory."""

import pytest
import torch

from toolkit.metrics import ExampleRows, SplitRows


def fill(rows: ExampleRows, *batches: tuple[list[int], list[float]]) -> None:
    for ids, values in batches:
        indices = torch.tensor(ids, dtype=torch.int64)
        rows.add(indices, labels=[10 * indices], values=[torch.tensor(values)])


def values_of(rows: ExampleRows) -> list[float]:
    return rows.merged()[1].flatten().tolist()


def test_the_last_value_of_an_example_counts_also_within_a_batch() -> None:
    rows = ExampleRows(1, 1)
    fill(rows, ([2, 0, 2], [1.0, 2.0, 3.0]), ([1, 0], [4.0, 5.0]))
    labels, values = rows.merged()
    assert labels.flatten().tolist() == [0, 10, 20]
    assert values.flatten().tolist() == [5.0, 4.0, 3.0]


def test_without_indices_every_row_counts() -> None:
    rows = ExampleRows(1, 1, by_index=False)
    for value in (1.0, 2.0):
        rows.add(None, labels=[torch.tensor([7, 7])], values=[torch.full((2,), value)])
    assert values_of(rows) == [1.0, 1.0, 2.0, 2.0]


def test_memory_is_flat_over_passes_and_over_one_endless_pass() -> None:
    rows = ExampleRows(1, 1)
    order = torch.Generator().manual_seed(0)
    sizes = []
    for epoch in range(60):
        for indices in torch.randperm(100, generator=order).split(8):
            value = torch.full((len(indices),), float(epoch))
            rows.add(indices, labels=[indices], values=[value])
        sizes.append(len(rows._steps))
        if epoch < 20:
            rows.clear()
    assert sizes[0] == sizes[19]
    assert max(sizes) <= 2 * (100 + 8)
    assert values_of(rows) == [59.0] * 100


def test_merging_along_the_way_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, expected = ExampleRows(1, 1), {}
    for step in range(500):
        indices = torch.randint(20, (3,), generator=generator)
        values = torch.rand(3, generator=generator)
        rows.add(indices, labels=[indices], values=[values])
        expected |= dict(zip(indices.tolist(), values.double().tolist(), strict=True))
        if step % 100 == 50:
            assert values_of(rows) == [expected[key] for key in sorted(expected)]


def test_restored_rows_go_on_like_the_original() -> None:
    original, restored = ExampleRows(1, 1), ExampleRows(1, 1)
    fill(original, ([3, 1], [1.0, 2.0]), ([3, 3], [3.0, 4.0]))
    restored.load_state_dict(original.state_dict())
    for rows in (original, restored):
        fill(rows, ([1, 0], [5.0, 6.0]))
    assert values_of(restored) == values_of(original) == [6.0, 5.0, 4.0]


def test_rows_made_in_inference_mode_can_be_filled_outside_it() -> None:
    rows = ExampleRows(1, 1)
    with torch.inference_mode():
        fill(rows, ([0], [1.0]))
    fill(rows, ([1], [2.0]))
    assert values_of(rows) == [1.0, 2.0]


def test_an_empty_batch_and_an_empty_pass_are_fine() -> None:
    rows = ExampleRows(1, 1)
    assert values_of(rows) == []
    fill(rows, ([], []), ([4], [1.0]))
    assert values_of(rows) == [1.0]


def test_split_rows_keep_the_train_rows_and_the_classes_as_their_state() -> None:
    split_rows, restored = SplitRows(("train", "val"), 1, 1), SplitRows(("train", "val"), 1, 1)
    one = torch.tensor([1])
    for split in ("train", "val"):
        split_rows.add(split, torch.zeros(1, 3), one, labels=[one], values=[one])
    restored.load_state_dict(split_rows.state_dict())
    assert restored.take("train")[1].tolist() == [[1.0]]
    labels, _, num_classes = restored.take("val")
    assert (len(labels), num_classes) == (0, 3)
    assert "test" not in restored
    assert SplitRows(("val",), 1, 1).state_dict() == {}


@pytest.mark.gpu
def test_rows_on_a_gpu_equal_those_on_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    results = []
    for device in ("cpu", "cuda"):
        rows = ExampleRows(1, 1)
        indices = torch.tensor([2, 0, 2], device=device)
        rows.add(indices, labels=[indices], values=[torch.tensor([1.0, 2.0, 3.0], device=device)])
        results.append(values_of(rows))
    assert results[0] == results[1] == [2.0, 3.0]
