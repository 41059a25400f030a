"""Random kernels of real networks, from which posteriors and evidences are weighted means."""

import numpy as np

import widthwise as ww
from widthwise.flow.tensors.block_flow import block_specifications


def root(G):
    """R with R Rᵀ = G: triangular, or symmetric where G is singular, as it is for more inputs than features."""
    try:
        return np.linalg.cholesky(G)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(G)
        return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def random_kernels(net, X, networks, rng):
    """Ĝ of the output layer of real networks, exactly in distribution: a layer is Gaussian given the ones before it."""
    first, blocks = net.layers[0], block_specifications(net, "random kernels")
    G = np.broadcast_to(first.C_b + first.C_W * X @ X.T / X.shape[1], (networks, len(X), len(X)))
    z = 0.0
    for width, scale, block in zip(net.widths[1:], [0.0, *(one.scale for one in blocks)], blocks, strict=False):
        z = scale * z + root(G) @ rng.standard_normal((networks, len(X), width))
        active = passed_on(block, z)
        G = block.dense.C_b + block.dense.C_W * active @ active.transpose(0, 2, 1) / width
    return G


def passed_on(block, z):
    """What the neurons of a layer pass on: (networks, inputs, neurons)."""
    sigma = getattr(np, block.activation.name, block.activation)
    if block.norm is None:
        return sigma(z)
    return sigma(normalised(block.norm, z)) if block.before else normalised(block.norm, sigma(z))


def normalised(norm, values):
    values = values - values.mean(axis=2, keepdims=True) if norm.centred else values
    return values / np.sqrt(np.mean(values**2, axis=2, keepdims=True) + norm.epsilon)


def log_likelihoods(G, y, noise):
    """log p(y|Ĝ) per network; G covers the training inputs, y is (inputs, outputs)."""
    noisy = G + noise * np.eye(len(y))
    quadratic = np.einsum("ai,sab,bi->s", y, np.linalg.inv(noisy), y)
    return -0.5 * (quadratic + y.shape[1] * np.linalg.slogdet(noisy)[1] + y.size * np.log(2 * np.pi))


def sampled_log_evidence(net, X, y, noise, networks, seed, parts=20):
    """log E p(y|Ĝ) over real networks, with its standard error."""
    rng = np.random.default_rng(seed)
    rows = np.array([log_likelihoods(random_kernels(net, X, networks // parts, rng), y, noise) for _ in range(parts)])
    top = rows.max()
    means = np.exp(rows - top).mean(axis=1)
    return top + np.log(means.mean()), means.std(ddof=1) / means.mean() / np.sqrt(parts)


def weighted(G, y, noise):
    """Per network: p(y|Ĝ), posterior mean (outputs,) and variance at the last input, for two training inputs."""
    inverse = np.linalg.inv(G[:, :2, :2] + noise * np.eye(2))
    mean = np.einsum("sa,sab,bi->si", G[:, 2, :2], inverse, y)
    variance = G[:, 2, 2] - np.einsum("sa,sab,sb->s", G[:, 2, :2], inverse, G[:, 2, :2])
    return np.exp(log_likelihoods(G[:, :2, :2], y, noise)), mean, variance


def posterior_differences(net, X, y, noise, networks, rng, parts=25):
    """n × (quantity − infinite width) and standard errors: mean (2), covariance (3), log evidence, at the third input.

    Real networks drawn from the prior and weighted by the likelihood of the first two inputs.
    """
    infinite = ww.posterior(net, X[:2], y, X[2:], noise=noise)
    start = infinite["mean0"].values[:, 0], infinite["cov0"].values[:, 0, :, 0]
    rows = []
    for _ in range(parts):
        weights, mean, variance = weighted(random_kernels(net, X, networks // parts, rng), y, noise)
        share = weights / weights.sum()
        centre = share @ mean
        spread = np.eye(2) * (share @ variance) + np.einsum("s,si,sj->ij", share, mean - centre, mean - centre)
        cov = spread - start[1]
        evidence = np.log(weights.mean()) - float(infinite["log_evidence0"])
        rows.append([*(centre - start[0]), cov[0, 0], cov[1, 1], cov[0, 1], evidence])
    rows = net.n * np.array(rows)
    return rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(parts)


def posterior_corrections_of(net, X, y, noise):
    """What theory says of `posterior_differences`, to leading order."""
    b = ww.posterior(net, X[:2], y, X[2:], noise=noise, order=1)
    cov1 = b["cov1"].values[:, 0, :, 0]
    return np.array([*b["mean1"].values[:, 0], cov1[0, 0], cov1[1, 1], cov1[0, 1], float(b["log_evidence1"])])
