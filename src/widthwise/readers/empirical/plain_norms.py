"""Normalisations of torch by plain operations: nested forward derivatives of the fused ones are silently wrong.

Their formulas take the mean and the deviation that the first pass kept for constants, so that every derivative beyond
the first misses terms. Weight normalisation has no forward derivative at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from widthwise.extras import need


def plain_norms() -> Any:
    """A context in which layer, instance and weight norms are plain, and BatchNorm by the batch's own statistics."""
    return _mode()()


@lru_cache
def _mode() -> Any:
    overrides = need("torch.overrides", "torch", "differentiating a PyTorch model")
    torch = need("torch", "torch", "differentiating a PyTorch model")
    functional = need("torch.nn.functional", "torch", "differentiating a PyTorch model")
    plain: dict[Any, Callable[..., Any]] = {
        functional.layer_norm: _layer_norm,
        torch.layer_norm: _layer_norm,
        functional.instance_norm: _instance_norm,
        functional.batch_norm: _batch_norm_like(functional.batch_norm),
        torch._weight_norm: _weight_norm,
    }

    class Mode(overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            chosen: Any = plain.get(function, function)
            return chosen(*args, **(kwargs or {}))

    return Mode


def _over_axes(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True) + eps).sqrt()


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    found = _over_axes(input, tuple(range(-len(normalized_shape), 0)), eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def _by_channel(found: Any, weight: Any, bias: Any) -> Any:
    shape = (1, -1, *(1,) * (found.dim() - 2))
    found = found if weight is None else found * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape)


# arguments are named as torch names them


def _instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if use_input_stats:
        return _by_channel(_over_axes(input, tuple(range(2, input.dim())), eps), weight, bias)
    shape = (1, -1, *(1,) * (input.dim() - 2))
    found = (input - running_mean.reshape(shape)) / (running_var.reshape(shape) + eps).sqrt()
    return _by_channel(found, weight, bias)


def _batch_norm_like(fused: Callable[..., Any]) -> Callable[..., Any]:
    def batch_norm(
        input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Any:  # fmt: skip
        if not training:  # constants are constants
            return fused(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return _by_channel(_over_axes(input, (0, *range(2, input.dim())), eps), weight, bias)

    return batch_norm


def _weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    axes = tuple(axis for axis in range(v.dim()) if axis != dim)
    return v * (g / (v * v).sum(axes, keepdim=True).sqrt())
