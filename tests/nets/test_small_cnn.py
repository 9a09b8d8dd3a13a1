"""The small net: shapes, independence of examples, and the pooling it replaces."""

import pytest
import torch

from toolkit.nets import SmallCNN


@pytest.mark.parametrize("size", [8, 9, 13, 28, 32])
def test_logits_have_one_row_per_image_at_any_size(size):
    net = SmallCNN(3, 7, (4, 8))
    assert net(torch.rand(5, 3, size, size)).shape == (5, 7)


def test_parameter_count_is_the_sum_over_layers():
    net = SmallCNN(in_channels=1, num_classes=10, widths=(16, 32))
    count = (9 * 1 * 16 + 16) + (9 * 16 * 32 + 32) + (4 * 32 * 10 + 10)
    assert sum(p.numel() for p in net.parameters()) == count


def test_logits_of_an_image_do_not_depend_on_the_batch():
    net = SmallCNN(1, 10)
    inputs = torch.rand(16, 1, 8, 8)
    net.train()
    alone = torch.cat([net(image[None]) for image in inputs])
    torch.testing.assert_close(net(inputs), alone)
    assert not list(net.buffers())


@pytest.mark.parametrize("size", [(8, 8), (12, 20), (28, 32)])
def test_grid_equals_adaptive_average_pooling(size):
    net = SmallCNN(2, 3, (4, 5))
    inputs = torch.rand(3, 2, *size)
    pooled = torch.nn.functional.adaptive_avg_pool2d(net.features(inputs), 2).flatten(1)
    torch.testing.assert_close(net(inputs), net.classifier(pooled))


def test_too_small_images_and_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"at least 8 x 8 pixels for 2 poolings, got \(8, 7\)"):
        SmallCNN()(torch.rand(1, 1, 8, 7))
    with pytest.raises(ValueError, match=r"widths must be positive and at least one, got \[\]"):
        SmallCNN(widths=())
    with pytest.raises(ValueError, match="kernel_size must be odd and positive, got 2"):
        SmallCNN(kernel_size=2)
