"""Constructors for the conventions people know, each with the C's and λ's that it means (theory §1).

Plain gradient descent with one global learning rate η on weights and biases themselves (the standard
parameterisation) means λ_b = η and λ_W = η n_{l−1}, since the learning-rate tensor is λ_W/n_{l−1} on each weight.
Gradient descent on unit-variance parameters ω with W = √(C_W/n_{l−1}) ω and b = √C_b β (the NTK
parameterisation) means λ_b = η C_b and λ_W = η C_W.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from widthwise.activations import resolve
from widthwise.errors import InvalidInput
from widthwise.network.validation import check_per_layer, check_widths

if TYPE_CHECKING:
    from typing import Self


class Conventions:
    """Named initialisations and parameterisations, mixed into `MLP`."""

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any): ...

    @classmethod
    def standard(
        cls, widths: Sequence[int], activation: Any, C_b: Any = 0.0, C_W: Any = 1.0, learning_rate: float = 1.0
    ) -> Self:
        """Standard parameterisation: gradient descent on W and b with one global rate η.

        C_b, C_W as given; λ_b = η, λ_W = η n_{l−1} in layer l. The NTK then grows with the widths, and the largest
        stable η falls with them.
        """
        fan_in = [float(n) for n in check_widths(widths)[:-1]]
        rate = _global_rate(learning_rate)
        return cls(widths, activation, C_b, C_W, rate, [rate * n for n in fan_in])

    @classmethod
    def ntk(
        cls, widths: Sequence[int], activation: Any, C_b: Any = 0.0, C_W: Any = 1.0, learning_rate: float = 1.0
    ) -> Self:
        """NTK parameterisation: gradient descent on unit-variance parameters. λ_b = η C_b, λ_W = η C_W.

        With neural-tangents' names, C_W = W_std² and C_b = b_std².
        """
        rate, depth = _global_rate(learning_rate), len(check_widths(widths)) - 1
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
        rate, depth = _global_rate(learning_rate), len(n) - 1
        if depth == 1:
            raise InvalidInput("widths", str(list(widths)), "at least one hidden layer for mean-field scaling")
        weights = [rate * n[0] * n[1], *(rate * n[layer - 1] for layer in range(2, depth)), rate]
        biases = [*(rate * n[layer] for layer in range(1, depth)), rate]
        return cls(widths, activation, C_b, [*[C_W] * (depth - 1), C_W / n[-2]], biases, weights)


def _global_rate(learning_rate: float) -> float:
    try:
        rate = float(learning_rate)
    except (TypeError, ValueError):
        rate = -1.0
    if not 0.0 <= rate < float("inf"):
        raise InvalidInput("learning_rate", repr(learning_rate), "a finite non-negative number")
    return rate
