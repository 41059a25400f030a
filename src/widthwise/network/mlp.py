"""The multilayer perceptron: one way to make a network (theory §1), and the conventions people know it by.

Conventions are constructors, each with the C's and λ's that it means.
Plain gradient descent with one global learning rate η on weights and biases themselves (the standard
parameterisation) means λ_b = η and λ_W = η n_{l−1}, since the learning-rate tensor is λ_W/n_{l−1} on each weight.
Gradient descent on unit-variance parameters ω with W = √(C_W/n_{l−1}) ω and b = √C_b β (the NTK
parameterisation) means λ_b = η C_b and λ_W = η C_W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput, NoRule
from widthwise.network.layered import Network, check_network, parsed_json
from widthwise.network.layers.base import Layer, check_number, own_activations, register_pytree
from widthwise.network.layers.dense import Dense
from widthwise.network.layers.elementwise import Elementwise
from widthwise.network.validation import check_integer, check_per_layer, check_real, check_widths

if TYPE_CHECKING:
    from typing import Self

PER_LAYER = ("C_b", "C_W", "lambda_b", "lambda_W")
FIELDS = ("widths", "activation", *PER_LAYER)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class MLP(Network):
    """A fully connected network and the distribution of its parameters.

    `widths = [n_0, …, n_L]`: input dimension, hidden widths, outputs. The L weight matrices have independent
    zero-mean entries with E[bb] = C_b, E[WW] = C_W/n_{l−1}; the learning-rate tensor is λ_b on biases and
    λ_W/n_{l−1} on weights (theory §1). Each of `C_b`, `C_W`, `lambda_b`, `lambda_W` is a number, or a sequence with
    one value per weight layer. `activation` is a name or any function written in `jax.numpy`, or a sequence of them
    with one per hidden layer.

    >>> net = MLP(widths=[3, 64, 64, 1], activation="tanh", C_b=0.05, C_W=1.5)
    >>> net.depth, net.C_W
    (3, (1.5, 1.5, 1.5))
    >>> net
    MLP(widths=[3, 64, 64, 1], activation='tanh', C_b=0.05, C_W=1.5, lambda_b=1.0, lambda_W=1.0)
    >>> net == eval(repr(net))
    True
    >>> MLP([2, 8, 8, 1], ["tanh", "relu"]).layers[3]
    Elementwise(activation='relu')
    """

    unread: Activation | None  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        widths: ArrayLike,
        activation: str | Callable | Activation | Sequence[str | Callable | Activation],
        C_b: ArrayLike = 0.0,
        C_W: ArrayLike = 1.0,
        lambda_b: ArrayLike = 1.0,
        lambda_W: ArrayLike = 1.0,
    ):
        n = check_widths(widths)
        depth = len(n) - 1
        sigmas = check_activations(activation, depth - 1)
        numbers = (
            check_per_layer(*pair, depth) for pair in zip(PER_LAYER, (C_b, C_W, lambda_b, lambda_W), strict=True)
        )
        one = cache(Dense)  # equal layers of a deep network are one object
        dense = (one(*values) for values in zip(n[:-1], n[1:], *numbers, strict=True))
        hidden = zip(map(Elementwise, sigmas[: depth - 1]), dense, strict=False)
        object.__setattr__(self, "layers", (next(dense), *(layer for pair in hidden for layer in pair)))
        object.__setattr__(self, "unread", next(iter(sigmas), resolve("linear")) if depth == 1 else None)

    @classmethod
    def of_chain(cls, layers: Sequence[Layer], unread: Activation | None = None) -> MLP:
        """From dense layers with one activation between any two of them."""
        net = object.__new__(MLP)
        object.__setattr__(net, "layers", tuple(layers))
        object.__setattr__(net, "unread", unread or (None if len(layers) > 1 else resolve("linear")))
        return net

    @classmethod
    def standard(
        cls, widths: Sequence[int], activation: Any, C_b: Any = 0.0, C_W: Any = 1.0, learning_rate: float = 1.0
    ) -> Self:
        """Standard parameterisation: gradient descent on W and b with one global rate η.

        C_b, C_W as given; λ_b = η, λ_W = η n_{l−1} in layer l. The NTK then grows with the widths, and the largest
        stable η falls with them.
        """
        fan_in = [float(n) for n in check_widths(widths)[:-1]]
        rate = _rate(learning_rate)
        return cls(widths, activation, C_b, C_W, rate, [rate * n for n in fan_in])

    @classmethod
    def ntk(
        cls, widths: Sequence[int], activation: Any, C_b: Any = 0.0, C_W: Any = 1.0, learning_rate: float = 1.0
    ) -> Self:
        """NTK parameterisation: gradient descent on unit-variance parameters. λ_b = η C_b, λ_W = η C_W.

        With neural-tangents' names, C_W = W_std² and C_b = b_std².
        """
        rate, depth = _rate(learning_rate), len(check_widths(widths)) - 1
        rates = ([rate * c for c in check_per_layer(*C, depth)] for C in (("C_b", C_b), ("C_W", C_W)))
        return cls(widths, activation, C_b, C_W, *rates)

    @classmethod
    def he(cls, widths: Sequence[int], activation: Any = "relu", learning_rate: float = 1.0) -> Self:
        """He (Kaiming) normal: weight variance 2/fan-in, zero biases; standard parameterisation.

        C_b = 0, C_W = 2, or 2/(1+slope²) for leaky_relu; λ_b = η, λ_W = η n_{l−1}.
        """
        sigma = resolve(activation)
        slope = sigma.parameters[0] if sigma.name == "leaky_relu" else 0.0
        return cls.standard(widths, sigma, 0.0, 2.0 / (1.0 + slope**2), learning_rate)

    @classmethod
    def lecun(cls, widths: Sequence[int], activation: Any = "tanh", learning_rate: float = 1.0) -> Self:
        """LeCun normal: weight variance 1/fan-in, zero biases; standard parameterisation.

        C_b = 0, C_W = 1; λ_b = η, λ_W = η n_{l−1}.
        """
        return cls.standard(widths, activation, 0.0, 1.0, learning_rate)

    @classmethod
    def glorot(cls, widths: Sequence[int], activation: Any = "tanh", learning_rate: float = 1.0) -> Self:
        """Glorot (Xavier) normal: weight variance 2/(fan-in + fan-out), zero biases; standard parameterisation.

        C_b = 0, C_W = 2n_{l−1}/(n_{l−1}+n_l) in layer l; λ_b = η, λ_W = η n_{l−1}.
        """
        n = check_widths(widths)
        C_W = [2.0 * fan_in / (fan_in + fan_out) for fan_in, fan_out in pairwise(n)]
        return cls.standard(widths, activation, 0.0, C_W, learning_rate)

    @classmethod
    def torch_default(cls, widths: Sequence[int], activation: Any = "relu", learning_rate: float = 1.0) -> Self:
        """What `torch.nn.Linear` does unasked: weights and biases uniform on ±1/√fan-in; standard parameterisation.

        C_W = 1/3 and C_b = 1/(3n_{l−1}) in layer l; λ_b = η, λ_W = η n_{l−1}. The entries are not Gaussian, which
        changes nothing at infinite width.
        """
        C_b = [1.0 / (3.0 * n) for n in check_widths(widths)[:-1]]
        return cls.standard(widths, activation, C_b, 1.0 / 3.0, learning_rate)

    @classmethod
    def mup(
        cls, widths: Sequence[int], activation: Any, C_b: float = 0.0, C_W: float = 1.0, learning_rate: float = 1.0
    ) -> Self:
        """Mean-field or μP scaling for SGD: outputs of size 1/√n at initialisation, features that move at any width.

        Weight variance C_W/fan-in, and C_W/n² into the output (n = n_{L−1}): C_W in layers 1 … L−1, C_W/n in
        layer L. Learning rates, per parameter: η n_1 on the input weights, η on hidden weights, η/n on the output
        weights, η n_l on hidden biases, η on output biases. So λ_W = η n_0 n_1, η n_{l−1}, …, η and
        λ_b = η n_1, …, η n_{L−1}, η, and Θ is of order one.
        """
        n = check_widths(widths)
        rate, depth, C_W = _rate(learning_rate), len(n) - 1, check_number("C_W", C_W)
        if depth == 1:
            raise InvalidInput("widths", str(list(widths)), "at least one hidden layer for mean-field scaling")
        weights = [rate * n[0] * n[1], *(rate * n[layer - 1] for layer in range(2, depth)), rate]
        biases = [*(rate * n[layer] for layer in range(1, depth)), rate]
        return cls(widths, activation, C_b, [*[C_W] * (depth - 1), C_W / n[-2]], biases, weights)

    @cached_property
    def dense(self) -> tuple[Dense, ...]:
        """The weight layers."""
        return self.layers[::2]  # pyright: ignore[reportReturnType]

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.dense)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """n_0, …, n_L."""
        return (self.dense[0].inputs, *(layer.outputs for layer in self.dense))

    @cached_property
    def C_b(self) -> tuple[float, ...]:
        """Variances of biases, one per weight layer."""
        return tuple(layer.C_b for layer in self.dense)

    @cached_property
    def C_W(self) -> tuple[float, ...]:
        """Variances of weights times fan-in, one per weight layer."""
        return tuple(layer.C_W for layer in self.dense)

    @cached_property
    def lambda_b(self) -> tuple[float, ...]:
        """Learning rates of biases, one per weight layer."""
        return tuple(layer.lambda_b for layer in self.dense)

    @cached_property
    def lambda_W(self) -> tuple[float, ...]:
        """Learning rates of weights times fan-in, one per weight layer."""
        return tuple(layer.lambda_W for layer in self.dense)

    @property
    def activation(self) -> Activation:
        """The one activation of all hidden layers; refused where there are several."""
        several = dict.fromkeys(self.activations)
        if len(several) > 1:
            names = ", ".join(sigma.name for sigma in self.activations)
            raise InvalidInput("net", f"the activations {names}", "one activation in all hidden layers")
        return self.unread if self.unread is not None else next(iter(several))

    @property
    def activation_text(self) -> str:
        """The activations by name, each once: "tanh", or "tanh, gelu"."""
        return ", ".join(dict.fromkeys(sigma.spec for sigma in (*self.activations, self.unread) if sigma is not None))

    def replace(self, **changes: Any) -> MLP:
        """A copy with some fields changed.

        >>> MLP([2, 8, 1], "relu", C_W=2.0).replace(C_W=1.9).C_W
        (1.9, 1.9)
        """
        for name in changes:
            if name not in FIELDS:
                raise InvalidInput("replace", repr(name), f"one of {', '.join(sorted(FIELDS))}")
        now = {name: getattr(self, name) for name in ("widths", *PER_LAYER)}
        now["activation"] = self.activations or self.unread
        if "widths" in changes and len(check_widths(changes["widths"])) != len(self.widths):
            now |= {name: _collapse(name, now[name]) for name in PER_LAYER if name not in changes}
            now["activation"] = _collapse("activation", self.activations or (self.unread,))
        return MLP(**(now | changes))

    def up_to(self, layer: int, outputs: int | None = None) -> MLP:
        """The network that ends at a layer, with its own number of neurons there or another.

        >>> MLP([2, 8, 4, 1], "relu", C_W=[1.0, 2.0, 3.0]).up_to(2)
        MLP(widths=[2, 8, 4], activation='relu', C_b=0.0, C_W=[1.0, 2.0], lambda_b=1.0, lambda_W=1.0)
        """
        expected = f"a layer from 1 to {self.depth}"
        *below, last = self.layers[: 2 * check_integer("layer", layer, 1, self.depth, expected) - 1]
        last = last if outputs is None else replace(last, outputs=outputs)  # pyright: ignore[reportCallIssue]
        return MLP.of_chain([*below, last], self.unread or self.activations[0] if layer == 1 else None)

    def with_width(self, width: int) -> MLP:
        """All hidden widths in proportion, the last of them `width`."""
        return MLP.of_chain(super().with_width(width).layers, self.unread)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; a value common to all layers is written once."""
        specs = [sigma.spec for sigma in self.activations or (self.unread,) if sigma is not None]
        per_layer = {"activation": specs} | {name: list(getattr(self, name)) for name in PER_LAYER}
        return {"widths": list(self.widths)} | {name: _once(values) for name, values in per_layer.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> Self:
        """The inverse of `to_dict`. `activations` maps names of the user's own activations to the functions."""
        if not isinstance(data, Mapping):
            raise InvalidInput("network", type(data).__name__, f"a table with the keys {', '.join(FIELDS)}")
        unknown = sorted(set(data) - set(FIELDS))
        missing = [name for name in ("widths", "activation") if name not in data]
        if unknown or missing:
            problem = f"unknown key {unknown[0]!r}" if unknown else f"no key {missing[0]!r}"
            raise InvalidInput("network", problem, f"the keys {', '.join(FIELDS)} (the first two required)")
        own, names = own_activations(activations), data["activation"]
        several = isinstance(names, list | tuple)
        sigmas = [own.get(name, name) for name in names] if several else own.get(names, names)
        return cls(**(dict(data) | {"activation": sigmas}))

    def __repr__(self) -> str:
        per_layer = [("activation", self.activations or (self.unread,))]
        per_layer += [(name, getattr(self, name)) for name in PER_LAYER]
        parts = [f"widths={list(self.widths)}", *(f"{name}={_once(list(values))!r}" for name, values in per_layer)]
        return f"MLP({', '.join(parts)})"


register_pytree(MLP, ["layers"])


def check_activations(activation: Any, hidden: int) -> list[Activation]:
    """One activation per hidden layer; a single one is repeated, and kept where there is no hidden layer."""
    if not isinstance(activation, list | tuple):
        return [resolve(activation)] * max(hidden, 1)
    if len(activation) != hidden:
        raise InvalidInput("activation", f"{len(activation)} of them", f"one, or {hidden}, one per hidden layer")
    return [resolve(sigma) for sigma in activation]


def _rate(learning_rate: Any) -> float:
    return check_real("learning_rate", learning_rate, "a finite non-negative number")


def plain(net: Network, purpose: str) -> MLP:
    """The network as dense layers with an activation between any two; a refusal that names the layer that has no rule.

    Two dense layers in a row have the linear activation between them.

    >>> plain(Network([Dense(2, 8), Dense(8, 1)]), "an example")
    MLP(widths=[2, 8, 1], activation='linear', C_b=0.0, C_W=1.0, lambda_b=1.0, lambda_W=1.0)
    """
    if isinstance(net, MLP):
        return net
    for position, layer in enumerate(check_network(net).layers):
        if not isinstance(layer, Dense | Elementwise):
            reason = layer.no_order_one
            raise NoRule(
                "net", f"layers[{position}] = {layer!r} in {purpose}", "dense layers and activations alone",
                f"Reason: {reason}. Take order=0, or measure it.",
            )  # fmt: skip
    chain = [net.layers[0]]
    for below, layer in pairwise(net.layers):
        linear_between = isinstance(below, Dense) and isinstance(layer, Dense)
        chain += [Elementwise(resolve("linear")), layer] if linear_between else [layer]
    return MLP.of_chain(chain)


def simplified(net: Network) -> Network:
    """The same network as an `MLP` where it is one, so that what is known of plain networks serves it too."""
    return plain(net, "") if all(isinstance(layer, Dense | Elementwise) for layer in check_network(net).layers) else net


def _once(values: list) -> Any:
    """A value that all layers share, else the list."""
    return values[0] if len(set(values)) == 1 else values


def _collapse(name: str, values: tuple) -> Any:
    if len(set(values)) > 1:
        raise InvalidInput("replace", "another depth for a network with layer-dependent " + name, f"new {name} as well")
    return values[0]


def network_from_dict(data: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> Network:
    """The inverse of `to_dict` for networks of any kind.

    >>> network_from_dict({"widths": [2, 8, 1], "activation": "tanh"}).depth
    2
    """
    kind = Network if isinstance(data, Mapping) and "layers" in data else MLP
    return kind.from_dict(data, activations)


class _AllLinear(dict):
    """Activations of any name, for those who ask about widths alone and have no functions at hand."""

    def get(self, key: Any, default: Any = None) -> str:
        return "linear"


def widths_from_json(text: str) -> tuple[int, ...]:
    """n_0, …, n_L of a network, whatever its activations are.

    >>> widths_from_json('{"widths": [2, 8, 1], "activation": "my own"}')
    (2, 8, 1)
    """
    return network_from_json(text, _AllLinear()).widths


def network_from_json(text: str, activations: Mapping[str, Any] | None = None) -> Network:
    """The inverse of `to_json` for networks of any kind."""
    return network_from_dict(parsed_json(text), activations)
