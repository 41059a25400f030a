"""Activations that a user might write, and an independent check of a critical point."""

import jax
import jax.numpy as jnp

import widthwise as ww

softsign = ww.activation(lambda z: z / (1 + jnp.abs(z)), kinks=[0.0], name="softsign")
elu = ww.activation(jax.nn.elu, kinks=[0.0], name="elu")


def mish(z):
    return z * jnp.tanh(jax.nn.softplus(z))


def defect(activation, point) -> float:
    """How far a point is from K = g(K), χ_∥ = χ_⊥ = 1, by the library's other route to Gaussian expectations."""
    K = point.K_star

    def mean(p, q):
        return float(ww.expectation(activation, K, orders=(p, q)).value)

    g = point.C_b + point.C_W * mean(0, 0)
    chi_perp = point.C_W * mean(1, 1)
    chi_parallel = chi_perp + point.C_W * mean(0, 2)
    return max(abs(g / K - 1.0), abs(chi_perp - 1.0), abs(chi_parallel - 1.0))
