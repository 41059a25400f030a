"""The line of code that mends a finding, in the package of the model: valid Python that names its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What all initialisation by hand is worth comparing with.
_MORE = "  # ww.advise(model) says more"


def attribute(name: str, owner: str = "model") -> str:
    """A dotted name as code; numbers are places in lists.

    >>> attribute("blocks.0.fc.weight")
    'model.blocks[0].fc.weight'
    """
    pieces = (f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part)
    return owner + "".join(pieces)


@dataclass(frozen=True)
class Remedies:
    """Lines for models of "torch", "flax" or "equinox"."""

    package: str = "torch"

    def redraw(self, name: str, std: float) -> str:
        """Normal entries."""
        if self.package == "torch":
            return f"nn.init.normal_({attribute(name)}, std={std:.3g})"
        code = attribute(name)
        drawn = f"{std:.3g} * jax.random.normal(jax.random.key(0), {code}.shape, {code}.dtype)"
        if self.package == "flax":
            return f"{code}[...] = {drawn}"
        return f"model = eqx.tree_at(lambda m: {attribute(name, 'm')}, model, {drawn})"

    def separate(self, parts: Sequence[str], tensors: Sequence[tuple[str, float]]) -> str:
        """Entries of their own for layers that are copies; `tensors` are equal ones, with the deviation of each."""
        if self.package == "torch":
            owners = ", ".join(map(attribute, parts))
            return (
                f"for p in (p for part in ({owners},) for p in part.parameters()): "
                "p.data = p.data.flatten()[torch.randperm(p.numel())].view_as(p)  # entries of the same law"
            )
        return "; ".join(
            self.redraw(name, std).replace("key(0)", f"key({number})") for number, (name, std) in enumerate(tensors)
        )

    def start_again(self, name: str, shape: Sequence[int]) -> str:
        """Usual entries in place of those that are no numbers."""
        if len(shape) >= 2:
            return f"nn.init.kaiming_normal_({attribute(name)}){_MORE}"
        return f"nn.init.{'ones' if name.endswith('weight') else 'zeros'}_({attribute(name)})"

    def pieces(self, name: str) -> str:
        return f"for piece in {attribute(name)}.data.chunk(3): nn.init.xavier_uniform_(piece)"

    def layer_before(self, weight: str, bias: str, rectified: bool) -> str:
        """For units that are dead or saturated: weights that keep sizes, and no bias."""
        if not weight:
            return self.everywhere(rectified)
        kind = "kaiming_normal_" if rectified else "xavier_normal_"
        return f"nn.init.{kind}({attribute(weight)})" + (f"; nn.init.zeros_({attribute(bias)})" if bias else "")

    def everywhere(self, rectified: bool) -> str:
        """Weights of all layers, so that signals and gradients keep their sizes."""
        if self.package != "torch":
            maker = "he_normal" if rectified else "glorot_normal"
            return f"kernel_init=jax.nn.initializers.{maker}()  # in every layer; ww.advise(model) says more"
        kinds = "(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)"
        maker = "kaiming_normal_" if rectified else "xavier_normal_"
        return f"for m in model.modules(): isinstance(m, {kinds}) and nn.init.{maker}(m.weight){_MORE}"

    def without_decay(self, kind: str, rate: float, decay: float) -> str:
        """An optimiser whose biases and gains have no decay."""
        groups = (
            '[{"params": [p for p in model.parameters() if p.dim() > 1]}, '
            '{"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]'
        )
        return f"optimizer = torch.optim.{kind}({groups}, lr={rate:g}, weight_decay={decay:g})"
