"""Four-point expectations ⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ for all quadruples of N inputs."""

from widthwise.gaussian.four_points.dispatch import FourPoint, four_point
from widthwise.gaussian.four_points.families import FAMILIES, Orders, full, quadruples

__all__ = ["FAMILIES", "FourPoint", "Orders", "four_point", "full", "quadruples"]
