"""Named errors. Each message gives the argument, what came, what was expected, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: Characters of what came that a message shows.
LONGEST = 1000


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says.

    >>> one_line(ValueError("no such thing\\nat all"))
    'ValueError: no such thing'
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def shown(value: object) -> str:
    """The repr of what came, also where it has none: an object may raise, an integer may have too many digits.

    >>> shown([1]), shown(10**5000)
    ('[1]', 'an int (ValueError: Exceeds the limit (4300 digits) for integer string conversion)')
    """
    try:
        return repr(value)
    except Exception as error:  # the caller's own code
        return f"an {type(value).__name__} ({one_line(error).partition(';')[0]})"


def _shortened(words: object) -> str:
    """On one line and not too long: an array takes several lines, a text may be of any length."""
    line = " ".join(str(words).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 4 :]}"


class WidthwiseError(Exception):
    """Root of every error that widthwise raises on purpose."""


class InvalidInput(WidthwiseError, ValueError):
    """An argument that cannot be used.

    The message reads `ARGUMENT: got WHAT CAME; expected WHAT WAS EXPECTED. REMEDY`.
    """

    def __init__(self, argument: str, got: str, expected: str, remedy: str = ""):
        argument, got, remedy = _shortened(argument), _shortened(got), " ".join(remedy.split())
        self.argument: str = argument
        self.got: str = got
        self.expected: str = expected
        self.remedy: str = remedy
        super().__init__(f"{argument}: got {got}; expected {expected}." + (f" {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, ...]]:
        return type(self), (self.argument, self.got, self.expected, self.remedy)


class UnknownName(InvalidInput):
    """A name that is not in the list of known ones; the message suggests the nearest."""

    @classmethod
    def of(cls, argument: str, name: object, known: Iterable[str], also: str = "") -> UnknownName:
        known = sorted(known)
        near = get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else ""
        return cls(argument, repr(name), "one of " + ", ".join(known) + also, hint)


class NoRule(InvalidInput):
    """A kind of layer for which what was asked has no rule; the message names the layer and the reason."""


class BadActivation(InvalidInput):
    """An activation that cannot be evaluated: wrong shape, wrong dtype, NaN, or not written in jax.numpy."""


class NotDifferentiable(InvalidInput):
    """A derivative of the activation is needed that does not exist, or whose kinks were not declared."""


class DivergentMoment(InvalidInput):
    """A Gaussian moment of the activation is infinite or not representable."""


class SingularKernel(InvalidInput):
    """A training kernel that cannot be inverted; duplicate or collinear inputs are named by row."""


class UnstableLearningRate(InvalidInput):
    """A step size past 2 / (largest eigenvalue of the neural tangent kernel)."""


class TooLarge(InvalidInput, MemoryError):
    """A request that would not fit into memory, refused before anything is allocated."""


class ExpansionWarning(UserWarning):
    """A network for which an expansion in 1/width is not small in anything."""


class AccuracyWarning(UserWarning):
    """A result whose estimated numerical error is above the tolerance that was asked for."""


class UnstableRateWarning(UserWarning):
    """A learning rate past the stable bound at infinite width, with which networks were trained all the same."""


class CostWarning(UserWarning):
    """A computation that will take long, where another way to the same numbers is quicker; said before it starts."""


class NotCritical(InvalidInput):
    """An activation, or an initialisation, without the critical point that was asked for.

    `condition` says which condition fails and `nearest` what comes nearest to it.
    """

    @property
    def condition(self) -> str:
        return self.got

    @property
    def nearest(self) -> str:
        return self.remedy


class CheckpointWarning(UserWarning):
    """A checkpoint that could not be written. The run goes on without it."""


class NonFiniteWarning(UserWarning):
    """Networks whose numbers are not finite; they are counted and named, not averaged."""


class MissingPackage(WidthwiseError, ImportError):
    """An optional package that is not installed; the message says how to install it."""


class NotWritten(WidthwiseError, OSError):
    """A file that could not be written, for the `reason` the system gives; what was there before is intact."""

    def __init__(self, path: object, reason: str):
        self.path: str = str(path)
        self.reason: str = reason
        super().__init__(
            f"'{path}' could not be written ({reason}); what was there before is intact. "
            "Make room, or name another file."
        )

    def __reduce__(self) -> tuple[type[NotWritten], tuple[str, str]]:
        return type(self), (self.path, self.reason)


class WeightsWarning(UserWarning):
    """Weights that are no draw of independent zero-mean entries; the message gives the numbers."""
