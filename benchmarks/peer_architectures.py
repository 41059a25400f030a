"""nngp and ntk of `stax_cases` with neural-tangents, in its own environment. Writes one JSON file."""

# Run by the peer's interpreter, which has neither widthwise nor this repository's type checking.
# pyright: reportMissingImports=false
import json
import sys
import warnings

import numpy as np

warnings.filterwarnings("ignore")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
from neural_tangents import stax  # noqa: E402
from stax_cases import CASES  # noqa: E402

found = {}
for number, (name, (expression, shape)) in enumerate(CASES.items()):
    if len(sys.argv) > 2 and name not in sys.argv[2:]:
        continue
    rng = np.random.default_rng(number)
    X, X2 = rng.normal(size=shape), rng.normal(size=(shape[0] - 1, *shape[1:]))
    kernel_fn = eval(expression, {"stax": stax})[2]
    found[name] = {}
    for label, other in (("square", None), ("cross", X2)):
        kernels = kernel_fn(X, other, ("nngp", "ntk"))
        found[name][label] = {key: np.asarray(getattr(kernels, key)).tolist() for key in ("nngp", "ntk")}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
