"""One case of benchmarks/kernels.py with neural-tangents, in its own environment. Prints one JSON object."""

# Run by the peer's interpreter, which has neither widthwise nor this repository's type checking.
# pyright: reportMissingImports=false
import json
import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

jax.config.update("jax_enable_x64", True)
from common import peak_mb  # noqa: E402
from neural_tangents import stax  # noqa: E402

activation, inputs, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LAYERS = {
    "relu": lambda: stax.Relu(),
    "erf": lambda: stax.Erf(),
    "gelu": lambda: stax.Gelu(),
    "tanh": lambda: stax.ElementwiseNumerical(jnp.tanh, deg=25),
}
dense = lambda: stax.Dense(1, W_std=1.5, b_std=0.1)  # noqa: E731
network = stax.serial(*[part for _ in range(5) for part in (dense(), LAYERS[activation]())], dense())[2]
X = jnp.asarray(np.random.default_rng(0).normal(size=(inputs, 100)))
kernels = jax.jit(lambda X: network(X, None, ("nngp", "ntk")))
before = peak_mb()
times = []
for _ in range(repeats + 1):
    start = time.perf_counter()
    result = jax.block_until_ready(kernels(X))
    times.append(time.perf_counter() - start)
plain = []
for _ in range(5 if inputs <= 100 and activation != "tanh" else 0):
    start = time.perf_counter()
    jax.block_until_ready(network(X, None, ("nngp", "ntk")))
    plain.append(time.perf_counter() - start)
print(
    json.dumps(
        {
            "seconds": min(times[1:] or times),
            "first": times[0],
            "plain": min(plain, default=None),
            "peak_mb": peak_mb() - before,
            "nngp": np.asarray(result.nngp)[:8, :8].tolist(),
            "ntk": np.asarray(result.ntk)[:8, :8].tolist(),
        }
    )
)
