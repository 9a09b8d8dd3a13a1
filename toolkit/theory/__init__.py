"""Reference answers that experiments are held against."""

from toolkit.theory.bias_dynamics import TeacherMixture
from toolkit.theory.order_parameters import Crossing, OrderParameters

__all__ = ["Crossing", "OrderParameters", "TeacherMixture"]
