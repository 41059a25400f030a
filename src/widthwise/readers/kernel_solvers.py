"""Kernels of many inputs, and (K + ridge)⁻¹ applied to them: exactly by Cholesky, or by conjugate gradients.

Cholesky keeps two N × N arrays of float64, 16 N² bytes (3.2 GB at N = 14,000), and costs N³/3 multiply-adds.
Conjugate gradients take the kernel in blocks of rows up to the diagonal, each for the entries above it too. Half of the
free memory keeps blocks, all of them in 4 N² bytes (40 GB at N = 100,000), on an accelerator on the device; the others
are computed again in every iteration. What is needed besides is a block and a Nyström preconditioner of rank 300, with
temporaries 16N(300 + 384) bytes (0.55 GB at N = 50,000).

Hyperparameters are chosen to make the data most probable at infinite width (theory §9). The last layer is linear, so a
factor s on its C_b and C_W is a factor on the kernel; with noise sρ the best s is known in closed form,
s = tr yᵀ(K + ρ)⁻¹y / (points · outputs), and ρ is found along a line for each spectrum of K. What is left, C_b and C_W
of the hidden layers, is searched by the simplex method, and the depth by trying each.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import linalg, optimize

from widthwise.devices import by_device, on_accelerator
from widthwise.errors import AccuracyWarning, UnknownName
from widthwise.flow.kernels.variances import diagonal_flow
from widthwise.flow.tensors.pair_flow import output_kernels, pair_flow
from widthwise.inference.infinite_width import GaussianProcess
from widthwise.memory import available_bytes, device_bytes, require_device_memory, require_memory
from widthwise.network import MLP, PER_LAYER, Network
from widthwise.network.validation import LEAST, check_real, is_one_of
from widthwise.tensors import SHIFTS

#: Rows of a kernel that conjugate gradients hold at once.
KERNEL_ROWS = {"cpu": 384, "gpu": 4096}
RANK = 300
MOST_ITERATIONS = 500
#: Kernel and factor in float64.
CHOLESKY_BYTES = 16


@dataclass(frozen=True)
class Kernel:
    """K or Θ of a network's output between inputs. `name` is "K" or "Theta", `kernel` that of `output_kernels`."""

    net: Network
    name: str
    kernel: str = "infinite"

    def __call__(self, X: np.ndarray, X2: np.ndarray | None = None, *, device: bool = False) -> Any:
        """(inputs, inputs'), as an array of numpy; with `device` one of jax, where that computes."""
        names = {"kernel": self.kernel, "with_theta": self.name == "Theta", "device": device}
        K, Theta, _ = output_kernels(self.net, X, X2, **names)
        return K if self.name == "K" else Theta

    def diagonal(self, X: np.ndarray) -> np.ndarray:
        """Every input with itself: (inputs,)."""
        found = getattr(diagonal_flow(self.net, X, with_theta=self.name == "Theta"), self.name)[-1]
        if self.kernel == "infinite":
            return found
        shift = SHIFTS[self.name]
        assert isinstance(self.net, MLP)
        more = pair_flow(self.net, X, None, {shift: ("xx",)}, last_only=True)
        assert more is not None  # what has no mean kernel was refused when it was fitted
        return found + more.entries[shift]["xx"][0] / self.net.n

    def times(self, X: np.ndarray, vectors: np.ndarray, kept: KeptBlocks | None = None) -> np.ndarray:
        """Kernel on X times vectors (inputs, columns), block by block; on an accelerator no block leaves it.

        Blocks are looked up in `kept`, and put there as long as there is room.
        """
        device = on_accelerator() and self.kernel == "infinite"
        product, size = np.zeros(vectors.shape), by_device(KERNEL_ROWS)
        for start in range(0, len(X), size):
            rows, columns = slice(start, start + size), slice(start + size)
            block = None if kept is None else kept.blocks.get(start)
            if block is None:
                block = self(X[rows], X[columns], device=device)
                if kept is not None:
                    kept.offer(start, block)
            product[rows] += np.asarray(block @ vectors[columns])
            product[:start] += np.asarray(block.T @ vectors[rows])[:start]
        return product


class KeptBlocks:
    """Blocks of one kernel by their first row, in at most so many bytes. They are not pickled, as they can be made."""

    def __init__(self, room: int):
        self.room, self.blocks = room, {}

    def offer(self, start: int, block: Any) -> None:
        if block.nbytes <= self.room:
            self.blocks[start] = block
            self.room -= block.nbytes

    def __reduce__(self):
        return KeptBlocks, (self.room + sum(block.nbytes for block in self.blocks.values()),)


def in_blocks(function: Callable[[np.ndarray], np.ndarray], X: np.ndarray, size: int | None = None) -> np.ndarray:
    """A function of inputs, whose results are put together again, at so many of them at a time."""
    size = size or by_device(KERNEL_ROWS)
    return np.concatenate([function(X[start : start + size]) for start in range(0, len(X), size)])


