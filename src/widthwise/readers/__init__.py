"""Models made elsewhere: read them, write advice back into them, measure them; scikit-learn estimators."""

from widthwise import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
