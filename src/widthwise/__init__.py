"""widthwise: the effective theory of deep neural networks, as an expansion in 1/width, beside measurement.

The names below are the public surface. They are imported when first used, so that the numerical core runs where only
jax, numpy and scipy are installed, and `import widthwise` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from widthwise.lazy import attribute
from widthwise.version import __version__

if TYPE_CHECKING:
    from widthwise.activations import Activation, activation
    from widthwise.comparison import Comparison, compare
    from widthwise.criticality.advice import Advice, advise
    from widthwise.criticality.asymptotics import asymptotics
    from widthwise.criticality.correlation import PairFixedPoint, pair_fixed_point
    from widthwise.criticality.critical import Critical, critical
    from widthwise.criticality.depth_width import depth_width, mutual_information, optimal_aspect_ratio
    from widthwise.criticality.fixed_points import fixed_points
    from widthwise.criticality.learning_rates import equalise, layer_shares, power_law_rates
    from widthwise.criticality.phase_diagram import phase_diagram
    from widthwise.criticality.phase_grid import critical_line
    from widthwise.criticality.susceptibilities import correlation_length, kernel_map, susceptibilities
    from widthwise.criticality.tuning import make_critical, shaped
    from widthwise.errors import (
        AccuracyWarning,
        CheckpointWarning,
        ExpansionWarning,
        MissingPackage,
        NonFiniteWarning,
        NotCritical,
        SingularKernel,
        WeightsWarning,
        WidthwiseError,
    )
    from widthwise.experiments.measure import measure
    from widthwise.experiments.training.train import train
    from widthwise.flow.action.couplings import Couplings, couplings
    from widthwise.flow.action.output_density import OutputDensity, output_density
    from widthwise.flow.exact import ExactLaw, exact_law, kurtosis_by_depth
    from widthwise.flow.exact.deep_linear import DeepLinear, deep_linear
    from widthwise.gaussian import Expectation, expectation, kernel_derivative
    from widthwise.inference.evidence_grid import evidence_grid
    from widthwise.inference.observables import compare_algorithms, expected_error, trained_kernel
    from widthwise.inference.predict import max_learning_rate, posterior, predict, sample_posterior, sample_prior
    from widthwise.interop.empirical import model_dntk, model_kernels, model_ntk
    from widthwise.interop.equinox_models import from_equinox, init_equinox
    from widthwise.interop.estimators import NNGPRegressor, NTKClassifier, NTKRegressor
    from widthwise.interop.finite_estimator import FiniteWidthRegressor
    from widthwise.interop.flax_models import from_flax, init_flax
    from widthwise.interop.hessian import hessian_spectrum
    from widthwise.interop.models import read_model
    from widthwise.interop.optax_rates import optax_transform
    from widthwise.interop.stax import from_stax, stax_kernels
    from widthwise.interop.torch_models import from_torch, init_torch, param_groups
    from widthwise.network import MLP, SGD, Adam, GradientDescent, GradientFlow, Momentum, NewtonStep
    from widthwise.results.labels import network_of
    from widthwise.results.single_input import single_input
    from widthwise.results.store import load, save
    from widthwise.results.theory import theory
    from widthwise.special.bayesian_interpolation import (
        Interpolation,
        bayesian_interpolation,
        interpolation_scale_limit,
    )
    from widthwise.special.catapult import CatapultOrbit, catapult_map, catapult_orbit
    from widthwise.special.eigenvalue_bounds import EigenvalueBounds, chernoff_bound, largest_eigenvalue_bounds
    from widthwise.special.linear_products import ProductLaw, product_law
    from widthwise.special.marchenko_pastur import MarchenkoPastur, marchenko_pastur
    from widthwise.special.polygon_pieces import PolygonPieces, linear_pieces_in_polygon
    from widthwise.special.product_spectrum import ProductSpectrum, product_spectrum
    from widthwise.special.region_counts import expected_kinks, hyperplane_regions, region_bound
    from widthwise.special.relu_layers import sawtooth_network
    from widthwise.special.relu_ntk import NTKMoments, expected_relu_ntk, relu_ntk_moments
    from widthwise.special.relu_paths import PathMoments, relu_derivative_law, relu_path_moments
    from widthwise.special.segment_pieces import SegmentPieces, linear_pieces_on_segment
    from widthwise.study import Study, dataset

_HOME = {
    "Activation": "activations",
    "activation": "activations",
    "Comparison": "comparison",
    "compare": "comparison",
    "AccuracyWarning": "errors",
    "ExpansionWarning": "errors",
    "WidthwiseError": "errors",
    "Couplings": "flow.action.couplings",
    "couplings": "flow.action.couplings",
    "OutputDensity": "flow.action.output_density",
    "output_density": "flow.action.output_density",
    "measure": "experiments.measure",
    "Expectation": "gaussian",
    "expectation": "gaussian",
    "kernel_derivative": "gaussian",
    "max_learning_rate": "inference.predict",
    "posterior": "inference.predict",
    "predict": "inference.predict",
    "sample_posterior": "inference.predict",
    "sample_prior": "inference.predict",
    "MLP": "network",
    "GradientDescent": "network",
    "GradientFlow": "network",
    "load": "results.store",
    "network_of": "results.labels",
    "save": "results.store",
    "theory": "results.theory",
    "single_input": "results.single_input",
    "Study": "study",
    "dataset": "study",
    "evidence_grid": "inference.evidence_grid",
    "compare_algorithms": "inference.observables",
    "expected_error": "inference.observables",
    "trained_kernel": "inference.observables",
    "NewtonStep": "network",
    "Critical": "criticality.critical",
    "critical": "criticality.critical",
    "correlation_length": "criticality.susceptibilities",
    "kernel_map": "criticality.susceptibilities",
    "susceptibilities": "criticality.susceptibilities",
    "fixed_points": "criticality.fixed_points",
    "PairFixedPoint": "criticality.correlation",
    "pair_fixed_point": "criticality.correlation",
    "phase_diagram": "criticality.phase_diagram",
    "critical_line": "criticality.phase_grid",
    "asymptotics": "criticality.asymptotics",
    "equalise": "criticality.learning_rates",
    "layer_shares": "criticality.learning_rates",
    "power_law_rates": "criticality.learning_rates",
    "depth_width": "criticality.depth_width",
    "mutual_information": "criticality.depth_width",
    "optimal_aspect_ratio": "criticality.depth_width",
    "make_critical": "criticality.tuning",
    "shaped": "criticality.tuning",
    "Advice": "criticality.advice",
    "advise": "criticality.advice",
    "NotCritical": "errors",
    "ExactLaw": "flow.exact",
    "exact_law": "flow.exact",
    "kurtosis_by_depth": "flow.exact",
    "DeepLinear": "flow.exact.deep_linear",
    "deep_linear": "flow.exact.deep_linear",
    "train": "experiments.training.train",
    "SGD": "network",
    "Momentum": "network",
    "Adam": "network",
    "CheckpointWarning": "errors",
    "NonFiniteWarning": "errors",
    "SingularKernel": "errors",
    "from_torch": "interop.torch_models",
    "init_torch": "interop.torch_models",
    "param_groups": "interop.torch_models",
    "from_flax": "interop.flax_models",
    "init_flax": "interop.flax_models",
    "from_equinox": "interop.equinox_models",
    "init_equinox": "interop.equinox_models",
    "optax_transform": "interop.optax_rates",
    "read_model": "interop.models",
    "model_kernels": "interop.empirical",
    "model_ntk": "interop.empirical",
    "model_dntk": "interop.empirical",
    "hessian_spectrum": "interop.hessian",
    "NNGPRegressor": "interop.estimators",
    "NTKRegressor": "interop.estimators",
    "NTKClassifier": "interop.estimators",
    "FiniteWidthRegressor": "interop.finite_estimator",
    "from_stax": "interop.stax",
    "stax_kernels": "interop.stax",
    "MissingPackage": "errors",
    "WeightsWarning": "errors",
    "Interpolation": "special.bayesian_interpolation",
    "bayesian_interpolation": "special.bayesian_interpolation",
    "interpolation_scale_limit": "special.bayesian_interpolation",
    "ProductLaw": "special.linear_products",
    "product_law": "special.linear_products",
    "MarchenkoPastur": "special.marchenko_pastur",
    "marchenko_pastur": "special.marchenko_pastur",
    "ProductSpectrum": "special.product_spectrum",
    "product_spectrum": "special.product_spectrum",
    "PolygonPieces": "special.polygon_pieces",
    "linear_pieces_in_polygon": "special.polygon_pieces",
    "SegmentPieces": "special.segment_pieces",
    "linear_pieces_on_segment": "special.segment_pieces",
    "expected_kinks": "special.region_counts",
    "hyperplane_regions": "special.region_counts",
    "region_bound": "special.region_counts",
    "sawtooth_network": "special.relu_layers",
    "EigenvalueBounds": "special.eigenvalue_bounds",
    "CatapultOrbit": "special.catapult",
    "catapult_map": "special.catapult",
    "catapult_orbit": "special.catapult",
    "chernoff_bound": "special.eigenvalue_bounds",
    "largest_eigenvalue_bounds": "special.eigenvalue_bounds",
    "NTKMoments": "special.relu_ntk",
    "expected_relu_ntk": "special.relu_ntk",
    "relu_ntk_moments": "special.relu_ntk",
    "PathMoments": "special.relu_paths",
    "relu_derivative_law": "special.relu_paths",
    "relu_path_moments": "special.relu_paths",
}

__all__ = [
    "MLP",
    "SGD",
    "AccuracyWarning",
    "Activation",
    "Adam",
    "Advice",
    "CatapultOrbit",
    "CheckpointWarning",
    "Comparison",
    "Couplings",
    "Critical",
    "DeepLinear",
    "EigenvalueBounds",
    "ExactLaw",
    "ExpansionWarning",
    "Expectation",
    "FiniteWidthRegressor",
    "GradientDescent",
    "GradientFlow",
    "Interpolation",
    "MarchenkoPastur",
    "MissingPackage",
    "Momentum",
    "NNGPRegressor",
    "NTKClassifier",
    "NTKMoments",
    "NTKRegressor",
    "NewtonStep",
    "NonFiniteWarning",
    "NotCritical",
    "OutputDensity",
    "PairFixedPoint",
    "PathMoments",
    "PolygonPieces",
    "ProductLaw",
    "ProductSpectrum",
    "SegmentPieces",
    "SingularKernel",
    "Study",
    "WeightsWarning",
    "WidthwiseError",
    "__version__",
    "activation",
    "advise",
    "asymptotics",
    "bayesian_interpolation",
    "catapult_map",
    "catapult_orbit",
    "chernoff_bound",
    "compare",
    "compare_algorithms",
    "correlation_length",
    "couplings",
    "critical",
    "critical_line",
    "dataset",
    "deep_linear",
    "depth_width",
    "equalise",
    "evidence_grid",
    "exact_law",
    "expectation",
    "expected_error",
    "expected_kinks",
    "expected_relu_ntk",
    "fixed_points",
    "from_equinox",
    "from_flax",
    "from_stax",
    "from_torch",
    "hessian_spectrum",
    "hyperplane_regions",
    "init_equinox",
    "init_flax",
    "init_torch",
    "interpolation_scale_limit",
    "kernel_derivative",
    "kernel_map",
    "kurtosis_by_depth",
    "largest_eigenvalue_bounds",
    "layer_shares",
    "linear_pieces_in_polygon",
    "linear_pieces_on_segment",
    "load",
    "make_critical",
    "marchenko_pastur",
    "max_learning_rate",
    "measure",
    "model_dntk",
    "model_kernels",
    "model_ntk",
    "mutual_information",
    "network_of",
    "optax_transform",
    "optimal_aspect_ratio",
    "output_density",
    "pair_fixed_point",
    "param_groups",
    "phase_diagram",
    "posterior",
    "power_law_rates",
    "predict",
    "product_law",
    "product_spectrum",
    "read_model",
    "region_bound",
    "relu_derivative_law",
    "relu_ntk_moments",
    "relu_path_moments",
    "sample_posterior",
    "sample_prior",
    "save",
    "sawtooth_network",
    "shaped",
    "single_input",
    "stax_kernels",
    "susceptibilities",
    "theory",
    "train",
    "trained_kernel",
]


def __getattr__(name: str):
    globals()[name] = value = attribute(__name__, _HOME, name)
    if "xarray" in sys.modules:
        import_module("widthwise.plots.accessor")  # ds.ww on every Dataset
    return value


def __dir__():
    return sorted(__all__)
