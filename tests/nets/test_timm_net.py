"""Nets of timm: parameter counts, stems for small images, and refusals."""

import pytest
import torch

from toolkit.nets import timm_net


def _count(net):
    return sum(p.numel() for p in net.parameters())


def _conv_count(widths, in_channels):
    """Parameters of 3 x 3 convolutions with biases, one after the other."""
    pairs = zip((in_channels, *widths), widths, strict=False)
    return sum(9 * before * after + after for before, after in pairs)


def test_resnet18_for_cifar_has_the_usual_number_of_parameters_and_map_sizes():
    net = timm_net("resnet18", 10, input_size=32).eval()
    assert _count(net) == 11_173_962
    inputs = torch.rand(2, 3, 32, 32)
    assert net(inputs).shape == (2, 10)
    assert net.forward_features(inputs).shape == (2, 512, 4, 4)
    assert net.conv1.stride == (1, 1)


def test_resnet34_for_cifar100_has_the_usual_number_of_parameters():
    assert _count(timm_net("resnet34", 100, input_size=32)) == 21_328_292


def test_large_inputs_leave_timms_stem_alone():
    for size in (None, 224):
        net = timm_net("resnet18", 10, input_size=size)
        assert net.conv1.kernel_size == (7, 7)
        assert _count(net) == 11_173_962 + 3 * 64 * (49 - 9)


def test_deep_stem_is_replaced_too():
    net = timm_net("resnet50d", 10, input_size=64, in_channels=1).eval()
    assert net.forward_features(torch.rand(1, 1, 64, 64)).shape == (1, 2048, 8, 8)


def test_vgg19_has_one_linear_layer_on_its_features():
    net = timm_net("vgg19", 10, input_size=32).eval()
    widths = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
    assert _count(net) == _conv_count(widths, 3) + 512 * 10 + 10
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert net(torch.rand(2, 3, 64, 64)).shape == (2, 10)


def test_densenet121_keeps_the_size_up_to_its_first_transition():
    net = timm_net("densenet121", 10, input_size=32).eval()
    assert _count(net) == 6_964_106 - 3 * 64 * (49 - 9)  # timm's own net, with the other stem
    assert net.forward_features(torch.rand(1, 3, 32, 32)).shape == (1, 1024, 4, 4)


def test_vision_transformer_has_eight_by_eight_patches_unless_told():
    net = timm_net("vit_small_patch16_224", 10, input_size=32).eval()
    assert net.patch_embed.num_patches == 64
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    coarse = timm_net("vit_small_patch16_224", 10, input_size=32, patch_size=8)
    assert coarse.patch_embed.num_patches == 16


def test_dropout_and_stochastic_depth_arrive():
    net = timm_net("resnet18", 10, drop_rate=0.3, drop_path_rate=0.2)
    assert net.drop_rate == 0.3
    assert any(getattr(module, "drop_prob", None) == 0.2 for module in net.modules())
    assert timm_net("vgg11", 10, input_size=32, drop_rate=0.3).head.drop.p == 0.3


def test_replaced_stem_is_drawn_as_timm_draws_it():
    torch.manual_seed(0)
    stem = timm_net("resnet18", 10, input_size=32).conv1.weight
    expected = (2 / (9 * 64)) ** 0.5  # He initialisation over outputs
    assert abs(stem.std().item() / expected - 1) < 4 / (2 * stem.numel()) ** 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnt18"}, r"name must be a net of timm .*'resnt18'\. Did you mean .*resnet18"),
        ({"name": "vit_small"}, r"'vit_small'\. Did you mean vit_small_"),
        ({"name": "qqqqqq"}, r"'qqqqqq'\.$"),
        ({"name": ""}, r"got ''\.$"),
        ({"name": "resnet18.a9"}, "tag of resnet18's weights, .* one of .*resnet18.a1_in1k"),
        ({"num_classes": 0}, "at least 1, got 0 and 3"),
        ({"input_size": 0}, "input_size must be at least 1, got 0"),
        ({"patch_size": 4}, "patch_size must be given for vision transformers only, got 4"),
        (
            {"name": "vgg11", "drop_path_rate": 0.1},
            r"must fit vgg11, got \{'drop_path_rate': 0.1\}: .*unexpected keyword",
        ),
    ],
)
def test_what_does_not_fit_ends_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        timm_net(**({"name": "resnet18", "num_classes": 10} | arguments))
    assert "\n" not in str(caught.value)
