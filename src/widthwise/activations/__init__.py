"""σ, its derivatives, where it kinks, and closed forms where they exist."""

from widthwise.activations.base import Activation, ActivationLike, Atom, ClosedForm, differentiate
from widthwise.activations.catalogue import NAMES
from widthwise.activations.custom import activation, resolve
from widthwise.activations.resolution import evaluate, intervals, jet, require_derivatives, require_functions

__all__ = [
    "NAMES",
    "Activation",
    "ActivationLike",
    "Atom",
    "ClosedForm",
    "activation",
    "differentiate",
    "evaluate",
    "intervals",
    "jet",
    "require_derivatives",
    "require_functions",
    "resolve",
]