def free_bytes() -> int:
    """Memory that is free where kernels are computed."""
    return (device_bytes() if on_accelerator() else None) or available_bytes()


class Exact:
    """(kernel + ridge)⁻¹ on training inputs by Cholesky."""

    name, iterations = "cholesky", 0

    def __init__(self, kernel: Kernel, X: np.ndarray, ridge: float):
        if on_accelerator():
            require_device_memory(CHOLESKY_BYTES * len(X) ** 2, f"Cholesky on {len(X)} inputs")
        else:
            require_memory(CHOLESKY_BYTES * len(X) ** 2, f"Cholesky on {len(X)} inputs", "Use solver='cg'.")
        self.process = GaussianProcess.condition(kernel(X, device=on_accelerator()), ridge, X)

    def solve(self, right: np.ndarray) -> np.ndarray:
        return self.process.solve(right)


class Iterative:
    """The same by conjugate gradients; `iterations` and `residual` are those of the last solve."""

    name, process = "cg", None

    def __init__(self, kernel: Kernel, X: np.ndarray, ridge: float, tolerance: float, seed: int):
        held = 16 * (RANK + by_device(KERNEL_ROWS)) * len(X)
        require_memory(held, f"conjugate gradients on {len(X)} inputs", "Take fewer inputs.")
        self.kernel, self.X, self.ridge, self.tolerance = kernel, X, ridge, tolerance
        self.preconditioner = nystrom(kernel, X, ridge, seed)
        self.kept = KeptBlocks(max(0, free_bytes() - held) // 2)
        self.iterations, self.residual = 0, 0.0

    def solve(self, right: np.ndarray) -> np.ndarray:
        found, self.iterations, self.residual = conjugate_gradients(
            lambda v: self.kernel.times(self.X, v, self.kept) + self.ridge * v,
            right.reshape(len(self.X), -1),
            self.preconditioner,
            self.tolerance,
        )
        if self.residual > self.tolerance:
            warnings.warn(
                f"conjugate gradients stopped after {self.iterations} iterations at a relative residual of "
                f"{self.residual:.1e}, above {self.tolerance:.0e}: increase the noise, or use solver='cholesky'",
                AccuracyWarning,
                stacklevel=3,
            )
        return found.reshape(right.shape)


def make_solver(
    kernel: Kernel, X: np.ndarray, ridge: float, solver: str = "auto", tolerance: float = 1e-6, seed: int = 0
) -> Exact | Iterative:
    """A solver by name: "cholesky", "cg", or "auto" for the first as long as it fits into half the free memory.

    >>> net, X = MLP([2, 8, 1], "relu", C_b=0.1, C_W=2.0), np.random.default_rng(0).normal(size=(50, 2))
    >>> exact, iterative = (make_solver(Kernel(net, "K"), X, 0.1, name) for name in ("cholesky", "cg"))
    >>> bool(np.allclose(exact.solve(X), iterative.solve(X), rtol=1e-4))
    True
    """
    if not is_one_of(solver, ("auto", "cholesky", "cg")):
        raise UnknownName.of("solver", solver, ("auto", "cholesky", "cg"))
    tolerance = check_real("tolerance", tolerance, "a finite positive number", least=LEAST)
    if solver == "auto":
        solver = "cholesky" if CHOLESKY_BYTES * len(X) ** 2 < max(1 << 26, free_bytes() // 2) else "cg"
    return Exact(kernel, X, ridge) if solver == "cholesky" else Iterative(kernel, X, ridge, tolerance, seed)


def nystrom(kernel: Kernel, X: np.ndarray, ridge: float, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """v ↦ (F Fᵀ + shift)⁻¹ v with F Fᵀ the kernel's approximation from some training inputs."""
    chosen = np.random.default_rng(seed).permutation(len(X))[:RANK]
    values, vectors = linalg.eigh(kernel(X[chosen]))
    kept = values > 1e-10 * values[-1]
    F = in_blocks(lambda rows: kernel(rows, X[chosen]), X) @ (vectors[:, kept] / np.sqrt(values[kept]))
    shift = max(ridge, 1e-10 * float(values[-1]))
    return partial(_woodbury, F, linalg.cholesky(F.T @ F + shift * np.eye(F.shape[1]), lower=True), shift)


def _woodbury(F: np.ndarray, factor: np.ndarray, shift: float, v: np.ndarray) -> np.ndarray:
    return (v - F @ linalg.cho_solve((factor, True), F.T @ v)) / shift


def conjugate_gradients(
    apply: Callable, right: np.ndarray, precondition: Callable, tolerance: float = 1e-6
) -> tuple[np.ndarray, int, float]:
    """Solutions of several systems that share one positive matrix and its products: (solutions, iterations, residual).

    As many iterations as there are unknowns would do without rounding; a system that five times as many do not solve is
    singular, and the best of the solutions on the way is returned.

    scipy's solver takes one right-hand side at a time and would compute the kernel again for each.

    >>> A = np.diag([1.0, 2.0, 3.0])
    >>> x, iterations, _ = conjugate_gradients(lambda v: A @ v, np.ones((3, 1)), lambda v: v)
    >>> iterations <= 3, x.ravel().round(6).tolist()
    (True, [1.0, 0.5, 0.333333])
    """
    most = min(MOST_ITERATIONS, 20 + 5 * len(right))
    x, r = np.zeros_like(right), right.copy()
    z = precondition(r)
    p, rho, scale = z, np.sum(r * z, axis=0), np.linalg.norm(right, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    done, residual = 0, float(np.max(np.linalg.norm(r, axis=0) / scale))
    best, least = x, residual
    while residual > tolerance and done < most:
        Ap = apply(p)
        curvature = np.sum(p * Ap, axis=0)
        alpha = np.divide(rho, curvature, out=np.zeros_like(rho), where=curvature > 0)
        x, r = x + alpha * p, r - alpha * Ap
        z = precondition(r)
        new = np.sum(r * z, axis=0)
        p = z + np.divide(new, rho, out=np.zeros_like(rho), where=rho > 0) * p
        rho, done = new, done + 1
        residual = float(np.max(np.linalg.norm(r, axis=0) / scale))
        if residual < least:
            best, least = x, residual
    return best, done, least


#: Trials of the simplex for each depth.
TRIALS = 40
_RATIOS = (math.log(1e-6), math.log(1e3))
#: Bounds of log C_b and log C_W.
_BOUNDS = ((math.log(1e-4), math.log(10.0)), (math.log(0.05), math.log(20.0)))


@dataclass(frozen=True)
class EvidenceChoice:
    """A network, the noise variance that goes with it, and the log evidence of the inputs it was chosen on."""

    net: MLP
    noise: float
    log_evidence: float


def choose_by_evidence(nets: Sequence[MLP], X: np.ndarray, y: np.ndarray, kernel: str = "K") -> EvidenceChoice:
    """The most probable choice of depth, C_b, C_W, output scale and noise, starting from each of some networks.

    y is (inputs, outputs). `kernel` is "K", or "Theta" for the Gaussian process that kernel regression with Θ is.

    >>> net, X = MLP([1, 8, 1], "erf", C_b=0.1, C_W=2.0), np.linspace(-2, 2, 12)[:, None]
    >>> choice = choose_by_evidence([net], X, np.sin(2 * X))
    >>> choice.noise < 1e-3, choice.log_evidence > 0
    (True, True)
    """
    choices = []
    for net in nets:
        start = [math.log(max(net.C_b[0], 1e-3)), math.log(net.C_W[0])]
        corners = np.array([start, [start[0] + 1.0, start[1]], [start[0], start[1] + 0.5]])
        simplex = np.clip(corners, *np.array(_BOUNDS).T)
        found = optimize.minimize(
            lambda p, net=net: -_best_scale(_changed(net, p), X, y, kernel).log_evidence,
            start,
            method="Nelder-Mead",
            bounds=_BOUNDS,
            options={"maxfev": TRIALS, "initial_simplex": simplex, "xatol": 0.05, "fatol": 0.05},
        )
        choices.append(_best_scale(_changed(net, found.x), X, y, kernel))
    return max(choices, key=lambda choice: choice.log_evidence)


def _changed(net: MLP, logs: Sequence[float]) -> MLP:
    """C_b and C_W of all layers from their logarithms; λ as in the NTK parameterisation."""
    C_b, C_W = (math.exp(value) for value in logs)
    return net.replace(C_b=C_b, C_W=C_W, lambda_b=C_b, lambda_W=C_W)


def _best_scale(net: MLP, X: np.ndarray, y: np.ndarray, kernel: str) -> EvidenceChoice:
    values, vectors = linalg.eigh(Kernel(net, kernel)(X))
    values, weights = np.maximum(values, 0.0), np.sum((vectors.T @ y) ** 2, axis=1)
    points, outputs = y.shape
    count = points * outputs

    def scale(ratio: float) -> float:
        return float(np.sum(weights / (values + ratio))) / count

    def evidence(log_ratio: float) -> float:
        ratio = math.exp(log_ratio) * float(values.mean())
        terms = outputs * float(np.sum(np.log(values + ratio)))
        return -0.5 * (count * (math.log(2 * math.pi * max(scale(ratio), 1e-300)) + 1.0) + terms)

    found: Any = optimize.minimize_scalar(lambda t: -evidence(t), bounds=_RATIOS, method="bounded")
    ratio = math.exp(float(found.x)) * float(values.mean())
    best = max(scale(ratio), 1e-12)
    scaled = {name: [*getattr(net, name)[:-1], best * getattr(net, name)[-1]] for name in PER_LAYER}
    return EvidenceChoice(net.replace(**scaled), best * ratio, evidence(float(found.x)))
