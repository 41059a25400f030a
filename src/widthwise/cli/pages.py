"""`widthwise report`, `lab` and `explore`."""

from __future__ import annotations

import ast
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from widthwise.cli.kernels import Networks, Seed
from widthwise.cli.options import OutputOptions, StudyOptions, TrainingOptions
from widthwise.cli.output import Records, check_output, emit, keep, remark, require_folder
from widthwise.errors import InvalidInput
from widthwise.extras import require_extra
from widthwise.files import write_text
from widthwise.interrupts import INTERRUPTED, before_leaving

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress bars, warnings or remarks.")]


def report(
    study: StudyOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    source: Annotated[Path | None, typer.Option("--from", help="Repeat the study of an earlier report.")] = None,
    networks: Networks = None,
    trained: Annotated[int | None, typer.Option("--trained", help="Number of networks to train.")] = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page about a network: criticality, kernels, finite width, training, measurement. Works offline."""
    require_extra("plots", "report")
    if out.suffix not in (".html", ".htm"):
        raise InvalidInput("--out", f"'{out}'", "a name ending in .html")
    require_folder("--out", out)
    for name, count, least in (("--networks", networks, 2), ("--trained", trained, 3)):
        if count:  # 0 for none
            import_module("widthwise.network").check_networks(count, least, name)
    import_module("matplotlib").use("Agg")
    pages = import_module("widthwise.report")
    if source is not None:
        what = pages.study_of(source)
    else:
        what = study.study(algorithm=training.chosen(), networks=networks, trained=trained, seed=seed)
    tell = partial(remark, OutputOptions(quiet=quiet))
    found = pages.find(what, tell)
    tell("report: figures")
    text = pages.page(found)
    keep(lambda path: write_text(path, text), out)
    tell(f"written: {out} ({out.stat().st_size / 1e6:.1f} MB)")


def _lab_names(incomplete: str) -> list[str]:
    try:
        return [name for name in ("all", *import_module("widthwise.labs").names()) if name.startswith(incomplete)]
    except ImportError:
        return []


def lab(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a lab (see --list), path of a lab file, or all.", autocompletion=_lab_names),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the labs.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use smaller sizes.")] = False,
    seed: Annotated[
        list[int] | None,
        typer.Option("--seed", min=0, help="Non-negative integer; may be repeated. Default: 0, 1, 2."),
    ] = None,
    save: Annotated[Path, typer.Option("--save", "--out", "-o", help="Folder for tables and figures.")] = Path(
        "lab-results"
    ),
    no_save: Annotated[bool, typer.Option("--no-save", help="Write no tables or figures.")] = False,
    knob: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the lab, as width=64 or networks=500; may be repeated."),
    ] = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="table, json or csv.")] = None,
    quiet: Quiet = False,
) -> int:
    """Run a lab: predict one phenomenon, measure it and compare. Exits with code 1 if a lab is refuted or fails.

    With "all", every lab is run even if some fail, and a table of verdicts comes last. Tables and figures are written
    to the folder of --save.
    """
    output = OutputOptions(format=format, quiet=quiet)
    if format == "netcdf":
        raise InvalidInput("--format", "'netcdf'", "table, json or csv")
    check_output(output)
    labs = import_module("widthwise.labs")
    if show_list or name is None:
        rows = [(n, labs.title_of(n)) for n in labs.names()]
        widest = 2 + max(len(name) for name, _ in rows)
        lines = [fill(title, 80, initial_indent=n.ljust(widest), subsequent_indent=" " * widest) for n, title in rows]
        emit(Records(("lab", "title"), rows, text="\n".join(lines) + "\n"), output)
        return 0
    settings = _knobs(knob or [])
    require_extra("labs", "lab")
    at = next((folder for folder in (save, *save.parents) if folder.exists()), save)
    if not no_save and not at.is_dir():
        raise InvalidInput("--save", f"'{save}'", f"a folder; '{at}' is a file")
    import_module("matplotlib").use("Agg")

    def run(one: str) -> Any:
        how = {"settings": settings} if settings else {}
        result = labs.run_lab(one, quick=quick, seeds=seed or (0, 1, 2), progress=output.progress, **how)
        for path in () if no_save else result.save(save):
            remark(output, f"written: {path}")
        return result

    if name != "all":
        result = run(name)
        columns = import_module("widthwise.labs.verdict").COLUMNS
        emit(Records(columns, [row.cells for row in result], result.notes), output)
        return 0 if result.agrees else 1
    verdicts = Records(("lab", "verdict", "claims", "tests", "smallest probability", "seconds"), [])
    with before_leaving(lambda: emit(verdicts, output)):
        code = _every(labs.names(), run, verdicts.rows, output)
    emit(verdicts, output)
    return code


def _knobs(given: list[str]) -> dict[str, Any]:
    """Settings from NAME=VALUE, where the value is a number or several with commas between them."""
    settings = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            settings[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two of many brackets
            raise InvalidInput("--set", repr(text), "NAME=NUMBER or NAME=NUMBER,NUMBER,…") from None
    return settings


def _every(chosen: list[str], run: Callable[[str], Any], rows: list[tuple[Any, ...]], output: OutputOptions) -> int:
    """Add one row a lab, and return the exit code; a lab that fails does not keep the others from running."""
    code = 0
    for number, one in enumerate(chosen, 1):
        remark(output, f"{one} ({number} of {len(chosen)})")
        start = time.perf_counter()
        try:
            r = run(one)
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:
            print(f"widthwise: lab {one}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
            rows.append((one, "failed", 0, 0, math.nan, round(time.perf_counter() - start, 1)))
            code = 1
            continue
        rows.append((one, r.verdict, len(r.rows), r.judged.tests, r.judged.smallest, round(r.seconds, 1)))
        code = code if r.agrees else 1
    return code


def explore(
    port: Annotated[int, typer.Option("--port", help="Port of the page; 0 picks a free one.")] = 5006,
    address: Annotated[
        str, typer.Option("--address", help="Address to listen on; by default only this machine can connect.")
    ] = ("127.0.0.1"),
    visitors: Annotated[
        int, typer.Option("--visitors", help="Number of pages open at once; further visitors have to wait.")
    ] = 20,
    show: Annotated[bool, typer.Option("--show/--no-show", help="Open a browser.")] = True,
    quiet: Quiet = False,
) -> int:
    """Open the explorer: a web page with sliders for a network, live theory, and sampled networks beside it."""
    require_extra("explorer", "explore")
    import_module("widthwise.explorer").serve(port=port, address=address, visitors=visitors, show=show)
    return INTERRUPTED  # which is how a server ends
