"""`widthwise theory`, `measure`, `compare`, `predict` and `train`."""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from widthwise.cli.options import (
    FigureOptions,
    OutputOptions,
    PredictionOptions,
    StudyOptions,
    TrainingOptions,
    one_of,
    whole_numbers,
)
from widthwise.cli.output import Records, check_output, emit_with_figure, tell_network
from widthwise.errors import InvalidInput
from widthwise.interrupts import INTERRUPTED

if TYPE_CHECKING:
    import xarray as xr

Networks = Annotated[int | None, typer.Option("--networks", help="Number of networks to sample.")]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Non-negative integer; one seed always gives the same networks.")
]
Statistics = Annotated[
    str | None, typer.Option("--statistics", help="K, Theta, G1, H1, V, A, B, …, or all. Default: K,Theta.")
]
Widths = Annotated[
    str | None, typer.Option("--extrapolate", help="Hidden widths to measure at and extrapolate from, as 32,64,128.")
]
LossName = Annotated[
    str,
    typer.Option(
        "--loss",
        help="squared, huber, log_cosh, logistic, exponential (targets ±1) or cross_entropy (probabilities).",
        autocompletion=one_of(("squared", "huber", "log_cosh", "logistic", "exponential", "cross_entropy")),
    ),
]
WhichLayers = Annotated[str, typer.Option("--layers", help="all or last.")]
Engine = Annotated[
    str | None, typer.Option("--engine", help="Number of processes, or the address of a Dask scheduler.")
]
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", help="File that keeps the progress; a later run resumes from it.")
]


def theory(
    study: StudyOptions,
    output: FigureOptions,
    order: Annotated[int, typer.Option("--order", help="0: K and Theta; 1: also the tensors of order 1/width.")] = 0,
    tensors: Annotated[str | None, typer.Option("--tensors", help="Names separated by commas, as K,V.")] = None,
    layers: WhichLayers = "all",
) -> None:
    """Compute kernels of a network on given inputs, and their corrections of order 1/width."""
    from widthwise.results.theory import theory as compute

    check_output(output)
    what = study.study()
    names = None if tensors is None else tensors.split(",")
    found = compute(what.net, what.data.X_train, order=order, tensors=names, layers=layers, progress=output.progress)
    emit_with_figure(found, output, "flow", found)
    tell_network(what.net, output)


def measure(
    study: StudyOptions,
    output: FigureOptions,
    networks: Networks = None,
    seed: Seed = None,
    statistics: Statistics = None,
    layers: WhichLayers = "last",
    extrapolate: Widths = None,
    engine: Engine = None,
    checkpoint: Checkpoint = None,
) -> int:
    """Measure kernels and tensors on sampled networks, each with a standard error."""
    check_output(output)
    what = study.study(networks=networks, seed=seed)
    found = _measured_study(what, statistics, layers, extrapolate, engine, checkpoint, output)
    emit_with_figure(found, output, "flow", found)
    tell_network(what.net, output)
    return INTERRUPTED if found.attrs["interrupted"] else 0


def compare(
    study: StudyOptions,
    output: FigureOptions,
    predicted: Annotated[Path | None, typer.Argument(help="NetCDF file of theory or predict.")] = None,
    measured: Annotated[Path | None, typer.Argument(help="NetCDF file of measure or train.")] = None,
    networks: Networks = None,
    seed: Seed = None,
    statistics: Statistics = None,
    extrapolate: Widths = None,
    level: Annotated[
        float, typer.Option("--level", help="A row disagrees if its probability is below this level.")
    ] = 0.001,
    wide: Annotated[bool, typer.Option("--wide", help="Show every column, however wide the table.")] = False,
) -> int:
    """Compare theory with sampled networks, in standard errors. Exits with code 1 unless they agree.

    Reads two files, or computes both now. In that case networks are measured at three widths and extrapolated to
    infinite width, because at finite width most tensors differ from theory by the next order in 1/n.
    """
    from widthwise.comparison import ComparisonRow
    from widthwise.comparison import compare as compute

    check_output(output)
    if (predicted is None) != (measured is None):
        raise InvalidInput("MEASURED", "one file", "two files, or none to compute both")
    if predicted is not None and measured is not None:
        th, ms = _loaded("PREDICTED", predicted), _loaded("MEASURED", measured)
    else:
        what = study.study(networks=networks, seed=seed)
        if extrapolate is None and what.net.depth > 1:
            extrapolate = ",".join(str(factor * what.net.n) for factor in (1, 2, 4))
        ms = _measured_study(what, statistics, "last", extrapolate, None, None, output)
        if ms.attrs["interrupted"]:
            raise KeyboardInterrupt
        th = _theory_for(what, ms, output)
        tell_network(what.net, output)
    found = compute(th, ms, level=level)
    rows = [tuple("" if cell is None else cell for cell in astuple(row)) for row in found]
    text = f"{found.table(wide)}\n{fill(found.sentence, 80)}\n"
    records = Records(tuple(field.name for field in fields(ComparisonRow)), rows, text=text)
    emit_with_figure(records, output, "agreement", th, ms)
    return 0 if found.agrees else 1


