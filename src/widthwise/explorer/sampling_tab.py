"""The tab that samples real networks and lays them over the theory."""

from __future__ import annotations

from collections.abc import Iterator

import panel as pn

from widthwise.errors import InvalidInput
from widthwise.explorer.charts import Chart
from widthwise.explorer.downloads import netcdf, table
from widthwise.explorer.layout import allow, download, grid
from widthwise.explorer.runs import RunTab
from widthwise.explorer.sampling import Sampled, check_size, sample
from widthwise.explorer.settings import Settings
from widthwise.explorer.theory import Pair, Theory, pair_of, theory_of


class SamplingTab(RunTab):
    """K, correlation, fluctuations, Θ and the histogram of outputs, measured and predicted."""

    total, verb = "networks", "sampled"

    def __init__(self, *given):
        super().__init__(*given)
        self.latest: Sampled | None = None
        self.theory: Theory | None = None
        self.kernel = Chart("sampled_kernel", "Mean kernel of input a", "layer", "K of input a", log=True, whole=True)
        self.kernel.line("infinite", "infinite width, K", 0)
        self.kernel.line("finite", "to order 1/n, K + G1/n", 1)
        self.correlation = Chart("sampled_correlation", "Correlation of inputs a and b", "layer", "correlation in K",
                                 whole=True)  # fmt: skip
        self.correlation.line("infinite", "infinite width", 0)
        self.fluctuation = Chart("sampled_fluctuation", "From network to network", "layer",
                                 "variance of the kernel / its mean²", whole=True)  # fmt: skip
        self.fluctuation.line("infinite", "theory, V/(nK²)", 0)
        self.density = Chart("sampled_density", "Output at input a", "output z", "probability density")
        self.density.line("gaussian", "infinite width (Gaussian)", 0)
        self.density.line("edgeworth", "to order 1/n", 1)
        self.charts = (self.kernel, self.correlation, self.fluctuation, self.density)
        for chart in self.charts:
            chart.points("measured", "sampled ± 1 s.e.", 2)
        self.files = (
            download("Sampled (CSV)", "sampled.csv", lambda: table(self._finished().dataset())),
            download("Sampled (NetCDF)", "sampled.nc", lambda: netcdf(self._finished().dataset())),
        )
        files = pn.FlexBox(*self.files, sizing_mode="stretch_width")
        self.view = pn.Column(self.head, grid(*(c.figure for c in self.charts)), files, sizing_mode="stretch_width")

    def items(self, settings: Settings) -> Iterator[Pair | Sampled]:
        check_size(settings)
        for chart in self.charts:
            chart.clear("measured")
        self.theory = self.latest = None

        def run():
            theory = theory_of(settings)
            if theory.exploded is not None:
                raise InvalidInput("C_W", f"{settings.C_W:g}, at which the kernel explodes at layer {theory.exploded}",
                                   "a kernel that can be sampled", "Take a smaller C_W or depth.")  # fmt: skip
            yield pair_of(theory)
            yield from sample(settings, float(theory.K[-1, 0]))

        return run()

    def draw(self, item: Pair | Sampled) -> str:
        if isinstance(item, Pair):
            self._draw_theory(item)
            return ""
        assert self.theory is not None
        self.latest, layers = item, self.theory.layers
        allow(self.files)
        self.kernel.set("measured", layers, item.K.value[:, 0, 0], item.K.error[:, 0, 0])
        self.correlation.set("measured", layers, *item.correlation)
        self.fluctuation.set("measured", layers, *item.fluctuation)
        self.density.set("measured", item.centres, *item.density)
        Theta, error = item.Theta.value[0, 0], item.Theta.error[0, 0]
        predicted = self.theory.Theta[-1, 0]
        shift = predicted * self.theory.ratios["H1"][-1] / self.theory.net.n
        lost = f" {item.broken} networks were not finite and are left out." if item.broken else ""
        return (
            f"Neural tangent kernel at the output, Θ_aa: {Theta:.5g} ± {error:.2g}; theory {predicted:.5g} at infinite "
            f"width, {predicted + shift:.5g} to order 1/n.{lost}"
        )

    def _draw_theory(self, pair: Pair) -> None:
        self.theory = theory = pair.theory
        layers = theory.layers
        self.kernel.set("infinite", layers, theory.K[:, 0])
        self.kernel.set("finite", layers, theory.finite_K)
        self.correlation.set("infinite", layers, pair.correlation("K"))
        self.fluctuation.set("infinite", layers, theory.ratios["V"] / theory.widths)
        self.density.set("gaussian", theory.z, theory.gaussian)
        self.density.set("edgeworth", theory.z, theory.edgeworth)

    def _finished(self) -> Sampled:
        assert self.latest is not None, "the buttons are off until then"
        return self.latest
