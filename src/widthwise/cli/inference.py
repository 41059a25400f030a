"""`widthwise posterior`, `evidence`, `couplings`, `trained_kernel` and `equalise`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from widthwise.cli.options import FigureOptions, OutputOptions, PredictionOptions, StudyOptions, axis, whole_numbers
from widthwise.cli.output import Records, check_output, emit, emit_with_figure, remark, tell_network

Order = Annotated[int, typer.Option("--order", help="0: infinite width; 1: with corrections of order 1/n.")]


def posterior(
    study: StudyOptions,
    output: FigureOptions,
    order: Order = 0,
    noise: Annotated[float, typer.Option("--noise", help="Variance of the observation noise.")] = 0.0,
) -> None:
    """Compute the Bayesian posterior at the test inputs and the log evidence of the training targets."""
    from widthwise.inference.posterior import posterior as compute

    check_output(output)
    what = study.study()
    found = compute(what.net, *what.data.for_training(), order=order, noise=noise)
    emit_with_figure(found, output, "predictions", found)
    tell_network(what.net, output)


def evidence(
    study: StudyOptions,
    output: OutputOptions,
    depths: Annotated[
        str, typer.Option("--depths", help="Depths (numbers of weight layers), separated by commas.")
    ] = "2,3,4",
    hidden: Annotated[str, typer.Option("--hidden", help="Hidden widths, separated by commas.")] = "32,128",
    C_W_grid: Annotated[str, typer.Option("--C_W-grid", help="FIRST:LAST:COUNT, or values.")] = "1,1.5,2",
    C_b_grid: Annotated[str, typer.Option("--C_b-grid", help="FIRST:LAST:COUNT, or values.")] = "0.05",
    noise: Annotated[
        str, typer.Option("--noise", help="Variances of the noise: FIRST:LAST:COUNT, or values.")
    ] = "0.01",
    order: Order = 1,
) -> None:
    """Compute the log evidence of the training targets for a grid of networks with one activation."""
    from widthwise.inference.corrections import LARGE_CORRECTION
    from widthwise.inference.posterior import evidence_grid

    check_output(output)
    what = study.study()
    X, y, _ = what.data.for_training()
    grid: dict[str, Any] = {"depth": whole_numbers("--depths", depths), "width": whole_numbers("--hidden", hidden)}
    grid |= {"C_W": axis("--C_W-grid", C_W_grid), "C_b": axis("--C_b-grid", C_b_grid), "noise": axis("--noise", noise)}
    found = evidence_grid(what.net.activation, X, y, order=order, **grid)
    emit(found, output)
    shift = abs(found["log_evidence"] - found["log_evidence0"])
    far = int((shift > LARGE_CORRECTION * abs(found["log_evidence0"]).clip(1.0)).sum())
    if far:
        share = f"{far} of {found['log_evidence'].size} networks the correction is of the size of the leading term"
        remark(output, f"warning: order=1: for {share}: 1/n is not small there; take wider ones")


def couplings(
    study: StudyOptions,
    output: OutputOptions,
    layer: Annotated[
        int | None, typer.Option("--layer", help="Layer, from 1 to the depth; the output by default.")
    ] = None,
    neurons: Annotated[int | None, typer.Option("--neurons", help="Number of neurons to keep; all by default.")] = None,
) -> None:
    """Compute the quadratic and quartic couplings of a layer's nearly Gaussian action at the training inputs."""
    import numpy as np

    from widthwise.flow.action.couplings import couplings as compute

    check_output(output)
    what = study.study()
    found = compute(what.net, what.data.X_train, layer, neurons)
    rows = [
        (name, ",".join(map(str, at)), float(value))
        for name, values in (("quadratic", found.quadratic), ("quartic", found.quartic))
        for at, value in np.ndenumerate(values)
    ]
    kept = f"layer {found.layer}, {found.m} neurons kept, n = {found.n}"
    emit(Records(("coupling", "inputs", "value"), rows, (kept,)), output)
    tell_network(what.net, output)


def trained_kernel(
    study: StudyOptions,
    training: PredictionOptions,
    output: OutputOptions,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Split the change by the layer whose parameters are trained.")
    ] = False,
) -> None:
    """Compute how far training moves the neural tangent kernel, on average and to order 1/n."""
    from widthwise.inference.predict import trained_kernel as compute

    check_output(output)
    what = study.study(algorithm=training.chosen())
    emit(compute(what.net, *what.data.for_training(), what.algorithm, by_layer=by_layer), output)
    tell_network(what.net, output)


def equalise(
    study: StudyOptions,
    output: OutputOptions,
    theta_b: Annotated[float, typer.Option("--theta-b", help="Contribution of all biases together to Θ.")] = 1.0,
    theta_W: Annotated[float, typer.Option("--theta-W", help="Contribution of all weights together to Θ.")] = 1.0,
) -> None:
    """Find learning rates with which every layer contributes equally to the neural tangent kernel."""
    from widthwise.criticality.learning_rates import equalise as compute

    check_output(output)
    what = study.study()
    found = compute(what.net, what.data.X_train, theta_b, theta_W)
    rows = [
        (number, *values)
        for number, values in enumerate(
            zip(found.lambda_b, found.lambda_W, found.before.layers.tolist(), found.after.layers.tolist(), strict=True),
            1,
        )
    ]
    emit(Records(("layer", "lambda_b", "lambda_W", "share_before", "share_after"), rows), output)
    tell_network(what.net, output)
