"""What the page shows of the theory, as plain arrays, fast enough to follow a slider.

Programs are compiled for a length. So flows whose length is compiled in go on to one fixed depth, through layers of
kernel one, and are cut where the network ends: a layer depends on the layers below alone. Kernels that explode are
followed up to `EXPLODED` only.

K and Θ of two inputs together (theory §2) take the library's own route where the activation has a closed form. For the
others one program is compiled an activation: all layers in one loop, ⟨σ_aσ_b⟩ and ⟨σ'_aσ'_b⟩ by the trapezoidal rule
in the plane. It converges geometrically where σ varies on the scale of the nodes: correlations are accurate to 1e-6,
and to 1e-5 at kernels in the thousands, where softplus and swish are nearly kinked. Downloads do not use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from widthwise.activations import Activation
from widthwise.criticality.advice import Advice, advise_on_network
from widthwise.criticality.blocks import BlockForm, Norm
from widthwise.criticality.critical import Critical, critical
from widthwise.criticality.deep_fluctuations import deep_fluctuations
from widthwise.criticality.learning_rates import largest_stable_step
from widthwise.criticality.phase_diagram import PHASE_NAMES, PhaseDiagram, critical_line, phase_grid
from widthwise.errors import InvalidInput, NotCritical
from widthwise.explorer.settings import CONTROLS, DEEPEST_PAGE, Settings
from widthwise.flow.action.couplings import Couplings
from widthwise.flow.action.output_density import OutputDensity
from widthwise.flow.exact.chain import kernel_laws
from widthwise.flow.exact.lattice import COARSE
from widthwise.flow.exact.law import ExactLaw
from widthwise.flow.kernels.kernel_flow import Hyper, kernel_flow
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.flow.one_input.scaled_numbers import value_of
from widthwise.gaussian.kernel_rules import dense_kernel, dense_step
from widthwise.network import MLP, PER_LAYER, Network
from widthwise.results.labels import label, layer_coordinate
from widthwise.tensors import TENSORS

#: Tensors over their natural scale that are shown; all of them exist for continuous activations.
DRAWN_TENSORS = ("V", "G1", "A", "B", "D", "F", "H1")
#: Kernels above this are not followed, unless σ is a straight line on either side of zero.
EXPLODED = 1e4
#: Layers within which the expansion may fail.
SEARCHED = 256
#: Points of a density, and how many standard deviations they reach.
_DENSITY_POINTS, _DENSITY_REACH = 241, 4.5
#: Nodes of one axis of the plane, and of an input with itself, and how many standard deviations they reach.
_PLANE, _LINE, _NODE_REACH = 145, 2049, 6.0


@dataclass(frozen=True, eq=False)
class Theory:
    """K and Θ (layer, 2) of the inputs a and b, each with itself; of a, ratios by tensor (layer,) and densities of z.

    `gaussian` and `edgeworth` are the density at infinite width and to order 1/n, at the points `z`. Where a kernel
    exceeds `EXPLODED` before the output, `net` ends at the layer before and `exploded` is the first layer beyond. With
    skips or normalisation only V, A and B are known here; other ratios and the density to order 1/n are NaN.
    """

    settings: Settings
    net: Network
    K: np.ndarray
    Theta: np.ndarray
    ratios: dict[str, np.ndarray]
    z: np.ndarray
    gaussian: np.ndarray
    edgeworth: np.ndarray
    exploded: int | None = None

    @property
    def layers(self) -> np.ndarray:
        return np.arange(1, self.net.depth + 1)

    @property
    def widths(self) -> np.ndarray:
        """n of a layer's 1/n: the width of the layer below, (layer,)."""
        return np.asarray(self.net.widths[:-1])

    @property
    def finite_K(self) -> np.ndarray:
        """K_aa + G1/n: the mean at this width to order 1/n, (layer,)."""
        return self.K[:, 0] * (1.0 + self.ratios["G1"] / self.widths)


