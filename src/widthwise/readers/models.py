"""One door for models of any package: what is read from one, and its kernels, NTK, dNTK and Hessian beside theory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree

from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import GainAndShift, Weights
from widthwise.experiments.sampler import Parameters, output_rows, tangent_kernel, with_parameters
from widthwise.experiments.tangent import kernel, outputs, rates, tangent
from widthwise.extras import need
from widthwise.inference.corrections import check_order
from widthwise.memory import require_memory
from widthwise.network import MLP, Network, check_integer, check_seed, check_targets, plain
from widthwise.readers.chains import check_fits
from widthwise.readers.jax_models import equinox_chain, flax_chain
from widthwise.readers.read_steps import ReadDense, ReadGain
from widthwise.readers.specification import Reading, read_chain
from widthwise.readers.torch_models import optimizer_rates, torch_chain
from widthwise.results.labels import label, layer_coordinate
from widthwise.results.theory import theory

#: Random starting vectors, each of which costs `steps` products.
_MOST_PROBES = 10_000


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
        chain = torch_chain(model)
        return read_chain(chain, learning_rate, activation, recognise, optimizer_rates(chain, optimizer))
    if optimizer is not None:
        raise InvalidInput("optimizer", type(optimizer).__name__, "None, except with a PyTorch model")
    for package, chain_of_model in (("flax", flax_chain), ("equinox", equinox_chain)):
        if package in kinds:
            return read_chain(chain_of_model(model, activation), learning_rate, activation, recognise)
    raise InvalidInput("model", type(model).__name__, "a torch.nn.Module, flax.nnx.Module or equinox.Module")


def evaluated_reading(model: Any) -> Reading:
    """What is read from a model as it is evaluated: without dropout."""
    reading = read_model(model)
    evaluated = reading.chain.evaluated
    return reading if evaluated is reading.chain else read_chain(evaluated, 1.0, None, True)


def load_model(model: Any, X: Any, net: Network | None) -> tuple[Parameters, Network, np.ndarray]:
    """A model's parameters, the network that gives λ and theory (its own unless another is given), checked inputs."""
    reading = evaluated_reading(model)
    if net is None:
        net = reading.net
    elif not isinstance(net, Network):
        expected = "a widthwise.MLP or another widthwise.Network, or None to read it from the model"
        raise InvalidInput("net", type(net).__name__, expected)
    else:
        check_fits(reading.chain, net, "C_b", "lambda_b", "lambda_gain", "lambda_shift")
    return read_parameters(reading), net, net.check_inputs(reading.chain.images(X))


def read_parameters(reading: Reading) -> Parameters:
    """The parameters of a model that was read, in the layout of `experiments`."""
    return [_as_parameters(step) for step in reading.chain.learned]


def _as_parameters(step: ReadDense | ReadGain) -> Weights | GainAndShift:
    """In the layout of `experiments`; of tensors that a model lacks, the values that change nothing."""
    if isinstance(step, ReadDense):
        b = np.zeros(len(step.W)) if step.b is None else step.b
        return Weights(jnp.asarray(step.factor * step.W), jnp.asarray(step.factor * b))
    like = next(value for value in step.values if value is not None)
    gain = np.ones_like(like) if step.gain is None else step.gain
    return GainAndShift(jnp.asarray(gain), jnp.asarray(np.zeros_like(like) if step.shift is None else step.shift))


def model_kernels(model: Any, X: Any, net: Network | None = None, *, order: int = 0) -> xr.Dataset:
    """The kernels of a model on given inputs, layer by layer, beside the theory of its network.

    Parameters
    ----------
    model : a PyTorch, Flax (nnx) or Equinox model, see `from_torch`.
    X : array (inputs, features).
    net : the network whose λ and theory are used; by default what is read from the model, with λ of plain gradient
        descent at rate 1.
    order : 0; or 1, to add the spread that theory expects of one network (plain networks; inputs⁴ numbers a layer).

    Returns
    -------
    Dataset on (layer, a, b): `K_model` = (1/n_l) Σ_i z_ia z_ib and `Theta_model` = (1/n_l) Σ_i Ĥ_ii;ab over the neurons
    behind each weight layer or residual connection, `K` and `Theta` of infinite width. With order=1 their means
    `K_mean` = K + G1/n, `Theta_mean` = Theta + H1/n, and standard deviations over initialisations `K_sd`, `Theta_sd` to
    leading order (theory §3).

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 1))
    >>> ds = model_kernels(model, [[1.0, 0.5]])
    >>> ds["K_model"].shape, bool(abs(ds["K_model"][0] / ds["K"][0] - 1) < 0.5)
    ((2, 1, 1), True)
    """
    check_order(order)
    layers, net, X = load_model(model, X, net)
    spread = _spread_over_networks(plain(net, "the spread of kernels"), X) if order == 1 else {}
    depths, expected = tuple(range(1, net.depth + 1)), theory(net, X, order=0)
    parts = [net.up_to(depth) for depth in depths]
    below = [(part, layers[: len(with_parameters(part))], X) for part in parts]
    values = {
        "K_model": np.stack([z @ z.T / z.shape[1] for z in (output_rows(*part) for part in below)]),
        "Theta_model": np.stack([tangent_kernel(*part) for part in below]),
        "K": expected["K"].values,
        "Theta": expected["Theta"].values,
        **spread,
    }
    variables = {name: (("layer", "a", "b"), array) for name, array in values.items()}
    return label(variables, net, layer_coordinate(depths), kind="model_kernels", order=order)


