"""`parametrisation`: variances, multipliers and learning rates that transfer from a base model to a larger one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput, WeightsWarning
from widthwise.extras import need
from widthwise.network import MLP, Network, check_seed
from widthwise.network.validation import LEAST, check_real, is_one_of
from widthwise.readers.empirical.model_functions import package_names, unwrapped
from widthwise.readers.transfer.scaling_rules import ROLES, ScalingRule, TensorScaling, check_optimiser
from widthwise.readers.transfer.tensor_roles import RoledTensor, TensorShape, tensors_of, with_roles
from widthwise.text import TERMINAL, text_table

_FORMS = ("multiplier", "variance")
#: Where published rules disagree, and what is done here.
_SAID = {
    "mup": "logits ×1/m with the base's output variance, or output variance ×1/m²: both are offered by output=.",
    "depth-mup": "branches ×1/√M; CompleteP has 1/M, which keeps features inside blocks learning: rule='completep'.",
    "completep": "branches ×1/M; depth-μP has 1/√M, which keeps the diversity of blocks: rule='depth-mup'.",
    "adam": "published tables scale ε inside blocks only; here ε of every tensor follows the size of its gradient.",
    "ntk": "no published rate of Adam: the one given keeps the change of logits of order one.",
    "decay": "Adam's decay enters the gradient that it rescales, so that no factor keeps both its size and its pull; "
    "rate × decay stays here, as in the published code. AdamW's decay transfers.",
    "standard": "branches ×1. GPT-2 draws the output projections of L blocks with 1/√(2L) of the standard deviation.",
}


def _notes(rule: ScalingRule, optimiser: str, depth: float, weight_decay: float) -> list[str]:
    apply = {
        rule.name: rule.name not in ("ntk", "standard"),
        "ntk": rule.name == "ntk" and optimiser in ("adam", "adamw"),
        "standard": rule.name == "standard" and depth != 1.0,
        "adam": optimiser in ("adam", "adamw", "muon") and rule.s is not None,
        "decay": optimiser == "adam" and weight_decay > 0.0 and rule.s is not None,
    }
    return [_SAID[name] for name, applies in apply.items() if applies and name in _SAID]


@dataclass(frozen=True)
class ScaledTensor:
    """One tensor: its role, the variance to draw it with, and its learning rate, ε and weight decay.

    `shape` is (fan-out, fan-in, kernel…), however the model stores it.
    """

    name: str
    role: str
    variance: float
    learning_rate: float
    epsilon: float
    weight_decay: float
    by: str
    shape: tuple[int, ...]
    tensor: Any = None

    @property
    def optax_muon(self) -> dict[str, float]:
        """Rate and decay for Optax's Muon, whose √(outputs/inputs) takes tensors as stored (inputs, outputs)."""
        by_outputs = self.tensor is not None and tuple(self.tensor.shape) == self.shape
        factor = math.sqrt(self.shape[0] / self.shape[1]) if by_outputs else 1.0
        return {"learning_rate": self.learning_rate * factor, "weight_decay": self.weight_decay / factor}


