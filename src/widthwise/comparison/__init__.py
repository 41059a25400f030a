"""Theory against measurement, in standard errors."""

from widthwise.comparison.pulls import Comparison, compare

__all__ = ["Comparison", "compare"]
