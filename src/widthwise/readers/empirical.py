"""What one model of the user's says: its kernels layer by layer, its NTK and dNTK, beside the theory of its network."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.experiments.differentials import chain as differentiate
from widthwise.experiments.differentials import move, move_twice
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import forward, tangent_kernel
from widthwise.experiments.tangent import kernel, tangent
from widthwise.memory import require_memory
from widthwise.network import MLP, check_inputs
from widthwise.readers.chains import check_fits
from widthwise.readers.models import read_model
from widthwise.results.labels import label, layer_coordinate
from widthwise.results.theory import theory

_OUTPUTS = ("output", "a", "output_", "b")
_THREE = ("i", "j", "k", "a", "b", "c")


class Loaded(NamedTuple):
    """A model's parameters, the network that gives λ and the theory, and checked inputs."""

    layers: list[Weights]
    net: MLP
    X: np.ndarray


def load_model(model: Any, X: Any, net: MLP | None) -> Loaded:
    """The parameters of a model, with the network it is compared to: its own reading unless another is given."""
    reading = read_model(model)
    if net is None:
        net = reading.net
    elif not isinstance(net, MLP):
        raise InvalidInput("net", type(net).__name__, "a widthwise.MLP, or None to read it from the model")
    else:
        check_fits(reading.chain, net)
        for layer, rate in zip(reading.chain.dense, net.lambda_b, strict=True):
            if layer.b is None and rate > 0.0:
                expected = "lambda_b = 0 there"
                raise InvalidInput("net", f"lambda_b = {rate:g} for {layer.where}, which has no bias", expected)
    layers = [Weights(jnp.asarray(layer.W), jnp.asarray(layer.b)) for layer in reading.chain.parameters]
    return Loaded(layers, net, check_inputs(X, net.widths[0]))


def model_kernels(model: Any, X: Any, net: MLP | None = None, *, order: int = 0) -> xr.Dataset:
    """The kernels of a model on given inputs, layer by layer, beside the theory of its network.

    Parameters
    ----------
    model : a PyTorch, Flax (nnx) or Equinox model, see `from_torch`.
    X : array (inputs, features).
    net : the network whose λ and theory are used; by default what is read from the model, with λ of plain gradient
        descent at rate 1.
    order : 0; or 1, to add the spread that theory expects of one network (inputs⁴ numbers a layer).

    Returns
    -------
    Dataset on (layer, a, b): `K_model` = (1/n_l) Σ_i z_ia z_ib and `Theta_model` = (1/n_l) Σ_i Ĥ_ii;ab over the neurons
    of each layer, `K` and `Theta` of infinite width. With order=1 their means `K_mean` = K + G1/n, `Theta_mean` =
    Theta + H1/n, and standard deviations over initialisations `K_sd`, `Theta_sd` to leading order (theory §3).

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 1))
    >>> ds = model_kernels(model, [[1.0, 0.5]])
    >>> ds["K_model"].shape, bool(abs(ds["K_model"][0] / ds["K"][0] - 1) < 0.5)
    ((2, 1, 1), True)
    """
    layers, net, X = load_model(model, X, net)
    _, preactivations = forward(net, layers, X)
    K = [z @ z.T / z.shape[1] for z in preactivations]
    Theta = []
    for depth in range(1, net.depth + 1):
        Theta.append(tangent_kernel(net.up_to(depth), layers[:depth], X))
    expected = theory(net, X, order=0)
    pair = ("layer", "a", "b")
    variables = {
        "K_model": (pair, np.asarray(jnp.stack(K))),
        "Theta_model": (pair, np.asarray(jnp.stack(Theta))),
        "K": (pair, expected["K"].values),
        "Theta": (pair, expected["Theta"].values),
    }
    if order == 1:
        variables |= {name: (pair, values) for name, values in _spread(net, X).items()}
    elif order != 0:
        raise InvalidInput("order", repr(order), "0 or 1")
    return label(variables, net, layer_coordinate(tuple(range(1, net.depth + 1))), kind="model_kernels", order=order)


