"""Files of weights: loaded into a model of one's own, or made into the dense PyTorch network that they belong to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widthwise.activations import ActivationLike, resolve
from widthwise.errors import InvalidInput, one_line
from widthwise.extras import need

if TYPE_CHECKING:
    import torch

#: Endings of files that can be read.
WEIGHT_FILES = (".pt", ".pth", ".npz")
#: Where checkpoints keep the weights, beside the state of an optimiser.
_WITHIN = ("state_dict", "model_state_dict", "model")
_OWN_MODEL = "Name the model that the file belongs to as MODULE:FUNCTION."


def read_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a file that `torch.save` or `numpy.savez` wrote, by name. No code in the file is run."""
    file, torch = Path(path), need("torch", "torch", "reading a file of weights")
    if file.suffix not in WEIGHT_FILES or not file.is_file():
        raise InvalidInput("weights", f"'{file}'", "an existing file of weights ending in " + ", ".join(WEIGHT_FILES))
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                found: Any = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes them raise
        raise InvalidInput(
            "weights", f"'{file}', which cannot be read: {one_line(error)}", "a file of tensors"
        ) from error
    for name in _WITHIN:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    if not (isinstance(found, dict) and found and all(isinstance(one, torch.Tensor) for one in found.values())):
        raise InvalidInput(
            "weights", f"'{file}' with something else inside", "tensors by name, as state_dict() gives them"
        )
    return found


def load_into(model: Any, path: str | os.PathLike[str]) -> Any:
    """A PyTorch model with the weights of a file, in place."""
    torch, weights = need("torch", "torch", "reading a file of weights"), read_weights(path)
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("weights", f"a model of type {type(model).__name__}", "a PyTorch model")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        got = f"'{os.fspath(path)}', which does not fit the model: {' '.join(str(error).split())}"
        raise InvalidInput("weights", got, "a file of this model") from error
    return model


def dense_model(path: str | os.PathLike[str], activation: ActivationLike) -> torch.nn.Sequential:
    """The dense network whose matrices (outputs, inputs), each perhaps followed by its biases, are in a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(folder + "/w.npz", W1=np.ones((8, 3)), b1=np.zeros(8), W2=np.ones((1, 8)))
    ...     dense_model(folder + "/w.npz", "tanh")
    Sequential(
      (0): Linear(in_features=3, out_features=8, bias=True)
      (1): Tanh()
      (2): Linear(in_features=8, out_features=1, bias=False)
    )
    """
    torch, layers = need("torch", "torch", "reading a file of weights"), []
    for name, tensor in read_weights(path).items():
        if tensor.ndim == 2 and (not layers or layers[-1][0].shape[0] == tensor.shape[1]):
            layers.append([tensor])
        elif tensor.ndim == 1 and layers and len(layers[-1]) == 1 and len(tensor) == len(layers[-1][0]):
            layers[-1].append(tensor)
        else:
            got = f"{name} of shape {tuple(tensor.shape)} in '{os.fspath(path)}'"
            raise InvalidInput(
                "weights", got, "matrices (outputs, inputs) that follow one another, with biases", _OWN_MODEL
            )
    parts: list[torch.nn.Module] = []
    for weight, *bias in layers:
        outputs, inputs = weight.shape
        linear = torch.nn.Linear(inputs, outputs, bias=bool(bias))
        linear.load_state_dict(dict(zip(("weight", "bias"), (weight, *bias), strict=False)))
        parts += [_elementwise(activation), linear] if parts else [linear]
    return torch.nn.Sequential(*parts)


def _elementwise(activation: ActivationLike) -> torch.nn.Module:
    """The module of torch.nn for an activation."""
    nn, sigma = need("torch.nn", "torch", "reading a file of weights"), resolve(activation)
    special = {"linear": nn.Identity, "swish": nn.SiLU, "gelu_tanh": lambda: nn.GELU(approximate="tanh")}
    modules = {name.lower(): getattr(nn, name) for name in dir(nn)}
    make = special.get(sigma.name) or modules.get(sigma.name.replace("_", "")) if sigma.builtin else None
    if make is None:
        raise InvalidInput("activation", repr(sigma.spec), "an activation of torch.nn", _OWN_MODEL)
    return make(*sigma.parameters)
