"""Rules of transfer: how variance, multiplier, learning rate, Adam's ε and weight decay change with width and depth.

m = width/base width, M = depth/base depth. A tensor's role says which of its fans grow with width: an "input" weight's
fan-out, a "hidden" weight's both, an "output" weight's fan-in; "vector" is a bias or gain, "fixed" what does not grow.
Sizes are to stay of order one, which fixes everything. With hidden variance ×1/m, output multiplier ×m^(−s/2 − 1/2) and
output variance 1, gradients are of order m^(−s/2 − 1/2) at every hidden unit; s = 1 is μP, s = 0
the NTK parametrisation, and between them is the family of arXiv 2210.04909. Features then move, relative to their size,
by m^((s−1)/2):
    SGD     input and vectors ×m^s, hidden ×m^(s−1), output ×m^s
    Adam    input and vectors ×m^((s−1)/2), hidden ×m^((s−1)/2 − 1), output ×m^((s−1)/2)
A branch multiplied by M^(−a) in each of M blocks adds up to order one if SGD's rate there is ×M^(2a−1), and Adam's and
Muon's ×M^(a−1): a = 1/2 is depth-μP, a = 1 CompleteP.
"""

from __future__ import annotations

from dataclasses import dataclass

from widthwise.errors import InvalidInput, UnknownName

ROLES = ("input", "hidden", "output", "vector", "fixed")
OPTIMISERS = ("sgd", "momentum", "adam", "adamw", "muon")
#: Synonyms of rules, without hyphens, underscores and capitals.
_SYNONYMS = {
    "standard": "standard", "sp": "standard", "default": "standard",
    "ntk": "ntk", "ntp": "ntk",
    "mup": "mup", "μp": "mup", "µp": "mup", "maximalupdate": "mup",
    "depthmup": "depth-mup", "depthμp": "depth-mup", "depthµp": "depth-mup",
    "completep": "completep",
    "family": "family", "meta": "family",
}  # fmt: skip
TRANSFER_RULES = ("standard", "ntk", "mup", "depth-mup", "completep", "family")


@dataclass(frozen=True)
class TensorScaling:
    """Factors relative to the base model: of the variance, learning rate, Adam's ε and weight decay of one tensor."""

    variance: float
    rate: float
    epsilon: float
    decay: float


@dataclass(frozen=True)
class ScalingRule:
    """A rule by name, with the s of the family between NTK (0) and μP (1), and the power a of branches M^(−a).

    `s` is None for the standard rule, which scales nothing but variances.
    """

    name: str
    s: float | None
    branch_power: float = 0.0

    @classmethod
    def of(cls, name: object, s: float | None = None) -> ScalingRule:
        """By name, in any spelling.

        >>> ScalingRule.of("CompleteP")
        ScalingRule(name='completep', s=1.0, branch_power=1.0)
        """
        plain = str(name).lower().replace("-", "").replace("_", "").replace(" ", "")
        if not isinstance(name, str) or plain not in _SYNONYMS:
            raise UnknownName.of("rule", name, TRANSFER_RULES)
        rule = _SYNONYMS[plain]
        if rule == "family":
            if not isinstance(s, int | float) or isinstance(s, bool) or not 0.0 <= s <= 1.0:
                raise InvalidInput("s", repr(s), "a number from 0 (NTK) to 1 (μP) for rule='family'")
            return cls(rule, float(s))
        if s is not None:
            raise InvalidInput("s", repr(s), f"None for rule={name!r}", "rule='family' takes it.")
        powers = {"depth-mup": 0.5, "completep": 1.0}
        values = {"standard": None, "ntk": 0.0}
        return cls(rule, values.get(rule, 1.0), powers.get(rule, 0.0))

    def output_multiplier(self, m: float) -> float:
        """Of logits, where the variance of output weights stays that of the base model."""
        return 1.0 if self.s is None else m ** (-self.s / 2.0 - 0.5)

    def branch_multiplier(self, M: float) -> float:
        return M**-self.branch_power

    def attention_multiplier(self, heads: float) -> float:
        """Of attention logits beside 1/√d_head, as heads grow to so many times the base's: 1/d_head from μP on."""
        return 1.0 if self.s is None or self.name in ("ntk", "family") else heads**-0.5

    def coupling(self, depth: int, width: float) -> tuple[float, str]:
        """γ = L/n^(1−s), the change of features in training relative to themselves, and what it means."""
        gamma = depth / width ** (1.0 - (0.0 if self.s is None else self.s))
        if self.s is not None and self.s == 1.0:
            return gamma, "learning: features move by order one at any width"
        meaning = "lazy" if gamma < 0.1 else "learning" if gamma <= 1.0 else "strongly coupled"
        return gamma, meaning

    def scaling(self, role: str, optimiser: str, m: float, M: float, in_block: bool) -> TensorScaling:
        """Factors of one tensor, for an output in multiplier form."""
        variance = 1.0 / m if role == "hidden" or (role == "output" and self.s is None) else 1.0
        if self.s is None:
            return TensorScaling(variance, 1.0, 1.0, 1.0)
        family = {"sgd": "sgd", "momentum": "sgd"}.get(optimiser, "adam")
        if optimiser == "muon" and role == "hidden":
            family = "muon"
        moved = m ** ((self.s - 1.0) / 2.0)  # change of features
        rates = {
            "sgd": {"hidden": m ** (self.s - 1.0), "fixed": 1.0},
            "adam": {"hidden": moved / m, "fixed": 1.0},
            "muon": {"hidden": moved},
        }
        rate = rates[family].get(role, m**self.s if family == "sgd" else moved)
        a = self.branch_power
        if in_block and a:
            rate *= M ** (2.0 * a - 1.0 if family == "sgd" else a - 1.0)
        gradients = 1.0 if role == "fixed" else m ** (-self.s / 2.0 - 0.5)
        gradients *= M**-a if in_block else 1.0
        # decay acts as rate × decay, and is to act alike in every width; biases and gains have none
        decay = 0.0 if role == "vector" else 1.0 / rate
        return TensorScaling(variance, rate, gradients, decay)


def check_optimiser(name: object) -> str:
    plain = str(name).lower()
    if not isinstance(name, str) or plain not in OPTIMISERS:
        raise UnknownName.of("optimiser", name, OPTIMISERS)
    return plain
