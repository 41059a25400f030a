"""Gaussian expectations of products of σ and its derivatives."""

from widthwise.gaussian.four_points.dispatch import FourPoint, four_point
from widthwise.gaussian.pair import Expectation, expectation, kernel_derivative

__all__ = ["Expectation", "FourPoint", "expectation", "four_point", "kernel_derivative"]
