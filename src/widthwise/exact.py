"""Exact laws at finite width, wherever they are computed: one input, linear networks, products of random matrices."""

from widthwise import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
