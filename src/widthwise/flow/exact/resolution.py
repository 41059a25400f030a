"""How finely the laws of the random kernel are resolved."""

from __future__ import annotations

from typing import NamedTuple


class Resolution(NamedTuple):
    """Spacings of lattices, of tabulated kernels and of quadrature, and the weights at which laws are cut.

    `coarsest` is the largest lattice spacing of a sum of neurons, `per_deviation` the spacings in one standard
    deviation of its logarithm; `few` and `several` are the same for the laws of smooth layers, inside the chain and at
    its end. `kernel_step` is that of log g between tabulated rows. A row starts where its cumulated weight reaches
    `lower` and stops where its weights stay below `upper`; a law is cut below `top`. `lowest` and `lowest_alone` are
    the smallest log(Y/⟨Y⟩) of one neuron among others and alone; `panel`, `per_octave` and `nodes` set its quadrature.
    """

    coarsest: float
    per_deviation: float
    few: float
    several: float
    kernel_step: float
    lower: float
    upper: float
    top: float
    lowest: float
    lowest_alone: float
    panel: float
    per_octave: int
    nodes: int


#: Errors near rounding, tails included.
FINE = Resolution(2.0**-5, 12.0, 4.0, 8.0, 0.125, 1e-24, 1e-40, 1e-100, -40.0, -80.0, 0.2, 8, 12)
#: For drawing: densities to about 5e-5 of their height, ten times faster.
COARSE = Resolution(2.0**-2, 2.0, 1.5, 2.0, 0.25, 1e-6, 1e-8, 1e-8, -16.0, -30.0, 0.6, 2, 5)
