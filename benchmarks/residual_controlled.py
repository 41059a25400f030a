"""G1, H1, V, D and A of residual networks, sampled with controls that leave a fraction of the noise.

Given layer l, the rows of W σ + b are exactly Gaussian with the kernel Ĝ of that network. The same normal numbers with
the kernel G of infinite width give a second network z̃ of independent neurons. What its averages over neurons add to K̂
and Θ̂ to first order, L_K and L_Θ, is subtracted: its mean is zero exactly, and E[L L] is the covariance of one neuron's
history, found from many independent neurons without any rule of order 1/n. Whatever the coefficients of L are, nothing
is biased. Rows of the last layer are averaged over exactly, by the whole Jacobian between hidden layers. It runs on a
bare machine.

    python benchmarks/residual_controlled.py --seconds 20 --widths 64 128 256
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from skips_and_norms import CASES, X

from widthwise.devices import by_device
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.block_flow import block_specifications
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.gaussian.pair import pair_matrix
from widthwise.network import Network

TENSORS = ("G1", "H1", "V", "D", "A")
#: Numbers that a batch of networks may hold, and neurons that are drawn at once.
ROOM, NEURONS = by_device({"cpu": (2e6, 1 << 16), "gpu": (4e8, 1 << 22)})
#: A factor that is wrong by this much should be seen.
WRONG = 0.03


class Step(NamedTuple):
    """One step: its numbers, the root of the kernel of its fresh weights, and what infinite width says of its layer."""

    gamma: Any
    C_b: Any
    C: Any
    lam_b: Any
    lam: Any
    Theta: Any
    root: Any
    values: Any  # ⟨σ_a σ_b⟩
    slopes: Any  # ⟨σ'_a σ'_b⟩
    bent: Any  # ⟨σ''_a σ_b⟩
    bent_slopes: Any  # ⟨σ'''_a σ'_b⟩
    bent_both: Any  # ⟨σ''_a σ''_b⟩


def infinite_width(net: Network, inputs: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, list[Step]]:
    """σ, K and Θ of every layer, and the steps from layer 1 on."""
    flow, blocks = kernel_flow(net, inputs), block_specifications(net, "a benchmark")
    steps = []
    for K, Theta, block in zip(flow.K, flow.Theta, blocks, strict=False):
        pairs = [pair_matrix(block.activation, p, q, K)[0] for p, q in ((0, 0), (1, 1), (2, 0), (3, 1), (2, 2))]
        dense, gamma = block.dense, block.scale
        root = np.linalg.cholesky(dense.C_b + dense.C_W * pairs[0])
        steps.append(Step(gamma, dense.C_b, dense.C_W, dense.lambda_b, dense.lambda_W, Theta, root, *pairs))
    return blocks[0].activation.function, flow.K, flow.Theta, steps


def through(step: Step, sigma, z, K_part, Theta_part):
    """L_K and L_Θ of the next layer for every neuron (…, inputs, inputs), from those of this one and z̃ (…, inputs)."""
    s, slope = sigma(z), jax.vmap(jax.grad(sigma))(z.ravel()).reshape(z.shape)
    ss, tt = s[..., :, None] * s[..., None, :], slope[..., :, None] * slope[..., None, :]
    own = jnp.diagonal(K_part, axis1=-2, axis2=-1)
    e = step.gamma**2 + step.C * step.slopes

    def legs(aa, ab):
        return 0.5 * (aa * own[..., :, None] + aa.T * own[..., None, :]) + ab * K_part

    CH = step.C * step.Theta
    K_next = legs(step.C * step.bent, e) + step.C * (ss - step.values)
    omega = legs(CH * step.bent_slopes + step.lam * step.bent, CH * step.bent_both + step.lam * step.slopes)
    noise = step.lam * (ss - step.values) + CH * (tt - step.slopes)
    return K_next, omega + e * Theta_part + noise


def neuron_history(sigma, steps: list[Step], normal):
    """L_K and L_Θ of the output for independent neurons: z of layer 1, then normal numbers, of each layer."""
    z = normal[0]
    K_part = Theta_part = jnp.zeros((*z.shape, z.shape[-1]))
    for step, fresh in zip(steps, (*normal[1:], None), strict=True):
        K_part, Theta_part = through(step, sigma, z, K_part, Theta_part)
        if fresh is not None:
            z = step.gamma * z + fresh @ step.root.T
    return K_part, Theta_part


def one_network(sigma, first_root, steps: list[Step], n: int, key):
    """K̂ and Θ̂ of the output, averaged over its rows, and the averages of L_K and L_Θ."""
    inputs = len(first_root)
    slope_of = jnp.vectorize(jax.grad(sigma))
    keys = jax.random.split(key, 2 * len(steps) + 1)
    z = tilde = jax.random.normal(keys[0], (n, inputs)) @ first_root.T
    K_part = Theta_part = jnp.zeros((n, inputs, inputs))
    weights, zs, overlaps = [], [z], []
    for number, step in enumerate(steps[:-1]):
        s = sigma(z)
        W = jnp.sqrt(step.C / n) * jax.random.normal(keys[2 * number + 1], (n, n))
        fresh = W @ s + jnp.sqrt(step.C_b) * jax.random.normal(keys[2 * number + 2], (n, 1))
        overlap = s.T @ s / n
        kernel = jnp.linalg.cholesky(step.C_b + step.C * overlap)
        normal = jax.scipy.linalg.solve_triangular(kernel, fresh.T, lower=True).T
        K_part, Theta_part = through(step, sigma, tilde, K_part, Theta_part)
        z, tilde = step.gamma * z + fresh, step.gamma * tilde + normal @ step.root.T
        weights.append(W)
        zs.append(z)
        overlaps.append(overlap)
    last = steps[-1]
    K_part, Theta_part = through(last, sigma, tilde, K_part, Theta_part)
    s, slope = sigma(z), slope_of(z)
    overlap = s.T @ s / n
    # Ĥ_jj of the last hidden layer: each layer's own part times squares of the Jacobian from it, input by input
    tops = [jnp.diag(slope[:, a]) for a in range(inputs)]
    H = jnp.zeros((inputs, inputs))
    for number in range(len(steps) - 1, -1, -1):
        own = steps[0].Theta if number == 0 else steps[number - 1].lam_b + steps[number - 1].lam * overlaps[number - 1]
        H = H + own * jnp.stack([jnp.stack([jnp.sum(one * other) for other in tops]) for one in tops])
        if number:
            below, W, step = slope_of(zs[number - 1]), weights[number - 1], steps[number - 1]
            tops = [top @ (step.gamma * jnp.eye(n) + W * below[:, a]) for a, top in enumerate(tops)]
    K_hat = last.C_b + last.C * overlap
    Theta_hat = last.lam_b + last.lam * overlap + last.C * H / n
    return K_hat, Theta_hat, K_part.mean(axis=0), Theta_part.mean(axis=0)


def controlled(n: int, K, Theta, found) -> dict[str, Any]:
    """Estimates of one network without what the covariance of neurons adds."""
    K_hat, Theta_hat, L_K, L_Theta = found
    dK, dTheta = K_hat - K, Theta_hat - Theta

    def product(one, other, linear, linear_other):
        return n * (jnp.einsum("ab,cd->abcd", one, other) - jnp.einsum("ab,cd->abcd", linear, linear_other))

    return {
        "G1": n * (dK - L_K), "H1": n * (dTheta - L_Theta), "V": product(dK, dK, L_K, L_K),
        "D": product(dK, dTheta, L_K, L_Theta), "A": product(dTheta, dTheta, L_Theta, L_Theta),
    }  # fmt: skip


def in_groups(sums: list[dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Means and standard errors from the means of batches."""
    whole = {name: np.stack([one[name] for one in sums]) for name in sums[0]}
    return (
        {name: values.mean(axis=0) for name, values in whole.items()},
        {name: values.std(axis=0, ddof=1) / np.sqrt(len(values)) for name, values in whole.items()},
    )


