"""`coordinate_check`: do activations, logits and their change in the first steps keep their size as a model grows?

A rule of transfer is right if they do: slopes of log size against log width, or log depth, within two standard errors
of zero, beyond a tolerance for corrections of finite width. Logits at the start may shrink: μP's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput, WidthwiseError, one_line
from widthwise.extras import need
from widthwise.memory import require_memory
from widthwise.network import check_integer
from widthwise.network.validation import refuse_mask
from widthwise.progress import DelayedProgress
from widthwise.readers.empirical.model_functions import first_output
from widthwise.readers.transfer.parametrisation import Parametrisation, parametrisation
from widthwise.readers.transfer.tensor_roles import name_pattern
from widthwise.text import text_table

#: Slopes this small are corrections of finite width.
SLOPE_TOLERANCE = 0.1
#: Models at each size, and steps that one is trained for.
_MOST_SEEDS, _MOST_STEPS = 1000, 1_000_000


@dataclass(frozen=True)
class SizeSlope:
    """The power of width or depth with which the size of what leaves a module goes, with its standard error."""

    module: str
    quantity: str
    axis: str
    slope: float
    error: float
    passed: bool


@dataclass(frozen=True, eq=False)
class CoordinateCheck:
    """Slopes by module and quantity, and whether all are flat. `sizes` holds what was measured.

    Where training diverges `sizes` and `slopes` may be NaN; such slopes have not passed.

    `sizes[quantity][module]` is (grid, seeds); `grid` lists (width, depth).
    """

    rule: str
    optimiser: str
    slopes: tuple[SizeSlope, ...]
    grid: tuple[tuple[int, int | None], ...]
    sizes: dict[str, dict[str, np.ndarray]]

    @property
    def passed(self) -> bool:
        return all(one.passed for one in self.slopes)

    def __str__(self) -> str:
        rows = [(s.module, s.quantity, s.axis, s.slope, s.error, "pass" if s.passed else "FAIL") for s in self.slopes]
        head = f"{self.rule}, {self.optimiser}: {'passed' if self.passed else 'failed'}"
        return head + "\n" + text_table(("module", "quantity", "with", "slope", "s.e.", "verdict"), rows)

    def figure(self) -> Any:
        """Sizes against width (or depth), one panel a quantity."""
        plt = need("matplotlib.pyplot", "plots", "a figure of the coordinate check")
        axis = 0 if len({w for w, _ in self.grid}) > 1 else 1
        figure, panels = plt.subplots(1, len(self.sizes), figsize=(4.2 * len(self.sizes), 3.6), squeeze=False)
        for panel, (quantity, by_module) in zip(panels[0], self.sizes.items(), strict=True):
            for module, values in by_module.items():
                panel.loglog([point[axis] for point in self.grid], values.mean(1), "o-", label=module)
            panel.set_title(quantity)
            panel.set_xlabel(("width", "depth")[axis])
        panels[0][0].set_ylabel("root mean square")
        panels[0][-1].legend(fontsize=7)
        figure.tight_layout()
        return figure


def coordinate_check(
    make: Callable[..., Any],
    X: Any,
    y: Any,
    widths: Sequence[int] = (64, 128, 256, 512),
    depths: Sequence[int] | None = None,
    *,
    rule: str = "mup",
    optimiser: str = "adam",
    learning_rate: float = 1e-3,
    steps: Sequence[int] = (1, 10),
    seeds: int = 3,
    s: float | None = None,
) -> CoordinateCheck:
    """Train models of growing width, or depth, for some steps by a rule, and say by module what grows or shrinks.

    Parameters
    ----------
    make : make(width), or make(width, depth) with `depths`, returns a torch module. Its attributes `output_multiplier`,
        `branch_multiplier` and `attention_multiplier`, those that it has, are set to the rule's constants, which its
        forward applies to logits, to every residual branch, and to attention logits. Rules of depth need the second,
        output weights that are tied to an embedding the first; without the first it is folded into the variance.
    X, y : a batch, and targets: numbers (mean squared error) or integers (cross entropy), one for each row or token.
    widths, depths : grown one at a time: widths at the first depth, depths at the first width, which are the base.
    steps : after how many steps changes are measured.

    Returns
    -------
    A `CoordinateCheck`: `passed`, `slopes` with standard errors over `seeds` and sizes, and `figure()`.

    >>> import torch
    >>> from torch import nn
    >>> X, y = torch.ones(8, 4), torch.ones(8, 1)
    >>> def make(n):
    ...     return nn.Sequential(nn.Linear(4, n), nn.Tanh(), nn.Linear(n, n), nn.Tanh(), nn.Linear(n, 1))
    >>> check = coordinate_check(make, X, y, [32, 64, 128], rule="mup", steps=(1,), seeds=2)
    >>> sorted({one.quantity for one in check.slopes})
    ['change after 1', 'initial size']
    """
    torch = need("torch", "torch", "the coordinate check")
    if not callable(make):
        raise InvalidInput("make", type(make).__name__, "a function that takes a width and returns a torch module")
    seeds = check_integer("seeds", seeds, 1, _MOST_SEEDS, f"an integer from 1 to {_MOST_SEEDS}")
    widths, depths = _checked_sizes("widths", widths), None if depths is None else _checked_sizes("depths", depths)
    steps = _checked_steps(steps)
    grids = {"width": [(w, depths[0] if depths else None) for w in widths]}
    if depths:
        grids["depth"] = [(widths[0], d) for d in depths]
    grid = list(dict.fromkeys(point for points in grids.values() for point in points))
    X, y = _checked_batch(torch, "X", X), _checked_batch(torch, "y", y)
    if len(X) != len(y):
        raise InvalidInput("y", f"{len(y)} rows", f"one for each of the {len(X)} rows of X")
    for point in grid:
        _require_room_for_model(torch, make, point)
    # at the width of the base nothing grows: what does is seen at the next
    wider, narrow = (_made_at(torch, make, grids["width"][number], 0) for number in (1, 0))
    roles = {one.name: one.role for one in parametrisation(wider, narrow, "standard", optimiser).tensors}
    measured: dict[tuple[int, int | None], list[dict[str, dict[str, float]]]] = {}
    with DelayedProgress("coordinate check") as bar:
        for number, point in enumerate(grid):
            measured[point] = []
            for seed in range(seeds):
                model, base = _made_at(torch, make, point, seed), _made_at(torch, make, grid[0], seed)
                form = "multiplier" if hasattr(model, "output_multiplier") else "variance"
                settings = {"learning_rate": learning_rate, "s": s, "output": form, "roles": roles}
                found = parametrisation(model, base, rule, optimiser, **settings)
                try:
                    measured[point].append(_sizes_in_training(torch, model, found, X, y, steps, seed))
                except WidthwiseError:
                    raise
                except Exception as error:  # of the model's own code, or of targets that do not fit its outputs
                    got = f"a model whose training on X {tuple(X.shape)}, y {tuple(y.shape)} raises {one_line(error)}"
                    expected = "one that takes X, in its dtype, and returns a row for each target"
                    raise InvalidInput("make", got, expected) from error
            bar(number + 1, len(grid))
    return _verdict_of(measured, grids, grid, rule, optimiser)


def _checked_sizes(name: str, values: Sequence[int]) -> list[int]:
    try:
        found = [check_integer(name, value, 1) for value in values]
    except InvalidInput:
        raise
    except Exception:  # of the caller's object, too
        found = []
    if len(set(found)) < 2:
        raise InvalidInput(name, repr(values), "at least two different sizes, the base first")
    return found


def _checked_steps(steps: Any) -> list[int]:
    listed = isinstance(steps, list | tuple | range) or (isinstance(steps, np.ndarray) and steps.ndim == 1)
    if not listed or not len(steps):
        raise InvalidInput("steps", repr(steps), "a list of numbers of steps, such as (1, 10)")
    return sorted(check_integer("steps", step, 1, _MOST_STEPS, f"integers from 1 to {_MOST_STEPS}") for step in steps)


def _checked_batch(torch: Any, name: str, values: Any) -> Any:
    """A tensor with a row an input, of finite numbers."""
    refuse_mask(values, name)
    try:
        tensor = values.detach() if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except Exception as error:  # of numpy or torch, each with kinds of its own
        got = f"{values!r} ({one_line(error)})"
        raise InvalidInput(name, got, "an array of numbers with a row for each input") from None
    if not tensor.dim() or not tensor.numel() or tensor.is_complex() or tensor.dtype == torch.bool:
        got = f"an array of shape {tuple(tensor.shape)} and type {tensor.dtype}"
        raise InvalidInput(name, got, "real numbers with a row for each input")
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidInput(name, "NaN or infinite entries", "finite numbers")
    return tensor


def _require_room_for_model(torch: Any, make: Callable[..., Any], point: tuple[int, int | None]) -> None:
    """Ask for weights, gradients and an optimiser's two averages of a model that is built without memory first."""
    try:
        with torch.device("meta"):
            model = make(point[0]) if point[1] is None else make(*point)
        size = sum(value.numel() * value.element_size() for value in model.parameters())
    except Exception:  # what cannot be built that way is built in earnest, and says why if it cannot
        return
    require_memory(5 * size, f"a model of width {point[0]}", "Take smaller widths.")


