"""Critical points and phase diagrams: seconds in fresh processes, and each `critical` again once it is compiled.

    python benchmarks/criticality.py [NAME ...]

"import" is `import widthwise` with what `critical` needs, jax above all; "first" the first call in the process, the
exponents included; "cpu" its processor time, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from common import best_time, describe_machine, run_apart

BUILT_IN = ("linear", "relu", "leaky_relu(0.2)", "tanh", "sin", "erf", "gelu", "swish", "sigmoid", "softplus", "step",
            "quadratic", "cubic")  # fmt: skip
USER = ("z*tanh(softplus(z))", "z/(1+|z|)", "arctan")
DIAGRAMS = ("tanh", "gelu", "relu", "z/(1+|z|)")


def activation(name: str):
    """A built-in name, or one of the activations that a user might write."""
    import jax
    import jax.numpy as jnp

    import widthwise as ww

    made = {
        "z*tanh(softplus(z))": lambda z: z * jnp.tanh(jax.nn.softplus(z)),
        "z/(1+|z|)": ww.activation(lambda z: z / (1 + jnp.abs(z)), kinks=[0.0], name="softsign"),
        "arctan": jnp.arctan,
    }
    return made.get(name, name)


def time_critical(name: str) -> dict[str, object]:
    """One `critical` in this process."""
    start = time.perf_counter()
    from widthwise.criticality.critical import critical
    from widthwise.errors import NotCritical

    what = activation(name)
    imported = time.perf_counter()
    processor = time.process_time()
    try:
        point = critical(what)
        found = f"{point.universality}, {len(point.exponents)} exponents"
    except NotCritical:
        found = "not critical"
    first, cpu = time.perf_counter() - imported, time.process_time() - processor
    return {"import": imported - start, "first": first, "cpu": cpu, "found": found}


def time_diagram(name: str) -> dict[str, float]:
    """A phase diagram of 200 × 200 points in this process, and the same again."""
    import numpy as np

    from widthwise.criticality.phase_diagram import phase_diagram

    sigma, axes = activation(name), (np.linspace(0.1, 3.0, 200), np.linspace(0.0, 1.0, 200))
    times = [best_time(lambda: phase_diagram(sigma, *axes), 1) for _ in range(2)]
    return {"first": times[0], "again": times[1]}


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in ("--critical", "--diagram"):
        timed = time_critical if sys.argv[1] == "--critical" else time_diagram
        print(json.dumps(timed(sys.argv[2])))
        return
    chosen = sys.argv[1:]
    describe_machine()
    here = Path(__file__)
    print(f"\n{'critical':>20}  {'import, s':>9}  {'first, s':>8}  {'cpu, s':>7}")
    for name in chosen or (*BUILT_IN, *USER):
        row = run_apart(sys.executable, here, "--critical", name)
        if row is not None:
            print(f"{name:>20}  {row['import']:9.2f}  {row['first']:8.2f}  {row['cpu']:7.2f}  {row['found']}")
    print(f"\n{'phase diagram':>20}  {'first, s':>9}  {'again, s':>8}   (200 × 200)")
    for name in [n for n in chosen if n not in ("step",)] or DIAGRAMS:
        row = run_apart(sys.executable, here, "--diagram", name)
        if row is not None:
            print(f"{name:>20}  {row['first']:9.2f}  {row['again']:8.2f}")


if __name__ == "__main__":
    main()
