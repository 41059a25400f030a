"""The best learning rate over widths 64 to 2048 and depths 2 to 64 by rule of transfer, of really trained networks.

PYTHONPATH=src python benchmarks/transfer.py [--axis width|depth|both] [--optimiser adam|sgd] [--small] [--json FILE]
    [--rules mup completep ...] [--seeds COUNT] [--first-seed SEED]
PYTHONPATH=src python benchmarks/transfer.py --read FILE

Residual students x → x + β W φ(x/|x|) learn a random teacher on fresh batches, with a rate that falls linearly to zero.
Their loss is the mean over the last tenth of the steps. All rates (half octaves) and seeds of one size are one
program. The best rate is that of the parabola through the lowest logarithms of loss, averaged over seeds. Factors of
variances, multipliers and rates are those of `widthwise.parametrisation`. Needs jax alone.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.readers.transfer.scaling_rules import ScalingRule

FEATURES, TEACHER, BATCH = 16, 8, 128
BASE_WIDTH, BASE_DEPTH = 64, 2
#: Base rates in half octaves.
RATES = {"adam": 2.0 ** np.arange(-14, -1.75, 0.5), "sgd": 2.0 ** np.arange(-9, 3.25, 0.5)}
GROUPS = {"enter": "input", "blocks": "hidden", "leave": "output"}


def factors(rule, optimiser, width, depth):
    """Numbers of the rule: multipliers, and by tensor standard deviation, rate and ε."""
    chosen, m, M = ScalingRule.of(rule), width / BASE_WIDTH, depth / BASE_DEPTH
    base = {"enter": 1 / FEATURES, "blocks": 1 / BASE_WIDTH, "leave": 1 / BASE_WIDTH}
    found = {"output": chosen.output_multiplier(m), "branch": chosen.branch_multiplier(M), "tensors": {}}
    for name, role in GROUPS.items():
        scaling = chosen.scaling(role, optimiser, m, M, name == "blocks")
        found["tensors"][name] = {
            "std": math.sqrt(base[name] * scaling.variance), "rate": scaling.rate, "epsilon": 1e-8 * scaling.epsilon,
        }  # fmt: skip
    return found


def student(parameters, rule, x):
    def block(stream, W):
        size = jnp.sqrt(jnp.mean(stream**2, axis=1, keepdims=True) + 1e-6)
        return stream + rule["branch"] * (jax.nn.gelu(stream / size) @ W), None

    stream, _ = jax.lax.scan(block, x @ parameters["enter"], parameters["blocks"])
    return rule["output"] * (stream @ parameters["leave"])


def teacher(key):
    """A fixed function of two layers with outputs of variance near one."""
    one, two = jax.random.split(key)
    first = 2.0 * jax.random.normal(one, (FEATURES, TEACHER)) / math.sqrt(FEATURES)
    second = 1.5 * jax.random.normal(two, (TEACHER, 1)) / math.sqrt(TEACHER)
    return lambda x: jnp.tanh(x @ first) @ second


def drawn(key, rule, width, depth):
    shapes = {"enter": (FEATURES, width), "blocks": (depth, width, width), "leave": (width, 1)}
    keys = dict(zip(shapes, jax.random.split(key, 3), strict=True))
    return {n: rule["tensors"][n]["std"] * jax.random.normal(keys[n], shape) for n, shape in shapes.items()}


@partial(jax.jit, static_argnames=("width", "depth", "steps", "optimiser"))
def final_losses(rates, seeds, rule, *, width, depth, steps, optimiser):
    """Mean loss over the last tenth of training, (rates, seeds)."""
    target = teacher(jax.random.key(2024))

    def one_run(rate, seed):
        weights, data = jax.random.split(jax.random.key(seed))
        start = drawn(weights, rule, width, depth)
        zeros = jax.tree.map(jnp.zeros_like, start)

        def step(state, number):
            now, mean, square = state
            x = jax.random.normal(jax.random.fold_in(data, number), (BATCH, FEATURES))
            loss, slope = jax.value_and_grad(lambda p: jnp.mean((student(p, rule, x) - target(x)) ** 2))(now)
            eta = rate * (1.0 - number / steps)
            if optimiser == "sgd":
                moved = {n: now[n] - eta * rule["tensors"][n]["rate"] * slope[n] for n in now}
                return (moved, mean, square), loss
            t = number + 1.0
            mean = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, mean, slope)
            square = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g**2, square, slope)

            def moved_by_adam(name):
                size = jnp.sqrt(square[name] / (1.0 - 0.999**t)) + rule["tensors"][name]["epsilon"]
                direction = mean[name] / (1.0 - 0.9**t) / size
                return now[name] - eta * rule["tensors"][name]["rate"] * direction

            return ({name: moved_by_adam(name) for name in now}, mean, square), loss

        _, losses = jax.lax.scan(step, (start, zeros, zeros), jnp.arange(steps))
        return losses[-(steps // 10) :].mean()

    return jax.vmap(lambda rate: jax.vmap(lambda seed: one_run(rate, seed))(seeds))(rates)


def best_rate(rates, losses):
    """The vertex of the parabola through the lowest log loss and its neighbours; None at an end of the grid."""
    logs = np.where(np.isfinite(losses), np.log(np.maximum(losses, 1e-30)), np.inf)
    k = int(np.argmin(logs))
    if not 0 < k < len(rates) - 1:
        return None
    a, b, c = logs[k - 1 : k + 2]
    shift = 0.5 * (a - c) / (a - 2 * b + c) if np.isfinite(a + c) and a - 2 * b + c > 0 else 0.0
    return float(rates[k] * (rates[1] / rates[0]) ** shift)


def good_rates(rates, losses):
    """Ends and centre of the rates whose loss, over seeds, is below 1.5 times the least; weights log 1.5 − log loss.

    The valley is flat: its lowest point is set by the noise of three seeds, its centre is not.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where((losses > 0).all(1), np.log(losses).mean(1), np.inf)
    weight = np.maximum(logs.min() + np.log(1.5) - logs, 0.0)
    good = np.flatnonzero(weight)
    return rates[good[0]], rates[good[-1]], float(np.exp(np.sum(weight * np.log(rates)) / weight.sum())), logs


