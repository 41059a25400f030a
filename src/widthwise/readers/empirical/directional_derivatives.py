"""Higher derivatives of any model along directions in parameter space: Taylor models, dĤ, ddIĤ and ddIIĤ (theory §3).

With v_s = λ ∂z_s/∂θ, s an output at an input,
    dĤ_abc = d²z_a[v_b, v_c],    ddIĤ_abcd = d³z_a[v_b, v_c, v_d],    ddIIĤ_abcd = Σ λ (∂²z_a v_c)(∂²z_b v_d),
where the letters stand for output and input together. Derivatives along directions are nested forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.memory import require_memory
from widthwise.readers.empirical.model_functions import CallArguments, ModelFunction, NamedTensors
from widthwise.readers.empirical.tangent_kernels import TangentRows, row_budget


def derivative_along(
    f: ModelFunction, call: Callable[[NamedTensors], Any], *directions: NamedTensors
) -> Callable[[NamedTensors], Any]:
    """The function θ → dᵏ call(θ)[v_1, …, v_k]."""
    if not directions:
        return call
    inner = derivative_along(f, call, *directions[1:])
    return lambda at: f.transforms.jvp(inner, (at,), (directions[0],))[1]


def taylor_series(f: ModelFunction, arguments: CallArguments, step: NamedTensors, order: int) -> Any:
    """Σ_k dᵏz[step, …, step]/k! up to an order: (inputs, outputs)."""
    terms = [f.call(f.parameters, arguments)]
    for k in range(1, order + 1):
        call = derivative_along(f, lambda p: f.call(p, arguments), *[step] * k)
        terms.append(call(f.parameters) / factorial(k))
    return sum(terms[1:], terms[0])


@dataclass(frozen=True, eq=False)
class DirectionalDerivatives:
    """Derivatives over combinations s of input and output, inputs first, of which the first `trained` are trained on.

    o and s run over all of them, p, q, r over the trained ones. `H` is (o, s); `second` d²z_o[v_s, v_q] on (o, s, q);
    `third` d³z_o[v_s, v_q, v_r] on (o, s, q, r); `curved` Σλ(∂²z_o v_p)(∂²z_q v_r) on (o, p, q, r); and `moved`
    Σλ(∂²z_p v_s)(∂²z_q v_r) on (p, s, q, r).
    """

    z: np.ndarray
    H: np.ndarray
    second: np.ndarray
    third: np.ndarray
    curved: np.ndarray
    moved: np.ndarray

    def slots(self, kind: str, letters: str) -> tuple[np.ndarray, str]:
        """A tensor of theory §8 with its slots in the order of `letters`, a running over all: array and its letters."""
        if kind == "dH":
            return self.second, letters
        if kind == "ddI":
            return self.third, letters
        a, b, c, d = letters
        if c == "a":
            return self.moved, a + c + b + d
        return self.curved, (a + c + b + d) if a == "a" else (b + d + a + c)


def directional_derivatives(rows: TangentRows, training: int, order: int = 3) -> DirectionalDerivatives:
    """All derivatives on the inputs of `rows`, of which the first `training` are trained on; those above 2 are 3."""
    f, (n, outputs) = rows.function, rows.outputs.shape
    total, trained = n * outputs, training * outputs
    _require_derivatives(f, total, trained, order)
    rows.check_inputs_are_independent()
    gradients = rows.of(list(f.parameters), slice(0, n), slice(0, outputs))
    shapes = {name: value.shape for name, value in f.parameters.items()}
    flat = {name: value.reshape(total, -1) for name, value in gradients.items()}
    H = sum(rows.rates.get(name, 1.0) * f.numpy(value @ value.T) for name, value in flat.items())
    along = {name: rows.rates.get(name, 1.0) * value.reshape(total, *shapes[name]) for name, value in flat.items()}
    del gradients, flat
    few = {name: value[:trained] for name, value in along.items()}

    def z(parameters: NamedTensors) -> Any:
        return f.call(parameters, rows.arguments).reshape(-1)

    try:
        second = np.stack([_along_many(f, z, along, _direction(few, q)) for q in range(trained)], -1)  # (s, o, q)
        third, curved, moved = np.zeros((0,)), np.zeros((0,)), np.zeros((0,))
        if order > 2:
            third = np.empty((total, total, trained, trained))
            for q in range(trained):
                for r in range(q + 1):
                    found = _along_many(f, z, along, _direction(few, q), _direction(few, r)).T
                    third[:, :, q, r] = third[:, :, r, q] = found
            curved, moved = _curvature_products(rows, z, along, trained)
    except InvalidInput:
        raise
    except Exception as error:  # operations without forward-mode derivatives
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInput(
            "model",
            f"operations without higher derivatives ({reason})",
            "a model that can be differentiated three times",
        ) from error
    return DirectionalDerivatives(rows.outputs.reshape(-1), np.asarray(H), second.swapaxes(0, 1), third, curved, moved)


def _require_derivatives(f: ModelFunction, total: int, trained: int, order: int) -> None:
    entries = total**2 * trained * (1 if order == 2 else 3 * trained)
    gradients = total * f.size * (2 if order == 2 else 4)
    what = f"derivatives of {total} outputs by {f.size} parameters along {trained} directions"
    require_memory(8 * (entries + gradients), what, "Take fewer inputs, or a smaller model.")


def _direction(tensors: NamedTensors, number: int) -> NamedTensors:
    return {name: value[number] for name, value in tensors.items()}


def _as_program(f: ModelFunction, function: Callable[..., Any]) -> Callable[..., Any]:
    return function if f.is_torch else f.transforms.jit(function)


def _along_many(
    f: ModelFunction, z: Callable[[NamedTensors], Any], along: NamedTensors, *others: NamedTensors
) -> np.ndarray:
    """dᵏz_o[v_s, others] on (s, o), many directions s at once."""

    def at(direction: NamedTensors, others: tuple[NamedTensors, ...]) -> Any:
        return derivative_along(f, z, direction, *others)(f.parameters)

    return f.numpy(_as_program(f, f.transforms.vmap(at, (0, None)))(along, others))


def _curvature_products(rows: TangentRows, z: Any, along: NamedTensors, trained: int) -> tuple[np.ndarray, np.ndarray]:
    """`curved` and `moved` of `DirectionalDerivatives`, from ∂²z_o v_s by groups of tensors."""
    f = rows.function
    total = len(next(iter(along.values())))
    curved, moved = np.zeros((total, trained, trained, trained)), np.zeros((trained, total, trained, trained))
    for group in _tensor_groups(rows, total * total):

        def gradients(parameters: NamedTensors, names: tuple[str, ...] = tuple(group)) -> Any:
            chosen = {name: parameters[name] for name in names}
            return f.transforms.jacrev(lambda some: z({**parameters, **some}))(chosen)

        def bent(direction: NamedTensors, gradients: Any = gradients) -> Any:
            return f.transforms.jvp(gradients, (f.parameters,), (direction,))[1]

        found = _as_program(f, f.transforms.vmap(bent))(along)  # (s, o, entries)
        for name in group:
            g = f.numpy(found[name]).reshape(total, total, -1)
            both = g[:trained, :trained].swapaxes(0, 1)  # (o, s) of trained ones
            rate = rows.rates.get(name, 1.0)
            curved += rate * np.einsum("pox,qrx->opqr", g[:trained], both, optimize=True)
            moved += rate * np.einsum("spx,qrx->psqr", g[:, :trained], both, optimize=True)
    return curved, moved


def _tensor_groups(rows: TangentRows, count: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    held = 0
    for name, value in rows.function.parameters.items():
        needed = 8 * count * int(np.prod(value.shape))
        if groups[-1] and held + needed > row_budget():
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += needed
    return groups
