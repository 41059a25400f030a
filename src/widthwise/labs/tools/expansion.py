"""A network expanded about its start to second order, z = z_0 + φ·θ + (ε/2) θ·ψθ, and where training takes it.

Parameters are measured in units of √λ, so that the learning-rate tensor is one. Axes: a inputs, training inputs first;
the parameters, in a row, last. With e = z_0 − y on the training inputs, Θ = φφᵀ there, u_p its eigenvectors and λ_p its
eigenvalues, gradient flow ends at θ = θ^F + εθ^I + O(ε²):

    θ^F = −φᵀΘ⁻¹e                                           in the span of the φ_a
    θ^I = −½ φᵀΘ⁻¹ (θ^F·ψθ^F)                               on the span: what keeps the fit
          + P_⊥ Σ_pq ψ_pφ_q e_p e_q /(λ_p(λ_p + λ_q))        off the span: what the way there leaves behind
"""

from __future__ import annotations

from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp

from widthwise.experiments.layer_passes import Weights
from widthwise.labs.base import outputs_in_units
from widthwise.network import MLP


class Quadratic(NamedTuple):
    """z_0 (a), φ (a, parameters), ψ (a, parameters, parameters) on all inputs, and y on the training inputs."""

    z: jax.Array
    phi: jax.Array
    psi: jax.Array
    y: jax.Array

    @property
    def training(self) -> Quadratic:
        """The same on the training inputs alone."""
        count = len(self.y)
        return Quadratic(self.z[:count], self.phi[:count], self.psi[:count], self.y)

    def outputs(self, theta, epsilon=1.0) -> jax.Array:
        """z_a at θ."""
        return self.z + self.phi @ theta + 0.5 * epsilon * ((self.psi @ theta) @ theta)

    def features(self, theta, epsilon=1.0) -> jax.Array:
        """φ^E = ∂z/∂θ = φ + εψθ, the features that evolve: (a, parameters)."""
        return self.phi + epsilon * (self.psi @ theta)


class Solution(NamedTuple):
    """θ^F, and the parts of θ^I on and off the span of the data."""

    free: jax.Array
    on_span: jax.Array
    off_span: jax.Array

    @property
    def interacting(self) -> jax.Array:
        return self.on_span + self.off_span


def expand(net: MLP, layers: list[Weights], X, y) -> Quadratic:
    """The second-order expansion of a network of one output; y belongs to the first rows of X.

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> net, X = MLP([2, 4, 1], "tanh"), jnp.array([[1.0, 0.2], [0.3, -0.5]])
    >>> model = expand(net, sample_parameters(net, network_key(0, 0)), X, jnp.array([0.5]))
    >>> model.phi.shape, model.psi.shape
    ((2, 17), (2, 17, 17))
    """
    u, outputs = outputs_in_units(net, layers, X)

    def z(u):
        return outputs(u)[0]

    return Quadratic(z(u), jax.jacrev(z)(u), jax.jacfwd(jax.jacrev(z))(u), y)


def perturbative(model: Quadratic) -> Solution:
    """θ^F and θ^I, the end of gradient flow to first order in ε.

    >>> model = Quadratic(jnp.zeros(1), jnp.array([[1.0, 0.0]]), jnp.array([[[0.0, 1.0], [1.0, 0.0]]]), jnp.ones(1))
    >>> solution = perturbative(model)
    >>> solution.free.tolist(), solution.off_span.tolist()
    ([1.0, 0.0], [0.0, 0.5])
    """
    z, phi, psi, y = model.training
    rate, vectors = jnp.linalg.eigh(phi @ phi.T)
    error, along = vectors.T @ (z - y), vectors.T @ phi
    bent = jnp.tensordot(vectors.T, psi, axes=1)
    free = -(error / rate) @ along
    on_span = -0.5 * (((bent @ free) @ free) / rate) @ along
    weights = error[:, None] * error / (rate[:, None] * (rate[:, None] + rate))
    left = jnp.einsum("pq,pmn,qn->m", weights, bent, along, optimize=True)
    return Solution(free, on_span, left - ((along @ left) / rate) @ along)


def free_at(model: Quadratic, time) -> jax.Array:
    """θ^F(t) = −φᵀ Θ⁻¹(1 − e^{−Θt}) e, the flow of the linear model.

    >>> model = Quadratic(jnp.zeros(1), jnp.array([[1.0, 0.0]]), jnp.zeros((1, 2, 2)), jnp.ones(1))
    >>> [round(float(value), 4) for value in free_at(model, 1.0)]
    [0.6321, 0.0]
    """
    z, phi, _, y = model.training
    rate, vectors = jnp.linalg.eigh(phi @ phi.T)
    return -((vectors.T @ (z - y)) * -jnp.expm1(-rate * time) / rate) @ (vectors.T @ phi)


def integrate(model: Quadratic, epsilon, time, accuracy: float = 1e-10) -> jax.Array:
    """θ after a time of gradient flow dθ/dt = −Σ_a φ^E_a (z_a − y_a), by a Runge–Kutta method: no expansion.

    >>> model = Quadratic(jnp.zeros(1), jnp.array([[1.0, 0.0]]), jnp.array([[[0.0, 1.0], [1.0, 0.0]]]), jnp.ones(1))
    >>> [round(float(value), 4) for value in integrate(model, 0.1, 30.0)]
    [0.9951, 0.0494]
    """
    data = model.training
    largest = jnp.trace(data.phi @ data.phi.T)

    def velocity(_, theta, __):
        return -(data.outputs(theta, epsilon) - data.y) @ data.features(theta, epsilon)

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5(),
        t0=0.0,
        t1=time,
        dt0=0.1 / largest,
        y0=jnp.zeros(data.phi.shape[1]),
        stepsize_controller=diffrax.PIDController(rtol=accuracy, atol=accuracy),
        max_steps=20_000,
    )
    assert solution.ys is not None
    return solution.ys[-1]
