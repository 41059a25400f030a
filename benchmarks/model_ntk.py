"""The traced NTK of a network of the size of ResNet-18 on images of 32 × 32, beside the recipe of torch.func.

PYTHONPATH=src python benchmarks/model_ntk.py [IMAGES] [IMAGES OF THE RECIPE] [THREADS, or cuda]

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


def run(kind: str, images: int, where: str) -> None:
    import torch
    from sound_models import ResNet  # pyright: ignore[reportMissingImports]

    from widthwise.readers.empirical.model_functions import function_of
    from widthwise.readers.empirical.tangent_kernels import TangentRows

    def traced(model, x):
        """`widthwise.model_ntk(model, x, trace=True, dtype="model")` without its labels, which need xarray."""
        f = function_of(model, "model")
        return TangentRows(f, f.read(x, "X"), {}).traced()

    torch.manual_seed(0)
    cuda = where == "cuda"
    torch.set_num_threads(1 if cuda else int(where))
    model = ResNet((64, 128, 256, 512), 2).eval().to("cuda" if cuda else "cpu")
    x = torch.randn(images, 3, 32, 32).to("cuda" if cuda else "cpu")
    traced(torch.nn.Linear(2, 1).to(x.device), torch.ones(2, 2))  # imports
    if cuda:
        traced(model, x[:2])  # kernels are chosen
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    start, used = time.perf_counter(), time.process_time()
    found = recipe(model, x).cpu().numpy() if kind == "recipe" else traced(model, x)
    after = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    size = sum(value.numel() for value in model.parameters())
    spent, cpu = time.perf_counter() - start, time.process_time() - used
    print(f"{kind:>9} {images:4d} images, {size:,} parameters: {spent:6.1f} s, {cpu:6.1f} s of processor,", end=" ")
    print(f"{(after - before) / 2**20:5.0f} MiB more, trace {found.trace():.6g}", flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words and words[0] in ("recipe", "widthwise"):
        run(words[0], int(words[1]), words[2])
    else:
        every, few = (int(words[k]) if len(words) > k else start for k, start in enumerate((200, 4)))
        where = words[2] if len(words) > 2 else "2"
        for kind, images in dict.fromkeys([("recipe", few), ("widthwise", few), ("widthwise", every)]):
            subprocess.run([sys.executable, __file__, kind, str(images), where], check=False)
