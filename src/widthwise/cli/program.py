"""`widthwise`: the program. Exit codes: 0 done, 1 theory and measurement disagree, 2 bad input, 130 interrupted."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from widthwise.cli.criticality import advise, critical, phase
from widthwise.cli.doctor import doctor, versions
from widthwise.cli.examples import EXAMPLES
from widthwise.cli.inference import couplings, equalise, evidence, posterior, trained_kernel
from widthwise.cli.kernels import compare, measure, predict, theory, train
from widthwise.cli.models import audit
from widthwise.cli.options import expanded
from widthwise.cli.pages import explore, lab, report
from widthwise.cli.streams import drop_output
from widthwise.errors import WidthwiseError
from widthwise.interrupts import INTERRUPTED
from widthwise.progress import DelayedProgress

app = typer.Typer(
    name="widthwise",
    help="The effective theory of deep neural networks, as an expansion in 1/width, checked against real networks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(versions())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the versions that a bug report needs, and end."
        ),
    ] = False,
) -> None:
    pass


for command in (
    theory, measure, compare, critical, phase, advise, audit, equalise, couplings, predict, train, trained_kernel,
    posterior, evidence, report, lab, explore, doctor,
):  # fmt: skip
    examples = "\n\n".join(["[bold]Examples[/bold]", *EXAMPLES[command.__name__]])
    app.command(command.__name__, epilog=examples)(expanded(command))


def answer(words: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    quiet = any(word in ("--quiet", "-q") for word in words)
    # asked for before jax is loaded, so that the library has nothing to announce
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = (lambda *warning: None) if quiet else _one_line
            DelayedProgress.silent = quiet
            code = app(words, prog_name="widthwise", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            print("interrupted", file=sys.stderr)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context is not None else ""
        return _refuse(error.format_message() or str(error), where)
    except WidthwiseError as error:
        return _refuse(str(error))
    except (OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            return 0  # the reader of a pipe left
        return _refuse(str(error) or type(error).__name__)
    except Exception:
        from widthwise.devices import missing_device

        if missing := missing_device():
            return _refuse(f"jax has no device to compute on: {missing}. `widthwise doctor` checks an installation.")
        raise
    except (KeyboardInterrupt, typer.Abort):  # between the commands of typer, which makes one an exit code itself
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        DelayedProgress.silent = False
        drop_output()


def _refuse(message: str, where: str = "") -> int:
    if message:  # there is none where the help was asked for by saying nothing, and is printed
        print(f"widthwise: {' '.join(message.split())}{where}", file=sys.stderr)
    return 2


def _one_line(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
