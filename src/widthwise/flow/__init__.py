"""Layer-to-layer recursions."""

from widthwise.flow.diagonal import Diagonal, diagonal_flow
from widthwise.flow.infinite import KernelFlow, kernel_flow

__all__ = ["Diagonal", "KernelFlow", "diagonal_flow", "kernel_flow"]
