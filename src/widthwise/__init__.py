"""widthwise: the effective theory of deep neural networks, as an expansion in 1/width, checked against real networks.

The public names stand in `__init__.pyi`. They are imported when first used, so that the numerical core runs where only
jax, numpy and scipy are installed, and `import widthwise` costs next to nothing.
"""

from widthwise import lazy

lazy.companions["xarray"] = "widthwise.plots.accessor"  # ds.ww on every Dataset
__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
