"""widthwise: the effective theory of deep neural networks, as an expansion in 1/width, beside measurement.

The names below are the public surface. They are imported when first used, so that the numerical core runs where only
jax, numpy and scipy are installed, and `import widthwise` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from widthwise.version import __version__

if TYPE_CHECKING:
    from widthwise.activations import Activation, activation
    from widthwise.comparison import Comparison, compare
    from widthwise.errors import AccuracyWarning, ExpansionWarning, WidthwiseError
    from widthwise.experiments.labelled import measure
    from widthwise.flow.couplings import Couplings, couplings
    from widthwise.flow.output_density import OutputDensity, output_density
    from widthwise.gaussian import Expectation, expectation, kernel_derivative
    from widthwise.inference.labelled import max_learning_rate, posterior, predict, sample_posterior, sample_prior
    from widthwise.inference.observables.labelled import expected_error, trained_kernel
    from widthwise.network import MLP, GradientDescent, GradientFlow, NewtonStep
    from widthwise.results import load, network_of, save, theory
    from widthwise.results.single_input import single_input

_HOME = {
    "Activation": "activations",
    "activation": "activations",
    "Comparison": "comparison",
    "compare": "comparison",
    "AccuracyWarning": "errors",
    "ExpansionWarning": "errors",
    "WidthwiseError": "errors",
    "Couplings": "flow.couplings",
    "couplings": "flow.couplings",
    "OutputDensity": "flow.output_density",
    "output_density": "flow.output_density",
    "measure": "experiments.labelled",
    "Expectation": "gaussian",
    "expectation": "gaussian",
    "kernel_derivative": "gaussian",
    "max_learning_rate": "inference.labelled",
    "posterior": "inference.labelled",
    "predict": "inference.labelled",
    "sample_posterior": "inference.labelled",
    "sample_prior": "inference.labelled",
    "MLP": "network",
    "GradientDescent": "network",
    "GradientFlow": "network",
    "load": "results",
    "network_of": "results",
    "save": "results",
    "theory": "results",
    "single_input": "results.single_input",
    "expected_error": "inference.observables.labelled",
    "trained_kernel": "inference.observables.labelled",
    "NewtonStep": "network",
}

__all__ = [
    "MLP",
    "AccuracyWarning",
    "Activation",
    "Comparison",
    "Couplings",
    "ExpansionWarning",
    "Expectation",
    "GradientDescent",
    "GradientFlow",
    "NewtonStep",
    "OutputDensity",
    "WidthwiseError",
    "__version__",
    "activation",
    "compare",
    "couplings",
    "expectation",
    "expected_error",
    "kernel_derivative",
    "load",
    "max_learning_rate",
    "measure",
    "network_of",
    "output_density",
    "posterior",
    "predict",
    "sample_posterior",
    "sample_prior",
    "save",
    "single_input",
    "theory",
    "trained_kernel",
]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'widthwise' has no attribute {name!r}")
    value = getattr(import_module(f"widthwise.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
