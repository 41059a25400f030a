"""What the page is set to: every value with its limits, and the same as the query of a link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from widthwise.errors import InvalidInput, UnknownName
from widthwise.network import MLP

#: Continuous activations, for which Θ exists.
ACTIVATIONS = ("tanh", "relu", "gelu", "swish", "erf", "sin", "linear", "leaky_relu", "sigmoid", "softplus")
#: Data sets of one or two features whose size can be chosen.
DATA = ("circle", "sine", "spiral")
ALGORITHMS = ("gradient flow", "gradient descent")
#: The deepest network of the page.
DEEPEST = 50
#: Characters of a typed or linked value that are looked at.
_LONGEST = 40


class Number(NamedTuple):
    """A number on the page: its label, limits, the slider's step, and whether it is whole."""

    label: str
    low: float
    high: float
    step: float
    whole: bool = False


class Choice(NamedTuple):
    """One of several names."""

    label: str
    options: tuple[str, ...]


CONTROLS: dict[str, Number | Choice] = {
    "activation": Choice("Activation σ", ACTIVATIONS),
    "C_W": Number("Weight variance C_W", 0.05, 4.0, 0.01),
    "C_b": Number("Bias variance C_b", 0.0, 2.0, 0.01),
    "depth": Number("Depth L (weight layers)", 2, DEEPEST, 1, True),
    "width": Number("Width n (hidden neurons)", 2, 1024, 1, True),
    "size_a": Number("Size of input a, x·x/n₀", 0.05, 10.0, 0.05),
    "size_b": Number("Size of input b, x·x/n₀", 0.05, 10.0, 0.05),
    "angle": Number("Angle between a and b, degrees", 0.0, 180.0, 1.0),
    "lambda_b": Number("Learning rate of biases λ_b", 0.0, 2.0, 0.05),
    "lambda_W": Number("Learning rate of weights λ_W", 0.0, 2.0, 0.05),
    "networks": Number("Networks to sample", 16, 100_000, 1, True),
    "seed": Number("Seed", 0, 2**31 - 1, 1, True),
    "data": Choice("Data", DATA),
    "points": Number("Training inputs", 2, 4, 1, True),
    "algorithm": Choice("Algorithm", ALGORITHMS),
    "trained": Number("Networks to train", 16, 5_000, 1, True),
}


@dataclass(frozen=True)
class Settings:
    """Everything that a link restores.

    >>> settings = Settings().changed("C_W", "1.98305826")
    >>> Settings.restored({"C_W": "1.98305826"}) == (settings, []), settings.query
    (True, '?C_W=1.98305826')
    >>> settings.changed("depth", "300")
    Traceback (most recent call last):
    ...
    widthwise.errors.InvalidInput: depth: got '300'; expected a whole number from 2 to 50.
    """

    activation: str = "tanh"
    C_W: float = 1.5
    C_b: float = 0.05
    depth: int = 10
    width: int = 64
    size_a: float = 1.0
    size_b: float = 2.0
    angle: float = 60.0
    lambda_b: float = 1.0
    lambda_W: float = 1.0
    networks: int = 2000
    seed: int = 0
    data: str = "circle"
    points: int = 3
    algorithm: str = "gradient flow"
    trained: int = 256

    def changed(self, name: str, value: Any) -> Settings:
        """With one value replaced by a typed or linked one, which is checked."""
        if name not in CONTROLS:
            raise UnknownName.of("link", name, CONTROLS)
        after = replace(self, **{name: check(name, value)})
        if after.lambda_b == after.lambda_W == 0.0:
            raise InvalidInput(
                name, "0 with the other rate 0 as well", "λ_b or λ_W above zero", "Else nothing is trained."
            )
        return after

    @property
    def query(self) -> str:
        """The query of a link that restores this state; values that are as at the start are left out."""
        start = Settings()
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        differ = {name: value for name, value in given.items() if value != getattr(start, name)}
        return "?" + urlencode({name: _text(value) for name, value in differ.items()})

    @classmethod
    def restored(cls, query: Mapping[str, str]) -> tuple[Settings, list[str]]:
        """The inverse of `query`, and what is wrong with the values that were left out."""
        settings, problems = cls(), []
        for name, value in query.items():
            try:
                settings = settings.changed(name, value)
            except InvalidInput as error:
                problems.append(str(error))
        return settings, problems

    def network(self, features: int = 2, depth: int | None = None) -> MLP:
        """The network, with one output; or one of another depth."""
        widths = [features, *[self.width] * ((depth or self.depth) - 1), 1]
        return MLP(widths, self.activation, self.C_b, self.C_W, self.lambda_b, self.lambda_W)

    @property
    def inputs(self) -> np.ndarray:
        """a and b, (2, 2): vectors in the plane with x·x/2 as set and the angle between them."""
        angle = math.radians(self.angle)
        a, b = math.sqrt(2.0 * self.size_a), math.sqrt(2.0 * self.size_b)
        return np.array([[a, 0.0], [b * math.cos(angle), b * math.sin(angle)]])


def check(name: str, value: Any) -> Any:
    """A value for one control, from text or a number; anything else is refused by name.

    >>> check("C_b", " 0.17 "), check("width", 128.0)
    (0.17, 128)
    """
    control = CONTROLS[name]
    if isinstance(control, Choice):
        if value not in control.options:
            raise UnknownName.of(name, str(value)[:_LONGEST], control.options)
        return value
    try:
        number = float(value if not isinstance(value, str) else value.strip()[:_LONGEST])
    except (TypeError, ValueError):
        number = math.nan
    if not control.low <= number <= control.high or (control.whole and number != int(number)):
        kind = "a whole number" if control.whole else "a number"
        got = repr(value[:_LONGEST]) if isinstance(value, str) else f"{value!r}"
        raise InvalidInput(name, got, f"{kind} from {control.low:.10g} to {control.high:.10g}")
    return int(number) if control.whole else number


def _text(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
