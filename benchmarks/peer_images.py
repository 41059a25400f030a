"""One case of benchmarks/images.py with neural-tangents, in its own environment. Prints one JSON object."""

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
import neural_tangents as nt  # noqa: E402
from common import peak_mb  # noqa: E402
from neural_tangents import stax  # noqa: E402

activation, depth, images, end, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
LAYERS = {
    "relu": lambda: stax.Relu(),
    "gelu": lambda: stax.Gelu(),
    "tanh": lambda: stax.ElementwiseNumerical(jnp.tanh, deg=25),
}
conv = lambda: stax.Conv(8, (3, 3), padding="SAME", W_std=1.2, b_std=0.3)  # noqa: E731
last = stax.GlobalAvgPool() if end == "mean" else stax.Flatten()
network = stax.serial(*[part for _ in range(depth) for part in (conv(), LAYERS[activation]())], last, stax.Dense(1))[2]
X = jnp.asarray(np.random.default_rng(0).normal(size=(images, 16, 16, 3)))
# its own way to bound memory: squares of so many images
side = {"mean": 4, "flatten": 50}[end]
side = next(size for size in range(min(side, images), 0, -1) if images % size == 0)
kernels = nt.batch(network, batch_size=side, device_count=0) if side < images else jax.jit(network, static_argnums=2)
jax.jit(lambda x: jnp.sin(x) + x * x)(jnp.ones(5))
before = peak_mb()
times = []
for _ in range(repeats + 1):
    start = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(kernels(X, None, ("nngp", "ntk")))
    times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
print(
    json.dumps(
        {
            "times": times,
            "peak_mb": peak_mb() - before,
            "process_mb": peak_mb(),
            "nngp": np.asarray(result.nngp)[:4, :4].tolist(),
            "ntk": np.asarray(result.ntk)[:4, :4].tolist(),
        }
    )
)
