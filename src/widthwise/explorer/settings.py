"""What the page is set to: every value with its limits, and the same as the query of a link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from widthwise.errors import InvalidInput, UnknownName
from widthwise.labs import names
from widthwise.network import MLP, Network, ResMLP, simplified

#: Continuous activations, for which Θ exists.
PAGE_ACTIVATIONS = ("tanh", "relu", "gelu", "swish", "erf", "sin", "linear", "leaky_relu", "sigmoid", "softplus")
#: Tabs, as links name them.
TABS = ("theory", "sampled", "trained", "labs")
#: The deepest network of the page.
DEEPEST_PAGE = 50
#: Layers behind the first: plain, z' = γ z + b + W σ(z), and the same with RMSNorm before σ.
SKIPS = ("none", "residual", "pre-norm")
#: Networks that people know, as the queries of links.
PRESETS = {
    "deep tanh": "?depth=40&width=128",
    "He ReLU": "?activation=relu&C_W=2&depth=20",
    "critical gelu": "?activation=gelu&C_W=1.98305826&C_b=0.17292239&depth=20",
    "GPT-2-like gelu": "?activation=gelu&skip=pre-norm&gamma=1&C_W=0.1&depth=24&width=768",
    "PyTorch default tanh": "?C_W=0.333333&depth=20",
}
#: Characters of a typed or linked value.
LONGEST_VALUE = 40


class Control(NamedTuple):
    """One of several names, `options`; or a number: its limits, the slider's step, and whether it is whole."""

    label: str
    options: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float = 1.0
    whole: bool = False


def _choice(label: str, *options: str) -> Any:
    return field(default=options[0], metadata={"control": Control(label, options)})


def _quantity(start: float, label: str, low: float, high: float, step: float = 1) -> Any:
    control = Control(label, (), low, high, step, isinstance(start, int))
    return field(default=start, metadata={"control": control})


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

    activation: str = _choice("Activation σ", *PAGE_ACTIVATIONS)
    skip: str = _choice("Skip connections", *SKIPS)
    gamma: float = _quantity(0.9, "Skip γ (used with skips)", 0.0, 1.0, 0.01)
    C_W: float = _quantity(1.0, "Weight variance C_W", 0.01, 4.0, 0.01)
    C_b: float = _quantity(0.0, "Bias variance C_b", 0.0, 2.0, 0.01)
    depth: int = _quantity(5, "Depth L (weight layers)", 2, DEEPEST_PAGE)
    width: int = _quantity(64, "Width n (hidden neurons)", 2, 1024)
    size_a: float = _quantity(1.0, "Size of input a, x·x/n₀", 0.05, 10.0, 0.05)
    size_b: float = _quantity(2.0, "Size of input b, x·x/n₀", 0.05, 10.0, 0.05)
    angle: float = _quantity(60.0, "Angle between a and b, degrees", 0.0, 180.0, 1.0)
    lambda_b: float = _quantity(1.0, "Learning rate of biases λ_b", 0.0, 2.0, 0.05)
    lambda_W: float = _quantity(1.0, "Learning rate of weights λ_W", 0.0, 2.0, 0.05)
    networks: int = _quantity(2000, "Networks to sample", 16, 100_000)
    seed: int = _quantity(0, "Seed", 0, 2**31 - 1)
    # data sets of one or two features whose size can be chosen
    data: str = _choice("Data", "circle", "sine", "spiral")
    points: int = _quantity(3, "Training inputs", 2, 4)
    algorithm: str = _choice("Algorithm", "gradient flow", "gradient descent")
    trained: int = _quantity(256, "Networks to train", 16, 5_000)
    lab: str = _choice("Lab", *names())
    tab: str = _choice("Tab", *TABS)

    def changed(self, name: str, value: Any) -> Settings:
        """With one value replaced by a typed or linked one, which is checked."""
        if name not in CONTROLS:
            raise UnknownName.of("link", name[:LONGEST_VALUE], CONTROLS)
        after = replace(self, **{name: check(name, value)})
        if after.lambda_b == after.lambda_W == 0.0:
            raise InvalidInput(
                name, "0 with the other rate 0 as well", "λ_b or λ_W above zero", "Else nothing is trained."
            )
        return after

    @property
    def query(self) -> str:
        """The query of a link that restores this state; values that are as at the start are left out."""
        differ = {name: value for name, value in vars(self).items() if value != getattr(Settings, name)}
        texts = {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in differ.items()}
        return "?" + urlencode(texts)

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

    def network(self, features: int = 2, depth: int | None = None) -> Network:
        """The network, with one output; or one of another depth."""
        if self.skip == "none":
            return self.plain(features, depth)
        widths = [features, *[self.width] * ((depth or self.depth) - 1), 1]
        hyper = self.C_b, self.C_W, self.lambda_b, self.lambda_W
        return simplified(ResMLP(widths, self.activation, self.gamma, *hyper, norm=self.norm))

    def plain(self, features: int = 2, depth: int | None = None) -> MLP:
        """The network without skips and normalisation."""
        widths = [features, *[self.width] * ((depth or self.depth) - 1), 1]
        return MLP(widths, self.activation, self.C_b, self.C_W, self.lambda_b, self.lambda_W)

    @property
    def norm(self) -> str | None:
        """The normalisation, by the name that the library has for it."""
        return "rms" if self.skip == "pre-norm" else None

    @property
    def block(self) -> tuple[float, str | None]:
        """γ and the normalisation of the hidden layers."""
        return (0.0 if self.skip == "none" else self.gamma), self.norm

    @property
    def inputs(self) -> np.ndarray:
        """a and b, (2, 2): vectors in the plane with x·x/2 as set and the angle between them."""
        angle = math.radians(self.angle)
        a, b = math.sqrt(2.0 * self.size_a), math.sqrt(2.0 * self.size_b)
        return np.array([[a, 0.0], [b * math.cos(angle), b * math.sin(angle)]])


CONTROLS: dict[str, Control] = {one.name: one.metadata["control"] for one in fields(Settings)}


def check(name: str, value: Any) -> Any:
    """A value for one control, from text or a number; anything else is refused by name.

    >>> check("C_b", " 0.17 "), check("width", 128.0)
    (0.17, 128)
    """
    control = CONTROLS[name]
    if control.options:
        if value not in control.options:
            raise UnknownName.of(name, str(value)[:LONGEST_VALUE], control.options)
        return value
    try:
        number = float(value) if len(str(value)) <= LONGEST_VALUE else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not control.low <= number <= control.high or (control.whole and number != int(number)):
        kind = "a whole number" if control.whole else "a number"
        got = repr(value) if len(str(value)) <= LONGEST_VALUE else f"{str(value)[:LONGEST_VALUE]!r} and more"
        raise InvalidInput(name, got, f"{kind} from {control.low:.10g} to {control.high:.10g}")
    return int(number) if control.whole else number