@dataclass(frozen=True, eq=False)
class InputPair:
    """K and Θ (layer, 2, 2) of the inputs a and b together."""

    theory: Theory
    K: np.ndarray
    Theta: np.ndarray

    def correlation(self, name: str) -> np.ndarray:
        """K_ab/√(K_aa K_bb), or the same of Theta, (layer,)."""
        kernel = getattr(self, name)
        scale = np.sqrt(kernel[:, 0, 0] * kernel[:, 1, 1])
        return kernel[:, 0, 1] / np.where(scale > 0.0, scale, np.inf)

    def dataset(self) -> xr.Dataset:
        """Everything by layer, labelled."""
        pair, theory = ("layer", "a", "b"), self.theory
        variables = {"K": (pair, self.K), "Theta": (pair, self.Theta)}
        variables |= {f"{name}_ratio": (("layer",), values) for name, values in theory.ratios.items()}
        made = label(variables, theory.net, layer_coordinate(tuple(theory.layers.tolist())), kind="theory")
        made["X"] = (("a", "feature"), theory.settings.inputs)
        for name in theory.ratios:
            i, j = TENSORS[name].scale
            made[f"{name}_ratio"].attrs["long_name"] = f"{name}/(K^{i} Θ^{j}) of input a (theory §4, §5)"
        return made


def theory_of(settings: Settings) -> Theory:
    """Kernels, ratios and densities for one state of the page (theory §2 to §6).

    >>> found = theory_of(Settings(activation="relu", C_W=2.0, C_b=0.0, depth=3, width=100))
    >>> found.K[:, 0].round(12).tolist(), found.ratios["V"].round(9).tolist()
    ([2.0, 2.0, 2.0], [0.0, 5.0, 10.0])
    """
    exploded = _explodes(settings)
    net = settings.network(depth=exploded and exploded - 1)
    X, rows = settings.inputs, slice(net.depth)
    if not isinstance(net, MLP):
        return _block_theory(settings, net, exploded)
    longer = continued(net)
    flows = [single_flow(longer, x, wanted, True) for x, wanted in zip(X, (DRAWN_TENSORS, ()), strict=True)]
    both, Theta = (np.stack([value_of(getattr(flow, name))[rows] for flow in flows], axis=1) for name in ("K", "Theta"))
    ratios = {name: np.asarray(values[rows]) for name, values in flows[0].ratios.items()}
    K = float(both[-1, 0])
    shift, V = ratios["G1"][-1] * K, ratios["V"][-1] * K**2
    made = Couplings(np.full((1, 1), K), np.full((1, 1), shift), np.full((1,) * 4, V), n=net.n, m=1)
    z, gaussian = _gaussian(K)
    edgeworth = OutputDensity(made).density(z)
    return Theory(settings, net, both, Theta, ratios, z, gaussian, edgeworth, exploded)


def _gaussian(K: float) -> tuple[np.ndarray, np.ndarray]:
    """Points, and the density of N(0, K) there."""
    z = np.linspace(-_DENSITY_REACH, _DENSITY_REACH, _DENSITY_POINTS) * np.sqrt(K)
    return z, np.exp(-0.5 * z**2 / K) / np.sqrt(2.0 * np.pi * K)


def _block_theory(settings: Settings, net: Network, exploded: int | None) -> Theory:
    """The same with skips or normalisation (theory §11, §12)."""
    K, Theta = (kernel[:, [0, 1], [0, 1]] for kernel in _block_pair(settings, net))
    found = deep_fluctuations(net, settings.size_a)
    ratios = {name: getattr(found, name, np.full(net.depth, np.nan)) for name in DRAWN_TENSORS}
    z, gaussian = _gaussian(float(K[-1, 0]))
    return Theory(settings, net, K, Theta, ratios, z, gaussian, np.full(len(z), np.nan), exploded)


def _block_pair(settings: Settings, net: Network) -> tuple[np.ndarray, np.ndarray]:
    """K and Θ (layer, 2, 2) of both inputs with skips or normalisation."""
    (gamma, norm), depth, X = settings.block, net.depth, settings.inputs
    plain, skips = settings.plain(depth=depth), np.zeros(DEEPEST_PAGE)
    if plain.activation.closed is not None:
        flow = kernel_flow(net, X)
        assert flow.Theta is not None
        return flow.K, flow.Theta
    skips[1 : depth - 1] = gamma
    gram = (X @ X.T / X.shape[1])[[0, 0, 1], [0, 1, 1]]
    found = _planar_flow(plain.activation, norm is not None, Hyper.of(continued(plain)), skips, gram)
    full = np.array([[0, 1], [1, 2]])
    K, Theta = (np.asarray(kernel)[:depth][:, full] for kernel in found)
    return K, Theta


