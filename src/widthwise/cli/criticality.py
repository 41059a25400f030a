"""`widthwise critical`, `phase` and `advise`."""

from __future__ import annotations

from textwrap import fill
from typing import Annotated

import typer

from widthwise.cli.models import WeightFile, model_and_batch_of, page_or_format, write_model_advice
from widthwise.cli.options import COMPLETED_ACTIVATIONS, FigureOptions, OutputOptions, StudyOptions, axis, one_of
from widthwise.cli.output import Records, check_output, emit, emit_with_figure, network_lines, write_result
from widthwise.errors import InvalidInput

ActivationArgument = Annotated[
    str, typer.Argument(help="tanh, relu, gelu, leaky_relu(0.1), …", autocompletion=one_of(COMPLETED_ACTIVATIONS))
]
SkipOption = Annotated[float, typer.Option("--skip", help="Factor γ < 1 of residual layers z' = γ z + b + W s.")]
NormOption = Annotated[str | None, typer.Option("--norm", help="Normalisation before the activation: rms or ln.")]


def critical(
    activation: ActivationArgument,
    output: OutputOptions,
    near: Annotated[
        float | None, typer.Option("--near", help="Take the fixed point K* > 0 nearest to this value.")
    ] = None,
    skip: SkipOption = 0.0,
    norm: NormOption = None,
) -> None:
    """Find the critical initialisation of an activation. Exits with code 2 and explains why if none exists."""
    from widthwise.criticality.critical import critical as compute

    check_output(output)
    point = compute(activation, near, skip=skip, norm=norm)
    names = ("activation", "C_b", "C_W", "K_star", "universality", "stable_side")
    powers = ", ".join(f"{name} {value:.4g}" for name, value in point.exponents.items())
    emit(Records(names, [tuple(getattr(point, name) for name in names)], (f"exponents of depth: {powers}",)), output)


def phase(
    activation: ActivationArgument,
    output: FigureOptions,
    C_W: Annotated[
        str, typer.Option("--C_W", help="Weight variances: FIRST:LAST:COUNT, or values separated by commas.")
    ] = "0.5:3:51",
    C_b: Annotated[
        str, typer.Option("--C_b", help="Bias variances: FIRST:LAST:COUNT, or values separated by commas.")
    ] = "0:0.5:21",
    x_square: Annotated[float, typer.Option("--x-square", help="Size x·x/n_0 of the input.")] = 1.0,
    skip: SkipOption = 0.0,
    norm: NormOption = None,
) -> None:
    """Compute the phase diagram of an activation: where signals die out, decorrelate or explode with depth."""
    from widthwise.criticality.phase_diagram import phase_diagram

    kind = check_output(output)
    found = phase_diagram(activation, axis("--C_W", C_W), axis("--C_b", C_b), x_square, skip=skip, norm=norm)
    emit_with_figure(found if kind != "table" else _by_point(found), output, "phase", found)


def _by_point(found) -> Records:
    """One row a grid point."""
    names = ("K_star", "chi_parallel", "chi_perp", "phase")
    rows = [
        (float(w), float(b), *(found[name].values[i, j].item() for name in names))
        for i, b in enumerate(found["C_b"].values)
        for j, w in enumerate(found["C_W"].values)
    ]
    return Records(("C_W", "C_b", *names), rows)


def advise(
    study: StudyOptions,
    output: OutputOptions,
    model: Annotated[
        str | None,
        typer.Argument(
            help="Your own model instead of a network: MODULE:FUNCTION, which returns a model, or a model and a batch."
        ),
    ] = None,
    weights: WeightFile = None,
    base: Annotated[
        str | None, typer.Option("--base", help="MODULE:FUNCTION of the smaller model whose learning rates are known.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option("--rule", help="Rule of transfer: standard, ntk, mup, depth-mup or completep.")
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option("--optimiser", help="Optimiser of your model: sgd, momentum, adam, adamw or muon.")
    ] = None,
) -> None:
    """Say whether an initialisation is critical and what depth does to it, and print code for a better one.

    For a model of your own, MODULE:FUNCTION, it reports what is wrong with each tensor, parameter groups for the
    optimiser, the largest stable step, and the smallest proxy model worth trusting. A file of --weights alone is read
    as a dense network with the activation of --activation.
    """
    from widthwise.criticality.advice import advise_on_network as compute

    kind = page_or_format(output)
    of_models = {"base": base, "rule": rule, "optimiser": optimiser}
    if model is not None:
        write_model_advice(model_and_batch_of(model, weights), of_models, kind, output)
        return
    if weights is not None:
        from widthwise.readers.weights import dense_model

        made = dense_model(weights, study.activation or "tanh")
        write_model_advice((made, None), of_models, kind, output)
        return
    given = next((name for name, value in of_models.items() if value is not None), None)
    if given is not None:
        raise InvalidInput(f"--{given}", repr(of_models[given]), "a model, as in widthwise advise MODULE:FUNCTION")
    found = compute(*study.net_and_inputs())
    if kind not in ("json", "html", "table"):
        emit(_by_layer(found), output)
        return
    write_result({"json": found.json, "html": found.html, "table": _for_terminal(found)}[kind] + "\n", output)


def _for_terminal(found) -> str:
    """The report in lines of 80 columns, the network it is about, and the PyTorch code to paste."""
    lines = [fill(line, 80) for line in (*network_lines(found.net), "", *found.text.split("\n"))]
    code = found.code.get("pytorch")
    more = ["", "PyTorch code (--out advice.html has Flax and Equinox too):", "", code] if code else []
    return "\n".join([*lines, *more])


def _by_layer(found) -> Records:
    """One row a layer."""
    if found.rates is None:
        return Records(("verdict", "reason"), [(found.verdict, found.reason or found.trouble)])
    rates, layers = found.rates, range(1, found.net.depth + 1)
    columns = ("layer", "C_b", "C_W", "lambda_b", "lambda_W", "share_before", "share_after")
    rows = zip(layers, rates.network.C_b, rates.network.C_W, rates.lambda_b, rates.lambda_W,
               rates.before.layers.tolist(), rates.after.layers.tolist(), strict=True)  # fmt: skip
    return Records(columns, list(rows), (f"verdict: {found.verdict}",))
