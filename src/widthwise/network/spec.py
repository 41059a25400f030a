"""The multilayer perceptron: an immutable, validated specification (theory §1)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from numpy.typing import ArrayLike

from widthwise.activations import Activation, ActivationLike, resolve
from widthwise.errors import InvalidInput
from widthwise.network.conventions import Conventions
from widthwise.network.serialise import Serialised
from widthwise.network.validation import check_per_layer, check_widths

PER_LAYER = ("C_b", "C_W", "lambda_b", "lambda_W")


@dataclass(frozen=True, init=False, repr=False)
class MLP(Conventions, Serialised):
    """A fully connected network and the distribution of its parameters.

    `widths = [n_0, …, n_L]`: input dimension, hidden widths, outputs. The L weight matrices have independent
    zero-mean entries with E[bb] = C_b, E[WW] = C_W/n_{l−1}; the learning-rate tensor is λ_b on biases and
    λ_W/n_{l−1} on weights (theory §1). Each of `C_b`, `C_W`, `lambda_b`, `lambda_W` is a number, or a sequence with
    one value per weight layer. `activation` is a name or any function written in `jax.numpy`.

    >>> net = MLP(widths=[3, 64, 64, 1], activation="tanh", C_b=0.05, C_W=1.5)
    >>> net.depth, net.C_W
    (3, (1.5, 1.5, 1.5))
    >>> net
    MLP(widths=[3, 64, 64, 1], activation='tanh', C_b=0.05, C_W=1.5, lambda_b=1.0, lambda_W=1.0)
    >>> net == eval(repr(net))
    True
    """

    widths: tuple[int, ...]
    activation: Activation
    C_b: tuple[float, ...]
    C_W: tuple[float, ...]
    lambda_b: tuple[float, ...]
    lambda_W: tuple[float, ...]

    def __init__(
        self,
        widths: ArrayLike,
        activation: ActivationLike,
        C_b: ArrayLike = 0.0,
        C_W: ArrayLike = 1.0,
        lambda_b: ArrayLike = 1.0,
        lambda_W: ArrayLike = 1.0,
    ):
        object.__setattr__(self, "widths", check_widths(widths))
        object.__setattr__(self, "activation", resolve(activation))
        for name, value in zip(PER_LAYER, (C_b, C_W, lambda_b, lambda_W), strict=True):
            object.__setattr__(self, name, check_per_layer(name, value, self.depth))

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.widths) - 1

    @property
    def n(self) -> int:
        """The width that 1/n refers to at the output: n_{L−1}, the last hidden width (n_0 without hidden layers)."""
        return self.widths[-2]

    def replace(self, **changes: Any) -> MLP:
        """A copy with some fields changed.

        >>> MLP([2, 8, 1], "relu", C_W=2.0).replace(C_W=1.9).C_W
        (1.9, 1.9)
        """
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise InvalidInput("replace", repr(name), f"one of {', '.join(sorted(known))}")
        now = {field.name: getattr(self, field.name) for field in fields(self)}
        if "widths" in changes and len(changes["widths"]) != len(self.widths):
            now |= {name: _collapse(name, now[name]) for name in PER_LAYER if name not in changes}
        return MLP(**(now | changes))

    def up_to(self, layer: int, outputs: int | None = None) -> MLP:
        """The network that ends at a layer, with its own number of neurons there or another.

        >>> MLP([2, 8, 4, 1], "relu", C_W=[1.0, 2.0, 3.0]).up_to(2)
        MLP(widths=[2, 8, 4], activation='relu', C_b=0.0, C_W=[1.0, 2.0], lambda_b=1.0, lambda_W=1.0)
        """
        widths = [*self.widths[:layer], self.widths[layer] if outputs is None else outputs]
        return MLP(widths, self.activation, *(getattr(self, name)[:layer] for name in PER_LAYER))

    def __repr__(self) -> str:
        parts = [f"widths={list(self.widths)}", f"activation={self.activation!r}"]
        for name in PER_LAYER:
            values = getattr(self, name)
            parts.append(f"{name}={values[0] if len(set(values)) == 1 else list(values)}")
        return f"MLP({', '.join(parts)})"


def _collapse(name: str, values: tuple[float, ...]) -> float:
    if len(set(values)) > 1:
        raise InvalidInput("replace", "another depth for a network with layer-dependent " + name, f"new {name} as well")
    return values[0]
