"""Every public function with every argument replaced by each of twenty-five hostile values: what comes of it.

python tests/reliability.py            prints the table of docs/reliability.md and what went wrong
python tests/reliability.py theory     the same for some functions
python tests/reliability.py --page docs/reliability.md theory measure      renews their rows on the page
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from namespace_calls import EVERY_CALL
from public_calls import HOSTILE

from widthwise.errors import WidthwiseError

#: Seconds that a call may take.
PATIENCE = 60
OUTCOMES = ("refused in one line", "answered", "answered with a warning", "foreign exception", "NaN", "too slow")


class TooSlow(BaseException):
    """Raised by the alarm."""


#: Fields of results, by their type or a Dataset's kind, whose documentation says where they are NaN.
NAN_IS_DOCUMENTED = {
    "Audit": ("tensors", "layers"),
    "Critical": ("K_star",),
    "CoordinateCheck": ("slopes", "sizes"),
    "Advice": ("signal", "gradient", "recommended_gradient", "output_kernel", "learning_rate"),
    "ModelAdvice": ("ntk_variation", "ntk_shift"),
    "StableStep": ("of_theory", "spread"),
    "ProxyWidth": ("best_rate", "rate_drift", "rate_stiffness", "kernel_growth"),
    "DepthWidth": ("ntk_variance", "kernel_shift", "ntk_shift"),
    "measure": ("*_order", "*_order_se"),
}


def parts_of(result: Any) -> dict[str, Any] | list[Any] | tuple[Any, ...]:
    """What a result consists of and has to be numbers, without what is private or documented to be NaN somewhere."""
    if isinstance(result, xr.Dataset):
        kind, named = str(result.attrs.get("kind")), {str(name): result[name].values for name in result}
    elif dataclasses.is_dataclass(result):
        kind, named = type(result).__name__, {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    else:
        return result if isinstance(result, dict | list | tuple) else ()
    documented = ("_*", *NAN_IS_DOCUMENTED.get(kind, ()))
    return {name: part for name, part in named.items() if not any(fnmatch(name, one) for one in documented)}


def has_nan(value: Any) -> bool:
    """Whether some number of a result is NaN, but for those whose documentation says so."""
    if isinstance(value, xr.DataArray):
        value = value.values
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fc" and bool(np.isnan(value).any())
    if isinstance(value, float):
        return math.isnan(value)
    parts = parts_of(value)
    return any(map(has_nan, parts.values() if isinstance(parts, dict) else parts))


def by_scikit_learn(name: str, error: Exception) -> bool:
    """Whether an estimator's data were refused by scikit-learn's own checks, as its conventions want."""
    frames = traceback.extract_tb(error.__traceback__)
    return name.endswith(("Regressor", "Classifier")) and any("/sklearn/" in frame.filename for frame in frames)


def place_in_widthwise(error: Exception) -> str:
    """The innermost line of ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/widthwise/" in frame.filename]
    return f"{frames[-1].filename.rpartition('/widthwise/')[2]}:{frames[-1].lineno}" if frames else "the call"


def outcome(name: str, replaced: dict[str, Any]) -> tuple[str, str]:
    """What comes of one call with some arguments replaced, and the words of an error that is not ours."""
    function, arguments = (make() for make in EVERY_CALL[name])
    # again every second: the first may come within a callback, where Python drops what is raised
    signal.setitimer(signal.ITIMER_PROF, PATIENCE, 1.0)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = function(**{**arguments, **replaced})
        # numpy's own warnings do not tell a user what is wrong
        warned = [one for one in seen if not issubclass(one.category, RuntimeWarning)]
        if has_nan(result) and not warned:
            return "NaN", ""
        return ("answered with a warning" if warned else "answered"), ""
    except WidthwiseError as error:
        text = str(error)
        if "\n" in text:
            return "foreign exception", f"several lines: {text[:80]!r}"
        return "refused in one line", type(error).__name__
    except TooSlow:
        return "too slow", ""
    except Exception as error:
        if by_scikit_learn(name, error):
            return "refused in one line", "scikit-learn"
        return "foreign exception", f"{type(error).__name__} at {place_in_widthwise(error)}: {str(error)[:100]!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def hostile_outcomes(name: str) -> tuple[Counter, list[str]]:
    """How often each outcome occurs for a function, and every outcome that must not occur."""
    counts, wrong = Counter(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for argument in EVERY_CALL[name][1]():
            for described, make in HOSTILE.items():
                found, words = outcome(name, {argument: make()})
                counts[found] += 1
                if found in OUTCOMES[3:]:
                    wrong.append(f"{name}({argument}={described}): {found} {words}".rstrip())
    return counts, wrong


def alarmed(*_: Any) -> None:
    raise TooSlow


# of the processor's seconds: those of a busy machine do not count
signal.signal(signal.SIGPROF, alarmed)


def table_rows(page: Path) -> dict[str, Counter]:
    """The counts by function of a page's table."""
    rows = (re.fullmatch(r"\| `(.+)` \| ([\d |]+) \|", line) for line in page.read_text().splitlines())
    return {row[1]: Counter(dict(zip(OUTCOMES, map(int, row[2].split(" | ")), strict=True))) for row in rows if row}


def table(rows: dict[str, Counter]) -> list[str]:
    """Lines of the table, functions in the order of the calls, and their sum."""
    total = sum(rows.values(), Counter())
    named = [(f"`{name}`", rows[name]) for name in EVERY_CALL if name in rows]
    lines = ["| function | " + " | ".join(OUTCOMES) + " |", "| --- |" + " ---: |" * len(OUTCOMES)]
    return lines + [
        f"| {name} | " + " | ".join(str(counts[one]) for one in OUTCOMES) + " |"
        for name, counts in [*named, ("all", total)]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="functions; all unless given")
    parser.add_argument("--page", type=Path, help="renew the rows of these functions in the table at the end of a page")
    options = parser.parse_args()
    rows, wrong = {}, []
    for name in options.names or EVERY_CALL:
        rows[name], bad = hostile_outcomes(name)
        wrong += bad
        print(name, dict(rows[name]), *bad, sep="\n    ", file=sys.stderr, flush=True)
    if options.page:
        text = options.page.read_text()
        above = text[: text.index(table({})[0])]
        options.page.write_text(above + "\n".join(table(table_rows(options.page) | rows)) + "\n")
    else:
        print(*table(rows), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
