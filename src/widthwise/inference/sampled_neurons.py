"""Corrections of order 1/n to Bayesian inference from single neurons, for more inputs than V fits on (theory §9).

Each hidden layer adds to V on its own: given layer l, the next kernel is a mean over n_l independent neurons, so
    V/n = Σ_l (1/n_l) cov(Δ, Δ),    Δ_ab = J_ab σ_aσ_b + R_ab σ_a² + R_ba σ_b²,
where σ_a are the values of one neuron of layer l and J, R what the layers above make of a small change of the kernel,
pair by pair (theory §4, V). Posterior and evidence need no V but averages of a few quadratic forms in Δ: Δ times the
fixed vectors α = (K + noise)⁻¹y and those that read out the tests, and two traces with S = (K + noise)⁻¹. They cost N²
a neuron. Neurons come from scrambled Sobol points along the directions of the kernel, the widest first; independent
scrambles give the standard error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.special import ndtri
from scipy.stats import qmc

from widthwise.activations import evaluate
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_rules import legs
from widthwise.inference.infinite_width import PosteriorCorrections
from widthwise.network import MLP

#: Independent scrambles: their scatter is the standard error, known to a sixth.
SCRAMBLES = 16
#: Numbers that products of one block of neurons hold.
_BLOCK_NUMBERS = 1 << 23


class SampledCorrections(NamedTuple):
    """Coefficients of 1/n, and their standard errors in the same shapes."""

    values: PosteriorCorrections
    errors: PosteriorCorrections


def sampled_corrections(
    net: MLP, X: np.ndarray, G1: np.ndarray, y: np.ndarray, noise: float, *, neurons: int, seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> SampledCorrections:  # fmt: skip
    """From inputs, training ones first, G1 of the output on them, and y (training inputs, outputs).

    `neurons` are drawn at every hidden layer, a power of two for each scramble.

    >>> from widthwise.flow.tensors.tensor_flow import finite_flow
    >>> from widthwise.inference.infinite_width import posterior_corrections
    >>> net, X, y = MLP([1, 8, 16, 1], "erf", 0.1, 1.5), np.linspace(-1.0, 1.0, 3)[:, None], np.array([[0.5], [-0.3]])
    >>> flow = finite_flow(net, X, ("G1", "V"), with_theta=False, last_only=True)
    >>> exact = posterior_corrections(flow.K[0], flow.tensors["G1"][0], flow.tensors["V"][0], y, 0.1)
    >>> values, errors = sampled_corrections(net, X, flow.tensors["G1"][0], y, 0.1, neurons=2**12, seed=0)
    >>> bool(abs(values.log_evidence - exact.log_evidence) < 5 * errors.log_evidence)
    True
    """
    kernels = kernel_flow(net, X, with_theta=False).K
    forms = _Forms.of(kernels[-1], y, noise)
    points = max(2, 1 << (max(1, neurons // SCRAMBLES) - 1).bit_length())
    sums = [_Sums.zero(forms) for _ in range(SCRAMBLES)]
    rng, total = np.random.default_rng(seed), SCRAMBLES * (net.depth - 1)
    for layer in range(1, net.depth):
        response = Response.of(net, layer, kernels)
        root = _kernel_root(kernels[layer - 1])
        share = net.n / net.widths[layer] / points
        for scramble, sum_ in enumerate(sums):
            uniform = qmc.Sobol(len(X), rng=rng).random(points)
            for block in np.array_split(uniform, max(1, points * forms.numbers // _BLOCK_NUMBERS)):
                # a Sobol point may be exactly zero, where the normal distribution has no quantile
                z = ndtri(np.clip(block, 2.0**-54, 1.0 - 2.0**-53)) @ root
                sum_.add(forms, response, evaluate(net.activations[layer - 1], 0, z), share, rng)
            if progress is not None:
                progress((layer - 1) * SCRAMBLES + scramble + 1, total)
    outcomes = [forms.corrections(G1, sum_) for sum_ in sums]
    columns = [np.array([getattr(one, name) for one in outcomes]) for name in PosteriorCorrections._fields]
    values = PosteriorCorrections(*(column.mean(axis=0) for column in columns))
    errors = PosteriorCorrections(*(column.std(axis=0, ddof=1) / np.sqrt(SCRAMBLES) for column in columns))
    return SampledCorrections(values, errors)


def _kernel_root(K: np.ndarray) -> np.ndarray:
    """Rows whose products with standard normals have the covariance K, the largest first."""
    variances, vectors = linalg.eigh(K)
    return (vectors * np.sqrt(np.maximum(variances, 0.0))).T[::-1]


@dataclass(frozen=True, eq=False)
class Response:
    """Δ of one neuron with values s: J_ab s_as_b + R_ab s_a² + R_ba s_b² less its mean; R is None where it is zero."""

    J: np.ndarray
    R: np.ndarray | None
    mean: np.ndarray

    @classmethod
    def of(cls, net: MLP, layer: int, kernels: np.ndarray) -> Response:
        """Of a neuron of hidden layer `layer`, counted from 1, on the kernel of the output (theory §4, V)."""
        J, R = np.full_like(kernels[0], net.C_W[layer]), np.zeros_like(kernels[0])
        for above in range(layer, net.depth - 1):
            sigma = legs(net.activations[above], kernels[above], fourth=False, with_slopes=False)[0]
            own, C_W = (J + 2.0 * R).diagonal(), net.C_W[above + 1]
            J, R = C_W * sigma.ab * J, C_W * (sigma.ab * R + 0.5 * sigma.aa * own[:, None])
        # ⟨σσ⟩ of this layer, from the kernel that it makes
        Q = (kernels[layer] - net.C_b[layer]) / net.C_W[layer] if net.C_W[layer] else np.zeros_like(J)
        mean = J * Q + R * Q.diagonal()[:, None] + (R * Q.diagonal()[:, None]).T
        return cls(J, R if layer < net.depth - 1 else None, mean)

    def times(self, s: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Δ v (neurons, inputs) for one vector (inputs,), or one a neuron."""
        if self.R is None:  # J has equal entries
            return self.J[0, 0] * s * np.sum(s * v, axis=1, keepdims=True) - v @ self.mean
        return s * ((s * v) @ self.J) + s**2 * (v @ self.R.T) + (s**2 * v) @ self.R - v @ self.mean

    def trace(self, s: np.ndarray, S: np.ndarray) -> np.ndarray:
        """tr SΔ (neurons,)."""
        found = np.einsum("ja,ja->j", s @ (self.J * S), s) - np.sum(self.mean * S)
        return found if self.R is None else found + 2.0 * s**2 @ np.sum(self.R * S, axis=1)

    def trace_of_square(self, s: np.ndarray, S: np.ndarray, root: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """tr SΔSΔ (neurons,), S = root rootᵀ: exactly where Δ + mean has rank one, else with one random vector each."""
        if self.R is None:
            C, through = self.J[0, 0], S @ self.mean @ S
            first, second = np.einsum("ja,ja->j", s @ S, s), np.einsum("ja,ja->j", s @ through, s)
            return (C * first) ** 2 - 2.0 * C * second + np.sum(through * self.mean)
        probe = rng.standard_normal((len(s), root.shape[1])) @ root.T
        return np.sum((self.times(s, probe) @ root) ** 2, axis=1)


@dataclass(frozen=True, eq=False)
class _Forms:
    """What quadratic forms in Δ are taken with: S, its root, and the vectors that read out tests, then α of outputs."""

    S: np.ndarray
    root: np.ndarray
    vectors: np.ndarray
    tests: int

    @classmethod
    def of(cls, K: np.ndarray, y: np.ndarray, noise: float) -> _Forms:
        train = len(y)
        root, S = np.zeros((len(K), train)), np.zeros_like(K)
        factor = linalg.cholesky(K[:train, :train] + noise * np.eye(train), lower=True)
        root[:train] = linalg.solve_triangular(factor, np.eye(train), lower=True).T
        S[:train, :train] = root[:train] @ root[:train].T
        readout = np.concatenate([-K[train:, :train] @ S[:train, :train], np.eye(len(K) - train)], axis=1)
        return cls(S, root, np.concatenate([readout, (S[:, :train] @ y).T]), len(K) - train)

    @property
    def outputs(self) -> int:
        return len(self.vectors) - self.tests

    @property
    def numbers(self) -> int:
        """Numbers that one neuron takes."""
        return (len(self.vectors) + 4) * len(self.S)

    def corrections(self, G1: np.ndarray, sums: _Sums) -> PosteriorCorrections:
        """Posterior and evidence of theory §9, with V replaced by averages over neurons."""
        alpha, at_outputs = self.vectors[self.tests :], (slice(self.tests, None),) * 2
        whole = self.vectors @ G1 @ self.vectors.T + sums.closed - sums.crossed
        between, at_tests = whole[: self.tests, self.tests :], whole[: self.tests, : self.tests]
        covariance = np.einsum("ij,xy->ixjy", np.eye(self.outputs), at_tests) + sums.mixing
        evidence = 0.5 * (np.trace(alpha @ G1 @ alpha.T) - self.outputs * np.sum(self.S * G1)) + 0.5 * sums.slope_square
        evidence += 0.25 * self.outputs * sums.trace_of_square - 0.5 * np.trace(sums.crossed[at_outputs])
        return PosteriorCorrections(between.T, covariance, float(evidence))


@dataclass
class _Sums:
    """Averages over neurons, with the vectors v, w of the forms: vᵀΔw (∂ℓ:Δ), vᵀΔSΔw, and those of the evidence."""

    closed: np.ndarray
    crossed: np.ndarray
    mixing: np.ndarray
    slope_square: float
    trace_of_square: float

    @classmethod
    def zero(cls, forms: _Forms) -> _Sums:
        count, mixed = len(forms.vectors), (forms.outputs, forms.tests) * 2
        return cls(np.zeros((count, count)), np.zeros((count, count)), np.zeros(mixed), 0.0, 0.0)

    def add(
        self, forms: _Forms, response: Response, s: np.ndarray, share: float, rng: np.random.Generator
    ) -> None:  # fmt: skip
        """More neurons, of values (neurons, inputs)."""
        moved = np.stack([response.times(s, v) for v in forms.vectors], axis=1)
        half = moved @ forms.root
        # vᵀΔw and ∂ℓ:Δ = ½ Σ αᵀΔα − ½ outputs tr SΔ
        between = moved @ forms.vectors.T
        own = np.trace(between[:, forms.tests :, forms.tests :], axis1=1, axis2=2)
        slope = 0.5 * own - 0.5 * forms.outputs * response.trace(s, forms.S)
        self.closed += share * np.einsum("j,jvw->vw", slope, between)
        self.crossed += share * np.einsum("jvk,jwk->vw", half, half, optimize=True)
        means = between[:, : forms.tests, forms.tests :]
        self.mixing += share * np.einsum("jxi,jym->ixmy", means, means, optimize=True)
        self.slope_square += share * float(slope @ slope)
        self.trace_of_square += share * float(np.sum(response.trace_of_square(s, forms.S, forms.root, rng)))
