"""The network: widths, activation and per-layer hyperparameters, and the conventions people know them by."""

from widthwise.network.algorithms import GradientDescent, GradientFlow, NewtonStep
from widthwise.network.inputs import check_inputs
from widthwise.network.spec import MLP

__all__ = ["MLP", "GradientDescent", "GradientFlow", "NewtonStep", "check_inputs"]
