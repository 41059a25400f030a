"""Public kernels of any model: the NTK with its products and quadratic forms, its differentials, and Taylor models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.flow.kernels.variances import network_sites
from widthwise.gaussian.sites import largest_entries
from widthwise.inference.corrections import check_order
from widthwise.network import MLP, Network, check_integer, check_seed
from widthwise.network.validation import LEAST, check_flag, check_real
from widthwise.readers.chains import check_fits, model_rates
from widthwise.readers.empirical.directional_derivatives import directional_derivatives, taylor_series
from widthwise.readers.empirical.model_functions import (
    CallArguments,
    ModelFunction,
    NamedTensors,
    function_of,
    package_names,
    unwrapped,
)
from widthwise.readers.empirical.tangent_kernels import TangentRows
from widthwise.readers.empirical.top_eigenvalue import TopEigenvalue
from widthwise.readers.models import evaluated_reading, read_model
from widthwise.readers.optax_rates import rates_by_name
from widthwise.readers.torch_models import torch_chain
from widthwise.results.labels import label
from widthwise.results.theory import theory

#: Expectations at pairs of positions that theory beside a model's kernel may take: some ten seconds.
MOST_WORK = 2e9
#: Attribute of a Dataset that says why there is no theory in it.
NO_THEORY = "no_theory"


def tensor_rates(model: Any, net: Network | None) -> dict[str, float]:
    """λ of every tensor of a model by its name; none without a network, where each is 1."""
    if net is None:
        return {}
    if not isinstance(net, Network):
        expected = "a widthwise.MLP or another widthwise.Network, or None to read it from the model"
        raise InvalidInput("net", type(net).__name__, expected)
    if "torch" not in package_names(model):
        return {".".join(name): rate for name, rate in rates_by_name(model, net).items()}
    chain = torch_chain(model)
    check_fits(chain, net, "C_b", "lambda_b", "lambda_gain", "lambda_shift")
    names = {id(value): name for name, value in unwrapped(model).named_parameters()}
    return {
        names[id(tensor)]: rate
        for step, both in zip(chain.learned, model_rates(chain, net), strict=True)
        for tensor, rate in zip(step.tensors, both, strict=True)
        if tensor is not None
    }


def tangent_rows(model: Any, X: Any, net: Network | None, dtype: str = "float64", name: str = "X") -> TangentRows:
    f = function_of(model, dtype)
    return TangentRows(f, f.read(X, name), tensor_rates(model, net))


def readable_network(model: Any) -> tuple[Network | None, str]:
    """The network that a model is, or None and why it cannot be read."""
    try:
        return evaluated_reading(model).net, ""
    except InvalidInput as error:
        return None, str(error)


def too_much_work(net: Network, images: np.ndarray, most: float = MOST_WORK) -> str:
    """Why theory at these inputs is left to a call of its own, or nothing."""
    if images.ndim <= 2:
        return ""
    work = largest_entries(network_sites(net, net.check_inputs(images))) * len(images) ** 2 * len(net.steps)
    if work <= most:
        return ""
    return f"{work:.1e} expectations at pairs of positions, more than {most:.0e}: call theory for them"


def theory_beside(
    model: Any, X: Any, net: Network | None, name: str = "Theta"
) -> tuple[Network | None, dict[str, Any], dict[str, str]]:
    """The network, a kernel of infinite width as variables, and as attributes why there is none."""
    try:
        reading = read_model(model)
    except InvalidInput as error:
        return None, {}, {NO_THEORY: str(error)}
    if reading.chain.head:
        return None, {}, {NO_THEORY: f"the model ends in {reading.chain.head}, and theory is that of its logits"}
    found = net if net is not None else reading.net
    images = np.asarray(reading.chain.images(X))
    costly = too_much_work(found, images)
    if costly:
        return found, {}, {NO_THEORY: costly}
    return found, {name: (("a", "b"), theory(found, images, order=0, layers="last")[name].values[0])}, {}


def model_ntk(
    model: Any, X: Any, net: Network | None = None, *, trace: bool = False, dtype: str = "float64"
) -> xr.Dataset:
    """The neural tangent kernel of any model, Ĥ_ij;ab = Σ λ (∂z_ia/∂θ)(∂z_jb/∂θ) (theory §3), within bounded memory.

    Parameters
    ----------
    model : any torch, Flax (nnx) or Equinox module that can be differentiated; it need not be one that widthwise reads.
        It is looked at in evaluation mode: dropout off, batch normalisation by running statistics.
    X : array (inputs, …), a tuple of such arrays for several arguments, or a dict for named ones. Integers stay such.
    net : the network whose λ are used, for a model that can be read. Without it every λ per parameter is 1: the kernel
        of plain gradient descent.
    trace : Σ_i Ĥ_ii;ab alone, on (a, b), which large models with many inputs have room for.
    dtype : "float64", or "model" for the model's own precision.

    Returns
    -------
    Dataset with `H` on (output, a, output_, b), all axes of an output behind the first in one; or with trace=True
    `H_trace` on (a, b). Where the model can be read as a network also `Theta` on (a, b); otherwise the attribute
    `no_theory` says why not.

    >>> from torch import nn
    >>> ds = model_ntk(nn.Linear(2, 1), [[1.0, 3.0]])       # 1 for the bias, 1 + 9 for the weights
    >>> float(ds["H"].values.squeeze()), float(ds["Theta"].values.squeeze())
    (11.0, 11.0)
    >>> conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> model_ntk(conv, np.ones((3, 1, 4, 4)), trace=True)["H_trace"].shape
    (3, 3)
    """
    trace = check_flag("trace", trace)
    rows = tangent_rows(model, X, net, dtype)
    _ = rows.outputs  # a model that cannot be called on X is refused in its own words
    found, variables, attrs = theory_beside(model, X, net)
    if trace:
        variables = {"H_trace": (("a", "b"), rows.traced()), **variables}
    else:
        variables = {"H": (("output", "a", "output_", "b"), rows.kernel()), **variables}
    return label(variables, found, None, kind="model_ntk", parameters=rows.function.size, **attrs)


@dataclass(frozen=True, eq=False)
class TangentOperator:
    """Ĥ of a model as an operator on vectors v (outputs, inputs): nothing of its size is stored (theory §3)."""

    rows: TangentRows

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of the vectors."""
        inputs, outputs = self.rows.outputs.shape
        return outputs, inputs

    def product(self, v: Any) -> np.ndarray:
        """Ĥv, by one pass backward and one forward."""
        return self.rows.product(self._checked(v))

    def quadratic(self, v: Any) -> float:
        """vᵀĤv, by one pass backward."""
        return self.rows.quadratic(self._checked(v))

    def largest_eigenvalue(self, *, steps: int = 200, tolerance: float = 1e-8, seed: int = 0) -> float:
        """The largest eigenvalue, by Lanczos; 2/it is the largest stable step of gradient descent on ½Σ(z−y)².

        `steps` is the largest number of products, `tolerance` the relative error that is asked for.
        """
        steps = check_integer("steps", steps, 1)
        tolerance = check_real("tolerance", tolerance, "a finite positive number", least=LEAST)
        start = np.random.default_rng(check_seed(seed)).normal(size=self.shape)
        found = self.top(start, tolerance, steps)
        if found.error > tolerance * found.value:
            got = f"a kernel whose largest eigenvalue is known to {found.error / found.value:.1e} after {steps} steps"
            raise InvalidInput("model", got, f"convergence to {tolerance:g}", "Take more steps, or a larger tolerance.")
        return found.value

    def top(
        self, start: np.ndarray, tolerance: float, products: int, before: Callable[[], None] = lambda: None
    ) -> TopEigenvalue:
        """The largest eigenvalue with its error and vector, from a starting vector (outputs, inputs).

        `before` is called before every product.
        """

        def product(v: np.ndarray) -> np.ndarray:
            before()
            return self.rows.product(v.reshape(self.shape)).ravel().astype(float)

        return TopEigenvalue.of(product, np.ravel(start), tolerance, products)

    def _checked(self, v: Any) -> np.ndarray:
        try:
            array = np.asarray(v, float)
        except Exception:  # of the caller's object, too
            array = np.empty(0)
        if array.shape != self.shape or not np.isfinite(array).all():
            raise InvalidInput(
                "v", f"an array of shape {array.shape}", f"finite numbers (outputs, inputs) = {self.shape}"
            )
        return array


