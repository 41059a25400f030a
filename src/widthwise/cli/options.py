"""The shared options, written once as dataclasses, and the study that they describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from widthwise.errors import InvalidInput

if TYPE_CHECKING:
    from widthwise.study import Data, Study

#: Written out, so that completing a name in the shell does not load the library; a test compares them.
COMPLETED_ACTIVATIONS = (
    "celu", "cubic", "elu", "erf", "gelu", "gelu_tanh", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "leaky_relu", "linear", "logsigmoid", "mish", "quadratic", "relu", "relu6", "selu", "sigmoid", "sin",
    "softplus", "softshrink", "softsign", "sparse_plus", "sparse_sigmoid", "squareplus", "step", "swish", "tanh",
    "tanhshrink", "threshold",
)  # fmt: skip
DATA_SETS = ("circle", "diabetes", "digits", "iris", "sine", "spiral", "xor")
#: Algorithms that are linear in the gradient, which `predict` follows; Adam can only be measured.
PREDICTED_ALGORITHMS = ("gradient_flow", "gradient_descent", "newton_step", "sgd", "momentum")
ALGORITHM_NAMES = (*PREDICTED_ALGORITHMS, "adam")
SCHEDULES = ("constant", "cosine", "linear")
DECAY_CENTRES = ("initialisation", "zero")
FORMATS = ("table", "json", "csv", "netcdf")
#: Layers of a network on the command line. A layer takes `theory` milliseconds, so that these take minutes.
MOST_LAYERS = 100_000


def one_of(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Completion from a list."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


_network = partial(typer.Option, rich_help_panel="Network")
_data = partial(typer.Option, rich_help_panel="Data")
_output = partial(typer.Option, rich_help_panel="Output")
_PER_LAYER = "one number, or one per weight layer, separated by commas"


@dataclass(frozen=True)
class StudyOptions:
    """A network and data, from a TOML file or flags; flags win."""

    spec: Annotated[
        Path | None, _network("--spec", help=r"TOML file with \[network], \[data], \[training], \[measurement].")
    ] = None
    widths: Annotated[
        str | None, _network("--widths", help="Input, hidden and output widths, as 3,64,64,1 or 3,2x64,1.")
    ] = None
    activation: Annotated[
        str | None, _network("--activation", help="tanh, relu, gelu, …", autocompletion=one_of(COMPLETED_ACTIVATIONS))
    ] = None
    C_b: Annotated[str | None, _network("--C_b", help=f"Variance of the biases: {_PER_LAYER}.")] = None
    C_W: Annotated[str | None, _network("--C_W", help=f"Variance of the weights, times fan-in: {_PER_LAYER}.")] = None
    lambda_b: Annotated[str | None, _network("--lambda_b", help=f"Learning rate of the biases: {_PER_LAYER}.")] = None
    lambda_W: Annotated[str | None, _network("--lambda_W", help=f"Learning rate of the weights: {_PER_LAYER}.")] = None
    data: Annotated[
        str | None,
        _data("--data", help=f".npy, .npz or .csv file, or {', '.join(DATA_SETS)}.", autocompletion=one_of(DATA_SETS)),
    ] = None
    points: Annotated[
        int | None, _data("--points", help="Number of training inputs of a built-in set; 4 by default.")
    ] = None

    def study(self, **changes: Any) -> Study:
        """The study; `changes` that are None are left as they are."""
        study = self._described()
        net, data = study.net, study.data
        if self.data is None and data.features != net.widths[0]:
            raise InvalidInput(
                "--data", "none", f"inputs with {net.widths[0]} features", "Name a file or a built-in set with --data."
            )
        return replace(study, **{name: value for name, value in changes.items() if value is not None})

    def net_and_inputs(self) -> tuple[Any, Any]:
        """The network, and the inputs if a file or a flag names some that fit it; else None."""
        study = self._described()
        named = self.data is not None or (self.spec is not None and study.data.features == study.net.widths[0])
        return study.net, study.data.X_train if named else None

    def _described(self) -> Study:
        """The study of the file, or the default one, with the network and data of the flags."""
        from widthwise.study import Study, default_study

        base = default_study() if self.spec is None else Study.from_toml(self.spec)
        data = self._chosen_data(base)
        given = {name: getattr(self, name) for name in ("C_b", "C_W", "lambda_b", "lambda_W")}
        changes: dict[str, Any] = {name: numbers(f"--{name}", text) for name, text in given.items() if text is not None}
        if self.activation is not None:
            changes["activation"] = self.activation
        if self.widths is not None:
            changes["widths"] = whole_numbers("--widths", self.widths)
        elif self.spec is None:
            # the default network takes the shape of the data
            changes["widths"] = [data.features, *base.net.widths[1:-1], data.outputs]
        return replace(base, net=base.net.replace(**changes) if changes else base.net, data=data)

    def _chosen_data(self, base: Study) -> Data:
        from widthwise.study import load_data

        if self.points is None:
            return base.data if self.data is None else load_data(self.data)
        if (self.data is None and self.spec is not None) or (self.data is not None and Path(self.data).suffix):
            where = f"the data of '{self.data or self.spec}'"
            raise InvalidInput("--points", f"{self.points} with {where}", "a built-in set, named with --data")
        return load_data(self.data or base.data.name, self.points)


@dataclass(frozen=True)
class OutputOptions:
    """Where results go and how."""

    out: Annotated[
        Path | None, _output("--out", "-o", help="File to write; its ending (.json, .csv, .nc, .txt) sets the format.")
    ] = None
    format: Annotated[
        str | None, _output("--format", "-f", help="table, json, csv or netcdf.", autocompletion=one_of(FORMATS))
    ] = None
    quiet: Annotated[bool, _output("--quiet", "-q", help="Print no progress bars, warnings or remarks.")] = False

    @property
    def progress(self) -> bool | None:
        """What functions that show progress are told."""
        return False if self.quiet else None


@dataclass(frozen=True)
class FigureOptions(OutputOptions):
    """The same with a figure beside the numbers."""

    figure: Annotated[Path | None, _output("--figure", help="Also draw a figure: a file .svg, .pdf or .png.")] = None


@dataclass(frozen=True)
class TrainingOptions:
    """How networks are trained."""

    algorithm: Annotated[
        str | None,
        typer.Option("--algorithm", help=", ".join(ALGORITHM_NAMES), autocompletion=one_of(ALGORITHM_NAMES)),
    ] = None
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Step size of gradient descent.")] = (
        None
    )
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            help="constant, cosine or linear after the peak; or the rate of every step, as 0.2,0.1,0.05.",
            autocompletion=one_of(SCHEDULES),
        ),
    ] = None
    warm_up: Annotated[int | None, typer.Option("--warm-up", help="Number of steps over which the rate rises.")] = None
    end: Annotated[float | None, typer.Option("--end", help="Final rate as a fraction of the peak.")] = None
    steps: Annotated[int | None, typer.Option("--steps", help="Number of steps; until convergence by default.")] = None
    time: Annotated[
        float | None, typer.Option("--time", help="Time of gradient flow; until convergence by default.")
    ] = None
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Number of inputs per batch, for sgd.")] = None
    momentum: Annotated[float | None, typer.Option("--momentum", help="Momentum μ, for --algorithm momentum.")] = None
    nesterov: Annotated[bool | None, typer.Option("--nesterov", help="Use Nesterov's momentum.")] = None
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", help="Rate of weight decay.")] = None
    decay_to: Annotated[
        str | None,
        typer.Option(
            "--decay-to",
            help="What weights decay to: initialisation (default) or zero.",
            autocompletion=one_of(DECAY_CENTRES),
        ),
    ] = None

    def chosen(self) -> Any:
        """The algorithm, or None if no option names one."""
        from widthwise.study.spec import make_algorithm

        settings = {name: value for name, value in vars(self).items() if value is not None}
        if self.schedule is not None and self.schedule[:1] in "0123456789.+-":
            if self.learning_rate is not None:
                got = f"{self.learning_rate:g} with --schedule {self.schedule}"
                raise InvalidInput("--learning-rate", got, "one of the two", "Leave it out: --schedule has every rate.")
            rates = numbers("--schedule", settings.pop("schedule"))
            settings["learning_rate"] = rates if isinstance(rates, list) else [rates]
        guess = "gradient_descent" if {"learning_rate", "schedule"} & set(settings) else "gradient_flow"
        return make_algorithm(**({"algorithm": guess} | settings)) if settings else None


@dataclass(frozen=True)
class PredictionOptions(TrainingOptions):
    """The same for a prediction."""

    algorithm: Annotated[
        str | None,
        typer.Option("--algorithm", help=", ".join(PREDICTED_ALGORITHMS), autocompletion=one_of(PREDICTED_ALGORITHMS)),
    ] = None


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameters of a dataclass type are replaced by the fields of that dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        for item in fields(groups[name]):
            default = inspect.Parameter.empty if item.default is MISSING else item.default
            parameters.append(parameter.replace(name=item.name, default=default, annotation=inner[item.name]))

    @wraps(command)
    def run(**values: Any) -> Any:
        packed = {
            name: group(**{item.name: values.pop(item.name) for item in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **packed)

    # a parameter without a default may not follow one with a default
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    del run.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    # the help is wrapped for the terminal, which would keep the line breaks of the source
    run.__doc__ = "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))
    return run


def numbers(name: str, text: str) -> float | list[float]:
    """A number, or several separated by commas."""
    try:
        values = [float(piece) for piece in text.split(",")]
    except ValueError:
        raise InvalidInput(name, repr(text), "a number, or several separated by commas") from None
    return values[0] if len(values) == 1 else values


def whole_numbers(name: str, text: str) -> list[int]:
    """Whole numbers separated by commas; 8x64 repeats."""
    expected = "whole numbers separated by commas, such as 3,64,64,1 or 3,8x64,1"
    found: list[int] = []
    for piece in text.split(","):
        times, _, value = piece.strip().rpartition("x")
        try:
            count, width = int(times) if times else 1, int(value)
        except ValueError:
            raise InvalidInput(name, repr(text), expected) from None
        if not 0 < count <= MOST_LAYERS - len(found):
            raise InvalidInput(name, repr(text), f"from 1 to {MOST_LAYERS:,} layers, before each x and in total")
        found += [width] * count
    return found


def axis(name: str, text: str) -> Any:
    """Values of an axis: 0.5:3:26 is 26 values from 0.5 to 3; otherwise numbers separated by commas."""
    import numpy as np

    from widthwise.memory import require_memory

    pieces = text.split(":")
    if len(pieces) == 1:
        return np.atleast_1d(numbers(name, text))
    try:
        first, last, count = float(pieces[0]), float(pieces[1]), int(pieces[2])
    except (ValueError, IndexError):
        raise InvalidInput(name, repr(text), "FIRST:LAST:COUNT, or numbers separated by commas") from None
    # numpy makes them in three steps, and checks a copy
    require_memory(32 * count, f"{count} values of {name}", lambda limit: f"What would fit: {limit // 32} values.")
    return np.linspace(first, last, max(count, 0))
