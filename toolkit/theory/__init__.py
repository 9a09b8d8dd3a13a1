"""Reference answers that experiments are held against."""

from toolkit.theory.bias_dynamics import Crossing, OrderParameters, TeacherMixture

__all__ = ["Crossing", "OrderParameters", "TeacherMixture"]