@dataclass(frozen=True, eq=False)
class Parametrisation:
    """Hyperparameters of a model by a rule of transfer, relative to a base model.

    `multipliers` are constants that the forward pass must contain: "output" on what the tensors of the role "output"
    give (`multiplied`; on logits where the output weights are tied to an embedding), "branch" on every residual
    branch, "attention" on attention logits beside their 1/√d_head if d_head grows with the width. `variances` are those
    of the initial entries by tensor, `param_groups` the groups of a torch optimiser, `optax()` the same for Optax.
    `gamma` = L/n^(1−s) is the change of features in training, `regime` what that means, `width` its n. `notes` say
    where rules differ.
    """

    rule: str
    optimiser: str
    width_ratio: float
    depth_ratio: float
    multipliers: dict[str, float]
    tensors: tuple[ScaledTensor, ...]
    gamma: float
    regime: str
    notes: tuple[str, ...] = ()
    width: float = math.nan
    multiplied: str = "the logits"

    @property
    def variances(self) -> dict[str, float]:
        return {one.name: one.variance for one in self.tensors}

    @property
    def learning_rates(self) -> dict[str, float]:
        return {one.name: one.learning_rate for one in self.tensors}

    @cached_property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group a tensor, for `torch.optim`; those of Muon and of AdamW are told apart by "optimiser"."""
        groups = []
        for one in self.tensors:
            group = {"params": [] if one.tensor is None else [one.tensor], "lr": one.learning_rate, "name": one.name}
            group["weight_decay"] = one.weight_decay
            if one.by in ("adam", "adamw"):
                group["eps"] = one.epsilon
            groups.append(group | {"optimiser": one.by})
        return groups

    def torch_optimisers(self, **options: Any) -> list[Any]:
        """The optimisers of torch with these groups: one, or for Muon two."""
        optim = need("torch.optim", "torch", "an optimiser of torch")
        kinds = {"sgd": optim.SGD, "momentum": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW}
        found = []
        for kind in dict.fromkeys(one.by for one in self.tensors):
            groups = [group for group in self.param_groups if group["optimiser"] == kind and group["params"]]
            if kind == "muon" and not hasattr(optim, "Muon"):
                raise InvalidInput("optimiser", "'muon' with this version of torch", "torch 2.9 or later")
            if groups:
                more = {"momentum": 0.9} if kind == "momentum" else {}
                found.append((optim.Muon if kind == "muon" else kinds[kind])(groups, **(more | options)))
        return found

    def optax(self) -> Any:
        """The same as an Optax transformation on a tree whose leaves have the tensors' names."""
        optax = need("optax", "readers", "an Optax transformation")
        jax = need("jax", "readers", "an Optax transformation")
        makers = {
            "sgd": lambda one: optax.chain(optax.add_decayed_weights(one.weight_decay), optax.sgd(one.learning_rate)),
            "momentum": lambda one: optax.chain(
                optax.add_decayed_weights(one.weight_decay), optax.sgd(one.learning_rate, momentum=0.9)
            ),
            "adam": lambda one: optax.chain(
                optax.add_decayed_weights(one.weight_decay), optax.adam(one.learning_rate, eps=one.epsilon)
            ),
            "adamw": lambda one: optax.adamw(one.learning_rate, eps=one.epsilon, weight_decay=one.weight_decay),
            "muon": lambda one: optax.contrib.muon(**one.optax_muon),
        }

        def labels(parameters: Any) -> Any:
            from widthwise.readers.empirical.model_functions import path_name

            return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path), parameters)

        return optax.partition({one.name: makers[one.by](one) for one in self.tensors}, labels)

    def initialise(self, model: Any, seed: int = 0) -> Any:
        """Draw the weights of a torch model, in place, with these variances; constant tensors stay as they are."""
        torch = need("torch", "torch", "drawing the weights of a PyTorch model")
        generator = torch.Generator().manual_seed(check_seed(seed))
        if not isinstance(unwrapped(model), torch.nn.Module):
            raise InvalidInput("model", type(model).__name__, "a torch.nn.Module")
        own = dict(unwrapped(model).named_parameters())
        with torch.no_grad():
            for one in self.tensors:
                if one.name not in own:
                    raise InvalidInput("model", f"no tensor {one.name}", "the model that this was made for")
                if one.variance > 0.0:
                    drawn = torch.randn(own[one.name].shape, generator=generator, dtype=torch.float64)
                    own[one.name].copy_(math.sqrt(one.variance) * drawn)
        return model

    def __str__(self) -> str:
        rows = [(t.name, t.role, t.by, t.variance, t.learning_rate, t.epsilon, t.weight_decay) for t in self.tensors]
        head = (
            f"{self.rule} for {self.optimiser}: width ×{self.width_ratio:g}, depth ×{self.depth_ratio:g}; "
            f"γ = {self.gamma:.3g} ({self.regime})"
        )
        on = {"output": f" on {self.multiplied}", "attention": " where d_head grows"}
        shown = {name: value for name, value in self.multipliers.items() if value != 1.0}
        constants = ", ".join(f"{name} ×{value:.4g}{on.get(name, '')}" for name, value in shown.items()) or "none"
        columns = ("tensor", "role", "by", "variance", "learning rate", "ε", "decay")
        lines = [head, f"multipliers: {constants}"]
        said = [fill(note, TERMINAL) for note in (*lines, *self.notes)]
        return "\n".join([*said[:2], text_table(columns, rows), *said[2:]])


