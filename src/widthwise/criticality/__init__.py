"""Criticality, universality classes, learning rates, depth against width, and advice (theory §7)."""

from widthwise import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
