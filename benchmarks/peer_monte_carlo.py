"""The sampled NTK of benchmarks/measure.py with neural-tangents, in its own environment. Prints one JSON object."""

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
from neural_tangents import stax  # noqa: E402

width, inputs, samples = map(int, sys.argv[1:4])
hidden = [part for _ in range(2) for part in (stax.Dense(width, W_std=2**0.5, b_std=0.0), stax.Relu())]
init, apply, _ = stax.serial(*hidden, stax.Dense(1, W_std=2**0.5, b_std=0.0))
X = jnp.asarray(np.random.default_rng(0).normal(size=(inputs, 10)))
kernel = nt.monte_carlo_kernel_fn(init, apply, jax.random.PRNGKey(0), samples)
start = time.perf_counter()
ntk = jax.block_until_ready(kernel(X, None, "ntk"))
first = time.perf_counter() - start
start = time.perf_counter()
jax.block_until_ready(kernel(X, None, "ntk"))
print(json.dumps({"first": first, "seconds": time.perf_counter() - start, "trace": float(jnp.trace(ntk) / inputs)}))