def continued(net: MLP) -> MLP:
    """The network, going on to the page's largest depth through layers of kernel one, which cannot explode."""
    more = DEEPEST_PAGE - net.depth
    after = {"C_b": 1.0, "C_W": 0.0, "lambda_b": 1.0, "lambda_W": 1.0}
    hyper = {name: [*getattr(net, name), *[after[name]] * more] for name in PER_LAYER}
    return MLP([*net.widths[:-1], *[net.n] * more, net.widths[-1]], net.activation, **hyper)


def pair_of(found: Theory) -> InputPair:
    """The two inputs together, to the accuracy of a chart: correlations to 1e-5.

    >>> pair = pair_of(theory_of(Settings(activation="relu", C_W=2.0, C_b=0.0, depth=3, angle=90.0)))
    >>> pair.correlation("K").round(5).tolist()
    [0.0, 0.31831, 0.49373]
    """
    if not isinstance(found.net, MLP):
        return InputPair(found, *_block_pair(found.settings, found.net))
    return InputPair(found, *pair_kernels(found.net, found.settings.inputs))


def pair_kernels(net: MLP, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K and Θ (layer, 2, 2) of the two rows of X.

    >>> K, Theta = pair_kernels(MLP([2, 8, 8, 1], "tanh", C_W=2.0), np.eye(2))
    >>> Theta[0].tolist(), bool(np.all(np.abs(K[:, 0, 1]) < 1e-12))
    ([[1.5, 1.0], [1.0, 1.5]], True)
    """
    rows, longer = slice(net.depth), continued(net)
    if net.activation.closed is not None:
        flow = kernel_flow(longer, X)
        assert flow.Theta is not None
        return flow.K[rows], flow.Theta[rows]
    gram = X @ X.T / net.widths[0]
    plain = np.zeros(longer.depth)
    K, Theta = _planar_flow(net.activation, False, Hyper.of(longer), plain, gram[[0, 0, 1], [0, 1, 1]])
    full = np.array([[0, 1], [1, 2]])
    return np.asarray(K)[rows][:, full], np.asarray(Theta)[rows][:, full]


def _normal_nodes(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal variable."""
    u = np.linspace(-_NODE_REACH, _NODE_REACH, nodes)
    weights = np.exp(-0.5 * u**2)
    return u, weights / weights.sum()


@partial(jax.jit, static_argnums=(0, 1))
def _planar_flow(activation: Activation, normalised: bool, hyper: Hyper, skips, gram):
    """K and Θ (layer, 3) of the pairs aa, ab, bb; with the skips γ of the layers, and RMSNorm before σ or not."""
    (line, line_weights), (u, weights) = _normal_nodes(_LINE), _normal_nodes(_PLANE)
    functions = activation.derivative(0), activation.derivative(1)

    def step(kernels, layer):
        (stream_K, stream_Theta), (hyper, skip) = kernels, layer
        K, Theta = kernels
        if normalised:
            R_a, R_b = K[0] + Norm("rms").epsilon, K[2] + Norm("rms").epsilon
            root = jnp.stack([R_a, jnp.sqrt(R_a * R_b), R_b])
            K, Theta = K / root, Theta / root
        a, b = jnp.sqrt(K[0]), jnp.sqrt(K[2])
        rho = jnp.clip(K[1] / jnp.where(a * b > 0.0, a * b, 1.0), -1.0, 1.0)
        z_b = b * (rho * u[:, None] + jnp.sqrt(1.0 - rho**2) * u)
        found = []
        for f in functions:
            aa, bb = (line_weights @ f(scale * line) ** 2 for scale in (a, b))
            found.append(jnp.stack([aa, (weights * f(a * u)) @ (f(z_b) @ weights), bb]))
        K, Theta = dense_step(hyper, found[0], found[1] * Theta)
        kernels = skip**2 * stream_K + K, skip**2 * stream_Theta + Theta
        return kernels, kernels

    start = dense_step(hyper[0], gram, 0.0)
    _, above = jax.lax.scan(step, start, (hyper[1:], skips[1:]))
    return [jnp.concatenate([first[None], rest]) for first, rest in zip(start, above, strict=True)]


def precise_pair_of(found: Theory) -> InputPair:
    """Both inputs to the accuracy of the library, which may take seconds where they nearly coincide."""
    flow = kernel_flow(found.net, found.settings.inputs)
    assert flow.Theta is not None
    return InputPair(found, flow.K, flow.Theta)


def _explodes(settings: Settings) -> int | None:
    """The first layer at which a kernel exceeds `EXPLODED`, counted from 1; None if there is none."""
    net, form = settings.plain(), BlockForm.of(*settings.block)
    shape = form.profile(net.activation)
    if shape.slopes is not None and not form.skip:
        return None
    K = dense_kernel(settings.C_b, settings.C_W, np.array([settings.size_a, settings.size_b]))
    for layer in range(2, net.depth + 1):
        kept = form.skip**2 * K if layer < net.depth else 0.0
        K = kept + dense_kernel(settings.C_b, settings.C_W, shape.moments(K).square)
        if K.max() > EXPLODED:
            return max(layer, 3)
    return None


def exact_density(found: Theory) -> np.ndarray:
    """The density of the output at input a at this width, without an expansion, at the points of the others.

    Accurate to about 5e-5 of its height; NaN where it is infinite.
    """
    assert isinstance(found.net, MLP)
    law = ExactLaw(*kernel_laws(found.net, found.settings.inputs[0], COARSE, found.K[:, 0]))
    density = law.density(found.z)
    return np.where(np.isfinite(density), density, np.nan)


def advice_of(settings: Settings) -> Advice:
    """`advise` for both inputs; the depth at which the expansion fails is looked for within `SEARCHED` layers.

    >>> advice_of(Settings(activation="relu", C_W=2.0, C_b=0.0)).verdict
    'critical'
    """

    def largest_step(net: Network, X: np.ndarray) -> float:
        """2/λ_max of Θ on the two inputs (theory §8)."""
        if not isinstance(net, MLP):
            return largest_stable_step(net, X)
        largest = float(np.linalg.eigvalsh(pair_kernels(net, X)[1][-1])[-1])
        return 2.0 / largest if largest > 0.0 else float("inf")

    return advise_on_network(settings.network(), settings.inputs, deepest=SEARCHED, largest_step=largest_step)


@dataclass(frozen=True, eq=False)
class Phases:
    """The phase diagram of one activation over the range of the sliders, its critical line and critical point."""

    grid: PhaseDiagram
    line: tuple[np.ndarray, np.ndarray]
    point: Critical | None


@lru_cache(maxsize=64)
def phases_of(activation: str, skip: float = 0.0, norm: str | None = None) -> Phases:
    """For an input with x·x/n_0 = 1 (theory §7).

    >>> phases_of("relu").point.C_W, phases_of("sigmoid").point
    (2.0, None)
    """
    across, up = CONTROLS["C_W"], CONTROLS["C_b"]
    C_W, C_b = np.linspace(across.low, across.high, 159), np.linspace(up.low, up.high, 101)
    if skip >= 1.0:  # K grows everywhere
        endless = np.full((len(C_b), len(C_W)), np.inf)
        divergent = np.full(endless.shape, PHASE_NAMES.index("divergent"))
        return Phases(PhaseDiagram(C_W, C_b, endless, endless, endless, divergent), (np.empty(0), np.empty(0)), None)
    grid = phase_grid(activation, C_W, C_b, skip=skip, norm=norm)
    try:
        point = critical(activation, skip=skip, norm=norm)
    except NotCritical:
        point = None
    try:
        _, line_W, line_b = critical_line(activation, skip=skip, norm=norm)
    except InvalidInput:
        # a₊z, a₋z: χ_⊥ depends on C_W alone
        assert point is not None
        line_W, line_b = np.full(2, point.C_W), np.array([up.low, up.high])
    kept = (line_W <= across.high) & (line_b <= up.high)
    return Phases(grid, (line_W[kept], line_b[kept]), point)
