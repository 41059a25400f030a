"""Random kernels of real networks, from which posteriors and evidences are weighted means."""

import numpy as np


def root(G):
    """R with R Rᵀ = G: triangular, or symmetric where G is singular, as it is for more inputs than features."""
    try:
        return np.linalg.cholesky(G)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(G)
        return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def random_kernels(net, X, networks, rng):
    """Ĝ of the output layer of real tanh networks, exactly in distribution: a layer is Gaussian given the last Ĝ."""
    G = np.broadcast_to(net.C_b[0] + net.C_W[0] * X @ X.T / X.shape[1], (networks, len(X), len(X)))
    for layer in range(1, net.depth):
        width = net.widths[layer]
        active = np.tanh(root(G) @ rng.standard_normal((networks, len(X), width)))
        G = net.C_b[layer] + net.C_W[layer] * active @ active.transpose(0, 2, 1) / width
    return G


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
