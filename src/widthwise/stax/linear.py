"""Layers that are linear, normalise, or attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from widthwise import network
from widthwise.errors import InvalidInput, NoRule, UnknownName
from widthwise.network import Layer, check_integer, check_real
from widthwise.network.validation import LEAST, check_flag, is_one_of
from widthwise.stax.recipes import Item, Sizes, StaxLayer, check_width, made_of

_DEVIATION = "a number from -1e50 to 1e50"


def _recipe(layers: Callable[[Sizes], list[Layer]], channels: int | None = None) -> StaxLayer:
    return made_of(Item(lambda sizes: (layers(sizes), sizes.channels if channels is None else channels)))


def Identity() -> StaxLayer:
    """Nothing."""
    return _recipe(lambda sizes: [])


def _numbers(W_std: float, b_std: float | None, parameterization: str, fan_in: int) -> dict[str, float]:
    """C's, and λ's such that Θ is the peer's ntk."""
    C_W, C_b = _square("W_std", W_std), _square("b_std", 0.0 if b_std is None else b_std)
    if not is_one_of(parameterization, ("ntk", "standard")):
        raise UnknownName.of("parameterization", parameterization, ("ntk", "standard"))
    if parameterization == "ntk":
        return {"C_b": C_b, "C_W": C_W, "lambda_b": C_b, "lambda_W": C_W}
    return {"C_b": C_b, "C_W": C_W, "lambda_b": 0.0 if b_std is None else 1.0, "lambda_W": float(fan_in)}


def _square(name: str, deviation: Any) -> float:
    """The variance that a standard deviation means; its sign does not matter."""
    return check_real(name, deviation, _DEVIATION, least=-1e50, largest=1e50) ** 2


def _require_default(name: str, value: Any, default: Any, reason: str) -> None:
    if type(value) is not type(default) or value != default:
        raise InvalidInput(name, repr(value), repr(default), reason)


def _tuple(name: str, values: Any) -> tuple[Any, ...]:
    """Entries of a list or tuple, which the layer that they are given to checks one by one."""
    if not isinstance(values, list | tuple):
        raise InvalidInput(name, repr(values), "a tuple with one integer for each axis of positions")
    return tuple(values)


