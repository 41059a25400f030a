"""Does the best learning rate drift with width as `proxy_width` says? Ensembles of networks really trained.

PYTHONPATH=src python benchmarks/proxy_width.py predict            writes predictions to proxy_width.json
python benchmarks/proxy_width.py [NETWORKS] [WIDTH ...]             needs jax alone

Six inputs of three features, one output, two hidden layers, five steps of full-batch gradient descent. Every network is
trained at thirteen rates around the best one of infinite width; the minimum of a polynomial of degree four through
the mean errors is the measured best rate, its standard error from twenty groups of networks. Beside it the largest
stable step 2/λ_max at initialisation, network by network. The measurement uses nothing of the library.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
PREDICTIONS = Path(__file__).parent / "results" / "proxy_width.json"
GRID = np.linspace(-0.24, 0.16, 13)
STEPS, GROUPS, C_B, C_W = 5, 20, 0.05, 1.5
ACTIVATIONS = {"tanh": jnp.tanh, "gelu": partial(jax.nn.gelu, approximate=False)}


def data():
    rng = np.random.default_rng(0)
    X, X_test, w = rng.normal(size=(6, 3)), rng.normal(size=(4, 3)), rng.normal(size=3)
    return X, np.tanh(X @ w), X_test, np.tanh(X_test @ w)


def forward(parameters, sigma, X):
    """z (inputs,) with weights of variance C_W and biases of variance C_b."""
    signal = X
    for layer, (W, b) in enumerate(parameters):
        signal = signal @ W / np.sqrt(W.shape[0]) + b
        signal = signal if layer == len(parameters) - 1 else sigma(signal)
    return signal[:, 0]


@partial(jax.jit, static_argnames=("width", "name", "count"))
def ensemble(key, rates, problem, *, width, name, count):
    """Test errors (count, rates) after training, and log 2/λ_max at the start (count,)."""
    sigma, sizes = ACTIVATIONS[name], [3, width, width, 1]
    X, y, X_test, y_test = problem

    def one(key):
        keys, draw = jax.random.split(key, 6), jax.random.normal
        start = [
            (np.sqrt(C_W) * draw(keys[2 * k], (a, b)), np.sqrt(C_B) * draw(keys[2 * k + 1], (b,)))
            for k, (a, b) in enumerate(pairwise(sizes))
        ]

        def loss(parameters):
            return 0.5 * jnp.sum((forward(parameters, sigma, X) - y) ** 2)

        def trained(rate):
            now = start
            for _ in range(STEPS):
                now = jax.tree.map(lambda p, g: p - rate * g, now, jax.grad(loss)(now))
            return jnp.mean((forward(now, sigma, X_test) - y_test) ** 2)

        rows = jax.tree.leaves(jax.jacrev(lambda p: forward(p, sigma, X))(start))
        H = sum(row.reshape(len(X), -1) @ row.reshape(len(X), -1).T for row in rows)
        return jax.vmap(trained)(rates), jnp.log(2.0 / jnp.linalg.eigvalsh(H)[-1])

    return jax.lax.map(one, jax.random.split(key, count), batch_size=64)


def vertex(logs, errors):
    """Where a polynomial of degree four through the errors is least."""
    centre = logs.mean()
    fit = np.polynomial.Polynomial.fit(logs - centre, errors, 4)
    fine = np.linspace(logs[0], logs[-1], 20001)
    return fine[np.argmin(fit(fine - centre))]


def predict():
    import widthwise as ww

    found = {}
    for name in ACTIVATIONS:
        net = ww.MLP([3, 128, 128, 1], name, C_b=C_B, C_W=C_W, lambda_b=1.0, lambda_W=1.0)
        said = ww.proxy_width(net, *data(), steps=STEPS)
        print(said)
        names = ("best_rate", "rate_drift", "rate_stiffness", "largest_step", "step_drift", "step_spread")
        found[name] = {each: getattr(said, each) for each in names}
        logs = np.log(said.best_rate) + GRID
        descents = [ww.GradientDescent(float(rate), steps=STEPS) for rate in np.exp(logs)]
        errors = [float(ww.expected_error(net, *data(), each)["error0"].mean()) for each in descents]
        found[name]["fit_bias"] = float(vertex(logs, np.array(errors)) - np.log(said.best_rate))
    PREDICTIONS.write_text(json.dumps(found, indent=2) + "\n")


def measure(networks, widths):
    print(f"{jax.devices()[0].device_kind}, {networks} networks a width")
    for name, said in json.loads(PREDICTIONS.read_text()).items():
        d, c, step, spread = (said[k] for k in ("rate_drift", "rate_stiffness", "step_drift", "step_spread"))
        print(f"{name}: predicted log best rate {d:+.3f}/n, c = {c:.1f}, log largest step {step:+.3f}/n, spread "
              f"{spread:.3f}/√n", flush=True)  # fmt: skip
        logs = np.log(said["best_rate"]) + GRID
        for width in widths:
            start, count = time.perf_counter(), max(1, networks // GROUPS)
            key = jax.random.key(width)
            groups = [
                ensemble(jax.random.fold_in(key, g), jnp.exp(logs), data(), width=width, name=name, count=count)
                for g in range(GROUPS)
            ]
            errors = np.array([np.asarray(e).mean(0) for e, _ in groups])
            whole = vertex(logs, errors.mean(0))
            without = [vertex(logs, np.delete(errors, g, 0).mean(0)) for g in range(GROUPS)]
            error = np.sqrt((GROUPS - 1) * np.var(without))
            # the same fit of the errors of infinite width misses their minimum by a known number
            drift = whole - np.log(said["best_rate"]) - said["fit_bias"]
            steps = np.concatenate([np.asarray(s) for _, s in groups]) - np.log(said["largest_step"])
            ends = d / width, d / (width + c)
            print(f"  width {width:4d}: log best rate {drift:+.4f} ± {error:.4f}, predicted d/n {ends[0]:+.4f} (ratio "
                  f"{ends[0] / drift:.2f}), d/(n + c) {ends[1]:+.4f} (ratio {ends[1] / drift:.2f})")  # fmt: skip
            error = steps.std() / np.sqrt(len(steps))
            print(f"      log largest step {steps.mean():+.5f} ± {error:.5f}, predicted {step / width:+.5f}; spread "
                  f"{steps.std():.4f}, predicted {spread / np.sqrt(width):.4f}   {time.perf_counter() - start:.0f} s",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["predict"]:
        predict()
    else:
        measure(int(words[0]) if words else 20_000, [int(word) for word in words[1:]] or [128, 256, 512])