def ntk_operator(model: Any, X: Any, net: Network | None = None, *, dtype: str = "float64") -> TangentOperator:
    """The neural tangent kernel of any model as an operator: products and quadratic forms without the matrix.

    CallArguments as in `model_ntk`. Returns an object with `product(v)`, `quadratic(v)`, v (outputs, inputs), and
    `largest_eigenvalue()`.

    >>> from torch import nn
    >>> H = ntk_operator(nn.Linear(2, 1), [[1.0, 3.0], [0.0, 1.0]])
    >>> H.product([[1.0, 0.0]]), H.quadratic([[1.0, 0.0]])
    (array([[11.,  4.]]), 11.0)
    """
    return TangentOperator(tangent_rows(model, X, net, dtype))


def model_differentials(model: Any, X: Any, net: Network | None = None, *, order: int = 3) -> xr.Dataset:
    """Ĥ, dĤ, ddIĤ and ddIIĤ of any model (theory §3); inputs⁴ outputs⁴ numbers, or inputs³ outputs³ for order=2.

    CallArguments as in `model_ntk`.

    Returns
    -------
    Dataset with `H` on (i, j, a, b), `dH` on (i, j, k, a, b, c) and, for order=3, `ddI` and `ddII` on (i, j, k, m, a,
    b, c, d).

    >>> from torch import nn
    >>> ds = model_differentials(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), [[1.0, 0.3]])
    >>> ds["ddII"].shape
    (1, 1, 1, 1, 1, 1, 1, 1)
    """
    if check_integer("order", order, 2) > 3:
        raise InvalidInput("order", repr(order), "2 for the dNTK, or 3 with the ddNTK")
    rows = tangent_rows(model, X, net)
    found = directional_derivatives(rows, rows.inputs, order)
    variables = {"H": found.H, "dH": found.second}
    if order == 3:
        # curved is (o, p, q, r): Σλ(∂²z_o v_p)(∂²z_q v_r), so ddII_abcd has a = o, c = p, b = q, d = r
        variables |= {"ddI": found.third, "ddII": found.curved.transpose(0, 2, 1, 3)}
    shape = rows.outputs.shape
    letters = {name: _letters(value.ndim) for name, value in variables.items()}
    data = {name: (letters[name], _outputs_first(value, shape)) for name, value in variables.items()}
    return label(data, net, kind="model_differentials", order=order)


