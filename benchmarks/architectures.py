"""Kernels of `widthwise.stax` beside neural-tangents on all of `stax_cases`: largest relative differences.

.venv/bin/python benchmarks/architectures.py --peer .venv-peer/bin/python
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from stax_cases import CASES

from widthwise import stax


def kernels_of_cases() -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Name → "square" and "cross" → "nngp" and "ntk", of the inputs that `peer_architectures.py` draws too."""
    found = {}
    for number, (name, (expression, shape)) in enumerate(CASES.items()):
        rng = np.random.default_rng(number)
        X, X2 = rng.normal(size=shape), rng.normal(size=(shape[0] - 1, *shape[1:]))
        kernel_fn = eval(expression, {"stax": stax})[2]
        both = {"square": kernel_fn(X, None, ("nngp", "ntk")), "cross": kernel_fn(X, X2, ("nngp", "ntk"))}
        found[name] = {label: {"nngp": kernels.nngp, "ntk": kernels.ntk} for label, kernels in both.items()}
    return found


def differences(ours: dict, peer: dict) -> tuple[float, float]:
    """The largest of one case, relative to the largest entry: of different inputs, and of inputs with themselves."""
    apart = own = 0.0
    for label in ("square", "cross"):
        for name in ("nngp", "ntk"):
            reference = np.asarray(peer[label][name])
            off = np.abs(ours[label][name] - reference) / np.abs(reference).max()
            same = np.eye(*off.shape[:2], dtype=bool) if label == "square" else np.zeros(off.shape[:2], bool)
            apart, own = max(apart, off[~same].max()), max(own, off[same].max(initial=0.0))
    return float(apart), float(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="the interpreter of an environment with neural-tangents")
    parser.add_argument("--from-file", help="what peer_architectures.py wrote")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.from_file or f"{folder}/peer.json"
        if not chosen.from_file:
            subprocess.run([chosen.peer, "peer_architectures.py", path], check=True, cwd=Path(__file__).parent)
        peer = json.loads(Path(path).read_text())
    for name, ours in kernels_of_cases().items():
        apart, own = differences(ours, peer[name])
        mark = "   <-- above 1e-10" if max(apart, own) > 1e-10 else ""
        print(f"{name:32s} different inputs {apart:.1e}  an input with itself {own:.1e}{mark}")
    print(f"{len(CASES)} architectures")


if __name__ == "__main__":
    main()
