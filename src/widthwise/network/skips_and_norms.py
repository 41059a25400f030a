"""Multilayer perceptrons with residual connections and normalisation, by the arguments of an `MLP` and a few more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import ArrayLike

from widthwise.activations import Activation
from widthwise.errors import InvalidInput, UnknownName
from widthwise.network.layered import Network
from widthwise.network.layers.affine import Affine
from widthwise.network.layers.base import Layer
from widthwise.network.layers.dense import Dense
from widthwise.network.layers.elementwise import Elementwise
from widthwise.network.layers.normalisation import LayerNorm, RMSNorm
from widthwise.network.layers.residual import Residual
from widthwise.network.mlp import MLP
from widthwise.network.validation import check_real, is_one_of

#: Normalisations by the names that arguments use.
NORMS = {"rms": RMSNorm, "ln": LayerNorm}
#: Why BatchNorm is refused, and what to do.
BATCH_NORM = (
    "BatchNorm joins the inputs of a batch, so that an output is no function of its own input and no kernel of two "
    "inputs describes it. Use LayerNorm or RMSNorm; in evaluation mode fold it into the layer before it."
)
#: What a branch is multiplied by, from the number of residual layers.
BRANCHES: dict[str, Callable[[int], float]] = {
    "1": lambda blocks: 1.0,
    "1/sqrt(L)": lambda blocks: 1.0 / math.sqrt(max(blocks, 1)),
    "1/L": lambda blocks: 1.0 / max(blocks, 1),
}


def ResMLP(
    widths: ArrayLike,
    activation: str | Callable | Activation | Sequence[str | Callable | Activation],
    skip: ArrayLike = 1.0,
    C_b: ArrayLike = 0.0,
    C_W: ArrayLike = 1.0,
    lambda_b: ArrayLike = 1.0,
    lambda_W: ArrayLike = 1.0,
    *,
    norm: Sequence[tuple[str, float] | None] | str | None = None,
    affine: tuple[float, float] | None = None,
    branch: float | str = 1.0,
) -> Network:
    """A network whose hidden layers are residual: zˡ⁺¹ = γ zˡ + b + W s, s = σ(zˡ) or σ of zˡ normalised.

    The first and the last layer are plain. With `skip` = 0 a layer is plain too, and may change the width.

    Parameters
    ----------
    widths, activation, C_b, C_W, lambda_b, lambda_W : as in `MLP`.
    skip : γ, a number or one for each of the layers 2, …, L − 1.
    norm : normalisation before the activation of each hidden layer: ("rms" or "ln", ε) or None, one for each; or "rms"
        or "ln" for all of them, with ε = 1e-5.
    affine : λ_gain and λ_shift of a learned gain and shift behind every normalisation (`Affine`); None: there is none.
    branch : what W s + b of the residual layers is multiplied by: a number, or "1/sqrt(L)" or "1/L" with L the number
        of residual layers. A factor β is β² on C_b, C_W, λ_b and λ_W of those layers.

    Examples
    --------
    >>> net = ResMLP([3, 64, 64, 64, 1], "tanh", skip=[1.0, 0.5], C_W=1.5)
    >>> net.depth, net.layers[1].scale
    (4, 1.0)
    >>> ResMLP([3, 8, 8, 8, 8, 8, 1], "gelu", norm="ln", branch="1/sqrt(L)").layers[1].body[2].C_W
    0.25
    """
    plain = MLP(widths, activation, C_b, C_W, lambda_b, lambda_W)
    between = max(plain.depth - 2, 0)
    values = list(skip) if isinstance(skip, Sequence) or getattr(skip, "ndim", 0) else [skip] * between  # pyright: ignore[reportArgumentType]
    if len(values) != between:
        raise InvalidInput("skip", f"{len(values)} values", f"one, or {between}, one for each of the layers 2 to L − 1")
    scales = [check_real("skip", value, "finite non-negative numbers") for value in values]
    factor = _branch(branch, sum(scale > 0.0 for scale in scales)) ** 2
    norms = _norms(
        norm, plain.depth - 1, lambda kind: NORMS[kind](), lambda entry: NORMS[norm_kind(entry[0])](entry[1]),
        "('rms' or 'ln', ε) or None",
    )  # fmt: skip
    learned = _affine_layers(affine)
    layers: list[Layer] = [plain.dense[0]]
    for number, (sigma, dense) in enumerate(zip(plain.activations, plain.dense[1:], strict=True)):
        before = [norms[number], *learned] if norms[number] is not None else []
        before.append(Elementwise(sigma))
        scale = scales[number] if number < between else 0.0
        if scale == 0.0:
            layers += [*before, dense]
            continue
        scaled = (factor * value for value in (dense.C_b, dense.C_W, dense.lambda_b, dense.lambda_W))
        layers.append(Residual([*before, Dense(dense.inputs, dense.outputs, *scaled)], scale))
    return Network(layers)


def NormMLP(
    widths: ArrayLike,
    activation: str | Callable | Activation | Sequence[str | Callable | Activation],
    norm: str | Sequence[tuple[str, str, float] | None],
    C_b: ArrayLike = 0.0,
    C_W: ArrayLike = 1.0,
    lambda_b: ArrayLike = 1.0,
    lambda_W: ArrayLike = 1.0,
    *,
    affine: tuple[float, float] | None = None,
) -> Network:
    """An `MLP` with normalisation over neurons before or after activations.

    Parameters
    ----------
    widths, activation, C_b, C_W, lambda_b, lambda_W : as in `MLP`.
    norm : for each hidden layer ("rms" or "ln", "pre" or "post" of its activation, ε), or None; or a name alone, for
        that kind before every activation.
    affine : λ_gain and λ_shift of a learned gain and shift behind every normalisation (`Affine`); None: there is none.

    Examples
    --------
    >>> NormMLP([2, 8, 8, 1], "relu", [("ln", "pre", 1e-5), None]).layers[1]
    LayerNorm(epsilon=1e-05)
    """
    plain = MLP(widths, activation, C_b, C_W, lambda_b, lambda_W)

    def made(entry: Any) -> tuple[str, Layer]:
        kind, place, epsilon = entry
        if not is_one_of(place, ("pre", "post")):
            raise UnknownName.of("norm", place, ("pre", "post"))
        return place, NORMS[norm_kind(kind)](epsilon)

    expected = "('rms' or 'ln', 'pre' or 'post', ε) or None"
    norms = _norms(norm, plain.depth - 1, lambda kind: ("pre", NORMS[kind]()), made, expected)
    layers: list[Layer] = [plain.dense[0]]
    for found, sigma, dense in zip(norms, plain.activations, plain.dense[1:], strict=True):
        hidden: list[Layer] = [Elementwise(sigma)]
        if found is not None:
            place = 0 if found[0] == "pre" else 1
            hidden[place:place] = [found[1], *_affine_layers(affine)]
        layers += [*hidden, dense]
    return Network(layers)


def _affine_layers(affine: Any) -> list[Layer]:
    """The learned gain and shift behind a normalisation, or nothing."""
    if affine is None:
        return []
    if not isinstance(affine, Sequence) or isinstance(affine, str) or len(affine) != 2:
        raise InvalidInput("affine", repr(affine), "(lambda_gain, lambda_shift), or None")
    return [Affine(*affine)]


def norm_kind(kind: Any) -> str:
    """The name of a normalisation, checked."""
    if isinstance(kind, str) and kind in ("batch", "batch_norm", "bn"):
        raise InvalidInput("norm", repr(kind), "'rms' or 'ln'", BATCH_NORM)
    if not isinstance(kind, str) or kind not in NORMS:
        raise UnknownName.of("norm", str(kind), NORMS)
    return kind


def _norms(norm: Any, hidden: int, named: Callable[[str], Any], made: Callable[[Any], Any], expected: str) -> list[Any]:
    """One normalisation, or None, for each hidden layer: `named` alone for all, or `made` from each entry."""
    if norm is None:
        return [None] * hidden
    if isinstance(norm, str):
        return [named(norm_kind(norm))] * hidden
    if not isinstance(norm, Sequence) or len(norm) != hidden:
        got = f"{len(norm)} entries" if isinstance(norm, Sequence) else repr(norm)
        raise InvalidInput("norm", got, f"a list of {hidden}, one for each hidden layer: {expected}")
    found = []
    for entry in norm:
        try:
            found.append(None if entry is None else made(entry))
        except (TypeError, ValueError, IndexError):
            raise InvalidInput("norm", repr(entry), expected) from None
    return found


def _branch(branch: float | str, blocks: int) -> float:
    if isinstance(branch, str):
        if branch not in BRANCHES:
            raise UnknownName.of("branch", branch, BRANCHES)
        return BRANCHES[branch](blocks)
    return check_real("branch", branch, "a number from 0 to 1e100, '1/sqrt(L)' or '1/L'", largest=1e100)