def _letters(slots: int) -> tuple[str, ...]:
    return (*"ijkm"[:slots], *"abcd"[:slots])


def _outputs_first(tensor: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Slots over (input, output) as all outputs, then all inputs."""
    slots = tensor.ndim
    split = tensor.reshape(shape * slots)
    return np.ascontiguousarray(split.transpose(*range(1, 2 * slots, 2), *range(0, 2 * slots, 2)))


def model_dntk(model: Any, X: Any, net: Network | None = None, *, order: int = 1) -> xr.Dataset:
    """The first differential of a model's NTK, dĤ_ijk;abc = Σ λλ (d²z_ia)(dz_jb)(dz_kc) (theory §3).

    CallArguments as in `model_ntk`. With order=1, for models that are read as plain networks, theory stands beside it.

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
    check_order(order)
    if order == 1:
        net = net if net is not None else read_model(model).net
        if not isinstance(net, MLP):
            kind = "Residual or normalisation" if isinstance(net, Network) else type(net).__name__
            raise InvalidInput(
                "net", kind, "dense layers and activations alone for order=1", "order=0 has dH of any model."
            )
    rows = tangent_rows(model, X, net)
    shape = rows.outputs.shape
    dH = _outputs_first(directional_derivatives(rows, rows.inputs, 2).second, shape)
    variables: dict[str, Any] = {"dH": (_letters(3), dH)}
    if order == 1:
        assert isinstance(net, MLP)
        mean, dims = np.zeros((shape[0],) * 4), ("a", "b", "c", "d")
        if net.depth > 1:
            ds = theory(net, X, order=1, tensors=["P", "Q"], layers="last")
            P, Q = ds["P"].values[0], ds["Q"].values[0]
            mean = (P + Q + np.swapaxes(Q, 1, 2)) / net.n
        variables["dH_z"] = (dims, np.einsum("iiiabc,di->abcd", dH, rows.outputs) / shape[1])
        variables["dH_z_mean"] = (dims, mean)
    return label(variables, net, kind="model_dntk", order=order)


@dataclass(frozen=True, eq=False)
class TaylorModel:
    """z(θ) about the parameters θ_0 of a model, to an order in θ − θ_0 (theory §8). Call it with inputs and parameters.

    `parameters` holds θ_0 by name, as arrays of the model's library; the result of a call is differentiable there.
    """

    function: ModelFunction
    order: int

    @property
    def parameters(self) -> NamedTensors:
        return dict(self.function.parameters)

    def __call__(self, X: Any, parameters: Any = None) -> Any:
        """Outputs (inputs, outputs) at other parameters: a dict by name, or a model of the same kind; θ_0 if None."""
        f = self.function
        arguments: CallArguments = f.read(X, "X")
        if parameters is None:
            return f.call(f.parameters, arguments)
        at = parameters if isinstance(parameters, Mapping) else function_of(parameters).parameters
        unknown, missing = set(at) - set(f.parameters), set(f.parameters) - set(at)
        if unknown or missing:
            got = f"unknown tensors {sorted(unknown)}, missing ones {sorted(missing)}"
            raise InvalidInput("parameters", got, "the names of the model's own tensors")
        step = {}
        for name, start in f.parameters.items():
            value = at[name] if isinstance(at[name], type(start)) else f.array(np.asarray(at[name]))
            if tuple(value.shape) != tuple(start.shape):
                raise InvalidInput("parameters", f"{name} of shape {tuple(value.shape)}", f"shape {tuple(start.shape)}")
            step[name] = value - start
        return taylor_series(f, arguments, step, self.order)


def linearise(model: Any, *, order: int = 1, dtype: str = "float64") -> TaylorModel:
    """A model to first order in its parameters, or to an `order` up to 3: z(θ_0) + J(θ−θ_0) + … (theory §8).

    Parameters
    ----------
    model : any torch, Flax (nnx) or Equinox module, in evaluation mode; see `model_ntk`.
    order : 1, 2 or 3.

    Returns
    -------
    A `TaylorModel`: call it with inputs, and parameters by name (or a model of the same kind) at which to evaluate.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> linear = linearise(model)
    >>> at = {name: value + 1e-4 for name, value in linear.parameters.items()}
    >>> x = [[1.0, 0.5]]
    >>> gap = [abs(float(linearise(model, order=k)(x, at) - linearise(model, order=3)(x, at))) for k in (1, 2)]
    >>> gap[0] > 100 * gap[1]
    True
    """
    order = check_integer("order", order, 1)
    if order > 3:
        raise InvalidInput("order", str(order), "1, 2 or 3")
    return TaylorModel(function_of(model, dtype), order)