def repeated(batch, seconds: float) -> list[dict[str, np.ndarray]]:
    """Results of batch(0), batch(1), … for some time, at least 20; compiling is not counted."""
    found, started = [jax.tree.map(np.asarray, batch(0))], time.time()
    while len(found) < 20 or time.time() - started < seconds:
        found.append(jax.tree.map(np.asarray, batch(len(found))))
    return found


def measured(net: Network, inputs: np.ndarray, seconds: float):
    """Tensors with standard errors, and the number of networks."""
    sigma, K, Theta, steps = infinite_width(net, inputs)
    n, depth = net.n, len(steps)
    size = int(np.clip(2 ** np.floor(np.log2(ROOM / (n * n * depth * (2 * len(inputs) + 2)))), 8, 4096))
    root, traced = np.linalg.cholesky(K[0]), jax.tree.map(jnp.asarray, steps)

    @jax.jit
    def networks(number):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), number), size)
        one = partial(one_network, sigma, jnp.asarray(root), traced, n)
        found = jax.vmap(lambda key: controlled(n, K[-1], Theta[-1], one(key)))(keys)
        return jax.tree.map(lambda values: values.mean(axis=0), found)

    @jax.jit
    def neurons(number):
        key = jax.random.fold_in(jax.random.key(2), number)
        normal = jax.random.normal(key, (depth, NEURONS // depth, len(inputs)))
        L_K, L_Theta = neuron_history(sigma, traced, normal.at[0].set(normal[0] @ root.T))
        count = len(L_K)
        pairs = {"V": (L_K, L_K), "D": (L_K, L_Theta), "A": (L_Theta, L_Theta)}
        return {name: jnp.einsum("nab,ncd->abcd", *pair) / count for name, pair in pairs.items()}

    sums = repeated(networks, seconds)
    (values, errors), (more, more_errors) = in_groups(sums), in_groups(repeated(neurons, 0.2 * seconds))
    for name in more:
        values[name] = values[name] + more[name]
        errors[name] = np.hypot(errors[name], more_errors[name])
    return values, errors, len(sums) * size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--widths", type=int, nargs=3, default=[64, 128, 256])
    parser.add_argument(
        "--cases", type=int, nargs="*", default=[0, 1, 2, 3], help="of skips_and_norms.py, without norms"
    )
    given = parser.parse_args()
    for title, (build, count) in [list(CASES.items())[number] for number in given.cases]:
        inputs = X[:count]
        found = [measured(build(n), inputs, given.seconds) for n in given.widths]
        flows = [
            finite_flow(build(given.widths[0]), inputs, TENSORS, last_only=True, omit=frozenset(left_out))
            for left_out in ((), ("memory",))
        ]
        weights = np.linalg.inv(np.vander(1.0 / np.array(given.widths), increasing=True))[0]
        print(f"{title}: {', '.join(str(one[2]) for one in found)} networks of widths {given.widths}")
        for name in TENSORS:
            value = sum(weight * one[0][name] for weight, one in zip(weights, found, strict=True))
            error = np.sqrt(sum((weight * one[1][name]) ** 2 for weight, one in zip(weights, found, strict=True)))
            target, local = (flow.tensors[name][0] for flow in flows)
            scale = np.abs(target).max()
            off = " ".join(f"{np.abs(one[0][name] - target).max() / scale:.3f}" for one in found)
            pull = np.abs((value - target) / error).max()
            print(
                f"   {name:<2} worst pull {pull:.2f}  error {error.mean() / scale:.4f}"
                f"  off by {off}  {WRONG:.0%} too much {np.abs((value - (1 + WRONG) * target) / error).max():.1f}"
                f"  without memory {np.abs((value - local) / error).max():.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
