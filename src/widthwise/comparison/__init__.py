"""Theory against measurement, in standard errors."""

from widthwise.comparison.pulls import Comparison, ComparisonRow, compare

__all__ = ["Comparison", "ComparisonRow", "compare"]