def _spread_over_networks(net: MLP, X: np.ndarray) -> dict[str, np.ndarray]:
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


def _model_tangent_kernels(layers: Parameters, net: Network, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ĥ on (output, a, output_, b), and Θ."""
    size = net.widths[-1] * len(X)
    require_memory(8 * 4 * size**2, f"an NTK of {size} × {size} entries", "Take fewer inputs.")
    return np.asarray(kernel(tangent(net, layers, X))), theory(net, X, order=0, layers="last")["Theta"].values[0]


def hessian_spectrum(
    model: Any, X: Any, y: Any, net: Network | None = None, *, steps: int = 60, probes: int = 4, seed: int = 0
) -> xr.Dataset:
    """Eigenvalues of the Hessian of ½Σ(z−y)² at a model's parameters, beside those of its NTK and of Θ.

    The Hessian is taken in the coordinates θ/√λ, in which gradient descent has one rate: √λ (∂²L) √λ. There its
    Gauss–Newton part has the nonzero eigenvalues of Ĥ on the inputs, and 2/λ_max bounds the rate (theory §10).

    Parameters
    ----------
    model : a PyTorch, Flax (nnx) or Equinox model, see `from_torch`.
    X, y : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    net : the network whose λ and theory are used; by default what is read from the model, with λ = 1 per parameter.
    steps : Hessian-vector products for each probe. From the number of distinct eigenvalues on, each of them is exact.
    probes, seed : random starting vectors, over which the density is averaged.

    Returns
    -------
    Dataset with `node` and `weight` on (probe, step): the density of eigenvalues is the mean over probes of
    Σ weight δ(x − node), exact for polynomials of degree up to 2 steps − 1 in the mean; its extreme nodes converge to
    the extreme eigenvalues. `ntk` and `theta` on (mode,): eigenvalues of Ĥ and, for every output, of Θ, from the
    largest down. Attribute `parameters`.

    >>> from torch import nn
    >>> ds = hessian_spectrum(nn.Linear(2, 1), [[1.0, 2.0]], [0.0])        # the Hessian is (x, 1)(x, 1)ᵀ
    >>> round(float(ds["node"].max()), 9), round(float(ds["ntk"][0]), 9)
    (6.0, 6.0)
    """
    need("matfree", "readers", "hessian_spectrum")
    from widthwise.special.lanczos import hessian_product, lanczos_density

    layers, net, X = load_model(model, X, net)
    y = check_targets(y, len(X), net.widths[-1], "y")
    flat, unravel = ravel_pytree(layers)
    count, probes = flat.size, check_integer("probes", probes, 1, _MOST_PROBES, f"an integer from 1 to {_MOST_PROBES}")
    steps = min(check_integer("steps", steps, 1), count)
    require_memory(8 * count * (steps + 20), f"{steps} Lanczos vectors of {count} parameters", "Take fewer steps.")
    roots = ravel_pytree(jax.tree.map(lambda rate, p: jnp.full(p.shape, jnp.sqrt(rate)), rates(net), layers))[0]

    def loss(shift):
        return 0.5 * jnp.sum((outputs(net, unravel(flat + roots * shift), X) - y.T) ** 2)

    key = jax.random.key(check_seed(seed))
    rule = lanczos_density(hessian_product(loss, jnp.zeros(count)), count, steps=steps, probes=probes, key=key)
    H, Theta = _model_tangent_kernels(layers, net, X)
    size = len(X) * net.widths[-1]
    variables = {
        "node": (("probe", "step"), rule.node),
        "weight": (("probe", "step"), rule.weight),
        "ntk": (("mode",), np.linalg.eigvalsh(H.reshape(size, size))[::-1]),
        "theta": (("mode",), np.repeat(np.linalg.eigvalsh(Theta), net.widths[-1])[::-1]),
    }
    return label(variables, net, kind="hessian_spectrum", parameters=count, steps=steps, seed=seed)
