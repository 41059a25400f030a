"""Laws of large depth at criticality beside the exact recursion: how K falls, and from which depth on (theory §7).

At K* = 0, x = K^(−s) obeys x' = x − s a − s Σ_{i>j} a_i K^(i/2−s) + ½ s(s+1) a² K^s + …, with s = j/2 and the
coefficients of `origin_series`. Terms between K^s and K^{2s} add powers of l, the term K^{2s} a logarithm:

    K^(−s) ≈ −s a l + Σ_{j<i<2j} d_i l^(2−i/j) + c ln l + constant,
    c = (½ s(s+1) a² − s a_{2j}) / (−s a),       d_i = −s a_i (−s a)^(1−i/j) / (2 − i/j).

For a smooth σ (s = 1) this is 1/K ≈ −a_1 l + c ln l; the constant is all that remembers the input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from widthwise.activations import Activation, ActivationLike, resolve
from widthwise.criticality.critical import K_ZERO, Critical, critical
from widthwise.criticality.moments import origin_derivatives, origin_series
from widthwise.errors import InvalidInput, UnknownName
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.flow.one_input.scaled_numbers import value_of
from widthwise.network import MLP, check_integer
from widthwise.tensors import WITHOUT_THETA


@dataclass(frozen=True)
class Asymptotics:
    """The laws of a critical activation: `leading` and `corrected` K at layer l, and `holds_from`."""

    activation: Activation
    point: Critical
    logarithm: float
    powers: tuple[tuple[float, float], ...]

    def leading(self, layer: object, x_square: float = 1.0) -> np.ndarray:
        """K at layer l to leading order: (−s a l)^(−1/s) at K* = 0, where K ≈ 1/(−a_1 l) for a smooth σ; else K*.

        In the scale-invariant class K is that of the input, C_W x_square, at every layer; the others forget it.

        >>> asymptotics("relu").leading([1, 50], x_square=3.0).tolist()
        [6.0, 6.0]
        """
        layer = np.asarray(layer, float)
        if self.point.every_K:
            return np.full(layer.shape, self.point.C_W * x_square)
        if self.point.universality != K_ZERO:
            return np.full(layer.shape, self.point.K_star)
        s, a = self.point.details["s"], self.point.details["a"]
        return (-s * a * layer) ** (-1.0 / s)

    def corrected(self, layer: object, constant: float = 0.0, x_square: float = 1.0) -> np.ndarray:
        """K with its logarithm and the powers before it; `constant` adds to K^(−s) (see `constant_of`).

        >>> tanh = asymptotics("tanh")                          # 1/K ≈ 2l + c ln l + constant
        >>> round(tanh.logarithm, 9)
        -0.833333333
        """
        if self.point.universality != K_ZERO:
            return self.leading(layer, x_square)
        layer = np.asarray(layer, float)
        s, a = self.point.details["s"], self.point.details["a"]
        x = -s * a * layer + self.logarithm * np.log(layer) + constant
        for power, weight in self.powers:
            x = x + weight * layer**power
        return x ** (-1.0 / s)

    def constant_of(self, x_square: float = 1.0, depth: int = 4000) -> float:
        """The constant that an input with x·x/n_0 = x_square leaves in K^(−s), read off the exact recursion."""
        if self.point.universality != K_ZERO:
            return 0.0
        s = self.point.details["s"]
        K = float(exact_flow(self, x_square, depth, ())[0][-1])
        return K**-s - float(self.corrected(depth)) ** -s

    def holds_from(
        self, accuracy: float, quantity: str = "K", x_square: float | None = None, max_depth: int = 20_000
    ) -> int:
        """The depth from which on the leading law is within a relative `accuracy` of the exact recursion.

        `quantity` is "K", or a tensor over its natural scale, such as "V" (equal λ_b and λ_W in all layers). The
        recursion runs to `max_depth`. By default the input has x·x/n_0 = 1, or starts at K* > 0.

        >>> asymptotics("relu").holds_from(0.01, "V")           # 5(l − 1) against 5l
        100
        """
        if not 0.0 < accuracy < 1.0:
            raise InvalidInput("accuracy", repr(accuracy), "a relative accuracy between 0 and 1")
        laws = self.point.laws(K=self.point.C_W * (x_square or 1.0))
        if quantity != "K" and quantity not in laws.coefficient:
            raise UnknownName.of("quantity", quantity, ("K", *laws.coefficient))
        wanted = () if quantity == "K" else (quantity,)
        K, ratios = exact_flow(self, x_square, max_depth, wanted)
        layer = np.arange(1, max_depth + 1)
        if quantity == "K":
            law, exact = self.leading(layer, 1.0 if x_square is None else x_square), K
        else:
            law, exact = laws.coefficient[quantity] * layer ** laws.exponent[quantity], ratios[quantity]
        wrong = np.flatnonzero(~(np.abs(exact / law - 1.0) <= accuracy * (1.0 + 1e-9)))
        if len(wrong) and wrong[-1] == max_depth - 1:
            raise InvalidInput(
                "accuracy",
                f"{accuracy:g}, not reached by {quantity} within {max_depth} layers (there it is off by "
                f"{abs(exact[-1] / law[-1] - 1.0):.1e})",
                "an accuracy that the leading law reaches",
                "Raise max_depth, or use corrected().",
            )
        return int(wrong[-1]) + 2 if len(wrong) else 1


def asymptotics(activation: ActivationLike) -> Asymptotics:
    """The laws of large depth of an activation at its critical point.

    >>> sine = asymptotics("sin")                               # K' = (1 − e^(−2K))/2 = K − K² + ⅔K³ − …
    >>> round(sine.logarithm, 9), round(float(sine.leading(1000)), 9)
    (0.333333333, 0.001)
    """
    sigma = resolve(activation)
    point = critical(sigma)
    if point.universality != K_ZERO:
        return Asymptotics(sigma, point, 0.0, ())
    s, a = point.details["s"], point.details["a"]
    j = round(2 * s)
    series = origin_series(origin_derivatives(sigma, 2 * j + 1))
    logarithm = (0.5 * s * (s + 1.0) * a * a - s * series.a[2 * j - 1]) / (-s * a)
    powers = tuple(
        (2.0 - i / j, -s * series.a[i - 1] * (-s * a) ** (1.0 - i / j) / (2.0 - i / j))
        for i in range(j + 1, 2 * j)
        if series.a[i - 1]
    )
    return Asymptotics(sigma, point, logarithm, powers)


def exact_flow(law: Asymptotics, x_square: float | None, depth: int, wanted: tuple[str, ...]):
    """K and ratios of the exact recursion at criticality, equal widths."""
    depth, point = check_integer("max_depth", depth, 2), law.point
    if x_square is None:
        x_square = (point.K_star - point.C_b) / point.C_W if point.K_star > 0.0 else 1.0
    net = MLP([1, *[64] * (depth - 1), 1], law.activation, C_b=point.C_b, C_W=point.C_W)
    with_theta = bool(set(wanted) - set(WITHOUT_THETA))
    flow = single_flow(net, np.array([math.sqrt(x_square)]), wanted, with_theta)
    return value_of(flow.K), flow.ratios