def _spread(net: MLP, X: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and standard deviation of (1/n_l)Σ z z and (1/n_l)Σ Ĥ_ii to leading order in 1/width (theory §3).

    var (1/N)Σ z_a z_b = (K_aa K_bb + K_ab²)/N + V_(ab)(ab)/n;  var (1/N)Σ Ĥ_ii = (A_(ab)(ab) + (B_aabb + B_abba)/N)/n.
    """
    ds = theory(net, X, order=1, tensors=["K", "Theta", "G1", "H1", "V", "A", "B"])
    below = np.array(net.widths[:-1], float)[:, None, None]
    neurons = np.array(net.widths[1:], float)[:, None, None]
    K, diagonal = ds["K"].values, np.einsum("laa->la", ds["K"].values)
    V, A = (np.einsum("labab->lab", ds[name].values) for name in "VA")
    B = np.einsum("laabb->lab", ds["B"].values) + np.einsum("labba->lab", ds["B"].values)
    gaussian = diagonal[:, :, None] * diagonal[:, None, :] + K**2
    return {
        "K_mean": K + ds["G1"].values / below,
        "K_sd": np.sqrt(gaussian / neurons + V / below),
        "Theta_mean": ds["Theta"].values + ds["H1"].values / below,
        "Theta_sd": np.sqrt(np.maximum(A + B / neurons, 0.0) / below),
    }


def model_ntk(model: Any, X: Any, net: MLP | None = None) -> xr.Dataset:
    """The neural tangent kernel of a model, Ĥ_ij;ab = Σ λ (dz_ia/dθ)(dz_jb/dθ), beside Θ (theory §3).

    Arguments as in `model_kernels`. Without `net` every λ per parameter is 1: the kernel of plain gradient descent.

    Returns
    -------
    Dataset with `H` on (output, a, output_, b) and `Theta` on (a, b).

    >>> from torch import nn
    >>> ds = model_ntk(nn.Linear(2, 1), [[1.0, 3.0]])       # 1 for the bias, 1 + 9 for the weights
    >>> float(ds["H"].values.squeeze()), float(ds["Theta"].values.squeeze())
    (11.0, 11.0)
    """
    layers, net, X = load_model(model, X, net)
    size = net.widths[-1] * len(X)
    require_memory(8 * 4 * size**2, f"an NTK of {size} × {size} entries", "Take fewer inputs.")
    H = np.asarray(kernel(tangent(net, layers, X)))
    Theta = theory(net, X, order=0, layers="last")["Theta"].values[0]
    return label({"H": (_OUTPUTS, H), "Theta": (("a", "b"), Theta)}, net, kind="model_ntk")


def model_dntk(model: Any, X: Any, net: MLP | None = None, *, order: int = 1) -> xr.Dataset:
    """The first differential of a model's NTK, dĤ_ijk;abc = Σ λλ (d²z_ia)(dz_jb)(dz_kc) (theory §3).

    Arguments as in `model_kernels`.

    Returns
    -------
    Dataset with `dH` on (i, j, k, a, b, c), whose mean over initialisations is zero, and with order=1 the mean over
    outputs of dĤ_iii;abc z_id as `dH_z` on (a, b, c, d), beside its mean over initialisations (P_abcd + Q_abcd +
    Q_acbd)/n as `dH_z_mean`.

    >>> from torch import nn
    >>> ds = model_dntk(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), [[1.0, 0.3]], order=0)
    >>> ds["dH"].shape
    (1, 1, 1, 1, 1, 1)
    """
    layers, net, X = load_model(model, X, net)
    size = net.widths[-1] * len(X)
    needed = 8 * 3 * size**2 * len(X) * sum(net.widths[1:])
    require_memory(needed, f"second derivatives of {size} outputs at {len(X)} inputs", "Take fewer inputs.")
    c = differentiate(net, layers, X, 2)
    ddh = move_twice(c, move(c, c.signals))[1]
    dH = np.asarray(jnp.transpose(ddh[-1], (5, 0, 2, 4, 1, 3)))
    variables: dict[str, Any] = {"dH": (_THREE, dH)}
    if order == 1:
        z = np.asarray(forward(net, layers, X)[1][-1])
        dims = ("a", "b", "c", "d")
        variables["dH_z"] = (dims, np.einsum("iiiabc,di->abcd", dH, z) / net.widths[-1])
        variables["dH_z_mean"] = (dims, _expected_dntk(net, X))
    elif order != 0:
        raise InvalidInput("order", repr(order), "0 or 1")
    return label(variables, net, kind="model_dntk", order=order)


def _expected_dntk(net: MLP, X: np.ndarray) -> np.ndarray:
    if net.depth == 1:
        return np.zeros((len(X),) * 4)
    ds = theory(net, X, order=1, tensors=["P", "Q"], layers="last")
    P, Q = ds["P"].values[0], ds["Q"].values[0]
    return (P + Q + np.swapaxes(Q, 1, 2)) / net.n


def parameter_count(net: MLP) -> int:
    """How many weights and biases there are."""
    return sum(math.prod(pair) + pair[1] for pair in zip(net.widths[:-1], net.widths[1:], strict=True))
