"""Gaussian expectations of products of σ and its derivatives."""

from widthwise.gaussian.pair import Expectation, expectation, kernel_derivative

__all__ = ["Expectation", "expectation", "kernel_derivative"]
