"""Exact laws at finite width: one input, any widths, no perturbation theory."""

from widthwise.flow.exact.kernel_law import KernelLaw
from widthwise.flow.exact.law import ExactLaw, exact_law, kurtosis_by_depth, scale_free_moments

__all__ = ["ExactLaw", "KernelLaw", "exact_law", "kurtosis_by_depth", "scale_free_moments"]
