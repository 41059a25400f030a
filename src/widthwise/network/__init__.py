"""The network: widths, activation and per-layer hyperparameters, and the conventions people know them by."""

from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum, NewtonStep
from widthwise.network.inputs import check_inputs
from widthwise.network.spec import MLP

__all__ = ["MLP", "SGD", "Adam", "GradientDescent", "GradientFlow", "Momentum", "NewtonStep", "check_inputs"]
