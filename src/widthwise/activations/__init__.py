"""σ, its derivatives, where it kinks, and closed forms where they exist."""

from widthwise.activations.base import Activation, ActivationLike, Atom
from widthwise.activations.catalogue import ACTIVATION_NAMES, NO_ACTIVATIONS, activation, resolve
from widthwise.activations.resolution import evaluate, intervals, jet, require_derivatives, require_functions

__all__ = [
    "ACTIVATION_NAMES",
    "NO_ACTIVATIONS",
    "Activation",
    "ActivationLike",
    "Atom",
    "activation",
    "evaluate",
    "intervals",
    "jet",
    "require_derivatives",
    "require_functions",
    "resolve",
]