def parametrisation(
    model_or_net: Any,
    base: Any = None,
    rule: str = "mup",
    optimiser: str = "adam",
    *,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    epsilon: float = 1e-8,
    s: float | None = None,
    output: str = "multiplier",
    roles: Mapping[str, str] | None = None,
) -> Parametrisation:
    """Initial variances, multipliers and learning rates by tensor that transfer from a base model to this one.

    Parameters
    ----------
    model_or_net : a torch, Flax (nnx) or Equinox module, or a widthwise network.
    base : a smaller model of the same kind, whose hyperparameters were tuned, or the width of one for a network. Its
        entries say the base's variances. None: the model itself, for which all factors are 1.
    rule : "standard", "ntk", "mup", "depth-mup", "completep", or "family" with s from 0 (NTK) to 1 (μP).
    optimiser : "sgd", "momentum", "adam", "adamw" or "muon" (hidden matrices by Muon, the rest by AdamW).
    learning_rate, weight_decay, epsilon : those of the base model. Decay acts on weights, not on biases and gains.
    output : "multiplier", logits are to be multiplied by `multipliers["output"]`; or "variance", the same without a
        change of the forward pass, in the variance and rate of output weights.
    roles : of tensors by name, "input", "hidden", "output", "vector" or "fixed", where they are not what comparison
        with the base says; without a base they are guessed by place.

    Returns
    -------
    A `Parametrisation`, with `.param_groups`, `.multipliers`, `.variances` and `.optax()`. Residual branches must be
    multiplied by `multipliers["branch"]` in the forward pass.

    >>> from torch import nn
    >>> def model(n):
    ...     return nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))
    >>> p = parametrisation(model(256), base=model(64), rule="mup", optimiser="adam", learning_rate=0.01)
    >>> [(group["name"], group["lr"]) for group in p.param_groups if "weight" in group["name"]]
    [('0.weight', 0.01), ('2.weight', 0.0025), ('4.weight', 0.01)]
    >>> p.multipliers["output"]
    0.25
    """
    chosen, kind = ScalingRule.of(rule, s), check_optimiser(optimiser)
    learning_rate = check_real("learning_rate", learning_rate, "a finite positive number", least=LEAST)
    weight_decay = check_real("weight_decay", weight_decay, "a finite non-negative number")
    epsilon = check_real("epsilon", epsilon, "a finite non-negative number")
    if not is_one_of(output, _FORMS):
        raise InvalidInput("output", repr(output), "'multiplier' or 'variance'")
    own = tensors_of(model_or_net)
    smaller = own if base is None else tensors_of(_base(model_or_net, base))
    roled, depth = with_roles(own, smaller, _checked_roles(roles, own, smaller))
    width = max((one.width for one in roled if one.role in ("hidden", "output", "input")), default=1.0)
    multiplier = chosen.output_multiplier(width)
    multiplied = [one.own.name for one in roled if one.role == "output"]
    tied = any(one.own.table == "tied" for one in roled)
    if output == "variance" and multiplier != 1.0 and (tied or not multiplied):
        got = "'variance' for a model without output weights of its own, such as those tied to an embedding"
        remedy = "coordinate_check multiplies by an attribute output_multiplier of the model, if it has one."
        raise InvalidInput("output", got, "'multiplier', in the forward pass", remedy)
    tensors = []
    for one in roled:
        by = kind if kind != "muon" or (one.role == "hidden" and _is_matrix(one)) else "adamw"
        factors = chosen.scaling(one.role, by, one.width, depth, one.in_block)
        if one.role == "output" and output == "variance":
            factors = _folded(factors, multiplier, by)
        rate = learning_rate * factors.rate * (_muon_shape(one) if by == "muon" else 1.0)
        tensors.append(
            ScaledTensor(one.own.name, one.role, one.base.variance * factors.variance, rate, epsilon * factors.epsilon,
                         weight_decay * factors.decay, by, one.own.shape, one.own.tensor)
        )  # fmt: skip
    unknown = [one.name for one in tensors if not math.isfinite(one.variance)]
    if unknown:
        warnings.warn(
            f"{', '.join(unknown[:3])}{', …' if unknown[3:] else ''}: entries that are NaN or infinite, so that their "
            "variance is not known and `initialise` leaves them as they are. Take a base whose weights are finite.",
            WeightsWarning,
            stacklevel=2,
        )
    heads = {"output": multiplier if output == "multiplier" else 1.0, "branch": chosen.branch_multiplier(depth)}
    heads["attention"] = chosen.attention_multiplier(width)
    gamma, regime = chosen.coupling(_depth(own), n := _width(roled))
    said = _notes(chosen, kind, depth, weight_decay)
    on = ", ".join([*multiplied, *(["the logits"] if tied or not multiplied else [])])
    return Parametrisation(chosen.name, kind, width, depth, heads, tuple(tensors), gamma, regime, tuple(said), n, on)


