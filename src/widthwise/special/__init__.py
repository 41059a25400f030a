"""Networks solved exactly at finite size, and spectra of curvature by Lanczos iteration."""

from widthwise import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