def predict(
    study: StudyOptions,
    training: PredictionOptions,
    output: FigureOptions,
    order: Annotated[int, typer.Option("--order", help="0: infinite width; 1: with corrections of order 1/n.")] = 0,
    loss: LossName = "squared",
    cumulants: Annotated[
        int, typer.Option("--cumulants", help="2, 3 or 4: cumulants of the outputs up to this order.")
    ] = 2,
) -> None:
    """Predict mean and covariance of trained networks' outputs over initialisations; nothing is trained."""
    from widthwise.inference.predict import predict as compute

    check_output(output)
    what = study.study(algorithm=training.chosen())
    data = what.data.for_training()
    found = compute(what.net, *data, what.algorithm, order=order, loss=loss, cumulants=cumulants)
    emit_with_figure(found, output, "predictions", found)
    tell_network(what.net, output, *([] if loss == "squared" else [f"solution: {found.attrs['solution']}"]))


def train(
    study: StudyOptions,
    training: TrainingOptions,
    output: FigureOptions,
    networks: Annotated[int | None, typer.Option("--networks", help="Number of networks to train.")] = None,
    seed: Seed = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Maximum number of steps per network.")] = None,
    loss: LossName = "squared",
    engine: Engine = None,
    checkpoint: Checkpoint = None,
) -> int:
    """Train real networks and measure mean and covariance of their outputs, each with a standard error."""
    from widthwise.experiments.training.train import train as compute

    check_output(output)
    what = study.study(algorithm=training.chosen(), trained=networks, seed=seed)
    found = compute(
        what.net, *what.data.for_training(), what.trained, what.algorithm, what.seed, max_steps=max_steps, loss=loss,
        engine=engine, checkpoint=checkpoint, progress=output.progress,
    )  # fmt: skip
    # a table of third cumulants at three inputs would be most of the page; files have it
    shown = found.drop_vars([n for n in found if str(n).startswith("kappa3_joint") and check_output(output) == "table"])
    emit_with_figure(shown, output, "predictions", None, found)
    tell_network(what.net, output)
    return INTERRUPTED if found.attrs["interrupted"] else 0


def _theory_for(what: Any, measured: xr.Dataset, output: OutputOptions) -> xr.Dataset:
    from widthwise.errors import NotDifferentiable
    from widthwise.results.theory import theory as compute
    from widthwise.tensors import SHIFTS

    names = [str(v) for v in measured.data_vars if "_" not in str(v)]
    shifts = [shift for name, shift in SHIFTS.items() if name in names and shift not in names]
    how = {"order": 1, "layers": "last", "progress": output.progress}
    try:
        return compute(what.net, what.data.X_train, tensors=[*names, *shifts], **how)
    except NotDifferentiable:
        return compute(what.net, what.data.X_train, tensors=names, **how)


def _measured_study(what, statistics, layers, extrapolate, engine, checkpoint, output: OutputOptions) -> xr.Dataset:
    from widthwise.experiments.measure import measure as compute

    names = statistics if statistics in (None, "all") else statistics.split(",")
    sizes = None if extrapolate is None else whole_numbers("--extrapolate", extrapolate)
    return compute(
        what.net, what.data.X_train, what.networks, what.seed, statistics=names, layers=layers, widths=sizes,
        engine=engine, checkpoint=checkpoint, progress=output.progress,
    )  # fmt: skip


def _loaded(argument: str, path: Path) -> xr.Dataset:
    from widthwise.results.store import load

    try:
        return load(path)
    except InvalidInput as error:
        raise InvalidInput(argument, error.got, error.expected, error.remedy) from error
