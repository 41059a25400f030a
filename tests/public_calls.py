"""One valid call of every public function, small and quick, by the names of its arguments."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import widthwise as ww

X = np.array([[1.0, 0.3], [0.2, -0.9]])
Y = np.array([0.5, -0.2])
TEST = np.array([[0.6, 0.1]])
NET = ww.MLP([2, 8, 8, 1], "tanh", C_b=0.1, C_W=1.2)
RELU = ww.MLP([2, 8, 8, 1], "relu", C_W=2.0)
RESIDUAL = ww.ResMLP([2, 8, 8, 1], "tanh", C_b=0.1, norm="rms")
NORMALISED = ww.NormMLP([2, 8, 8, 1], "tanh", [("ln", "pre", 1e-5)] * 2, C_b=0.1)
LINEAR = ww.MLP([2, 8, 1], "linear")
TRAINING = {"net": NET, "X_train": X, "y_train": Y, "X_test": TEST}


@cache
def torch_model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def torch_of_width(n: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(2, n), nn.Tanh(), nn.Linear(n, n), nn.Tanh(), nn.Linear(n, 1)).double()


@cache
def theory() -> Any:
    return ww.theory(NET, X)


@cache
def measured() -> Any:
    return ww.measure(NET, X, networks=16)


@cache
def folder() -> Any:
    """For what is saved; it goes with the process."""
    return tempfile.TemporaryDirectory()


@cache
def saved() -> Path:
    return ww.save(theory(), Path(folder().name) / "loaded.nc")


def fitted(estimator: str) -> Callable:
    """Parameters of an estimator, its data, and where it predicts: all in one call."""

    def fit_and_predict(X: Any, y: Any, X_test: Any, **parameters: Any) -> Any:
        return getattr(ww, estimator)(**parameters).fit(X, y).predict(X_test)

    return fit_and_predict


POINTS = {"X": np.array([[1.0, 0.3], [0.2, -0.9], [-0.5, 0.4]]), "y": np.array([0, 1, 1]), "X_test": TEST}
ESTIMATOR = {
    **POINTS,
    "hidden_layers": 2,
    "activation": "relu",
    "C_b": 0.1,
    "C_W": 2.0,
    "choose": None,
    "random_state": 0,
}
SOLVED = {**ESTIMATOR, "noise": 0.1, "evidence_points": 3, "solver": "auto", "tolerance": 1e-6}
OF_NETWORK = {**SOLVED, "net": None}

#: By name: a function that gives the callable, and one that gives its arguments.
CALLS: dict[str, tuple[Callable[[], Callable], Callable[[], dict[str, Any]]]] = {
    "Adam": (lambda: ww.Adam, lambda: {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "steps": 3}),
    "Affine": (lambda: ww.Affine, lambda: {"lambda_gain": 1.0, "lambda_shift": 1.0}),
    "Dense": (lambda: ww.Dense, lambda: {"inputs": 2, "outputs": 3, "C_b": 0.0, "C_W": 1.0, "lambda_b": 1.0}),
    "Conv": (lambda: ww.Conv, lambda: {"inputs": 2, "outputs": 3, "window": (3,), "stride": 1, "padding": "SAME", "C_W": 1.0}),
    "AvgPool": (lambda: ww.AvgPool, lambda: {"window": (2,), "stride": None, "padding": "VALID"}),
    "SumPool": (lambda: ww.SumPool, lambda: {"window": (2,), "stride": None, "padding": "VALID"}),
    "GlobalAvgPool": (lambda: ww.GlobalAvgPool, dict),
    "GlobalSumPool": (lambda: ww.GlobalSumPool, dict),
    "Flatten": (lambda: ww.Flatten, dict),
    "Dropout": (lambda: ww.Dropout, lambda: {"rate": 0.25}),
    "Parallel": (lambda: ww.Parallel, lambda: {"branches": [[ww.Dense(2, 3)], [ww.Dense(2, 3)]]}),
    "Attention": (lambda: ww.Attention, lambda: {"inputs": 4, "outputs": 4, "heads": 2, "mechanism": "identity"}),
    "GradientDescent": (lambda: ww.GradientDescent, lambda: {"learning_rate": 0.1, "steps": 3}),
    "GradientFlow": (lambda: ww.GradientFlow, lambda: {"time": 1.0}),
    "LayerNorm": (lambda: ww.LayerNorm, lambda: {"epsilon": 1e-5}),
    "MLP": (lambda: ww.MLP, lambda: {"widths": [2, 8, 1], "activation": "tanh", "C_b": 0.1, "C_W": 1.0, "lambda_W": 1.0}),
    "Momentum": (lambda: ww.Momentum, lambda: {"learning_rate": 0.1, "momentum": 0.9, "steps": 3}),
    "Network": (lambda: ww.Network, lambda: {"layers": [ww.Dense(2, 8), "tanh", ww.Dense(8, 1)]}),
    "NormMLP": (
        lambda: ww.NormMLP,
        lambda: {"widths": [2, 8, 1], "activation": "tanh", "norm": [("ln", "pre", 1e-5)], "affine": (1.0, 1.0)},
    ),
    "RMSNorm": (lambda: ww.RMSNorm, lambda: {"epsilon": 1e-5}),
    "ResMLP": (
        lambda: ww.ResMLP,
        lambda: {"widths": [2, 8, 8, 1], "activation": "tanh", "skip": 1.0, "norm": "rms", "branch": 1.0},
    ),
    "Residual": (lambda: ww.Residual, lambda: {"body": ["tanh", ww.Dense(8, 8)], "scale": 1.0}),
    "SGD": (lambda: ww.SGD, lambda: {"learning_rate": 0.1, "batch_size": 1, "steps": 3}),
    "Study": (lambda: ww.Study, lambda: {"net": NET, "data": ww.dataset("circle"), "networks": 8, "trained": 8, "seed": 0}),
    "activation": (lambda: ww.activation, lambda: {"what": np.tanh if False else "tanh"}),
    "advise": (lambda: ww.advise, lambda: {"net": NET, "X": X, "deepest": 8}),
    "advise on a model": (
        lambda: ww.advise,
        lambda: {
            "net": torch_model(), "X": X, "base": torch_model(), "rule": "mup", "optimiser": "sgd",
            "learning_rate": 0.1, "factor": 1.1, "draws": 0, "seed": 0,
        },
    ),
    "compare": (lambda: ww.compare, lambda: {"theory": theory(), "measurement": measured(), "level": 0.001}),
    "compare_algorithms": (
        lambda: ww.compare_algorithms, lambda: {**TRAINING, "algorithms": [ww.GradientFlow(), ww.GradientDescent(0.1)]}
    ),
    "couplings": (lambda: ww.couplings, lambda: {"net": NET, "X": X[:1], "layer": 2, "neurons": 1, "tolerance": 1e-9}),
    "critical": (lambda: ww.critical, lambda: {"activation": "gelu", "near": 3.0, "skip": 0.5, "norm": "rms"}),
    "dataset": (lambda: ww.dataset, lambda: {"name": "circle", "points": 4}),
    "depth_width": (lambda: ww.depth_width, lambda: {"net": NET, "x": X[0], "deepest": 8}),
    "evidence_grid": (
        lambda: ww.evidence_grid,
        lambda: {"activation": "tanh", "X_train": X, "y_train": Y, "depth": [2], "width": [8], "C_W": 1.0, "order": 0},
    ),
    "exact_law": (lambda: ww.exact_law, lambda: {"net": ww.MLP([2, 4, 1], "relu"), "x": X[0]}),
    "expectation": (
        lambda: ww.expectation, lambda: {"activation": "tanh", "K_aa": 1.0, "K_ab": 0.3, "K_bb": 1.0, "orders": (0, 0)}
    ),
    "expected_error": (lambda: ww.expected_error, lambda: {**TRAINING, "y_test": [0.1], "order": 0}),
    "from_torch": (
        lambda: ww.from_torch, lambda: {"model": torch_model(), "learning_rate": 1.0, "optimizer": None, "activation": None}
    ),
    "init_torch": (lambda: ww.init_torch, lambda: {"model": torch_model(), "net": ww.MLP([2, 8, 1], "tanh"), "seed": 0}),
    "max_learning_rate": (lambda: ww.max_learning_rate, lambda: {"net": NET, "X_train": X}),
    "measure": (
        lambda: ww.measure,
        lambda: {"net": NET, "X": X, "networks": 8, "seed": 0, "statistics": ["K"], "layers": "last", "widths": None},
    ),
    "audit": (
        lambda: ww.audit,
        lambda: {"model": torch_model(), "batch": X, "optimizer": None, "draws": 1, "seed": 0},
    ),
    "parametrisation": (
        lambda: ww.parametrisation,
        lambda: {
            "model_or_net": torch_model(), "base": torch_model(), "rule": "mup", "optimiser": "adam",
            "learning_rate": 0.1, "weight_decay": 0.0, "epsilon": 1e-8, "s": None, "output": "multiplier",
        },
    ),
    "coordinate_check": (
        lambda: ww.coordinate_check,
        lambda: {
            "make": torch_of_width, "X": X, "y": Y, "widths": (4, 8), "rule": "mup", "optimiser": "adam",
            "learning_rate": 0.1, "steps": (1,), "seeds": 1, "s": None,
        },
    ),
    "linearise": (
        lambda: lambda X, parameters, **own: ww.linearise(**own)(X, parameters),
        lambda: {"model": torch_model(), "order": 2, "dtype": "float64", "X": X, "parameters": None},
    ),
    "predict_model": (
        lambda: ww.predict_model,
        lambda: {"model": torch_model(), "X": X, "y": Y, "X_test": TEST, "algorithm": ww.GradientFlow(), "net": None},
    ),
    "model_nngp": (
        lambda: ww.model_nngp, lambda: {"model": torch_model(), "X": X, "draws": 4, "make": None, "seed": 0}
    ),
    "proxy_width": (
        lambda: ww.proxy_width,
        lambda: {**TRAINING, "y_test": [0.1], "steps": 3, "factor": 1.1, "target": 64},
    ),
    "model_ntk": (lambda: ww.model_ntk, lambda: {"model": torch_model(), "X": X, "net": None, "trace": False, "dtype": "float64"}),
    "network_of": (lambda: ww.network_of, lambda: {"dataset": theory(), "activations": None}),
    "output_density": (
        lambda: ww.output_density, lambda: {"net": NET, "X": X[:1], "layer": 3, "neurons": 1, "about": "K"}
    ),
    "param_groups": (
        lambda: ww.param_groups, lambda: {"model": torch_model(), "net": ww.MLP([2, 8, 1], "tanh"), "learning_rate": 1.0}
    ),
    "phase_diagram": (
        lambda: ww.phase_diagram, lambda: {"activation": "tanh", "C_W": [0.9, 1.1], "C_b": [0.0, 0.1], "x_square": 1.0}
    ),
    "phase_diagram of blocks": (
        lambda: ww.phase_diagram,
        lambda: {"activation": "tanh", "C_W": [0.9, 1.1], "C_b": [0.0, 0.1], "skip": 0.5, "norm": ("ln", "pre", 1e-5)},
    ),
    "posterior": (lambda: ww.posterior, lambda: {**TRAINING, "order": 0, "noise": 0.1}),
    "predict": (
        lambda: ww.predict,
        lambda: {**TRAINING, "algorithm": None, "order": 0, "loss": "squared", "method": "auto", "cumulants": 2},
    ),
    "read_model": (lambda: ww.read_model, lambda: {"model": torch_model(), "learning_rate": 1.0, "recognise": True}),
    "sample_posterior": (lambda: ww.sample_posterior, lambda: {**TRAINING, "draws": 2, "order": 0, "seed": 0, "noise": 0.1}),
    "sample_prior": (lambda: ww.sample_prior, lambda: {"net": NET, "X": X, "draws": 2, "order": 0, "seed": 0}),
    "schedule": (lambda: ww.schedule, lambda: {"peak": 0.1, "steps": 4, "warm_up": 1, "decay": "cosine", "end": 0.0}),
    "predict a path": (
        lambda: ww.predict,
        lambda: {**TRAINING, "algorithm": ww.GradientFlow(0.5), "loss": "huber", "draws": 64, "seed": 0},
    ),
    "trained_density": (
        lambda: ww.trained_density,
        lambda: {
            "net": NET, "X_train": X, "y_train": Y, "x_test": [0.3, 0.1], "output": 0, "z": None, "probabilities": [0.5]
        },
    ),
    "trained_skewness": (lambda: ww.trained_skewness, lambda: {**TRAINING, "algorithm": None}),
    "kernel_step": (
        lambda: ww.exact.kernel_step, lambda: {"net": NET, "kernel": [[1.0, 0.2], [0.2, 1.0]], "layer": 2}
    ),
    "single_input": (lambda: ww.single_input, lambda: {"net": NET, "x": X[0], "tensors": ["V"], "layers": "all"}),
    "single_input of residual networks": (
        lambda: ww.single_input, lambda: {"net": RESIDUAL, "x": X[0], "tensors": ["V"], "layers": "all"}
    ),
    "single_input of normalised networks": (
        lambda: ww.single_input, lambda: {"net": NORMALISED, "x": X[0], "tensors": ["V"], "layers": "all"}
    ),
    "theory": (
        lambda: ww.theory,
        lambda: {"net": NET, "X": X, "X2": None, "order": 0, "tensors": ["K"], "layers": "last", "tolerance": 1e-9},
    ),
    "theory of order 1": (
        lambda: ww.theory,
        lambda: {"net": NET, "X": X, "X2": TEST, "order": 1, "tensors": ["G1"], "layers": "last", "inputs": "all"},
    ),
    "theory at pairs": (
        lambda: ww.theory, lambda: {"net": NET, "X": X, "order": 1, "tensors": ["V"], "inputs": "pairs"}
    ),
    "theory at single inputs": (
        lambda: ww.theory, lambda: {"net": NET, "X": X, "order": 1, "tensors": ["V"], "inputs": "diagonal"}
    ),
    "train": (
        lambda: ww.train,
        lambda: {**TRAINING, "networks": 8, "algorithm": ww.GradientDescent(0.1, steps=3), "seed": 0, "tolerance": 1e-6},
    ),
    "trained_kernel": (lambda: ww.trained_kernel, lambda: {**TRAINING, "algorithm": None, "by_layer": False}),
    "criticality.asymptotics": (lambda: ww.criticality.asymptotics, lambda: {"activation": "tanh"}),
    "criticality.correlation_length": (lambda: ww.criticality.correlation_length, lambda: {"chi": 0.9}),
    "criticality.critical_line": (lambda: ww.criticality.critical_line, lambda: {"activation": "tanh", "count": 10}),
    "criticality.equalise": (lambda: ww.criticality.equalise, lambda: {"net": NET, "X": X, "theta_b": 1.0, "theta_W": 1.0}),
    "criticality.fixed_points": (
        lambda: ww.criticality.fixed_points, lambda: {"activation": "tanh", "C_b": 0.1, "C_W": 1.5}
    ),
    "criticality.kernel_map": (
        lambda: ww.criticality.kernel_map, lambda: {"activation": "tanh", "K": 1.0, "C_b": 0.1, "C_W": 1.5}
    ),
    "criticality.layer_shares": (lambda: ww.criticality.layer_shares, lambda: {"net": NET, "X": X}),
    "criticality.depth_growth": (
        lambda: ww.criticality.depth_growth,
        lambda: {"activation": "gelu", "C_b": 0.1, "C_W": 0.5, "skip": 1.0, "norm": "ln", "branch": 1.0, "x_square": 1.0},
    ),
    "criticality.make_critical": (
        lambda: ww.criticality.make_critical, lambda: {"activation": "sigmoid", "vary": "shift", "K_star": None}
    ),
    "criticality.mutual_information": (
        lambda: ww.criticality.mutual_information, lambda: {"kappa": 0.1, "m_1": 1, "m_2": 1}
    ),
    "criticality.optimal_aspect_ratio": (
        lambda: ww.criticality.optimal_aspect_ratio, lambda: {"activation": "tanh", "outputs": 2}
    ),
    "criticality.pair_fixed_point": (
        lambda: ww.criticality.pair_fixed_point, lambda: {"activation": "tanh", "C_b": 0.1, "C_W": 1.5, "x_square": 1.0}
    ),
    "criticality.power_law_rates": (
        lambda: ww.criticality.power_law_rates, lambda: {"activation": "tanh", "depth": 5, "lambda_b": 1.0, "lambda_W": 1.0}
    ),
    "criticality.shaped": (lambda: ww.criticality.shaped, lambda: {"activation": "tanh", "a": 1.0, "b": 2.0, "c": 0.1}),
    "criticality.susceptibilities": (
        lambda: ww.criticality.susceptibilities, lambda: {"activation": "tanh", "K": 1.0, "C_W": 1.5}
    ),
    "exact.bayesian_interpolation": (lambda: ww.exact.bayesian_interpolation, lambda: {"net": LINEAR, "X": X[:1], "y": Y[:1]}),
    "exact.deep_linear": (lambda: ww.exact.deep_linear, lambda: {"net": LINEAR, "X": X}),
    "exact.kurtosis_by_depth": (lambda: ww.exact.kurtosis_by_depth, lambda: {"net": RELU, "x": X[0]}),
    "exact.marchenko_pastur": (lambda: ww.exact.marchenko_pastur, lambda: {"alpha": 0.5}),
    "exact.product_law": (lambda: ww.exact.product_law, lambda: {"widths": [4, 5]}),
    "exact.product_spectrum": (lambda: ww.exact.product_spectrum, lambda: {"widths": [4, 5]}),
    "exact.scale_free_moments": (lambda: ww.exact.scale_free_moments, lambda: {"net": RELU, "x": X[0], "order": 2}),
    "special.catapult_orbit": (
        lambda: ww.special.catapult_orbit,
        lambda: {"residual": 0.5, "curvature": 1.0, "learning_rate": 0.1, "coupling": 0.1, "target": 0.0, "steps": 3},
    ),
    "special.chernoff_bound": (
        lambda: ww.special.chernoff_bound, lambda: {"C_0": 1.0, "R": 1.0, "inputs": 2, "probability": 0.1}
    ),
    "special.expected_kinks": (lambda: ww.special.expected_kinks, lambda: {"net": RELU, "a": X[0], "b": X[1]}),
    "special.expected_relu_ntk": (lambda: ww.special.expected_relu_ntk, lambda: {"net": RELU, "X": X}),
    "special.hyperplane_regions": (lambda: ww.special.hyperplane_regions, lambda: {"hyperplanes": 3, "dimension": 2}),
    "special.largest_eigenvalue_bounds": (lambda: ww.special.largest_eigenvalue_bounds, lambda: {"kernel": np.eye(2)}),
    "special.region_bound": (lambda: ww.special.region_bound, lambda: {"widths": [2, 3, 1], "dimension": 2}),
    "special.relu_derivative_law": (lambda: ww.special.relu_derivative_law, lambda: {"net": RELU, "direction": X[0]}),
    "special.relu_ntk_moments": (lambda: ww.special.relu_ntk_moments, lambda: {"net": RELU, "x": X[0]}),
    "special.relu_path_moments": (
        lambda: ww.special.relu_path_moments, lambda: {"net": RELU, "direction": 0, "kurtosis": 3.0}
    ),
    "special.sawtooth_network": (lambda: ww.special.sawtooth_network, lambda: {"depth": 2}),
    "readers.from_stax": (
        lambda: ww.readers.from_stax, lambda: {"widths": [2, 8, 1], "activation": "tanh", "W_std": 1.0, "b_std": 0.1}
    ),
    "readers.ntk_operator": (
        lambda: lambda v, **own: ww.readers.ntk_operator(**own).product(v),
        lambda: {"model": torch_model(), "X": X, "net": None, "dtype": "float64", "v": [[1.0, 0.5]]},
    ),
    "readers.model_differentials": (
        lambda: ww.readers.model_differentials, lambda: {"model": torch_model(), "X": X, "net": None, "order": 3}
    ),
    "readers.model_kernels": (lambda: ww.readers.model_kernels, lambda: {"model": torch_model(), "X": X, "order": 0}),
    "readers.optax_transform": (lambda: ww.readers.optax_transform, lambda: {"net": NET, "learning_rate": 0.1}),
    "readers.stax_kernels": (lambda: ww.readers.stax_kernels, lambda: {"net": NET, "X": X, "X2": None}),
    "FiniteWidthRegressor": (
        lambda: fitted("FiniteWidthRegressor"),
        lambda: {
            **ESTIMATOR, "activation": "tanh", "width": 8, "time": 1.0, "order": 0, "kernel": "mean", "max_points": 2,
            "evidence_points": 3,
        },
    ),
    "NNGPRegressor": (lambda: fitted("NNGPRegressor"), lambda: OF_NETWORK),
    "NTKClassifier": (lambda: fitted("NTKClassifier"), lambda: OF_NETWORK),
    "NTKRegressor": (lambda: fitted("NTKRegressor"), lambda: OF_NETWORK),
    "load": (lambda: ww.load, lambda: {"path": saved()}),
    "save": (lambda: ww.save, lambda: {"dataset": theory(), "path": Path(folder().name) / "saved.nc"}),
    "gaussian.kernel_derivative": (
        lambda: ww.gaussian.kernel_derivative, lambda: {"orders": (0, 0), "with_respect_to": "ab"}
    ),
}  # fmt: skip


class Opaque:
    """Something of no use anywhere."""


#: Twenty-five values that do not belong, or hardly belong, where they are put.
HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "10**30": lambda: 10**30,
    "1e300": lambda: 1e300,
    "nan": lambda: float("nan"),
    "-inf": lambda: float("-inf"),
    "1+2j": lambda: 1 + 2j,
    "''": lambda: "",
    "'text'": lambda: "text",
    "'a' * 10**5": lambda: "a" * 10**5,
    "b'bytes'": lambda: b"bytes",
    "[]": lambda: [],
    "[[]]": lambda: [[]],
    "{}": lambda: {},
    "{1}": lambda: {1},
    "ragged list": lambda: [[1.0], [1.0, 2.0]],
    "array of nan": lambda: np.array([[np.nan, 1.0]]),
    "array of text": lambda: np.array(["a", "b"]),
    "array of objects": lambda: np.array([Opaque(), None], dtype=object),
    "empty array": lambda: np.zeros((0, 2)),
    "three axes": lambda: np.zeros((2, 2, 2)),
    "object": Opaque,
    "function": lambda: len,
}
