"""Numbers of neural-tangents 0.6.5 (jax 0.5.3, float64) for tests/test_readers_neural_tangents.py.

Run with the interpreter of an environment that has it:

    python benchmarks/peer_conventions.py > tests/data/neural_tangents.json
"""

import json
import warnings

import numpy as np

warnings.filterwarnings("ignore")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import neural_tangents as nt  # noqa: E402  # pyright: ignore[reportMissingImports]
from neural_tangents import stax  # noqa: E402  # pyright: ignore[reportMissingImports]

ACTIVATIONS = {
    "relu": stax.Relu,
    "erf": stax.Erf,
    "gelu": stax.Gelu,
    "sin": stax.Sin,
    "leaky_relu(0.2)": lambda: stax.LeakyRelu(0.2),
}
CASES = [
    ("relu", [3, 17, 1], 2**0.5, None, "ntk"),
    ("relu", [3, 17, 29, 1], 1.3, 0.4, "ntk"),
    ("relu", [3, 17, 29, 1], 1.3, 0.4, "standard"),
    ("erf", [3, 17, 29, 1], 1.5, 0.1, "ntk"),
    ("erf", [3, 17, 29, 1], 1.5, None, "standard"),
    ("gelu", [3, 17, 29, 1], 1.4, 0.3, "ntk"),
    ("sin", [3, 17, 1], 1.2, 0.2, "standard"),
    ("leaky_relu(0.2)", [3, 17, 17, 1], 1.3, 0.1, "ntk"),
]


def network(activation, widths, W_std, b_std, parameterization):
    layers = []
    for width in widths[1:]:
        layers += [stax.Dense(width, W_std, b_std, parameterization=parameterization), ACTIVATIONS[activation]()]
    return stax.serial(*layers[:-1])


def main():
    rng = np.random.default_rng(5)
    X, X2, y = rng.normal(size=(4, 3)), rng.normal(size=(2, 3)), rng.normal(size=(4, 1))
    cases = []
    for case in CASES:
        _, _, kernel_fn = network(*case)
        square, cross = kernel_fn(X, None, ("nngp", "ntk")), kernel_fn(X, X2, ("nngp", "ntk"))
        names = ("activation", "widths", "W_std", "b_std", "parameterization")
        found = {"nngp": square.nngp, "ntk": square.ntk, "nngp_cross": cross.nngp, "ntk_cross": cross.ntk}
        cases.append(
            dict(zip(names, case, strict=True)) | {name: np.asarray(value).tolist() for name, value in found.items()}
        )
    _, _, kernel_fn = network(*CASES[3])
    flow = nt.predict.gradient_descent_mse_ensemble(kernel_fn, X, y, learning_rate=1.0, diag_reg=0.0)
    trained = []
    for t in (3.0, None):
        at = flow(t=t, x_test=X2, get="ntk", compute_cov=True)
        trained.append({"t": t, "mean": np.asarray(at.mean).tolist(), "cov": np.asarray(at.covariance).tolist()})
    made = {"X": X.tolist(), "X2": X2.tolist(), "y": y.tolist(), "cases": cases, "trained_case": 3, "trained": trained}
    print(json.dumps(made | {"neural_tangents": nt.__version__, "jax": jax.__version__}))


if __name__ == "__main__":
    main()