def _checked_roles(roles: Any, own: list[TensorShape], base: list[TensorShape]) -> Mapping[str, str]:
    if roles is not None and not isinstance(roles, Mapping):
        raise InvalidInput("roles", type(roles).__name__, "a dict of roles by name of the tensor")
    known = {one.name for one in (*own, *base)}
    for name, role in (roles or {}).items():
        if name not in known:
            raise InvalidInput("roles", f"a role of {name!r}", f"names of tensors, such as {own[0].name!r}")
        if not is_one_of(role, ROLES):
            raise InvalidInput(f"roles[{name!r}]", repr(role), f"one of {', '.join(ROLES)}")
    return roles or {}


def _base(model: Any, base: Any) -> Any:
    """The base model; for a network also one of another width by a number."""
    if isinstance(model, MLP) and isinstance(base, int) and not isinstance(base, bool):
        if base < 1:
            raise InvalidInput("base", repr(base), "a positive width")
        return model.replace(widths=[model.widths[0], *[base] * (len(model.widths) - 2), model.widths[-1]])
    same = isinstance(model, Network) == isinstance(base, Network) and not isinstance(base, int | float | str)
    packages = package_names(base) & package_names(model) & {"torch", "flax", "equinox"}
    if not same or not (packages or isinstance(model, Network)):
        raise InvalidInput("base", f"{base!r}", f"a smaller {type(model).__name__} of the same kind, or None")
    return base


def _folded(factors: TensorScaling, multiplier: float, by: str) -> TensorScaling:
    """The same step of the product α·W, of W alone: variance α², SGD's rate α², Adam's α and its ε 1/α."""
    power = 2.0 if by in ("sgd", "momentum") else 1.0
    return TensorScaling(
        factors.variance * multiplier**2,
        factors.rate * multiplier**power,
        factors.epsilon / multiplier,
        factors.decay / multiplier**power,
    )


def _is_matrix(one: RoledTensor) -> bool:
    return len(one.own.shape if one.own.tensor is None else one.own.tensor.shape) == 2


def _muon_shape(one: RoledTensor) -> float:
    """√(fan-out/fan-in), of which torch's Muon already takes what is above 1."""
    outputs, inputs = one.own.shape[:2]
    return math.sqrt(min(1.0, outputs / max(inputs, 1)))


def _depth(own: list[Any]) -> int:
    return max(1, sum(len(one.shape) >= 2 for one in own))


def _width(roled: list[RoledTensor]) -> float:
    """The width of the layer before the output, or the largest fan-in."""
    fans = [one.own.shape[1] for one in roled if len(one.own.shape) >= 2 and one.role == "output"]
    fans = fans or [one.own.shape[1] for one in roled if len(one.own.shape) >= 2]
    return max(1.0, float(np.max(fans))) if fans else 1.0
