"""Bayesian inference to order 1/n: derivatives by jax, importance-weighted real networks, limits, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from prior_networks import posterior_corrections_of, posterior_differences

import widthwise as ww
from widthwise.inference.infinite_width import posterior_corrections

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])
Y = np.array([[2.0, 1.2], [1.6, -1.0]])


def network(width, outputs=2, depth=3, activation="tanh"):
    return ww.MLP([3, *[width] * (depth - 1), outputs], activation, C_b=0.2, C_W=1.6)


class TestDerivatives:
    """The formula of theory §9 with derivatives taken by jax of functions that know nothing of the closed forms."""

    rng = np.random.default_rng(3)
    TRAIN, ALL = 3, 5
    root = rng.normal(size=(ALL, 7))
    K = root @ root.T / 7 + 0.1 * np.eye(ALL)
    G1 = rng.normal(size=(ALL, ALL))
    G1 = G1 + G1.T
    changes = rng.normal(size=(6, ALL, ALL))
    changes = changes + changes.transpose(0, 2, 1)
    V = np.einsum("kab,kcd->abcd", changes, changes)
    y = rng.normal(size=(TRAIN, 2))

    def posterior(self, noise):
        n, y = self.TRAIN, self.y

        def mean(G):
            return (G[n:, :n] @ jnp.linalg.solve(G[:n, :n] + noise * jnp.eye(n), y)).T

        def spread(G):
            solved = jnp.linalg.solve(G[:n, :n] + noise * jnp.eye(n), G[:n, n:])
            return jnp.einsum("ij,xy->ixjy", jnp.eye(2), G[n:, n:] - G[n:, :n] @ solved)

        def log_evidence(G):
            noisy = G[:n, :n] + noise * jnp.eye(n)
            quadratic = jnp.sum(y * jnp.linalg.solve(noisy, y))
            return -0.5 * (quadratic + 2 * jnp.linalg.slogdet(noisy)[1] + 2 * n * jnp.log(2 * jnp.pi))

        return mean, spread, log_evidence

    @pytest.mark.parametrize("noise", [0.0, 0.4])
    def test_closed_forms(self, noise):
        mean, spread, log_evidence = self.posterior(noise)
        slope = jax.grad(log_evidence)(self.K)

        def shifted(function, weight=1.0):
            first, second = jax.jacobian(function)(self.K), jax.hessian(function)(self.K)
            plain = jnp.einsum("...ab,ab->...", first, self.G1) + 0.5 * jnp.einsum("...abcd,abcd->...", second, self.V)
            return plain + weight * jnp.einsum("...ab,abcd,cd->...", first, self.V, slope)

        found = posterior_corrections(self.K, self.G1, self.V, self.y, noise)
        assert np.allclose(found.mean, shifted(mean), rtol=1e-9)
        moves = jax.jacobian(mean)(self.K)
        total = shifted(spread) + jnp.einsum("ixab,abcd,jycd->ixjy", moves, self.V, moves)
        assert np.allclose(found.covariance, total, rtol=1e-9)
        assert found.log_evidence == pytest.approx(float(shifted(log_evidence, 0.5)), rel=1e-9)
        # negative control: without the reweighting by the data
        assert not np.allclose(found.mean, shifted(mean, 0.0), rtol=1e-2)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_importance_weighted_networks_agree(noise):
    """Widths 48 and 96 extrapolated to 1/n → 0, in standard errors."""
    rng = np.random.default_rng(17)
    (narrow, narrow_error), (wide, wide_error) = (
        posterior_differences(network(n), X, Y, noise, 150_000, rng) for n in (48, 96)
    )
    value, error = 2 * wide - narrow, np.hypot(2 * wide_error, narrow_error)
    expected = posterior_corrections_of(network(96), X, Y, noise)
    assert np.abs((value - expected) / error).max() < 4
    # negative controls: no correction at all; a kernel that does not fluctuate
    assert np.abs(value[:2] / error[:2]).max() > 5
    assert np.abs(value[2:] / error[2:]).min() > 3
    K, G1, V = (ww.theory(network(96), X, order=1, layers="last")[name].values[0] for name in ("K", "G1", "V"))
    blind = posterior_corrections(K, G1, 0.0 * V, Y, noise)
    wrong = np.array([*blind.mean[:, 0], blind.covariance[0, 0, 0, 0], blind.covariance[1, 0, 1, 0]])
    assert np.abs((value[:4] - wrong) / error[:4]).max() > 6
    assert np.abs((value[5] - blind.log_evidence) / error[5]) > 6


SKIPS_AND_NORMS = {
    "residual": lambda n: ww.ResMLP([3, n, n, n, 2], "tanh", [0.9, 0.7], C_b=0.2, C_W=[1.6, 0.8, 0.8, 1.6]),
    "normalised": lambda n: ww.NormMLP(
        [3, n, n, 2], "tanh", [("ln", "pre", 0.05), ("rms", "post", 0.1)], C_b=0.2, C_W=1.6
    ),
}


@pytest.mark.parametrize("kind", SKIPS_AND_NORMS)
@pytest.mark.parametrize(
    ("widths", "networks"),
    [((24, 48), 60_000), pytest.param((48, 96), 400_000, marks=pytest.mark.full)],
)
def test_importance_weighted_networks_with_skips_and_norms_agree(kind, widths, networks):
    """Two widths extrapolated to 1/n → 0; infinite width as it stands is rejected at both."""
    make, rng = SKIPS_AND_NORMS[kind], np.random.default_rng(5)
    (narrow, narrow_error), (wide, wide_error) = (
        posterior_differences(make(n), X, Y, 0.2, networks, rng) for n in widths
    )
    value, error = 2 * wide - narrow, np.hypot(2 * wide_error, narrow_error)
    pulls = (value - posterior_corrections_of(make(widths[0]), X, Y, 0.2)) / error
    assert np.abs(pulls).max() < 4
    # negative control: no correction at all, for any of mean, covariance and evidence
    assert np.abs(narrow / narrow_error).min() > 5
    assert np.abs(wide / wide_error).min() > 3


class TestLimits:
    def test_one_gaussian_datum_has_the_edgeworth_evidence(self):
        """log of E over Ĝ of N(y; 0, Ĝ): G1/2K (y²/K − 1) + V/8K² (y⁴/K² − 6y²/K + 3)."""
        net, y = network(64, outputs=1), 0.7
        ds = ww.theory(net, X[:1], order=1, layers="last")
        K, G1, V = (float(ds[name].values.ravel()[0]) for name in ("K", "G1", "V"))
        u = y**2 / K
        expected = G1 / (2 * K) * (u - 1) + V / (8 * K**2) * (u**2 - 6 * u + 3)
        b = ww.posterior(net, X[:1], [y], X[2:], order=1)
        assert float(b["log_evidence1"]) == pytest.approx(expected, rel=1e-8)
        assert float(b["log_evidence"]) == pytest.approx(float(b["log_evidence0"]) + expected / 64, rel=1e-10)

    def test_without_noise_the_data_are_interpolated_to_every_order(self):
        b = ww.posterior(network(64), X[:2], Y, X[:2], order=1)
        assert np.allclose(b["mean"].values.T, Y, atol=1e-7)
        assert np.abs(b["cov1"]).max() < 1e-6

    def test_great_noise_returns_the_prior(self):
        b = ww.posterior(network(64), X[:2], Y, X[2:], noise=1e8, order=1)
        G1 = ww.theory(network(64), X[2:], order=1, layers="last")["G1"].values[0]
        assert np.abs(b["mean1"]).max() < 1e-6
        assert np.allclose(b["cov1"].values[:, 0, :, 0], G1[0, 0] * np.eye(2), rtol=1e-5, atol=1e-6)

    def test_the_correction_does_not_depend_on_the_width(self):
        one, two = (ww.posterior(network(n), X[:2], Y, X[2:], order=1) for n in (64, 640))
        for name in ("mean1", "cov1", "log_evidence1"):
            assert np.allclose(one[name], two[name])

    def test_a_kinked_activation_is_no_obstacle_here(self):
        b = ww.posterior(network(64, activation="relu"), X[:2], Y, X[2:], noise=0.1, order=1)
        assert np.all(np.isfinite(b["mean1"]))
        assert b.attrs["order"] == 1

    def test_order_zero_is_unchanged(self):
        b = ww.posterior(network(64), X[:2], Y, X[2:], noise=0.1)
        assert set(b) == {"mean0", "mean", "cov0", "cov", "cov_y", "log_evidence0", "log_evidence"}
        assert np.array_equal(b["mean"], b["mean0"])


class TestBadInput:
    def test_order_targets_noise_and_repetitions(self):
        net = network(64)
        with pytest.raises(ValueError, match="order: got 2; expected 0 or 1"):
            ww.posterior(net, X[:2], Y, X[2:], order=2)
        with pytest.raises(ValueError, match=r"y_train: got shape \(2, 3\); expected shape \(2, 2\)"):
            ww.posterior(net, X[:2], np.ones((2, 3)), X[2:], order=1)
        with pytest.raises(ValueError, match="noise: got -1"):
            ww.posterior(net, X[:2], Y, X[2:], order=1, noise=-1)
        with pytest.raises(ww.errors.SingularKernel, match="rows 0 and 1 that coincide.*set noise > 0"):
            ww.posterior(net, X[[0, 0]], Y, X[2:], order=1)

    def test_a_narrow_network_is_warned_about(self):
        with pytest.warns(ww.errors.ExpansionWarning, match="at n = 1 the correction to the .* of the leading term"):
            ww.posterior(network(1), X[:2], 4 * Y, X[2:], order=1)
