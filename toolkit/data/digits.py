"""scikit-learn's handwritten digits: real images that need no download."""

from sklearn.datasets import load_digits

from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation
from toolkit.data.label_noise import LabelNoise
from toolkit.data.loader import Normalize
from toolkit.data.long_tail import LongTail
from toolkit.data.module import ImageData, Source
from toolkit.data.spurious import Spurious

__all__ = ["Digits"]


class Digits(ImageData):
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn, in three stratified splits.

    The pixels' 17 grey levels 0..16 are stored as uint8, ``round(255 * level / 16)``.

    Args:
        train_size: Training examples.
        val_size: Validation examples, a count or a fraction.
        test_size: Test examples, a count or a fraction.
        batch_size: Training examples per update, over all ranks.
        eval_batch_size: Examples per batch elsewhere.
        seed: Of the splits, the order and the augmentation.
        drop_last: Leave out a partial last training batch; else it is weighted by its count.
        augment: Random changes of the training images.
        normalize: Of all images; by default by the training images.
        spurious: A feature to put into all images.
        mixup: Parameter of MixUp's Beta distribution for the training batches; 0 mixes nothing.
        label_noise: Noisy labels for the training data.
        long_tail: Fewer training examples of some classes.

    Reference:
        Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, 1998; the test part of it, which scikit-learn ships.
    """

    def __init__(  # noqa: PLR0913 - one argument per key of the recipe
        self,
        *,
        train_size: int | None = 600,
        val_size: int | float = 200,
        test_size: int | float = 797,
        batch_size: int = 32,
        eval_batch_size: int = 512,
        seed: int = 0,
        drop_last: bool = False,
        augment: Augmentation | None = None,
        normalize: Normalize | None = None,
        spurious: Spurious | None = None,
        mixup: float = 0.0,
        label_noise: LabelNoise | None = None,
        long_tail: LongTail | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            train_size=train_size,
            val_size=val_size,
            test_size=test_size,
            seed=seed,
            drop_last=drop_last,
            augment=augment,
            normalize=normalize,
            spurious=spurious,
            mixup=mixup,
            label_noise=label_noise,
            long_tail=long_tail,
        )

    def read(self) -> Source:
        """All digits as training data, to be split."""
        digits = load_digits()
        images = (digits.images * (255 / 16)).round().astype("uint8")
        names = [str(name) for name in digits.target_names]
        return Source(ImageArrays.build(images, digits.target, class_names=names, name="train"))
