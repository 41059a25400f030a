"""The tangent kernel layer by layer: Ĥ = Σ_l Ĥ^(l), l the layer whose parameters are differentiated (theory §3, §8).

Training moves Ĥ^(l) by the equations of theory §8 with λ^(l), the rates of layer l alone, between its two slots, and
the full λ wherever a slot meets an error ε:
    Ĥ^(l)_ij;ab → Ĥ^(l) − η (dH_ijk;abc + dH_jik;bac) ε_kc + …,    λ_1 = λ^(l) between a and b,  λ_2 = λ to c.
With the kernel asked for at test inputs and the errors at training inputs, that is one network whose learning rates
depend on the pair of inputs: λ^(l) between two tests, λ otherwise. The parts add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_flow import FiniteFlow, PairRates, finite_flow
from widthwise.network import MLP
from widthwise.tensors import DIFFERENTIALS

#: What the mean of a kernel, and its change under training, are made of.
NEEDED = ("H1", *DIFFERENTIALS)


def layer_flows(net: MLP, X: np.ndarray, training: int) -> Iterator[FiniteFlow]:
    """For each layer the tensors on X, training inputs first, of a kernel at the tests that this layer makes alone.

    >>> net = MLP([1, 8, 8, 1], "tanh", C_b=0.1)
    >>> X = np.array([[0.5], [-1.0]])
    >>> parts = [flow.Theta[-1][1, 1] for flow in layer_flows(net, X, 1)]
    >>> bool(np.isclose(sum(parts), kernel_flow(net, X).Theta[-1][1, 1]))
    True
    """
    whole = kernel_flow(net, X).Theta
    assert whole is not None
    at_tests = np.arange(len(X)) >= training
    between_tests = at_tests[:, None] & at_tests
    full = np.array(net.lambda_W)[:, None, None]
    for layer in range(net.depth):
        alone = np.arange(net.depth) == layer
        part = kernel_flow(net.replace(lambda_b=alone * net.lambda_b, lambda_W=alone * net.lambda_W), X).Theta
        assert part is not None
        lambda_W = np.where(between_tests, full * alone[:, None, None], full)
        rates = PairRates(lambda_W, np.where(between_tests, part, whole))
        yield finite_flow(net, X, NEEDED, last_only=True, rates=rates)
