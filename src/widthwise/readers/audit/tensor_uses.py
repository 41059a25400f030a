"""How a torch model uses its tensors: every function call of one forward pass is watched, whatever the classes.

A product with a tensor says its fan-in and fan-out as used: of a packed projection those of one piece, of a grouped
convolution those of one group, of a transposed one by its stride. Activations are watched for units that are dead or
saturated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from widthwise.extras import need

_MATRIX_PRODUCTS = {"matmul", "mm", "bmm", "__matmul__", "rmatmul", "__rmatmul__", "addmm", "baddbmm"}
_RESHAPES_OF_PACKED = {"view", "reshape", "unflatten", "permute", "transpose", "contiguous", "flatten", "swapaxes"}
_SPLITS = {"chunk", "split", "tensor_split", "unbind", "hsplit"}
_RECTIFIERS = {"relu", "relu_", "relu6", "hardtanh", "threshold"}
_SATURATING = {"tanh": (-1.0, 1.0), "tanh_": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "sigmoid_": (0.0, 1.0)}
#: Names of tensors that hold query, key and value together.
_PACKED_NAMES = ("qkv", "in_proj", "c_attn", "query_key_value", "wqkv", "kqv")


@dataclass
class TensorUse:
    """One use of a tensor: by which operation, fans as used, and how many projections it packs."""

    operation: str
    fan_in: float
    fan_out: float
    pieces: int = 1


@dataclass
class ActivationUse:
    """One call of an activation: where, the share of units that are dead, and of entries that are saturated."""

    where: str
    name: str
    dead: float = 0.0
    saturated: float = 0.0
    rows: int = 0
    units: int = 0
    after: str = ""  # the weight of the last product before it

    @property
    def rectifies(self) -> bool:
        return self.name in _RECTIFIERS


@dataclass
class ForwardUses:
    """What one forward pass did with the tensors of a model, by name."""

    tensors: dict[str, list[TensorUse]] = field(default_factory=dict)
    activations: list[ActivationUse] = field(default_factory=list)

    def of(self, name: str) -> TensorUse | None:
        uses = self.tensors.get(name)
        return uses[0] if uses else None


def watched_call(module: Any, call: Callable[[], Any]) -> tuple[Any, ForwardUses]:
    """call(), and what it did with the parameters of the module."""
    overrides = need("torch.overrides", "torch", "auditing a PyTorch model")
    names = {value.data_ptr(): name for name, value in module.named_parameters() if value.numel()}
    watch = _Watch(names)

    class Mode(overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            watch.see(getattr(function, "__name__", ""), args, kwargs or {}, result)
            return result

    handles = [part.register_forward_pre_hook(_entering(watch, name)) for name, part in module.named_modules() if name]
    try:
        with Mode():
            return call(), watch.uses
    finally:
        for handle in handles:
            handle.remove()


def _entering(watch: _Watch, name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        watch.where = name

    return hook


class _Watch:
    """Recognises tensors by where they lie in memory, and results of products by themselves."""

    def __init__(self, names: dict[int, str]):
        self.names, self.uses, self.where = names, ForwardUses(), ""
        self.product = ""
        self.packed: dict[int, tuple[Any, TensorUse]] = {}  # results that may be split, kept so that ids stay unique

    def name_of(self, value: Any) -> str | None:
        try:
            return self.names.get(value.data_ptr()) if hasattr(value, "data_ptr") else None
        except RuntimeError:  # tensors without memory of their own
            return None

    def see(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if function == "linear":
            self._add(_argument(args, kwargs, 1, "weight"), "linear", 1, 0, result)
        elif function.startswith("conv"):
            self._convolution(function, args, kwargs)
        elif function == "embedding":
            weight = next((v for v in (*args, *kwargs.values()) if self.name_of(v) and v.dim() == 2), None)
            if weight is not None:
                self._record(weight, TensorUse("embedding", 1.0, float(weight.shape[1])))
        elif function == "multi_head_attention_forward":
            self._attention(args, kwargs)
        elif function in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            self._recurrent(args)
        elif function in _MATRIX_PRODUCTS:
            self._product(args, result)
        elif function in (*_SPLITS, *_RESHAPES_OF_PACKED, "__getitem__") and args:
            self._split(function, args, result)
        elif function in _RECTIFIERS or function in _SATURATING:
            self._activation(function, result)

    def _record(self, tensor: Any, use: TensorUse) -> None:
        name = self.name_of(tensor)
        if name is not None:
            if any(part in name.lower() for part in _PACKED_NAMES) and use.fan_out % 3 == 0 and use.pieces == 1:
                use.fan_out, use.pieces = use.fan_out / 3, 3
            self.uses.tensors.setdefault(name, []).append(use)
            self.product = name

    def _add(self, weight: Any, operation: str, inner: int, outer: int, result: Any) -> None:
        if weight is None or weight.dim() < 2 or self.name_of(weight) is None:
            return
        use = TensorUse(operation, float(weight.shape[inner]), float(weight.shape[outer]))
        self._record(weight, use)
        self.packed[id(result)] = (result, use)

    def _product(self, args: tuple[Any, ...], result: Any) -> None:
        left, right = args[-2:] if len(args) >= 2 else (None, None)
        if right is not None and getattr(right, "dim", lambda: 0)() >= 2:
            self._add(right, "matmul", -2, -1, result)
        if left is not None and getattr(left, "dim", lambda: 0)() >= 2:
            self._add(left, "matmul", -1, -2, result)

    def _convolution(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weight = _argument(args, kwargs, 1, "weight")
        if weight is None or self.name_of(weight) is None:
            return
        kernel = float(np.prod(weight.shape[2:]))
        transposed = "transpose" in function
        groups = _argument(args, kwargs, 6, "groups") or 1
        if not transposed:
            use = TensorUse(function, float(weight.shape[1]) * kernel, float(weight.shape[0]) / groups * kernel)
        else:
            stride = _argument(args, kwargs, 3, "stride") or 1
            step = (
                float(np.prod(stride)) if isinstance(stride, tuple | list) else float(stride) ** len(weight.shape[2:])
            )
            met = max(1.0, kernel / step)  # kernel entries that one output position meets
            use = TensorUse(function, float(weight.shape[0]) / groups * met, float(weight.shape[1]) * kernel)
        self._record(weight, use)

    def _attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            name = self.name_of(value)
            if name is None or value.dim() != 2:
                continue
            pieces = 3 if "in_proj" in name else 1
            self._record(value, TensorUse("attention", float(value.shape[1]), float(value.shape[0]) / pieces, pieces))

    def _recurrent(self, args: tuple[Any, ...]) -> None:
        lists = [list(v) for v in args if isinstance(v, list | tuple) and len(v) > 1]
        flat = next((values for values in lists if self.name_of(values[0])), [])
        for value in (v for v in flat if self.name_of(v) and v.dim() == 2):
            hidden = float(flat[1].shape[1])
            pieces = max(1, round(value.shape[0] / hidden))
            self._record(value, TensorUse("recurrent", float(value.shape[1]), value.shape[0] / pieces, pieces))

    def _split(self, function: str, args: tuple[Any, ...], result: Any) -> None:
        known = self.packed.get(id(args[0]))
        if known is None or known[1].pieces > 1:
            return
        use = known[1]
        if function in _RESHAPES_OF_PACKED:
            if hasattr(result, "shape"):
                self.packed[id(result)] = (result, use)
            return
        if function == "__getitem__":
            # x[0] of an axis of three, or x[..., :d]
            count = round(args[0].numel() / max(1, result.numel())) if hasattr(result, "numel") else 1
            exact = hasattr(result, "numel") and count * result.numel() == args[0].numel()
            whole_rows = hasattr(result, "shape") and len(result.shape) and result.shape[0] == args[0].shape[0]
            pieces = count if exact and (whole_rows or args[0].shape[0] == 3) else 1
        else:
            pieces = len(result)
        if pieces == 3 and use.fan_out % 3 == 0:
            use.fan_out, use.pieces = use.fan_out / 3, 3

    def _activation(self, function: str, result: Any) -> None:
        if not hasattr(result, "dim") or result.dim() < 2:
            return
        value = result.detach()
        units = value.flatten(2).transpose(1, 2).flatten(0, 1) if value.dim() == 4 else value.flatten(0, -2)
        use = ActivationUse(self.where, function, rows=len(units), units=units.shape[1], after=self.product)
        if function in _RECTIFIERS:
            use.dead = float((units <= 0).all(0).double().mean())
        else:
            low, high = _SATURATING[function]
            edge = 0.005 * (high - low)
            use.saturated = float(((value < low + edge) | (value > high - edge)).double().mean())
        self.uses.activations.append(use)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else None)
