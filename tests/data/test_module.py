"""A data module of one's own: what the base makes of the splits that it reads."""

import dataclasses

import pytest
import torch

from toolkit.data import ImageArrays, ImageData, Source


def _arrays(n, name, **changes):
    fields = {
        "images": torch.zeros(n, 1, 4, 4, dtype=torch.uint8),
        "targets": torch.arange(n) % 2,
        "num_classes": 2,
        "groups": torch.arange(n) % 2,
        "group_names": ("a", "b"),
        "name": name,
    }
    return ImageArrays(**(fields | changes))


class Own(ImageData):
    """Training and test data out of nowhere."""

    def __init__(self, source, **kwargs):
        super().__init__(**kwargs)
        self.source = source

    def read(self):
        return self.source


def test_splits_of_the_source_are_kept_and_the_missing_one_is_taken_from_training():
    source = Source(_arrays(10, "train"), test=_arrays(6, "test"))
    data = Own(source, val_size=4, batch_size=2)
    data.setup()
    assert data.test is source.test
    assert [len(data.train), len(data.val), data.val.name] == [6, 4, "val"]
    assert data.num_groups == 2
    batch = next(iter(data.val_dataloader()))
    assert set(batch) == {"inputs", "targets", "indices", "groups"}


def test_training_data_that_stays_whole_is_not_copied():
    source = Source(_arrays(10, "train"), _arrays(4, "val"), _arrays(6, "test"))
    data = Own(source)
    data.setup()
    assert data.train is source.train


@pytest.mark.parametrize(
    ("test", "arguments", "message"),
    [
        (_arrays(6, "test"), {"val_size": 2, "test_size": 2}, "test_size must be null where"),
        (None, {"val_size": 2}, "test_size must be given, since the data has no such split"),
        (
            _arrays(6, "test", group_names=("a", "c")),
            {"val_size": 2},
            r"test data must have the classes and groups .*\['a', 'b'\], got 2 and \['a', 'c'\]",
        ),
        (_arrays(6, "test", num_classes=3), {"val_size": 2}, r"test data must have .*got 3 and"),
    ],
)
def test_splits_that_do_not_fit_together_are_refused(test, arguments, message):
    with pytest.raises(ValueError, match=message):
        Own(Source(_arrays(10, "train"), test=test), **arguments).check()


def test_arrays_cannot_be_changed_by_assignment():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _arrays(2, "train").targets = torch.zeros(2)


@pytest.mark.gpu
def test_arrays_and_batches_lie_on_the_trainers_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from toolkit.data import ArrayLoader, FlipAndCrop

    arrays = _arrays(64, "train", images=torch.randint(256, (64, 3, 8, 8)).to(torch.uint8))
    loaders = [
        ArrayLoader(data, 8, shuffle=True, augment=FlipAndCrop(2))
        for data in (arrays, arrays.to("cuda"))
    ]
    for ours, theirs in zip(*loaders, strict=True):
        assert theirs["inputs"].is_cuda
        for key in ours:
            assert torch.equal(ours[key], theirs[key].cpu())
