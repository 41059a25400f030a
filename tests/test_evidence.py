"""The evidence over grids of networks: against `posterior`, against sampled networks, and what it prefers."""

from types import MappingProxyType

import numpy as np
import pytest
from prior_networks import sampled_log_evidence

import widthwise as ww
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.infinite_width import posterior_corrections

ANGLE = np.linspace(0.0, np.pi, 6)
X = np.stack([np.cos(ANGLE), np.sin(ANGLE)], axis=1)
SMOOTH, NOISE = 0.3 * np.cos(ANGLE), 0.01


def network(depth, width, C_W=1.0):
    return ww.MLP([2, *[width] * (depth - 1), 1], "tanh", C_W=C_W)


class TestGrid:
    Y = np.array([[0.5, -0.2], [0.1, 0.4], [-0.3, 0.2]])
    GRID = MappingProxyType(
        {"C_b": [0.1], "C_W": [1.0, 1.5], "noise": [0.05, 0.2], "depth": [1, 2, 4], "width": [32, 64]}
    )

    def test_every_entry_is_that_of_posterior(self):
        g = ww.evidence_grid("tanh", X[:3], self.Y, **self.GRID)
        assert dict(g.sizes) == {name: len(values) for name, values in self.GRID.items()}
        for C_b, C_W, noise, depth, width in ((0.1, 1.5, 0.2, 4, 32), (0.1, 1.0, 0.05, 2, 64), (0.1, 1.5, 0.2, 1, 64)):
            net = ww.MLP([2, *[width] * (depth - 1), 2], "tanh", C_b=C_b, C_W=C_W)
            b = ww.posterior(net, X[:3], self.Y, X[3:4], noise=noise, order=1)
            here = g.sel(C_b=C_b, C_W=C_W, noise=noise, depth=depth)
            assert float(here["log_evidence"].sel(width=width)) == pytest.approx(float(b["log_evidence"]), rel=1e-9)
            assert float(here["log_evidence1"]) == pytest.approx(float(b["log_evidence1"]), rel=1e-8, abs=1e-10)
        assert np.all(g["log_evidence1"].sel(depth=1) == 0.0)

    def test_order_zero_knows_no_width(self):
        one = ww.evidence_grid("tanh", X[:3], self.Y, **self.GRID, order=0)
        full = ww.evidence_grid("tanh", X[:3], self.Y, **self.GRID)
        assert "log_evidence1" not in one
        assert np.allclose(one["log_evidence0"], full["log_evidence0"], rtol=1e-9)
        assert np.all(one["log_evidence"] == one["log_evidence0"])

    def test_it_says_what_it_is_and_can_be_saved(self, tmp_path):
        g = ww.evidence_grid("tanh", X[:2], [0.1, 0.2], depth=2, width=8, noise=0.1)
        assert g.attrs["activation"] == "tanh"
        assert "network" not in g.attrs
        assert all("long_name" in variable.attrs for variable in g.data_vars.values())
        assert ww.load(ww.save(g, tmp_path / "grid.nc")).equals(g)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"depth": 0}, "depth: got 0; expected one positive integer, or a list of them"),
            ({"depth": [2, 2.5]}, "depth: got 2.0; expected one positive integer"),
            ({"width": []}, r"width: got an array of shape \(0,\); expected one positive integer, or a list"),
            ({"noise": [0.1, -0.1]}, "noise: got -0.1; expected a finite non-negative variance"),
            ({"C_W": [[1.0]]}, r"C_W: got an array of shape \(1, 1\); expected one number, or a list of them"),
            ({"C_b": -1.0}, "C_b: got -1 for layer 1; expected a finite non-negative number"),
            ({"order": 2}, "order: got 2; expected 0 or 1"),
            ({"y_train": [1.0]}, r"y_train: got shape \(1,\); expected shape \(2, 1\) or \(2,\)"),
            ({"X_train": X[[0, 0]], "noise": 0.0}, "rows 0 and 1 that coincide.*set noise > 0"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_bad_input(self, changed, message):
        usual = {"X_train": X[:2], "y_train": [0.1, 0.2], "depth": 2, "width": 8, "noise": 0.1}
        with pytest.raises(ValueError, match=message):
            ww.evidence_grid("tanh", **(usual | changed))


class TestSampledNetworks:
    """Six inputs; the evidence of real networks is the mean of p(y|Ĝ)."""

    @pytest.mark.parametrize("noise", [0.0, NOISE])
    def test_first_order_and_the_approach_to_the_gaussian_process(self, noise):
        """n (log evidence − infinite width) → log_evidence1, and the distance halves when n doubles."""
        inputs = X[:4] if noise == 0.0 else X
        y = SMOOTH[: len(inputs), None]
        usual = {"C_b": 0.1, "C_W": 1.2, "noise": noise, "depth": 3}
        g = ww.evidence_grid("tanh", inputs, y, width=64, **usual)
        rows = []
        for width in (64, 128):
            net = ww.MLP([2, width, width, 1], "tanh", C_b=0.1, C_W=1.2)
            value, error = sampled_log_evidence(net, inputs, y, noise, 40_000, seed=5)
            rows.append((value - g["log_evidence0"].item(), error))
        (narrow, narrow_error), (wide, wide_error) = rows
        slope, error = 256 * wide - 64 * narrow, np.hypot(256 * wide_error, 64 * narrow_error)
        assert abs(slope - g["log_evidence1"].item()) < 4 * error
        rate = np.log2(narrow / wide)
        assert abs(rate - 1.0) < 4 * np.hypot(narrow_error / narrow, wide_error / wide) / np.log(2) + 0.1
        # negative control: a kernel that is shifted and does not fluctuate
        flow = finite_flow(net, inputs, ("G1", "V"), with_theta=False, last_only=True)
        G1, V = flow.tensors["G1"][0], flow.tensors["V"][0]
        blind = posterior_corrections(flow.K[0], G1, 0.0 * V, y, noise).log_evidence
        assert abs(slope - blind) > 6 * error


class TestPreferences:
    def test_at_infinite_width_depth_demands_criticality(self):
        """Smooth targets of the size of the prior: what is far off C_W = 1 loses with depth.

        On the ordered side until nothing is left of the prior but the noise, on the chaotic side with every layer.
        """
        g = ww.evidence_grid(
            "tanh", X, SMOOTH, depth=[4, 8, 16, 32], width=64, C_W=[0.6, 1.0, 1.8], noise=NOISE, order=0
        )
        found = g["log_evidence0"].squeeze().transpose("C_W", "depth").values
        loss = found[1] - found[[0, 2]]
        assert np.all(loss[:, 2:] > 3)
        assert np.all(np.diff(loss[0][:3]) > 0)
        only_noise = -0.5 * np.sum(SMOOTH**2 / NOISE + np.log(2 * np.pi * NOISE))
        assert found[0, 3] == pytest.approx(only_noise, abs=1e-3)
        assert np.all(np.diff(loss[1]) > 0)

    def test_rough_targets_prefer_the_chaotic_side(self):
        g = ww.evidence_grid("tanh", X, np.cos(3 * ANGLE), depth=16, width=64, C_W=[1.0, 2.4], noise=NOISE, order=0)
        assert np.diff(g["log_evidence0"].values.ravel()).item() > 50

    def test_the_sign_of_the_correction_says_whether_a_finite_width_is_preferred(self):
        g = ww.evidence_grid("tanh", X, SMOOTH, depth=[4, 16], width=8, noise=NOISE)
        gains = []
        for depth in (4, 16):
            value, error = sampled_log_evidence(network(depth, 8), X, SMOOTH[:, None], NOISE, 8000, seed=3)
            gains.append((value - g["log_evidence0"].sel(depth=depth).item(), error))
        assert np.sign([g["log_evidence1"].sel(depth=depth).item() for depth in (4, 16)]).tolist() == [1, -1]
        assert gains[0][0] > 5 * gains[0][1]
        assert gains[1][0] < -5 * gains[1][1]
