"""Valid calls of what `public_calls` does not have: the namespaces' other functions, methods of results, `stax`.

`EVERY_CALL` has them all, and of every function the arguments that its valid call leaves at their defaults.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from public_calls import CALLS, LINEAR, NET, RELU, TEST, X, Y, folder, measured, theory, torch_model

import widthwise as ww

ROW = [0.3, 0.1]
IMAGES = np.array([[[1.0, 0.3], [0.2, -0.9], [0.4, 0.5]], [[-0.3, 0.8], [1.1, 0.2], [0.6, -0.4]]])
CONVOLUTION = ww.Network([ww.Conv(2, 8, (2,), C_b=0.1), "tanh", ww.GlobalAvgPool(), ww.Dense(8, 1)])
WEIGHTS = [
    (np.array([[1.0, 0.2], [-0.4, 1.0], [0.5, 0.5]]), np.array([0.1, 0.0, -0.2])),
    (np.ones((1, 3)), np.zeros(1)),
]


@cache
def flax_model() -> Any:
    from flax import nnx

    return nnx.Sequential(nnx.Linear(2, 8, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(8, 1, rngs=nnx.Rngs(1)))


@cache
def equinox_model() -> Any:
    import equinox

    return equinox.nn.MLP(2, 1, width_size=8, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))


@cache
def result(name: str) -> Any:
    """Results whose methods are called."""
    makers: dict[str, Callable[[], Any]] = {
        "law": lambda: ww.exact_law(ww.MLP([2, 4, 1], "relu"), X[0]),
        "kernel law": lambda: result("law").kernels[0],
        "product": lambda: ww.exact.product_law([4, 5]),
        "spectrum": lambda: ww.exact.product_spectrum([4, 5]),
        "marchenko_pastur": lambda: ww.exact.marchenko_pastur(0.5),
        "interpolation": lambda: ww.exact.bayesian_interpolation(LINEAR, X[:1], Y[:1]),
        "step": lambda: ww.exact.kernel_step(NET, [[1.0, 0.2], [0.2, 1.0]], 2),
        "segment": lambda: ww.special.linear_pieces_on_segment(WEIGHTS, X[0], X[1]),
        "polygon": lambda: ww.special.linear_pieces_in_polygon(WEIGHTS, [[-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]]),
        "density": lambda: ww.output_density(NET, X[:1], 3, 1),
        "couplings": lambda: ww.couplings(NET, X[:1], layer=2, neurons=1),
        "critical": lambda: ww.critical("tanh"),
        "comparison": lambda: ww.compare(theory(), measured()),
        "parametrisation": lambda: ww.parametrisation(torch_model()),
        "rates": lambda: ww.criticality.equalise(NET, X),
        "diagram": lambda: ww.phase_diagram("tanh", [0.5, 1.0, 1.5], [0.0, 0.1, 0.2]),
        "deep": lambda: ww.single_input(NET, X[0], tensors=["V"]),
        "predicted": lambda: ww.predict(NET, X, Y, TEST),
        "trained": lambda: ww.train(NET, X, Y, TEST, networks=4, algorithm=ww.GradientDescent(0.1, steps=2)),
        "curves": lambda: _curves(),
        "figure": lambda: ww.plots.plot_flow(theory()),
        "trained density": lambda: ww.trained_density(NET, X, Y, TEST[0]),
        "cumulants": lambda: ww.predict(NET, X, Y, TEST, cumulants=3),
        "drawn": lambda: ww.sample_prior(NET, X, draws=20),
        "four points": lambda: ww.gaussian.four_point(ww.activation("tanh"), np.eye(2), ((0, 1, 0, 1),)),
        "proxy": lambda: ww.proxy_width(LINEAR, X[:1]),
        "functions": lambda: ww.plots.trained_functions(NET, X, Y, networks=0, steps=3, points=3, order=0),
    }
    return makers[name]()


def _curves() -> Any:
    from widthwise.report.findings import learning_curves

    return learning_curves(NET, X, Y, TEST, 0.1, steps=(0, 2), networks=4)


def method(of: str, name: str) -> Callable[[], Callable]:
    return lambda: getattr(result(of), name)


def drawing(name: str) -> Callable[[], Callable]:
    """A figure, which is closed."""

    def get() -> Callable:
        from matplotlib import pyplot

        made = getattr(ww.plots, name)

        @functools.wraps(made)
        def draw(**arguments: Any) -> None:
            try:
                made(**arguments)
            finally:
                pyplot.close("all")

        return draw

    return get


def stax_kernel(name: str) -> Callable[[], Callable]:
    """The kernel of a small network with a layer of that kind in the middle: layers are made when data arrive."""

    def get() -> Callable:
        made = getattr(ww.stax, name)

        @functools.wraps(made)
        def kernel(**arguments: Any) -> Any:
            net = ww.stax.serial(ww.stax.Conv(4, (1,)), made(**arguments), ww.stax.Flatten(), ww.stax.Dense(1))
            return net.kernel_fn(IMAGES, None, "nngp")

        return kernel

    return get


def branches(num: Any = 2, axis: Any = -1, layers: Any = None) -> Any:
    """FanOut, parallel and FanInConcat, of which one has something hostile."""
    stax = ww.stax
    inner = stax.parallel(*(layers if isinstance(layers, list | tuple) else [layers]))
    return stax.serial(stax.FanOut(num), inner, stax.FanInConcat(axis), stax.Dense(1)).kernel_fn(X, None, "nngp")


def stax_functions() -> Any:
    return ww.stax.serial(ww.stax.Dense(8), ww.stax.Erf(), ww.stax.Dense(1))


def drawn_outputs(rng: Any, input_shape: Any, inputs: Any, params: Any = None) -> Any:
    """Parameters drawn, and applied."""
    init_fn, apply_fn, _ = stax_functions()
    _, own = init_fn(rng, input_shape)
    return np.asarray(apply_fn(own if params is None else params, inputs))


STAX_LAYERS: dict[str, dict[str, Any]] = {
    "ABRelu": {"a": 0.1, "b": 1.0}, "Abs": {}, "AvgPool": {"window_shape": (2,)}, "Cos": {}, "Elementwise": {"fn": jax.numpy.sin},
    "Conv": {"out_chan": 4, "filter_shape": (2,), "b_std": 0.1}, "Dense": {"out_dim": 4}, "Dropout": {"rate": 0.5},
    "ElementwiseNumerical": {"fn": jax.numpy.sin}, "Erf": {}, "Exp": {}, "Flatten": {}, "Gabor": {}, "Gaussian": {}, "Gelu": {},
    "GlobalAvgPool": {}, "GlobalSumPool": {}, "Hermite": {"degree": 2}, "Identity": {}, "LayerNorm": {}, "LeakyRelu": {"alpha": 0.1},
    "GlobalSelfAttention": {
        "n_chan_out": 4, "n_chan_key": 4, "n_chan_val": 4, "n_heads": 2, "attention_mechanism": "IDENTITY",
    },
    "Monomial": {"degree": 2}, "Polynomial": {"coef": [0.0, 1.0, 0.5]}, "Rbf": {}, "RectifiedMonomial": {"degree": 2}, "Relu": {},
    "Sigmoid_like": {}, "Sign": {}, "Sin": {}, "SumPool": {"window_shape": (2,)},
}  # fmt: skip


def _with(arguments: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: dict(arguments)


MORE: dict[str, tuple[Callable[[], Callable], Callable[[], dict[str, Any]]]] = {
    "theory of images": (lambda: ww.theory, lambda: {"net": CONVOLUTION, "X": IMAGES}),
    "theory in chunks": (
        lambda: lambda **own: ww.theory(**own).compute(), lambda: {"net": NET, "X": X, "X2": None, "order": 0, "chunks": 1}
    ),
    "measure of images": (lambda: ww.measure, lambda: {"net": CONVOLUTION, "X": IMAGES, "networks": 8, "statistics": ["K"]}),
    "sample_prior of order 1": (lambda: ww.sample_prior, lambda: {"net": NET, "X": X, "draws": 2, "order": 1}),
    "predict of order 1": (
        lambda: ww.predict,
        lambda: {"net": LINEAR, "X_train": X[:1], "y_train": Y[:1], "X_test": TEST, "order": 1, "cumulants": 4},
    ),
    "train with a loss": (
        lambda: ww.train,
        lambda: {
            "net": NET, "X_train": X, "y_train": Y, "X_test": TEST, "networks": 4, "loss": "huber",
            "algorithm": ww.SGD(0.1, 1, steps=2),
        },
    ),
    "gaussian.four_point": (
        lambda: ww.gaussian.four_point,
        lambda: {"activation": ww.activation("tanh"), "K": np.array([[1.0, 0.3], [0.3, 0.8]]), "families": ((0, 0, 0, 0),)},
    ),
    "exact.interpolation_scale_limit": (
        lambda: ww.exact.interpolation_scale_limit,
        lambda: {"prior_scale": 1.0, "radius_squared_per_point": 3.0, "effective_depth": 0.5},
    ),
    "special.catapult_map": (
        lambda: ww.special.catapult_map,
        lambda: {"residual": 1.0, "curvature": 2.0, "learning_rate": 0.5, "coupling": 0.1},
    ),
    "special.linear_pieces_on_segment": (
        lambda: ww.special.linear_pieces_on_segment, lambda: {"layers": WEIGHTS, "a": X[0], "b": X[1]}
    ),
    "special.linear_pieces_in_polygon": (
        lambda: ww.special.linear_pieces_in_polygon, lambda: {"layers": WEIGHTS, "corners": [[-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]]}
    ),
    "readers.from_flax": (lambda: ww.readers.from_flax, lambda: {"model": flax_model()}),
    "readers.from_equinox": (lambda: ww.readers.from_equinox, lambda: {"model": equinox_model()}),
    "readers.init_flax": (lambda: ww.readers.init_flax, lambda: {"model": flax_model(), "net": ww.MLP([2, 8, 1], "tanh")}),
    "readers.init_equinox": (
        lambda: ww.readers.init_equinox, lambda: {"model": equinox_model(), "net": ww.MLP([2, 8, 1], "tanh")}
    ),
    "readers.model_dntk": (lambda: ww.readers.model_dntk, lambda: {"model": torch_model(), "X": X, "order": 0}),
    "readers.hessian_spectrum": (
        lambda: ww.readers.hessian_spectrum, lambda: {"model": torch_model(), "X": X, "y": Y, "steps": 4, "probes": 1}
    ),
    "plots.plot_flow": (drawing("plot_flow"), lambda: {"theory": theory(), "measurement": measured()}),
    "plots.plot_spectrum": (drawing("plot_spectrum"), lambda: {"theory": theory(), "measurement": measured()}),
    "plots.plot_agreement": (drawing("plot_agreement"), lambda: {"theory": theory(), "measurement": measured()}),
    "plots.plot_predictions": (
        drawing("plot_predictions"), lambda: {"predicted": result("predicted"), "measured": result("trained")}
    ),
    "plots.plot_learning_curves": (
        drawing("plot_learning_curves"), lambda: dict(zip(("predicted", "measured"), result("curves"), strict=True))
    ),
    "plots.plot_depth": (drawing("plot_depth"), lambda: {"flow": result("deep")}),
    "plots.plot_phase": (drawing("plot_phase"), lambda: {"diagram": result("diagram"), "net": NET}),
    "plots.plot_learning_rates": (drawing("plot_learning_rates"), lambda: {"rates": result("rates")}),
    "plots.plot_output_density": (drawing("plot_output_density"), lambda: {"net": NET, "x": X[0], "networks": 50}),
    "plots.plot_running": (drawing("plot_running"), lambda: {"net": NET, "x": X[0]}),
    "plots.save_figure": (
        lambda: ww.plots.save_figure, lambda: {"figure": result("figure"), "path": Path(folder().name) / "figure.svg"}
    ),
    "plots.svg_text": (lambda: ww.plots.svg_text, lambda: {"figure": result("figure")}),
    "plots.web_svg": (lambda: ww.plots.web_svg, lambda: {"figure": result("figure")}),
    "plots.plot_trained_density": (drawing("plot_trained_density"), lambda: {"density": result("trained density")}),
    "plots.plot_cumulants": (drawing("plot_cumulants"), lambda: {"predicted": result("cumulants"), "measured": None}),
    "plots.plot_drawn_functions": (
        drawing("plot_drawn_functions"), lambda: {"drawn": result("drawn"), "x": range(len(X)), "output": 0}
    ),
    "plots.plot_functions": (drawing("plot_functions"), lambda: {"functions": result("functions")}),
    "plots.trained_functions": (
        lambda: ww.plots.trained_functions,
        lambda: {
            "net": NET, "X_train": X, "y_train": Y, "networks": 0, "steps": 3, "points": 3, "seed": 0, "order": 0
        },
    ),
    **{f"stax.{name}": (stax_kernel(name), _with(given)) for name, given in STAX_LAYERS.items()},
    "stax.FanOut, FanInConcat, parallel": (
        lambda: branches, lambda: {"num": 2, "axis": -1, "layers": [ww.stax.Dense(4), ww.stax.Dense(4)]}
    ),
    "stax.repeat": (
        lambda: lambda layer, n: ww.stax.repeat(layer, n).kernel_fn(X, None, "ntk"), lambda: {"layer": ww.stax.Dense(4), "n": 2}
    ),
    "stax.serial": (
        lambda: lambda layer: ww.stax.serial(layer, ww.stax.Dense(1)).kernel_fn(X, None, "ntk"),
        lambda: {"layer": ww.stax.Dense(4)},
    ),
    "stax kernel_fn": (lambda: stax_functions().kernel_fn, lambda: {"x1": X, "x2": TEST, "get": ("nngp", "ntk")}),
    "stax init_fn, apply_fn": (
        lambda: drawn_outputs, lambda: {"rng": jax.random.key(0), "input_shape": (-1, 2), "inputs": X, "params": None}
    ),
    **{f"ExactLaw.{name}": (method("law", name), _with({"z": 0.3})) for name in ("cdf", "density", "log_density", "sf")},
    "ExactLaw.joint_density": (method("law", "joint_density"), lambda: {"z": [0.3]}),
    **{f"ExactLaw.{name}": (method("law", name), _with({"g": 0.3})) for name in ("kernel_cdf", "kernel_density")},
    **{f"ExactLaw.{name}": (method("law", name), _with({"k": 2})) for name in ("moment", "kernel_moment")},
    "ExactLaw.quantile": (method("law", "quantile"), lambda: {"p": 0.3}),
    "ExactLaw.isf": (method("law", "isf"), lambda: {"q": 0.3}),
    **{f"KernelLaw.{name}": (method("kernel law", name), _with({"g": 0.3})) for name in ("cdf", "density", "sf")},
    "KernelLaw.expectation": (method("kernel law", "expectation"), lambda: {"function": np.exp}),
    "KernelLaw.moment": (method("kernel law", "moment"), lambda: {"k": 2}),
    "Interpolation.log_scale_density": (method("interpolation", "log_scale_density"), lambda: {"log_S": 0.1}),
    "Interpolation.norm_density": (method("interpolation", "norm_density"), lambda: {"rho": 0.5}),
    "Interpolation.predict": (method("interpolation", "predict"), lambda: {"X_test": TEST}),
    "Interpolation.scale_moment": (method("interpolation", "scale_moment"), lambda: {"k": 1}),
    "KernelStep.sample": (method("step", "sample"), lambda: {"draws": 2, "seed": 0}),
    **{f"MarchenkoPastur.{name}": (method("marchenko_pastur", name), _with({"x": 0.5})) for name in ("cdf", "density")},
    "MarchenkoPastur.expected_count": (method("marchenko_pastur", "expected_count"), lambda: {"x": 0.5, "P": 10}),
    "MarchenkoPastur.fluctuation": (method("marchenko_pastur", "fluctuation"), lambda: {"function": np.exp}),
    "MarchenkoPastur.largest": (method("marchenko_pastur", "largest"), lambda: {"P": 10}),
    "MarchenkoPastur.moments": (method("marchenko_pastur", "moments"), lambda: {"order": 3}),
    **{
        f"ProductLaw.{name}": (method("product", name), _with({"log_rho": 0.1})) for name in ("cdf", "density", "log_density", "sf")
    },
    "ProductLaw.log_moment": (method("product", "log_moment"), lambda: {"k": 1}),
    "ProductSpectrum.density": (method("spectrum", "density"), lambda: {"x": 0.5}),
    "ProductSpectrum.moments": (method("spectrum", "moments"), lambda: {"order": 3}),
    "FourPoint.full": (
        lambda: lambda o_1, o_2, o_3, o_4: result("four points").full(o_1, o_2, o_3, o_4),
        lambda: {"o_1": 0, "o_2": 1, "o_3": 0, "o_4": 1},
    ),
    "ProxyWidth.log_rate": (method("proxy", "log_rate"), lambda: {"width": 8}),
    "SegmentPieces.merged": (method("segment", "merged"), lambda: {"tolerance": 1e-9}),
    "PolygonPieces.inputs": (method("polygon", "inputs"), lambda: {"u": [[0.1, 0.2]]}),
    "Critical.laws": (method("critical", "laws"), lambda: {"rates": "uniform", "lambda_b": 1.0, "lambda_W": 1.0, "K": 1.0}),
    "Comparison.table": (method("comparison", "table"), lambda: {"wide": False}),
    "Comparison.to_csv": (method("comparison", "to_csv"), lambda: {"path": Path(folder().name) / "table.csv"}),
    "Parametrisation.initialise": (method("parametrisation", "initialise"), lambda: {"model": torch_model(), "seed": 0}),
    "MLP.with_width": (lambda: NET.with_width, lambda: {"width": 4}),
    "MLP.up_to": (lambda: NET.up_to, lambda: {"layer": 2, "outputs": 1}),
    "MLP.replace": (lambda: NET.replace, lambda: {"C_W": 1.0, "activation": "tanh", "widths": [2, 4, 4, 1]}),
    "MLP.from_dict": (lambda: ww.MLP.from_dict, lambda: {"data": NET.to_dict()}),
    "MLP.from_json": (lambda: ww.MLP.from_json, lambda: {"text": NET.to_json()}),
    "MLP.from_toml": (lambda: ww.MLP.from_toml, lambda: {"text": NET.to_toml()}),
    "Network.with_width": (lambda: CONVOLUTION.with_width, lambda: {"width": 4}),
    "Network.up_to": (lambda: CONVOLUTION.up_to, lambda: {"layer": 1, "outputs": 3}),
    "Network.with_learned": (lambda: CONVOLUTION.with_learned, lambda: {"layers": CONVOLUTION.learned}),
    "Network.check_inputs": (lambda: CONVOLUTION.check_inputs, lambda: {"X": IMAGES}),
    "Network.shapes": (lambda: CONVOLUTION.shapes, lambda: {"shape": (3,)}),
    "Network.from_json": (lambda: ww.Network.from_json, lambda: {"text": CONVOLUTION.to_json()}),
    "Network.from_toml": (lambda: ww.Network.from_toml, lambda: {"text": CONVOLUTION.to_toml()}),
    "Network.from_dict": (lambda: ww.Network.from_dict, lambda: {"data": CONVOLUTION.to_dict()}),
    **{
        f"MLP.{name}": (functools.partial(getattr, ww.MLP, name), _with({"widths": [2, 8, 1], "activation": "tanh"}))
        for name in ("glorot", "he", "lecun", "mup", "ntk", "standard", "torch_default")
    },
    "Study.from_dict": (lambda: ww.Study.from_dict, lambda: {"tables": {"network": RELU.to_dict(), "data": {"source": "circle"}}}),
    "Study.from_toml": (lambda: ww.Study.from_toml, lambda: {"path": study_file()}),
}  # fmt: skip


@cache
def study_file() -> Path:
    path = Path(folder().name) / "study.toml"
    path.write_text(f'[network]\n{NET.to_toml()}\n[data]\nsource = "circle"\n')
    return path


def _completed(get: Callable[[], Callable], given: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The arguments of a valid call, and those that it leaves at their defaults."""

    def arguments() -> dict[str, Any]:
        parameters = inspect.signature(get()).parameters.values()
        return {one.name: one.default for one in parameters if one.default is not one.empty} | given()

    return arguments


EVERY_CALL = {name: (get, _completed(get, given)) for name, (get, given) in (CALLS | MORE).items()}
