"""Every public function with every argument replaced by each of twenty-five hostile values: what comes of it.

python tests/reliability.py            prints the table of docs/reliability.md and what went wrong
python tests/reliability.py theory     the same for some functions
"""

from __future__ import annotations

import math
import signal
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import xarray as xr
from public_calls import CALLS, HOSTILE

from widthwise.errors import WidthwiseError

#: Seconds that a call may take.
PATIENCE = 60
OUTCOMES = ("refused in one line", "answered", "answered with a warning", "foreign exception", "NaN", "too slow")


class TooSlow(BaseException):
    """Raised by the alarm."""


def has_nan(value: Any) -> bool:
    """Whether some number of a result is NaN."""
    if isinstance(value, xr.Dataset):
        return any(has_nan(value[name].values) for name in value)
    if isinstance(value, xr.DataArray):
        return has_nan(value.values)
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool(np.isnan(value).any())
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, tuple | list) and any(map(has_nan, value))


def outcome(name: str, argument: str, value: Any) -> tuple[str, str]:
    """What comes of one call, and the words of an error that is not ours."""
    function, arguments = (make() for make in CALLS[name])
    signal.alarm(PATIENCE)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = function(**{**arguments, argument: value})
        if has_nan(result) and not seen:
            return "NaN", ""
        return ("answered with a warning" if seen else "answered"), ""
    except WidthwiseError as error:
        text = str(error)
        return (
            ("refused in one line", "") if "\n" not in text else ("foreign exception", f"several lines: {text[:80]!r}")
        )
    except TooSlow:
        return "too slow", ""
    except Exception as error:
        return "foreign exception", f"{type(error).__name__}: {str(error)[:100]!r}"
    finally:
        signal.alarm(0)


def hostile_outcomes(name: str) -> tuple[Counter, list[str]]:
    """How often each outcome occurs for a function, and every outcome that must not occur."""
    counts, wrong = Counter(), []
    for argument in CALLS[name][1]():
        for described, make in HOSTILE.items():
            found, words = outcome(name, argument, make())
            counts[found] += 1
            if found in OUTCOMES[3:]:
                wrong.append(f"{name}({argument}={described}): {found} {words}".rstrip())
    return counts, wrong


def alarmed(*_: Any) -> None:
    raise TooSlow


def main(names: list[str]) -> int:
    signal.signal(signal.SIGALRM, alarmed)
    total, wrong = Counter(), []
    print("| function | " + " | ".join(OUTCOMES) + " |")
    print("| --- |" + " ---: |" * len(OUTCOMES))
    for name in names or CALLS:
        counts, bad = hostile_outcomes(name)
        print(f"| `{name}` | " + " | ".join(str(counts[one]) for one in OUTCOMES) + " |", flush=True)
        total, wrong = total + counts, wrong + bad
        for line in bad:
            print(line, file=sys.stderr, flush=True)
    print("| all | " + " | ".join(str(total[one]) for one in OUTCOMES) + " |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