def _made_at(torch: Any, make: Callable[..., Any], point: tuple[int, int | None], seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = make(point[0]) if point[1] is None else make(*point)
        except Exception as error:  # the caller's own code
            size = ", ".join(str(one) for one in point if one is not None)
            got = f"a function whose call make({size}) raises {one_line(error)}"
            raise InvalidInput("make", got, "one that returns a torch module") from error
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("make", f"a function that returns {type(model).__name__}", "one that returns a torch module")
    return model


def _sizes_in_training(
    torch: Any, model: Any, found: Parametrisation, X: Any, y: Any, steps: Sequence[int], seed: int
) -> dict[str, dict[str, float]]:
    """Root mean squares by quantity and module: at the start, and of the change after some steps."""
    for name, value in found.multipliers.items():
        attribute = f"{name}_multiplier"
        if hasattr(model, attribute):
            setattr(model, attribute, value)
        elif name == "branch" and value != 1.0:
            expected = f"a model that multiplies its branches by an attribute of that name, for {found.rule}"
            raise InvalidInput("make", f"{type(model).__name__} without branch_multiplier", expected)
    found.initialise(model, seed)
    optimisers = found.torch_optimisers()
    factor = found.multipliers["output"]
    start = _activations(torch, model, X, factor)
    sizes = {"initial size": {name: _root_mean_square(value) for name, value in start.items()}}
    for step in range(1, max(steps) + 1):
        for optimiser in optimisers:
            optimiser.zero_grad()
        _loss_on_batch(torch, first_output(model(X)), y).backward()
        for optimiser in optimisers:
            optimiser.step()
        if step in steps:
            now = _activations(torch, model, X, factor)
            sizes[f"change after {step}"] = {name: _root_mean_square(now[name] - start[name]) for name in start}
    return sizes


def _loss_on_batch(torch: Any, out: Any, y: Any) -> Any:
    if y.is_floating_point():
        return ((out - y.reshape(out.shape)) ** 2).mean()
    if out.dim() > 2 and y.shape == out.shape[:-1]:  # a class for each token, classes last
        out, y = out.flatten(0, -2), y.flatten()
    return torch.nn.functional.cross_entropy(out, y)


def _activations(torch: Any, model: Any, X: Any, factor: float) -> dict[str, Any]:
    """What leaves every module with weights of two axes, and the model, whose logits hold a factor: once, with it."""
    kept: dict[str, Any] = {}

    def keeper(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, result: Any) -> None:
            kept[name] = first_output(result).detach().clone()

        return hook

    parts = {
        name: part
        for name, part in model.named_modules()
        if name and any(value is not None and value.dim() >= 2 for value in part._parameters.values())
    }
    handles = [parts[name].register_forward_hook(keeper(shown)) for name, shown in _at_equal_depth(list(parts)).items()]
    try:
        with torch.no_grad():
            z = first_output(model(X)).detach().clone()
    finally:
        for handle in handles:
            handle.remove()
    bare = [n for n, v in kept.items() if factor != 1.0 and v.shape == z.shape and torch.allclose(factor * v, z)]
    return {name: value for name, value in kept.items() if name not in bare} | {"output": z}


def _at_equal_depth(names: list[str]) -> dict[str, str]:
    """Modules that stand at the same share of the depth in models of any depth: of blocks the first and the last."""
    blocks: dict[str, list[int]] = {}
    found = {}
    for name in names:
        pattern, number = name_pattern(name)
        if number is not None and ".#" in pattern:
            blocks.setdefault(pattern, []).append(number)
        else:
            found[name] = name
    for pattern, numbers in blocks.items():
        found[pattern.replace("#", str(min(numbers)), 1)] = pattern.replace("#", "first", 1)
        found[pattern.replace("#", str(max(numbers)), 1)] = pattern.replace("#", "last", 1)
    return found


def _root_mean_square(value: Any) -> float:
    return float(value.double().square().mean().sqrt())


def _verdict_of(measured: dict, grids: dict, grid: list, rule: str, optimiser: str) -> CoordinateCheck:
    first = measured[grid[0]][0]
    common = {name for runs in measured.values() for name in runs[0]["initial size"]}
    for runs in measured.values():
        common &= set(runs[0]["initial size"])
    modules = [name for name in first["initial size"] if name in common]
    slopes = []
    for quantity in first:
        for module in modules:
            for number, (axis, points) in enumerate(grids.items()):
                values = np.array([[run[quantity][module] for run in measured[point]] for point in points])
                slope, error = _log_slope([point[number] for point in points], values)
                # training that diverges has no slope, and fails
                flat = abs(slope) <= 2.0 * error + SLOPE_TOLERANCE
                head = quantity == "initial size" and module in ("output", modules[-2] if len(modules) > 1 else "")
                slopes.append(SizeSlope(module, quantity, axis, slope, error, bool(flat or (head and slope < 0.0))))
    sizes = {
        q: {m: np.array([[run[q][m] for run in measured[point]] for point in grid]) for m in modules} for q in first
    }
    return CoordinateCheck(rule, optimiser, tuple(slopes), tuple(grid), sizes)


def _log_slope(sizes: Sequence[int], values: np.ndarray) -> tuple[float, float]:
    """The slope of log values (sizes, seeds) against log sizes, with the standard error of the fit."""
    x = np.repeat(np.log(np.asarray(sizes, float)), values.shape[1])
    t = np.log(np.maximum(values.ravel(), 1e-300))
    x = x - x.mean()
    slope = float(x @ t / (x @ x))
    rest = t - t.mean() - slope * x
    return slope, float(np.sqrt(rest @ rest / max(1, len(t) - 2) / (x @ x)))
