"""`widthwise predict` and `train`."""

from __future__ import annotations

from typing import Annotated

import typer

from widthwise.cli.examples import epilog
from widthwise.cli.figures import check_figure, draw
from widthwise.cli.groups import spread
from widthwise.cli.kernels import Engine, Seed, progress
from widthwise.cli.options import FigureOptions, OutputOptions, StudyOptions, TrainingOptions
from widthwise.cli.output import check_output, emit


def register(app: typer.Typer) -> None:
    for command in (predict, train):
        app.command(command.__name__, epilog=epilog(command.__name__))(spread(command))


def predict(
    study: StudyOptions,
    training: TrainingOptions,
    output: OutputOptions,
    figures: FigureOptions,
    order: Annotated[int, typer.Option("--order", help="0: infinite width; 1: with corrections of order 1/n.")] = 0,
) -> None:
    """Mean and covariance of the trained network's outputs, over initialisations."""
    from widthwise.inference.predict import predict as compute

    check_output(output)
    check_figure(figures)
    what = study.study(algorithm=training.chosen())
    found = compute(what.net, *what.data.for_training(), what.algorithm, order=order)
    emit(found, output)
    draw(figures, output, "predictions", found)


def train(
    study: StudyOptions,
    training: TrainingOptions,
    output: OutputOptions,
    figures: FigureOptions,
    networks: Annotated[int | None, typer.Option("--networks", help="Networks to train.")] = None,
    seed: Seed = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Give up a network after so many.")] = None,
    engine: Engine = None,
) -> int:
    """The same on networks that are really trained, each number with a standard error."""
    from widthwise.experiments.training.train import train as compute

    check_output(output)
    check_figure(figures)
    what = study.study(algorithm=training.chosen(), trained=networks, seed=seed)
    found = compute(
        what.net, *what.data.for_training(), what.trained, what.algorithm, what.seed, max_steps=max_steps,
        engine=int(engine) if engine is not None and engine.isdigit() else engine, progress=progress(output),
    )  # fmt: skip
    emit(found, output)
    draw(figures, output, "predictions", None, found)
    return 130 if found.attrs["interrupted"] else 0
