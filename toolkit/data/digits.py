"""scikit-learn's handwritten digits: real images that need no download."""

from typing import Any

from sklearn.datasets import load_digits

from toolkit.data.arrays import ImageArrays
from toolkit.data.module import ImageData, Source

__all__ = ["Digits"]


class Digits(ImageData):
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn, in three stratified splits.

    The pixels' 17 grey levels 0..16 are stored as uint8, ``round(255 * level / 16)``.

    Args:
        train_size: Training examples.
        val_size: Validation examples, a count or a fraction.
        test_size: Test examples, a count or a fraction.
        batch_size: Training examples per update, over all ranks.
        **shared: Further ones of :class:`~toolkit.data.ImageData`.

    Reference:
        Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, 1998; the test part of it, which scikit-learn ships.
    """

    def __init__(
        self,
        *,
        train_size: int | None = 600,
        val_size: int | float = 200,
        test_size: int | float = 797,
        batch_size: int = 32,
        **shared: Any,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            train_size=train_size,
            val_size=val_size,
            test_size=test_size,
            **shared,
        )

    def read(self) -> Source:
        """All digits as training data, to be split."""
        digits = load_digits()
        images = (digits.images * (255 / 16)).round().astype("uint8")
        names = [str(name) for name in digits.target_names]
        return Source(ImageArrays.build(images, digits.target, class_names=names, name="train"))