def read_again(path):
    """The same sweeps from their file: by size the good rates, their centre, and the price of the base's best rate."""
    with open(path) as file:
        rows = json.load(file)
    for axis, rule in dict.fromkeys((row["axis"], row["rule"]) for row in rows):
        chosen = [row for row in rows if (row["axis"], row["rule"]) == (axis, rule)]
        found = [good_rates(RATES[row["optimiser"]], np.array(row["losses"])) for row in chosen]
        base = int(np.argmin(found[0][3]))
        for row, (low, high, centre, logs) in zip(chosen, found, strict=True):
            price = np.exp(logs[base] - logs.min())
            print(f"{rule:>10} {axis} {row[axis]:5d}: good from {low:.5f} to {high:.5f}, centre {centre:.5f}; "
                  f"the base's best rate costs ×{price:.2f}")  # fmt: skip
        centres = [one[2] for one in found]
        print(f"{rule:>10} {axis}: the centre moves by a factor {max(centres) / min(centres):.2f}")


def sweep(axis, rule, optimiser, sizes, fixed, steps, seeds):
    """Rows of one rule along one axis, printed as they come, and the factor by which the best rate moves."""
    rates, found = RATES[optimiser], []
    for size in sizes:
        width, depth = (size, fixed) if axis == "width" else (fixed, size)
        start = time.perf_counter()
        numbers = jax.tree.map(jnp.float32, factors(rule, optimiser, width, depth))
        losses = np.asarray(
            final_losses(jnp.float32(rates), jnp.asarray(seeds), numbers, width=width, depth=depth, steps=steps,
                         optimiser=optimiser), float)  # fmt: skip
        with np.errstate(divide="ignore", invalid="ignore"):
            together = np.exp(np.log(losses).mean(1))
        each = [best_rate(rates, losses[:, k]) for k in range(len(seeds))]
        row = {
            "axis": axis, "rule": rule, "optimiser": optimiser, "width": width, "depth": depth,
            "best": best_rate(rates, together), "by_seed": each, "loss": float(np.nanmin(together)),
            "losses": np.where(np.isfinite(losses), losses, -1.0).tolist(), "seconds": time.perf_counter() - start,
        }  # fmt: skip
        found.append(row)
        shown = " ".join("   end " if rate is None else f"{rate:7.5f}" for rate in (row["best"], *each))
        print(f"{rule:>10} {axis} {size:5d}: best, by seed {shown}  loss {row['loss']:.4f}  {row['seconds']:5.1f} s",
              flush=True)  # fmt: skip
    best = [row["best"] for row in found]
    if None in best:
        print(f"{rule:>10} {axis}: an optimum lies outside the grid")
    else:
        print(f"{rule:>10} {axis}: the best rate moves by a factor {max(best) / min(best):.2f}, from {best[0]:.5f} "
              f"at the base to {best[-1]:.5f}", flush=True)  # fmt: skip
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--axis", default="both", choices=["width", "depth", "both"])
    parser.add_argument("--optimiser", default="adam", choices=list(RATES))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rules", nargs="+", default=["standard", "mup", "depth-mup", "completep"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--json", default=None)
    parser.add_argument("--read", default=None)
    options = parser.parse_args()
    if options.read:
        read_again(options.read)
        return
    steps = options.steps or (100 if options.small else 1000)
    widths = [64, 128, 256] if options.small else [64, 128, 256, 512, 1024, 2048]
    depths = [2, 4, 8] if options.small else [2, 4, 8, 16, 32, 64]
    device = jax.devices()[0]
    of = f"{options.seeds} seeds from {options.first_seed} on"
    print(f"{device.device_kind}, {options.optimiser}, {steps} steps of {BATCH}, {of}", flush=True)
    rows, seeds = [], np.arange(options.first_seed, options.first_seed + options.seeds)
    for axis, sizes, fixed, rules in (
        ("width", widths, 4 if not options.small else 2, ("standard", "mup")),
        ("depth", depths, 256 if not options.small else 64, ("standard", "mup", "depth-mup", "completep")),
    ):
        chosen = [rule for rule in rules if rule in options.rules and options.axis in (axis, "both")]
        for rule in chosen:
            rows += sweep(axis, rule, options.optimiser, sizes, fixed, steps, seeds)
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(rows, file)


if __name__ == "__main__":
    main()
