"""Couplings of the nearly-Gaussian action of a layer, and how they change when neurons or inputs are dropped.

To order 1/n, m neurons at some inputs have the density e^{−S} (theory §6) with
    S(z) = ½ Σ_i g^{ab} z_ia z_ib − ⅛ Σ_ij v^{(ab)(cd)} z_ia z_ib z_jc z_jd,
    v^{(ab)(cd)} = V^{(ab)(cd)}/n      with all four indices raised by G⁻¹,  G = K + G1/n,
    g_m^{ab} = (G⁻¹)^{ab} + (m/2) v^{(ab)(cd)} G_cd + v^{(ac)(bd)} G_cd.
The term with m is the loop of all neurons, the crossed one joins the two pairs of a single neuron. For one input this
is 1/g_m = G − (m+2)/2 · V/(nG). Every formula here holds to first order in v.

V is a covariance, so the quartic term of the action S is never negative: e^{−S} grows without bound far out and is
meant as its expansion, which `OutputDensity` gives. What must be small is (m+2)/2 · V/(nG²), `Couplings.strength`: few
neurons of a wide network, not all neurons of a layer as wide as the one below it. It grows with the inputs as well.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from widthwise.errors import AccuracyWarning, InvalidInput, SingularKernel
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.memory import require_memory
from widthwise.network import MLP, check_inputs, check_integer, plain, real_array
from widthwise.network.validation import LEAST, check_real

#: Least eigenvalue of the correlations of K below which the inputs count as dependent.
DEPENDENT = 1e-12
#: Estimated relative errors of the quartic coupling above this are worth a warning.
QUARTIC_WARNING = 1e-3


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


class Running(NamedTuple):
    """Numbers of kept neurons m (falling to 1) and g_m on (m, inputs, inputs)."""

    neurons: np.ndarray
    quadratic: np.ndarray


@dataclass(frozen=True, eq=False)
class Couplings:
    """Couplings of m neurons of a layer at some inputs, with what they are made of.

    `K`, `G1` (inputs, inputs) and `V` (inputs, inputs, inputs, inputs) as in theory §3, `n` the width of the layer
    below, `m` the neurons kept, `layer` where, `error` the estimated relative error of V raised by G⁻¹.
    `couplings` makes one from a network.

    >>> c = Couplings(np.eye(2), np.zeros((2, 2)), np.einsum("ab,cd->abcd", np.eye(2), np.eye(2)), n=100, m=4)
    >>> m, g = c.running()
    >>> m.tolist(), g[:, 0, 0].round(9).tolist()
    ([4, 3, 2, 1], [1.05, 1.04, 1.03, 1.02])
    >>> round(c.keep(1).marginal([0]).quadratic.item(), 9)
    1.015
    """

    K: np.ndarray
    G1: np.ndarray
    V: np.ndarray
    n: int
    m: int
    layer: int = 0
    error: float = 0.0

    def __post_init__(self) -> None:
        _refuse_dependent(self.K)

    @property
    def inputs(self) -> int:
        """How many inputs."""
        return len(self.K)

    @property
    def G(self) -> np.ndarray:
        """K + G1/n, the two-point function to order 1/n."""
        return self.K + self.G1 / self.n

    def require_positive(self) -> None:
        """Refuse a width so small that G = K + G1/n is no covariance."""
        if linalg.eigvalsh(self.G, self.K, subset_by_index=[0, 0])[0] <= 0.0:
            expected = "a width at which K + G1/n is positive definite"
            raise InvalidInput("n", str(self.n), expected, "Use a wider network: 1/n is not small here.")

    @cached_property
    def action(self) -> Action:
        """g_m and v together."""
        self.require_positive()
        return action_from_correlators(self.G, self.V / self.n, self.m)

    @property
    def quadratic(self) -> np.ndarray:
        """g_m^{ab}, expanded to order 1/n: exactly linear in m."""
        return self.action.quadratic

    @property
    def quartic(self) -> np.ndarray:
        """v^{(ab)(cd)}, which does not depend on m to this order."""
        return self.action.quartic

    @property
    def inverse_quadratic(self) -> np.ndarray:
        """G_ab − (m/2) V_(ab)(cd) G^{cd}/n − V_(ac)(bd) G^{cd}/n: the inverse of g_m, expanded to order 1/n."""
        return self.G - self.G @ loops(self.quartic, self.G, self.m) @ self.G

    @property
    def strength(self) -> float:
        """Largest relative size of the order-1/n term in g_m; one input: (m+2)/2 · V/(nG²). It must be small."""
        return float(np.abs(linalg.eigvalsh(self.G @ self.quadratic @ self.G, self.G) - 1.0).max())

    def keep(self, neurons: int) -> Couplings:
        """Integrate out all but so many neurons."""
        return replace(self, m=check_count(neurons, self.m, "neurons", f"the {self.m} that are there"))

    def marginal(self, inputs: Sequence[int]) -> Couplings:
        """Integrate out all but these inputs, given by their rows; they are counted anew in the order given."""
        count = len(inputs) if hasattr(inputs, "__len__") else 1
        rows = list(check_indices("inputs", inputs, count, self.inputs))
        if not rows or len(set(rows)) < len(rows):
            expected = f"at least one of the rows 0 to {self.inputs - 1}, none twice"
            raise InvalidInput("inputs", repr(rows), expected)
        pair, four = np.ix_(rows, rows), np.ix_(rows, rows, rows, rows)
        return replace(self, K=self.K[pair], G1=self.G1[pair], V=self.V[four])

    def running(self) -> Running:
        """g_m for every m from the neurons that are there down to one, `quadratic` on (m, inputs, inputs)."""
        counts = np.arange(self.m, 0, -1)
        loop = np.einsum("abcd,cd->ab", self.quartic, self.G)
        return Running(counts, self.quadratic - 0.5 * (self.m - counts)[:, None, None] * loop)

    def two_point(self, neurons: Sequence[int], inputs: Sequence[int]) -> float:
        """E[z_ia z_jb] = δ_ij (K + G1/n)_ab (theory §3); neurons and inputs are counted from zero."""
        i, j = check_indices("neurons", neurons, 2, self.m)
        a, b = check_indices("inputs", inputs, 2, self.inputs)
        return float((i == j) * self.G[a, b])

    def four_point(self, neurons: Sequence[int], inputs: Sequence[int]) -> float:
        """E[z_ia z_jb z_kc z_ld] connected: (δ_ij δ_kl V_(ab)(cd) + δ_ik δ_jl V_(ac)(bd) + δ_il δ_jk V_(ad)(bc))/n."""
        i, j, k, w = check_indices("neurons", neurons, 4, self.m)
        a, b, c, d = check_indices("inputs", inputs, 4, self.inputs)
        total = (i == j) * (k == w) * self.V[a, b, c, d]
        total += (i == k) * (j == w) * self.V[a, c, b, d]
        total += (i == w) * (j == k) * self.V[a, d, b, c]
        return float(total) / self.n

    def correlator(self, neurons: Sequence[int], inputs: Sequence[int]) -> float:
        """The connected correlator of two or of four preactivations; `two_point` or `four_point` by the count."""
        count = len(neurons) if hasattr(neurons, "__len__") else 0
        if count not in (2, 4):
            raise InvalidInput("neurons", repr(neurons), "two or four neurons", "Higher ones are of order 1/n².")
        return (self.two_point if count == 2 else self.four_point)(neurons, inputs)

    def action_at(self, z: Any) -> np.ndarray:
        """S(z) without its constant; z (…, neurons, inputs), or any shape for one neuron at one input."""
        z = check_preactivations(z, self.m, self.inputs)
        M = np.einsum("...ia,...ib->...ab", z, z)
        quartic = np.einsum("...ab,abcd,...cd->...", M, self.quartic, M, optimize=True)
        return 0.5 * np.einsum("ab,...ab->...", self.quadratic, M) - 0.125 * quartic


def couplings(
    net: MLP, X: Any, layer: int | None = None, neurons: int | None = None, *, tolerance: float = 1e-9
) -> Couplings:
    """Couplings of the nearly-Gaussian action of a layer at the inputs X (theory §6).

    Parameters
    ----------
    net : the network.
    X : array (inputs, features), rows that the kernel of the layer can distinguish.
    layer : 1 … depth; the output by default.
    neurons : how many neurons of the layer are kept, the others integrated out; all of them by default.
    tolerance : relative accuracy of the four-point expectations.

    Examples
    --------
    >>> import widthwise as ww
    >>> net = ww.MLP([2, 100, 100, 3], "relu", C_W=2.0)
    >>> c = couplings(net, [[1.0, 1.0]], neurons=1)
    >>> [round(float(value), 9) for value in (c.K[0, 0], c.V[0, 0, 0, 0], c.quartic[0, 0, 0, 0])]   # V = 5(l−1)K²
    [2.0, 40.0, 0.025]
    >>> round(float(c.quadratic[0, 0]), 9), round(c.four_point((0, 0, 0, 0), (0, 0, 0, 0)), 9)
    (0.575, 1.2)
    """
    net = plain(net, "couplings")
    X = check_inputs(X, net.widths[0])
    layer = net.depth if layer is None else check_count(layer, net.depth, "layer", "the depth of the network")
    width = net.widths[layer]
    m = width if neurons is None else check_count(neurons, width, "neurons", f"the width of layer {layer}")
    needed = 8 * 8 * len(X) ** 4
    require_memory(needed, f"a quartic coupling of {len(X)} inputs", "Ask for fewer inputs at a time.")
    below = net.up_to(layer)
    _refuse_dependent(kernel_flow(below, X, with_theta=False, last_only=True).K[-1])
    tolerance = check_real("tolerance", tolerance, "a positive number", least=LEAST)
    flow = finite_flow(below, X, ("V", "G1"), last_only=True, tolerance=tolerance)
    K, G1, V = flow.K[-1], flow.tensors["G1"][-1], flow.tensors["V"][-1]
    made = Couplings(K, G1, V, net.widths[layer - 1], m, layer)
    return replace(made, error=_amplified(flow.error, K, V))


def check_count(value: Any, largest: int, name: str, why: str) -> int:
    """An integer from 1 to `largest`."""
    return check_integer(name, value, 1, largest, f"an integer from 1 to {largest}, {why}")


def check_indices(name: str, values: Any, count: int, size: int) -> tuple[int, ...]:
    """So many integers from 0 to size − 1."""
    expected = f"{count} integers from 0 to {size - 1}"
    try:
        found = tuple(values)
        if any(isinstance(value, bool) for value in found):
            raise TypeError
        found = tuple(operator.index(value) for value in found)
    except TypeError:
        raise InvalidInput(name, repr(values), expected) from None
    if len(found) != count or not all(0 <= value < size for value in found):
        raise InvalidInput(name, repr(found), expected)
    return found


def check_preactivations(z: Any, neurons: int, inputs: int) -> np.ndarray:
    """Preactivations as (…, neurons, inputs); with one neuron and one input, any shape."""
    z = real_array(z, "z")
    if neurons == inputs == 1:
        return z[..., None, None]
    if z.shape[-2:] != (neurons, inputs):
        hint = "Write z[..., None, :] for one neuron." if neurons == 1 else ""
        hint = "Write z[..., None] for one input." if inputs == 1 else hint
        raise InvalidInput("z", f"shape {z.shape}", f"shape (…, {neurons}, {inputs}): neurons, inputs", hint)
    return z


def _refuse_dependent(K: np.ndarray) -> None:
    """K⁻¹ must exist: name the rows of X whose preactivations are dependent."""
    remedy = "Keep one row of each such group, with X[[…]], for the others follow from it."
    expected = "inputs that the kernel of this layer tells apart"
    scale = np.sqrt(np.diag(K))
    if not np.all(scale > 0.0):
        row = int(np.argmin(scale))
        raise SingularKernel("X", f"row {row}, on which K = 0", "inputs with K > 0", "Drop that row, or set C_b > 0.")
    correlation = K / np.outer(scale, scale)
    pairs = np.argwhere(np.triu(1.0 - np.abs(correlation) <= DEPENDENT, 1))
    if len(pairs):
        named = "; ".join(f"{a} and {b}" for a, b in pairs[:5].tolist())
        got = f"rows {named}, which coincide or are proportional in K, so that K is singular"
        raise SingularKernel("X", got, expected, remedy)
    values, vectors = linalg.eigh(correlation)
    if values[0] <= DEPENDENT:
        rows = np.flatnonzero(np.abs(vectors[:, 0]) > 0.01 * np.abs(vectors[:, 0]).max())
        named = ", ".join(map(str, rows[:8].tolist()))
        got = f"rows {named}, whose preactivations are linearly dependent (least eigenvalue {values[0]:.0e} of K)"
        raise SingularKernel("X", got, expected, "Drop one of those rows; layer 1 allows at most n_0 + 1 inputs.")


def _amplified(error: float, K: np.ndarray, V: np.ndarray) -> float:
    """Relative error of V in units in which K is the identity: small eigenvalues of K amplify it."""
    if not V.any():
        return error
    values, vectors = linalg.eigh(K)
    white = transform(V, vectors / np.sqrt(values))
    absolute = error * (np.abs(V).max() + K.max() ** 2) / values[0] ** 2
    relative = float(absolute / np.abs(white).max())
    if relative > QUARTIC_WARNING:
        warnings.warn(
            f"couplings: estimated relative error {relative:.1e} of the quartic coupling, above {QUARTIC_WARNING:.0e}: "
            f"nearly dependent inputs (least eigenvalue of K {values[0]:.1e}, largest {values[-1]:.1e})",
            AccuracyWarning,
            stacklevel=3,
        )
    return relative
