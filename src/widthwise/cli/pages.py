"""`widthwise report`, `lab` and `explore`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from widthwise.cli.examples import epilog
from widthwise.cli.figures import require_extra
from widthwise.cli.groups import spread
from widthwise.cli.kernels import Networks, Seed, progress
from widthwise.cli.options import OutputOptions, StudyOptions, TrainingOptions
from widthwise.cli.output import Records, check_output, emit, remark, require_folder
from widthwise.errors import InvalidInput

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, warnings or remarks.")]


def register(app: typer.Typer) -> None:
    for command in (report, lab, explore):
        app.command(command.__name__, epilog=epilog(command.__name__))(spread(command))


def report(
    study: StudyOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    source: Annotated[Path | None, typer.Option("--from", help="A report whose study is run again.")] = None,
    networks: Networks = None,
    trained: Annotated[int | None, typer.Option("--trained", help="Networks to train.")] = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """One HTML page about a network: criticality, kernels, finite width, training, measurement. It needs no network."""
    require_extra("report", "matplotlib", "plots")
    if out.suffix not in (".html", ".htm"):
        raise InvalidInput("--out", f"'{out}'", "a name ending in .html")
    require_folder("--out", out)
    import_module("matplotlib").use("Agg")
    pages = import_module("widthwise.report")
    if source is not None:
        what = pages.study_of(source)
    else:
        what = study.study(algorithm=training.chosen(), networks=networks, trained=trained, seed=seed)
    pages.write_report(what, out, tell=(lambda text: None) if quiet else print_step)
    remark(OutputOptions(quiet=quiet), f"written: {out} ({out.stat().st_size / 1e6:.1f} MB)")


def print_step(text: str) -> None:
    remark(OutputOptions(), text)


def _lab_names(incomplete: str) -> list[str]:
    try:
        return [name for name in ("all", *import_module("widthwise.labs").names()) if name.startswith(incomplete)]
    except ImportError:
        return []


def lab(
    name: Annotated[str | None, typer.Argument(help="A lab, or all. See --list.", autocompletion=_lab_names)] = None,
    show_list: Annotated[bool, typer.Option("--list", help="The labs by name.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="Non-negative integer; repeat it for several. Default 0, 1, 2.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for tables and figures.")] = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="table, json or csv.")] = None,
    quiet: Quiet = False,
) -> int:
    """Run a lab: one phenomenon, predicted, measured and compared. Ends with 1 if one is refuted."""
    output = OutputOptions(format=format, quiet=quiet)
    check_output(output)
    require_extra("lab", "matplotlib", "plots")
    import_module("matplotlib").use("Agg")
    labs = import_module("widthwise.labs")
    if show_list or name is None:
        emit(Records(("lab", "title"), [(n, labs.get_lab(n).title) for n in labs.names()]), output)
        return 0
    chosen = labs.names() if name == "all" else [name]
    for one in chosen:
        labs.get_lab(one)  # refused before anything runs
    results = []
    for number, one in enumerate(chosen, 1):
        remark(output, f"{one} ({number} of {len(chosen)})")
        results.append(labs.run_lab(one, quick=quick, seeds=seed or (0, 1, 2), progress=progress(output)))
        for path in results[-1].save(out) if out is not None else ():
            remark(output, f"written: {path}")
    emit(_claims(results[0]) if name != "all" else _verdicts(results), output)
    return 0 if all(result.agrees for result in results) else 1


def _claims(result: Any) -> Records:
    """One row a claim and size."""
    columns = import_module("widthwise.labs.runner").COLUMNS
    return Records(columns, [row.cells for row in result], (f"verdict: {result.verdict}",))


def _verdicts(results: list[Any]) -> Records:
    """One row a lab."""
    rows = [
        (r.lab.name, r.verdict, len(r.rows), max((abs(row.worst_pull) for row in r), default=0.0), round(r.seconds, 1))
        for r in results
    ]
    return Records(("lab", "verdict", "claims", "worst pull", "seconds"), rows)


def explore(
    port: Annotated[int, typer.Option("--port", help="Port of the page; 0 takes a free one.")] = 5006,
    address: Annotated[str, typer.Option("--address", help="Where to listen; this machine only by default.")] = (
        "127.0.0.1"
    ),
    show: Annotated[bool, typer.Option("--show/--no-show", help="Open a browser.")] = True,
    quiet: Quiet = False,
) -> None:
    """Serve the explorer: a web page with sliders for a network and live theory beside sampled networks."""
    require_extra("explore", "panel", "explorer")
    import_module("widthwise.explorer").serve(port=port, address=address, show=show)
