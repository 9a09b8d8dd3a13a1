"""Nets of timm by name, with a stem that fits small images."""

from typing import Any

import timm
from timm.layers.classifier import ClassifierHead
from timm.models import is_model_in_modules
from torch import nn

from toolkit.suggest import nearest

__all__ = ["timm_net"]


def timm_net(
    name: str,
    num_classes: int,
    *,
    in_channels: int = 3,
    input_size: int | None = None,
    patch_size: int | None = None,
    drop_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    pretrained: bool = False,
) -> nn.Module:
    """A net of timm that maps ``(batch, in_channels, height, width)`` to logits.

    Inputs of up to 64 pixels would be one or two pixels wide after the stem and pooling of an
    ImageNet net. With ``input_size`` up to 64,

    - ResNets and DenseNets get a 3 x 3 convolution of stride 1 as the stem and no max-pooling after
      it, as usual on CIFAR: ``resnet18`` has 11,173,962 parameters for 10 classes;
    - VGGs get a linear layer on the pooled features in place of the two layers of 4,096 units;
    - vision transformers get patches of an eighth of the input's side, unless ``patch_size`` says
      otherwise.

    Vision and Swin transformers are built for ``input_size`` whatever it is. Most of these nets
    have batch statistics or dropout: there the number of ranks matters.

    Args:
        name: Such as ``resnet18``, or with the tag of its weights, ``resnet18.a1_in1k``.
        num_classes: Length of the logits, at least 1.
        in_channels: Channels of the images.
        input_size: Side of the images in pixels; ``None`` leaves the net as timm has it.
        patch_size: Side of the patches of a vision transformer.
        drop_rate: Dropout before the classifier, in ``[0, 1)``.
        drop_path_rate: Stochastic depth, where the net has it.
        pretrained: Load timm's weights (downloaded when they are used first); layers that were
            replaced start from random ones.

    Raises:
        ValueError: If there is no such net, or an argument does not fit it.

    Reference:
        The stem for small images: He et al., 2016, arXiv:1512.03385, section 4.2.
    """
    _check_name(name)
    if num_classes < 1 or in_channels < 1:
        raise ValueError(
            f"num_classes and in_channels must be at least 1, got {num_classes} and {in_channels}. "
            "Take both from the data."
        )
    options: dict[str, Any] = {"drop_rate": drop_rate, "drop_path_rate": drop_path_rate}
    options = {key: value for key, value in options.items() if value}
    options |= _sizes(name, input_size, patch_size)
    try:
        net: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=num_classes, in_chans=in_channels, **options
        )
    except (TypeError, AssertionError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the arguments of timm_net must fit {name}, got {options or 'pretrained'}: {reason}. "
            "Leave out what the net does not have."
        ) from error
    if input_size is not None and input_size <= _SMALL:
        _fit_small_images(net, name, in_channels, num_classes, drop_rate)
    return net


def _check_name(name: str) -> None:
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        known = timm.list_models()
        longer = sorted((k for k in known if k.startswith(architecture)), key=lambda k: (len(k), k))
        near = (longer if architecture else [])[:3]
        if not near and (word := nearest(architecture, known)):
            near = [word]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"name must be a net of timm {timm.__version__}, got {name!r}.{hint}")
    if "." in name and name not in (known := timm.list_pretrained(f"{architecture}.*")):
        raise ValueError(
            f"name must end in a tag of {architecture}'s weights, got {name!r}. "
            f"Use {architecture} or one of {', '.join(known)}."
        )


def _sizes(name: str, input_size: int | None, patch_size: int | None) -> dict[str, int]:
    """The arguments for the size of images and patches, for nets that have them."""
    architecture = name.partition(".")[0]
    is_vit = is_model_in_modules(architecture, {"vision_transformer", "deit"})
    if patch_size is not None and not is_vit:
        raise ValueError(
            f"patch_size must be given for vision transformers only, got {patch_size} for {name}. "
            "Leave it out."
        )
    if input_size is not None and input_size < 1:
        raise ValueError(f"input_size must be at least 1, got {input_size}.")
    sizes: dict[str, int] = {}
    if input_size is not None and (
        is_vit or is_model_in_modules(architecture, {"swin_transformer", "swin_transformer_v2"})
    ):
        sizes["img_size"] = input_size
        if is_vit and patch_size is None and input_size <= _SMALL:
            patch_size = max(1, input_size // 8)
    if patch_size is not None:
        sizes["patch_size"] = patch_size
    return sizes


def _fit_small_images(
    net: nn.Module, name: str, in_channels: int, num_classes: int, drop_rate: float
) -> None:
    """Replace layers in place where the family's stem or head is made for large images."""
    architecture = name.partition(".")[0]
    if is_model_in_modules(architecture, {"resnet"}):
        net.conv1 = _small_stem(in_channels, _width(net.get_submodule("bn1")))
        net.maxpool = nn.Identity()
    elif is_model_in_modules(architecture, {"densenet"}):
        features = net.get_submodule("features")
        features.conv0 = _small_stem(in_channels, _width(features.get_submodule("norm0")))
        features.pool0 = nn.Identity()
    elif is_model_in_modules(architecture, {"vgg"}):
        net.pre_logits = nn.Identity()
        net.head = ClassifierHead(_VGG_WIDTH, num_classes, drop_rate=drop_rate)


def _small_stem(in_channels: int, width: int) -> nn.Conv2d:
    stem = nn.Conv2d(in_channels, width, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as timm's ResNet
    return stem


def _width(norm: nn.Module) -> int:
    """Channels of a batch norm."""
    return int(norm.get_parameter("weight").numel())


_SMALL = 64
_VGG_WIDTH = 512  # channels of the last convolution of every VGG
