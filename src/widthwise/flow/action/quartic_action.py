"""The nearly-Gaussian action: its couplings from correlators, correlators from couplings, neurons integrated out.

To order 1/n, m neurons at some inputs have the density e^{−S} (theory §6) with
    S(z) = ½ Σ_i g^{ab} z_ia z_ib − ⅛ Σ_ij v^{(ab)(cd)} z_ia z_ib z_jc z_jd,
    v^{(ab)(cd)} = V^{(ab)(cd)}/n      with all four indices raised by G⁻¹,  G = K + G1/n,
    g_m^{ab} = (G⁻¹)^{ab} + (m/2) v^{(ab)(cd)} G_cd + v^{(ac)(bd)} G_cd.
The term with m is the loop of all neurons, the crossed one joins the two pairs of a single neuron. For one input this
is 1/g_m = G − (m+2)/2 · V/(nG). Every formula here holds to first order in v.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Action(NamedTuple):
    """Quadratic coupling g (inputs, inputs) and quartic coupling v (inputs, inputs, inputs, inputs)."""

    quadratic: np.ndarray
    quartic: np.ndarray


def action_from_correlators(G: np.ndarray, four: np.ndarray, m: int) -> Action:
    """Couplings of m neurons with E[zz] = G and connected four-point function `four` = V/n (theory §6).

    >>> G, four = np.array([[2.0]]), np.full((1, 1, 1, 1), 0.16)
    >>> g, v = action_from_correlators(G, four, m=1)
    >>> float(v[0, 0, 0, 0]), float(g[0, 0])                # V/(nG⁴) and 1/G + 3/2 · V/(nG³)
    (0.01, 0.53)
    """
    precision = np.linalg.inv(G)
    v = transform(four, precision)
    return Action(symmetric(precision) + loops(v, G, m), v)


def correlators_from_action(g: np.ndarray, v: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """G and V/n of m neurons whose action has couplings g and v, to first order in v: the way back (theory §6).

    >>> g, v = np.array([[0.53]]), np.full((1, 1, 1, 1), 0.01)
    >>> G, four = correlators_from_action(g, v, m=1)
    >>> G.round(2).tolist()
    [[1.99]]
    """
    bare = symmetric(np.linalg.inv(g))
    return bare + bare @ loops(v, bare, m) @ bare, transform(v, bare)


def integrate_out(g: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
    """Quadratic coupling after integrating out `count` neurons: g − (count/2) v^{(ab)(cd)} (g⁻¹)_cd (theory §6).

    To this order v stays as it is. One input: g_m = g_n − (n−m)/2 · v/g_n.

    >>> integrate_out(np.array([[0.5]]), np.full((1, 1, 1, 1), 0.01), 3).round(12).tolist()
    [[0.47]]
    """
    return g - 0.5 * count * np.einsum("abcd,cd->ab", v, np.linalg.inv(g))


def crossed(four: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """T_(ab)(cd) contracted with kernel_ac: the legs of one neuron joined across the two pairs, (b, d)."""
    return np.einsum("abcd,ac->bd", four, kernel)


def loops(v: np.ndarray, G: np.ndarray, m: int) -> np.ndarray:
    """(m/2) v^{(ab)(cd)} G_cd + v^{(ac)(bd)} G_cd."""
    return symmetric(0.5 * m * np.einsum("abcd,cd->ab", v, G) + crossed(v, G))


def transform(four: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """T_efgh M_ea M_fb M_gc M_hd: a change of basis on each of the four indices."""
    for _ in range(4):
        four = np.tensordot(four, matrix, (0, 0))  # the first axis comes back as the last
    return four


def symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