def Dense(
    out_dim: int,
    W_std: float = 1.0,
    b_std: float | None = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> StaxLayer:
    """Weights of variance W_std²/fan-in on the channels at every position; biases of variance b_std²."""
    _axes(batch_axis, channel_axis)
    _require_default("s", _tuple("s", s), (1, 1), "Give the widths themselves.")
    outputs = check_width(out_dim, "out_dim")

    def layers(sizes: Sizes) -> list[Layer]:
        return [network.Dense(sizes.features, outputs, **_numbers(W_std, b_std, parameterization, sizes.features))]

    return _recipe(layers, outputs)


def Conv(
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    W_std: float = 1.0,
    b_std: float | None = None,
    dimension_numbers: Any = None,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> StaxLayer:
    """A convolution of inputs (inputs, positions…, channels)."""
    _require_default("dimension_numbers", dimension_numbers, None, "Bring the channels to the last axis.")
    _require_default("s", _tuple("s", s), (1, 1), "Give the widths themselves.")
    outputs, window = check_width(out_chan, "out_chan"), _tuple("filter_shape", filter_shape)

    def layers(sizes: Sizes) -> list[Layer]:
        fan_in = sizes.channels
        for entries in window:
            fan_in *= check_integer("filter_shape", entries, 1)
        numbers = _numbers(W_std, b_std, parameterization, fan_in)
        return [network.Conv(sizes.channels, outputs, window, _stride(strides, window), padding, **numbers)]

    return _recipe(layers, outputs)


def _stride(strides: Sequence[int] | None, window: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * len(window) if strides is None else _tuple("strides", strides)


def _axes(batch_axis: int, channel_axis: int) -> None:
    _require_default("batch_axis", batch_axis, 0, "Bring the inputs to the first axis.")
    _require_default("channel_axis", channel_axis, -1, "Bring the channels to the last axis.")


def AvgPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    normalize_edges: bool = False,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> StaxLayer:
    """Means over windows, at every position unless strides are given."""
    _axes(batch_axis, channel_axis)
    window = _tuple("window_shape", window_shape)
    counts = not check_flag("normalize_edges", normalize_edges)
    made = network.AvgPool(window, _stride(strides, window), padding, padding_counts=counts)
    return _recipe(lambda sizes: [made])


def SumPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> StaxLayer:
    """Sums over windows, at every position unless strides are given."""
    _axes(batch_axis, channel_axis)
    window = _tuple("window_shape", window_shape)
    made = network.SumPool(window, _stride(strides, window), padding)
    return _recipe(lambda sizes: [made])


def GlobalAvgPool(batch_axis: int = 0, channel_axis: int = -1) -> StaxLayer:
    """The mean over all positions."""
    _axes(batch_axis, channel_axis)
    return _recipe(lambda sizes: [network.GlobalAvgPool()])


def GlobalSumPool(batch_axis: int = 0, channel_axis: int = -1) -> StaxLayer:
    """The sum over all positions."""
    _axes(batch_axis, channel_axis)
    return _recipe(lambda sizes: [network.GlobalSumPool()])


def Flatten(batch_axis: int = 0, batch_axis_out: int = 0) -> StaxLayer:
    """All positions and channels in a row; nothing where there are no positions."""
    _axes(batch_axis, -1)
    _require_default("batch_axis_out", batch_axis_out, 0, "Inputs stay on the first axis.")
    return _recipe(lambda sizes: [network.Flatten()] if sizes.positions else [])


def LayerNorm(axis: Any = -1, eps: float = 1e-12, batch_axis: int = 0, channel_axis: int = -1) -> StaxLayer:
    """Normalisation over the channels at every position."""
    _axes(batch_axis, channel_axis)
    own = axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis
    _require_default("axis", own, -1, "Over positions or inputs too it has no counterpart here.")
    return _recipe(lambda sizes: [network.LayerNorm(eps)])


def Dropout(rate: float, mode: str = "train") -> StaxLayer:
    """Neurons kept at the given rate; nothing in the mode "test"."""
    if not is_one_of(mode, ("train", "test")):
        raise UnknownName.of("mode", mode, ("train", "test"))
    kept = "the share of neurons that are kept, above 0 and at most 1"
    rate = check_real("rate", rate, kept, least=LEAST, largest=1.0)
    return _recipe(lambda sizes: [network.Dropout(1.0 - rate)] if mode == "train" else [])


def GlobalSelfAttention(
    n_chan_out: int,
    n_chan_key: int,
    n_chan_val: int,
    n_heads: int,
    linear_scaling: bool = True,
    W_key_std: float = 1.0,
    W_value_std: float = 1.0,
    W_query_std: float = 1.0,
    W_out_std: float = 1.0,
    b_std: float | None = None,
    attention_mechanism: str = "SOFTMAX",
    pos_emb_type: str = "NONE",
    pos_emb_p_norm: float = 2,
    pos_emb_decay_fn: Any = None,
    n_chan_pos_emb: int | None = None,
    W_pos_emb_std: float = 1.0,
    val_pos_emb: bool = False,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> StaxLayer:
    """Self-attention over all positions; see `widthwise.Attention`."""
    _axes(batch_axis, channel_axis)
    _require_default("pos_emb_decay_fn", pos_emb_decay_fn, None, "Take widthwise.Attention(length=…).")
    _require_default("n_chan_pos_emb", n_chan_pos_emb, None, "Take pos_emb_type='SUM'.")
    if not is_one_of(pos_emb_type, ("NONE", "SUM")):
        raise InvalidInput(
            "pos_emb_type", repr(pos_emb_type), "'NONE' or 'SUM'", "'CONCAT' is 'SUM' of other variances."
        )
    outputs = check_width(n_chan_out, "n_chan_out")
    OV = _square("W_out_std", W_out_std) * _square("W_value_std", W_value_std)
    deviations = {"W_query_std": W_query_std, "W_key_std": W_key_std}
    reals = (check_real(name, one, _DEVIATION, least=-1e50, largest=1e50) for name, one in deviations.items())
    QK, C_b = prod(reals), _square("b_std", 0.0 if b_std is None else b_std)
    rates = {"lambda_b": C_b, "lambda_W": OV, "lambda_V": 1.0, "lambda_QK": 1.0}
    scaling = "1/n" if check_flag("linear_scaling", linear_scaling) else "1/sqrt(n)"
    positional = 0.0 if pos_emb_type == "NONE" else _square("W_pos_emb_std", W_pos_emb_std)
    if not isinstance(attention_mechanism, str):
        raise InvalidInput("attention_mechanism", repr(attention_mechanism), "the name of one, such as 'IDENTITY'")

    def layers(sizes: Sizes) -> list[Layer]:
        made = network.Attention(
            sizes.channels, outputs, n_heads, n_chan_key, n_chan_val, attention_mechanism.lower(), scaling, val_pos_emb,
            C_b=C_b, C_W=OV, C_QK=QK if linear_scaling else QK**2, positional=positional,
            lambda_positional=positional, **rates,
        )  # fmt: skip
        return [made]

    return _recipe(layers, outputs)


#: Layers of the peer that are not here, and why.
MISSING = {
    "Aggregate": "graphs have no positions that a window could slide over",
    "ConvLocal": "weights that differ from position to position",
    "ConvTranspose": "use Conv, or resize the inputs",
    "ExpNormalized": "its kernel, an exponential of correlations, is that of no network",
    "DotGeneral": "apply the linear map to the inputs",
    "ImageResize": "resize the inputs",
    "Index": "index the inputs",
    "Slice": "slice the inputs",
}


def missing(name: str) -> NoRule:
    """The error for a layer that is not here."""
    return NoRule("stax", name, "a layer that widthwise has", f"Instead: {MISSING[name]}.")
