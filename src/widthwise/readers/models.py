"""One door for models of any package that widthwise reads."""

from __future__ import annotations

from typing import Any

from widthwise.errors import InvalidInput
from widthwise.readers.equinox_models import read_equinox
from widthwise.readers.flax_models import read_flax
from widthwise.readers.specification import Reading
from widthwise.readers.torch_models import read_torch


def read_model(
    model: Any, *, learning_rate: float = 1.0, optimizer: Any = None, activation: Any = None, recognise: bool = True
) -> Reading:
    """What can be read from a PyTorch, Flax (nnx) or Equinox model: the network, measured variances, and findings.

    Arguments as in `from_torch`, which this does not differ from except that nothing is said in warnings.

    Returns
    -------
    A `Reading` with the network `net`, the measured `C_W` and `C_b` of every layer with standard errors, the name of
    the `initialisation` if it is a known one, and the `findings` that speak against independent zero-mean weights.

    >>> from torch import nn
    >>> reading = read_model(nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1)))
    >>> reading.initialisation, reading.findings
    ('uniform on ±1/√fan-in (the default of torch and Equinox)', ())
    """
    kinds = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    if "torch" in kinds:
        return read_torch(model, learning_rate, optimizer, activation, recognise)
    if optimizer is not None:
        raise InvalidInput("optimizer", type(optimizer).__name__, "None, except with a PyTorch model")
    if "flax" in kinds:
        return read_flax(model, learning_rate, activation, recognise)
    if "equinox" in kinds:
        return read_equinox(model, learning_rate, activation, recognise)
    raise InvalidInput("model", type(model).__name__, "a torch.nn.Module, flax.nnx.Module or equinox.Module")
