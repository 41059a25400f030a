"""One input through very deep networks with residual connections and normalisation (theory §11, §12).

K and Θ are carried as in `deep_flow`. Then, for some layers at a time, the Hermite coefficients of all products of
derivatives of σ that the rules read are integrated at once, and `one_input_rules` takes tensors and functionals from
layer to layer: layer by layer in numpy for a few, by one compiled loop for many. All is done twice, with functionals of
all degrees and of half of them, and what the difference makes is the error that is reported. Where σ varies fast within
the Gaussian, so that too many degrees were needed, functionals are carried on points.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from widthwise.activations import Activation, intervals, jet
from widthwise.activations.resolution import PANEL_NODES
from widthwise.blas_threads import with_one_blas_thread
from widthwise.flow.kernels.kernel_flow import Hyper
from widthwise.flow.one_input.deep_flow import (
    MOST_PADDED,
    KernelSteps,
    SingleFlow,
    SkipsAndNorms,
    input_square,
    mixed_flow,
    single_kernels,
    single_theta,
    term_table,
    without_empty,
)
from widthwise.flow.one_input.one_input_rules import (
    NodeExpectations,
    Nodes,
    OneInputStep,
    SigmaProduct,
    StepKind,
    StepNumbers,
    StepState,
    one_step,
    step_needs,
    through_rules,
)
from widthwise.flow.one_input.scaled_numbers import Scaled, scaled_number, value_of
from widthwise.flow.one_input.single_expectations import Homogeneous, pair
from widthwise.flow.tensors.block_flow import block_specifications
from widthwise.flow.tensors.tensor_flow import required
from widthwise.gaussian.hermite import shared_edges, weighted_basis
from widthwise.gaussian.quadrature import COARSE_NODES, REACH
from widthwise.network import Network
from widthwise.network.layers.dense import Dense

#: Deeper networks are worth compiling a loop for.
COMPILED_DEPTH = 200
#: Layers whose expectations are held at once: fewest, most, and coefficients of one product in all of them.
LAYERS_AT_ONCE, MOST_LAYERS_AT_ONCE, _SERIES_AT_ONCE = 64, 4096, 1 << 15
#: Degrees of functionals: what is tried first, and what no network gets more of.
FEWEST_DEGREES, MOST_DEGREES = 64, 4096
#: Functionals are taken to more degrees as long as the last half of them changes a ratio by more than this.
MEMORY_TOLERANCE = 1e-10
#: Node values in one temporary array.
_SERIES_POINTS = 1 << 20
#: Where functionals would take more degrees than this, they are carried on points instead, of so many at most.
FEW_DEGREES, MOST_POINTS = 512, 30_000
#: How far points reach in u, and their step in z.
NODES_REACH, NODE_STEP = 8.5, 0.17
_NO_PLAIN_LAYER = "a network with skips or norms begins with a dense layer, which is checked before"


@with_one_blas_thread
def single_block_flow(
    net: Network, x: np.ndarray, wanted: tuple[str, ...], with_theta: bool, degrees: int | None = None
) -> SingleFlow:
    """As `single_flow`, for a network with skips or norms; with functionals of given `degrees` (3: local closure).

    >>> from widthwise.network import ResMLP
    >>> flow = single_block_flow(ResMLP([1, 9, 9, 9, 1], "linear"), np.ones(1), ("V",), False)
    >>> flow.ratios["V"].round(12).tolist()                              # on the stream 3/2 a block, 2 at the output
    [0.0, 1.5, 3.0, 5.0]
    """
    blocks, carried = block_specifications(net, "single_input"), required(wanted)
    if len({block.activation for block in blocks}) > 1:
        return mixed_flow(net, x, wanted, with_theta)
    first = net.layers[0]
    assert isinstance(first, Dense), _NO_PLAIN_LAYER
    dense = [first, *(block.dense for block in blocks)]
    more = (1 << max(3, (net.depth - 1).bit_length())) - net.depth if net.depth <= MOST_PADDED else 0

    def column(values: list, end: Any = 0.0) -> np.ndarray:
        return np.array(values + [end] * more)

    hyper = Hyper(*(column([getattr(one, name) for one in dense], name == "C_b") for name in Hyper.__annotations__))
    norms = [block.norm for block in blocks]
    layers = SkipsAndNorms(
        gamma=column([block.scale for block in blocks]),
        epsilon=column([0.0 if norm is None else norm.epsilon for norm in norms]),
        before=column([block.before and block.norm is not None for block in blocks], False),
        after=column([not block.before and block.norm is not None for block in blocks], False),
        centred=column([norm is not None and norm.centred for norm in norms], False),
    )
    gram, activation = input_square(x), blocks[0].activation
    rungs, steps = single_kernels(activation, hyper, gram, net.depth, layers)
    Theta, route, error, steps_taken = None, rungs.route, 1e-15, slice(net.depth - 1)
    if with_theta:
        slopes, error = term_table(rungs, (pair(1, 1),), steps)
        Theta = jax.tree.map(np.asarray, single_theta(hyper, gram, steps, slopes[:, 0], layers.gamma))
    ratios: dict[str, np.ndarray] = {}
    if carried:
        r = np.ones(len(layers.gamma))
        r[steps_taken] = np.asarray(net.widths[1:-1]) / np.asarray(net.widths[:-2])
        numbers = jax.tree.map(lambda one: np.asarray(one)[steps_taken], _step_numbers(hyper, layers, steps, Theta, r))
        kernels = np.ones(net.depth - 1) if isinstance(rungs, Homogeneous) else value_of(steps.seen[steps_taken])
        flow = _BlockCarry(activation, [StepKind.of(block) for block in blocks], numbers, kernels, wanted, carried)
        degrees, (found, more_error) = flow.adaptive() if degrees is None else (degrees, flow.through(degrees))
        ratios, error = without_empty(found, steps.K[: net.depth], Theta and Theta[: net.depth]), max(error, more_error)
        carried_as = f"Hermite series of {degrees} degrees" if degrees else "points"
        route += f", memory as {carried_as}" if flow.remembers else ""
    kept = slice(net.depth)
    return SingleFlow(steps.K[kept], Theta and Theta[kept], ratios, route, error)


@jax.jit
def _step_numbers(hyper: Hyper, layers: SkipsAndNorms, steps: KernelSteps, Theta: Scaled | None, r) -> StepNumbers:
    """The numbers of every step in the units of `one_input_rules`."""
    below, above = steps.K[:-1], steps.K[1:]
    growth, zeros = above / below, jnp.zeros(len(r))
    own = jax.tree.map(partial(jnp.where, layers.after), scaled_number(jnp.ones(len(r))), steps.square)
    C, lam, H = own * hyper.C_W[1:] / above, zeros, zeros
    if Theta is not None:
        lam, H = own * hyper.lambda_W[1:] / Theta[1:], growth * (Theta[:-1] / Theta[1:])
    shrink = jnp.sqrt(jnp.where(layers.before, below / (below + layers.epsilon), 1.0))
    gamma = layers.gamma * jnp.sqrt(below / above)
    epsilon = (steps.square * 0.0 + layers.epsilon) / steps.square
    sharp = jnp.where(steps.seen.exponent > 0, 1.0, 0.0)
    return StepNumbers(C=C, lam=lam, H=H, gamma=gamma, r=r, shrink=shrink, epsilon=epsilon, sharp=sharp)


class _BlockCarry:
    """Tensors and functionals of one network from layer to layer."""

    def __init__(self, activation: Activation, kinds: list[StepKind], numbers: StepNumbers, kernels, wanted, carried):
        self.activation, self.kinds, self.numbers, self.kernels = activation, kinds, numbers, kernels
        self.wanted, self.carried = wanted, carried
        self.remembers = bool(np.any(numbers.gamma > 0.0))
        needs = [step_needs(kind, carried, self.remembers) for kind in dict.fromkeys(kinds)]
        self.functionals = tuple(dict.fromkeys(name for need in needs for name in need.functionals))
        self.whole = tuple(sorted({orders for need in needs for orders in need.whole}))
        self.heads: dict[SigmaProduct, int] = {}
        for need in needs:
            self.heads |= {orders: max(count, self.heads.get(orders, 0)) for orders, count in need.heads.items()}

    def adaptive(self) -> tuple[int, tuple[dict[str, np.ndarray], float]]:
        """With as many degrees as it takes: their number, and what `through` gives."""
        degrees = self._enough_degrees() if self.remembers else 1
        if degrees > FEW_DEGREES and self._fits_nodes():
            return 0, self.through_nodes()
        while True:
            found, error = self.through(degrees)
            if error <= MEMORY_TOLERANCE or degrees == MOST_DEGREES or not self.remembers:
                return degrees, (found, error)
            degrees *= 2

    def _enough_degrees(self) -> int:
        """Such that at some kernels on the way, the larger half of them is a small share of every product's square."""
        at = np.unique(np.linspace(0, len(self.kernels) - 1, 5).astype(int))
        at = np.union1d(at, [np.argmax(self.kernels)])
        degrees, most = FEWEST_DEGREES, 2 * FEW_DEGREES if self._fits_nodes() else MOST_DEGREES
        while degrees < most:
            table = self._table(at, degrees)
            squares = [np.cumsum(table[orders] ** 2, axis=1) for orders in self.whole]
            passing = self.numbers.gamma[at] ** (degrees // 2)
            share = [passing * (one[:, -1] - one[:, degrees // 2]) / np.maximum(one[:, -1], 1e-300) for one in squares]
            if np.max(share) <= MEMORY_TOLERANCE:
                break
            degrees *= 2
        return degrees

    def through(self, degrees: int) -> tuple[dict[str, np.ndarray], float]:
        """The wanted ratios behind every step, and how far those from half the degrees are off, beside max(1, size)."""
        steps, k = len(self.kinds), np.arange(degrees)
        results = [{name: np.zeros(steps) for name in self.wanted} for _ in range(1 + self.remembers)]
        states = [self._start(degrees) for _ in results]
        at_once = min(MOST_LAYERS_AT_ONCE, max(LAYERS_AT_ONCE, _SERIES_AT_ONCE // degrees))
        advance = _advance_in_numpy if steps < COMPILED_DEPTH else partial(_advance_compiled, at_once)
        number = 0
        for kind, run in groupby(self.kinds):
            stop = number + len(list(run))
            while number < stop:
                rows = np.arange(number, min(stop, number + at_once))
                table, numbers = self._table(rows, degrees), jax.tree.map(lambda one: one[rows], self.numbers)  # noqa: B023
                if not kind.before:
                    numbers = numbers._replace(shrink=None)
                for half, result in enumerate(results):
                    kept = (k < degrees >> half).astype(float)
                    states[half], read = advance(kind, self.wanted, numbers, table, kept, states[half])
                    for name, values in read.items():
                        result[name][rows] = values
                number = int(rows[-1]) + 1
        error = self._quadrature_error(degrees)
        for name, values in results[0].items() if self.remembers else ():
            error = max(error, np.abs(results[1][name] - values).max() / max(1.0, np.abs(values).max()))
        return results[0], error

    def _octaves(self) -> np.ndarray:
        return np.ceil(np.log2(self.kernels))

    def _fits_nodes(self) -> bool:
        """Whether there are not too many points, and a step spreads each over some others."""
        steps = NODE_STEP / 2.0 ** (0.5 * self._octaves())
        spread = np.sqrt(1.0 - self.numbers.gamma**2)[:-1]
        return bool(2.0 * NODES_REACH / steps.min() <= MOST_POINTS and np.all(spread > 1.5 * steps[1:]))

    def through_nodes(self) -> tuple[dict[str, np.ndarray], float]:
        """As `through`, with functionals on points in place of degrees.

        The other pass takes every second point; halving the step of a trapezoidal rule squares its error.
        """
        grids = [_uniform_points(octave) for octave in self._octaves()]
        results = [{name: np.zeros(len(grids)) for name in self.wanted} for _ in range(2)]
        states = [self._start(len(grids[0])) for _ in results]
        for row, kind in enumerate(self.kinds):
            u, above = grids[row], grids[min(row + 1, len(grids) - 1)]
            numbers = jax.tree.map(lambda one: one[row], self.numbers)  # noqa: B023
            numbers = numbers if kind.before else numbers._replace(shrink=None)
            series = {orders: one[0] for orders, one in self._table(np.array([row]), 1).items()}
            values, passing = self._node_values(row, u), _ornstein_uhlenbeck(u, above, float(numbers.gamma))
            for half, result in enumerate(results):
                kept, kept_above = (_every_other(points) if half else np.ones(len(points)) for points in (u, above))
                weight = kept * (u[1] - u[0]) * np.exp(-0.5 * u**2) / np.sqrt(2.0 * np.pi)
                below, upper = Nodes(u, weight, kept_above, passing), Nodes(above, weight, kept_above, passing)
                x = OneInputStep(kind, numbers, NodeExpectations(series, numbers, below, values))
                reading = NodeExpectations(series, numbers, upper, values)
                states[half], read = through_rules(x, self.wanted, states[half], reading)
                for name in self.wanted:
                    result[name][row] = read[name]
        off = [np.abs(results[1][name] - one).max() / max(1.0, np.abs(one).max()) for name, one in results[0].items()]
        return results[0], max(self._quadrature_error(1), max(off) ** 2)

    def _node_values(self, row: int, u: np.ndarray) -> dict[SigmaProduct, np.ndarray]:
        """Products of σ̃ and its derivatives at the points."""
        orders, root = (
            tuple(sorted({0, *(order for product in self.whole for order in product)})),
            self.kernels[row] ** 0.5,
        )
        found = jet(self.activation, orders, root * u)
        scale = np.sqrt(found[0] ** 2 @ np.exp(-0.5 * u**2) * (u[1] - u[0]) / np.sqrt(2.0 * np.pi))
        functions = {order: root**order * (value / scale) for order, value in zip(orders, found, strict=True)}
        return {product: np.prod([functions[order] for order in product], axis=0) for product in self.whole}

    def _start(self, degrees: int) -> StepState:
        functionals = {name: np.zeros(degrees) for name in self.functionals}
        return StepState({name: np.zeros(()) for name in self.carried}, functionals)

    def _table(self, rows: np.ndarray, degrees: int, nodes: int = PANEL_NODES) -> dict[SigmaProduct, np.ndarray]:
        """Hermite coefficients (rows, degrees) of the products of σ̃ and its derivatives."""
        counts = {orders: max(degrees, self.heads.get(orders, 0)) for orders in self.whole}
        kernels, back = np.unique(self.kernels[rows], return_inverse=True)
        return {
            orders: values[back]
            for orders, values in _series(self.activation, kernels, self.heads | counts, nodes).items()
        }

    def _quadrature_error(self, degrees: int) -> float:
        """From coarser panels, and from rounding."""
        rows = np.unique([0, int(np.argmin(self.kernels)), int(np.argmax(self.kernels)), len(self.kernels) - 1])
        coarse, fine = (self._table(rows, degrees, nodes) for nodes in (COARSE_NODES, PANEL_NODES))
        sizes = {orders: np.abs(values).max() for orders, values in fine.items()}
        off = [np.abs(fine[orders] - coarse[orders]).max() / max(1.0, sizes[orders]) for orders in fine]
        # products of σ' with its second derivative and of σ'' with itself are large where K is, and rules add them up
        rounding = np.finfo(float).eps * max((sizes[orders] for orders in fine if len(orders) == 2), default=0.0)
        return float(max([rounding, *off]))


def _uniform_points(octave: float) -> np.ndarray:
    """Points u with the step NODE_STEP in z = √K u for K = 2^octave."""
    step = NODE_STEP / 2.0 ** (0.5 * octave)
    count = int(np.ceil(NODES_REACH / step))
    return step * np.arange(-count, count + 1)


def _every_other(u: np.ndarray) -> np.ndarray:
    return 2.0 * ((np.arange(len(u)) - len(u) // 2) % 2 == 0)


def _ornstein_uhlenbeck(u: np.ndarray, above: np.ndarray, rho: float) -> scipy.sparse.csr_array:
    """Weights of the points above that a point below is spread over: step times the density of N(ρu, 1 − ρ²)."""
    spread, step = np.sqrt(1.0 - rho**2), above[1] - above[0]
    half = min(len(above), int(np.ceil(NODES_REACH * spread / step)))
    place = np.rint(rho * u / step).astype(int)[:, None] + np.arange(-half, half + 1) + len(above) // 2
    inside = (place >= 0) & (place < len(above))
    at = np.clip(place, 0, len(above) - 1)
    density = np.exp(-0.5 * ((above[at] - rho * u[:, None]) / spread) ** 2) / (np.sqrt(2.0 * np.pi) * spread)
    borders = np.arange(0, at.size + 1, at.shape[1])
    return scipy.sparse.csr_array(
        ((inside * step * density).ravel(), at.ravel(), borders), shape=(len(u), len(above))
    ).T


def _advance_in_numpy(kind: StepKind, wanted, numbers: StepNumbers, table, kept, state: StepState):
    found: list[dict[str, Any]] = []
    for row in range(len(numbers.C)):
        at, series = jax.tree.map(lambda one: one[row], (numbers, table))  # noqa: B023
        state, read = one_step(kind, wanted, at, series, kept, state)
        found.append(read)
    return state, {name: [read[name] for read in found] for name in wanted}


def _advance_compiled(size: int, kind: StepKind, wanted, numbers: StepNumbers, table, kept, state: StepState):
    """The same by one program for any number of layers up to a size."""
    rows = len(numbers.C)

    def padded(values):
        return np.pad(values, [(0, size - rows), *[(0, 0)] * (values.ndim - 1)])

    numbers, table = jax.tree.map(padded, (numbers, table))
    state, read = _compiled_steps(kind, wanted, rows, numbers, table, kept, state)
    return state, {name: np.asarray(values)[:rows] for name, values in read.items()}


@partial(jax.jit, static_argnums=(0, 1))
def _compiled_steps(kind: StepKind, wanted, rows, numbers: StepNumbers, table, kept, state: StepState):
    def body(row, carry):
        state, results = carry
        at, series = jax.tree.map(lambda one: one[row], (numbers, table))
        state, read = one_step(kind, wanted, at, series, kept, state)
        return state, {name: results[name].at[row].set(read[name]) for name in wanted}

    return jax.lax.fori_loop(0, rows, body, (state, {name: jnp.zeros(len(numbers.C)) for name in wanted}))


def _series(
    activation: Activation, kernels: np.ndarray, counts: Mapping[SigmaProduct, int], nodes: int
) -> dict[SigmaProduct, np.ndarray]:
    """⟨he_k Π σ̃^(o)⟩ (kernels, count) by product, σ̃ = σ(√K u)/√⟨σ²⟩ differentiated in u; kernels in rising order."""
    most = max(counts.values())
    orders = tuple(sorted({0, *(order for product in counts for order in product)}))
    result = {product: np.empty((len(kernels), count)) for product, count in counts.items()}
    group = np.ceil(np.log2(kernels))
    for label in np.unique(group):
        members = np.flatnonzero(group == label)
        u, weight, weighted = _series_basis(_series_edges(activation, orders, int(label), most), most, nodes)
        step = max(1, _SERIES_POINTS // len(u))
        for rows in (members[start : start + step] for start in range(0, len(members), step)):
            root = np.sqrt(kernels[rows])[:, None]
            values = jet(activation, orders, root * u)
            scale = np.sqrt(values[0] ** 2 @ weight)[:, None]
            functions = {order: root**order * (value / scale) for order, value in zip(orders, values, strict=True)}
            for product, count in counts.items():
                whole = np.prod([functions[order] for order in product], axis=0)
                result[product][rows] = whole @ weighted[:, :count]
    return result


#: For 4096 degrees one takes 200 MB.
_series_basis = lru_cache(maxsize=4)(weighted_basis)


@lru_cache(maxsize=256)
def _series_edges(activation: Activation, orders: tuple[int, ...], octave: int, degrees: int) -> bytes:
    """Edges in u of panels that resolve σ and its derivatives for K from 2^(octave − 1) to 2^octave, and he_k.

    he_k has about √k/π waves a unit of u; sixteen nodes resolve one and a half.
    """
    largest = 2.0 ** (0.5 * octave)
    spacing = min(1.0, 8.0 / np.sqrt(degrees))
    fixed = np.linspace(-REACH, REACH, 2 * int(np.ceil(REACH / spacing)) + 1)
    edges_z = intervals(activation, orders, REACH * largest)
    return shared_edges(edges_z, largest / np.sqrt(2.0), largest, fixed).tobytes()
