"""Networks of infinite width under the names of neural-tangents: `serial(...)` gives (init_fn, apply_fn, kernel_fn).

>>> from widthwise import stax
>>> init_fn, apply_fn, kernel_fn = stax.serial(
...     stax.Conv(64, (3, 3), padding="SAME"), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(10)
... )
>>> import numpy as np
>>> kernel_fn(np.ones((2, 4, 4, 3)), None, ("nngp", "ntk")).ntk.shape
(2, 2)

Kernels are arrays of numpy, in float64. Inputs are (inputs, positions…, channels).
"""

from typing import Any

from widthwise.stax.combinators import FanInConcat, FanInProd, FanInSum, FanOut, parallel, repeat, serial
from widthwise.stax.elementwise import (
    ABRelu,
    Abs,
    Cos,
    Elementwise,
    ElementwiseNumerical,
    Erf,
    Exp,
    Gabor,
    Gaussian,
    Gelu,
    Hermite,
    LeakyRelu,
    Monomial,
    Polynomial,
    Rbf,
    RectifiedMonomial,
    Relu,
    Sigmoid_like,
    Sign,
    Sin,
)
from widthwise.stax.linear import (
    MISSING,
    AvgPool,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalSelfAttention,
    GlobalSumPool,
    Identity,
    LayerNorm,
    SumPool,
    missing,
)

__all__ = [
    "ABRelu", "Abs", "AvgPool", "Conv", "Cos", "Dense", "Dropout", "Elementwise", "ElementwiseNumerical", "Erf", "Exp",
    "FanInConcat", "FanInProd", "FanInSum", "FanOut", "Flatten", "Gabor", "Gaussian", "Gelu", "GlobalAvgPool",
    "GlobalSelfAttention", "GlobalSumPool", "Hermite", "Identity", "LayerNorm", "LeakyRelu", "Monomial", "Polynomial",
    "Rbf", "RectifiedMonomial", "Relu", "Sigmoid_like", "Sign", "Sin", "SumPool", "parallel", "repeat", "serial",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in MISSING:
        raise missing(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
