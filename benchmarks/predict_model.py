"""What `predict_model` leaves out of real training, against width: root mean squares over seeds, and their power.

PYTHONPATH=src python benchmarks/predict_model.py [SEEDS] [FIRST SEED] [WIDTHS …]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> None:
    import torch
    from model_remainders import powers, remainders  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    given = [int(word) for word in sys.argv[1:]]
    (seeds, first), widths = (*given[:2], *(16, 0)[len(given) :]), given[2:] or [32, 64, 128, 256, 512]
    squares = remainders(widths, range(first, first + seeds))
    for n, free, both in zip(widths, *np.sqrt(squares.mean(axis=2)), strict=True):
        print(f"width {n:5d}: free part alone {free:.3e}, with the parts of dNTK and ddNTK {both:.3e}")
    every = range(seeds)
    for name, number in (("free part alone", 0), ("with both parts", 1)):
        power = powers(widths, squares)[number]
        without = [powers(widths, np.delete(squares, seed, axis=2))[number] for seed in every]
        error = np.sqrt((seeds - 1) * np.var(without))
        late = powers(widths[-3:], squares[:, -3:])[number]
        print(f"{name}: width^({power:.2f} ± {error:.2f}), at the three largest widths {late:.2f}", flush=True)


if __name__ == "__main__":
    main()
