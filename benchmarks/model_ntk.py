"""The traced NTK of a network of the size of ResNet-18 on images of 32 × 32, beside the recipe of torch.func.

PYTHONPATH=src python benchmarks/model_ntk.py [IMAGES] [IMAGES OF THE RECIPE]

The recipe holds the Jacobian of all images and outputs: 44 MB times ten an image in single precision. It is run on as
many images as fit; ours on those and on all. Each runs in a process of its own, whose peak of memory is read.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def recipe(model, x):
    """Σ_i of the tangent kernel by vmap(jacrev), as torch.func's documentation computes it."""
    import torch

    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def call(parameters, one):
        return torch.func.functional_call(model, parameters, (one[None],))[0]

    jacobian = torch.func.vmap(torch.func.jacrev(call), (None, 0))(parameters, x)
    return torch.stack([torch.einsum("Naf,Maf->NM", j.flatten(2), j.flatten(2)) for j in jacobian.values()]).sum(0)


def run(kind: str, images: int) -> None:
    import torch
    from sound_models import ResNet  # pyright: ignore[reportMissingImports]

    import widthwise as ww

    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = ResNet((64, 128, 256, 512), 2).eval()
    x = torch.randn(images, 3, 32, 32)
    ww.model_ntk(torch.nn.Linear(2, 1), torch.ones(2, 2), trace=True)  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, used = time.perf_counter(), time.process_time()
    if kind == "recipe":
        found = recipe(model, x).numpy()
    else:
        found = ww.model_ntk(model, x, trace=True, dtype="model")["H_trace"].values
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    size = sum(value.numel() for value in model.parameters())
    spent, cpu = time.perf_counter() - start, time.process_time() - used
    print(f"{kind:>9} {images:4d} images, {size:,} parameters: {spent:6.1f} s, {cpu:6.1f} s of processor,", end=" ")
    print(f"{peak:5.0f} MiB more, trace {found.trace():.6g}")


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in ("recipe", "widthwise"):
        run(sys.argv[1], int(sys.argv[2]))
    else:
        every = int(sys.argv[1]) if len(sys.argv) > 1 else 200
        few = int(sys.argv[2]) if len(sys.argv) > 2 else 4
        for kind, images in (("recipe", few), ("widthwise", few), ("widthwise", every)):
            subprocess.run([sys.executable, __file__, kind, str(images)], check=True)
