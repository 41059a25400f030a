"""Everything a report says, computed once; among it learning curves, predicted to order 1/n and of real networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from widthwise.comparison import Comparison, compare
from widthwise.criticality.advice import Advice, advise_on_network
from widthwise.criticality.critical import critical
from widthwise.criticality.phase_diagram import phase_diagram
from widthwise.errors import InvalidInput
from widthwise.experiments.measure import measure
from widthwise.experiments.outputs import descent_paths
from widthwise.experiments.training.train import train
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.inference.corrections import TRAINING_TENSORS, at_output, check_data, joint_flow, require_tensors
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.predict import max_learning_rate, predict
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, moments_at_tests
from widthwise.network import MLP, GradientDescent
from widthwise.plots.functions import TrainedFunctions, trained_functions
from widthwise.results.labels import label
from widthwise.results.theory import single_input, theory
from widthwise.study import Study

#: Inputs for which the tensors of order 1/n are computed, and inputs of training and test together.
_INPUTS, _JOINT = 6, 12
#: Networks whose learning curves are followed.
_NETWORKS_FOLLOWED = 64
#: Places on the line through the training inputs, and steps of descent, at which functions are shown.
_REPORT_PLACES, _REPORT_STEPS = 16, 300
#: Steps after which they are looked at.
CURVE_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: Values of C_W and C_b in the phase diagram.
_GRID = (81, 61)


@dataclass
class Findings:
    """Results by name; what could not be computed is None and has a sentence in `notes`, warnings are kept as given."""

    study: Study
    X: np.ndarray
    advice: Advice | None = None
    theory: xr.Dataset | None = None
    single: xr.Dataset | None = None
    phases: xr.Dataset | None = None
    measured: xr.Dataset | None = None
    comparison: Comparison | None = None
    predicted: xr.Dataset | None = None
    trained: xr.Dataset | None = None
    training: Comparison | None = None
    curves: tuple[xr.Dataset, xr.Dataset] | None = None
    functions: TrainedFunctions | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def attempt(self, name: str, compute: Callable[[], Any]) -> None:
        """Keep a result under its name, or the reason why there is none."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            try:
                result = compute()
                # a measurement cut short by Ctrl-C is no reason for a page about half of the networks
                if getattr(result, "attrs", {}).get("interrupted"):
                    raise KeyboardInterrupt
                setattr(self, name, result)
            except InvalidInput as error:
                self.notes.append(f"{name}: not computed. {error}")
        self.warnings += [str(one.message) for one in caught if str(one.message) not in self.warnings]


def find(study: Study, tell: Callable[[str], None] = lambda text: None) -> Findings:
    """Run theory, advice, measurement, prediction and training of a study; `tell` hears what begins.

    >>> from widthwise.study import Data
    >>> from widthwise.network import MLP
    >>> found = find(Study(MLP([1, 4, 1], "step"), Data([[1.0]]), networks=0, trained=0))
    >>> found.advice.verdict, found.predicted is None, len(found.notes) > 0
    ('cannot be trained by gradients', True, True)
    """
    net, X = study.net, study.data.X_train[:_INPUTS]
    # once, twice and four times the last hidden width: what the measurement is extrapolated from
    widths = [net.n, 2 * net.n, 4 * net.n] if net.depth > 1 and min(net.widths[1:-1]) > 1 else None
    found = Findings(study, X)
    if len(X) < len(study.data.X_train):
        found.notes.append(f"kernels, tensors and measurement are those of the first {len(X)} training inputs")
    steps: dict[str, Callable[[], Any]] = {
        "advice": lambda: advise_on_network(net, X),
        "phases": lambda: _phases_around(net),
        "single": lambda: single_input(net, X[0]),
        "theory": lambda: theory(net, X, order=1),
        "measured": lambda: measure(
            net, X, study.networks, study.seed, statistics="all", widths=widths, progress=False
        ),
        "comparison": lambda: _compared(found.theory, found.measured),
        "predicted": lambda: predict(net, *study.data.for_training(), study.algorithm, order=_usable_order(found)),
        "trained": lambda: train(
            net, *study.data.for_training(), study.trained, study.algorithm, study.seed, progress=False
        ),
        "training": lambda: _compared(found.predicted, found.trained),
        "curves": lambda: _curves(study),
        "functions": lambda: _functions(study),
    }
    sampled = () if study.networks else ("measured", "comparison")
    for name in sampled + (() if study.trained else ("trained", "training", "curves", "functions")):
        del steps[name]
        found.notes.append(f"{name}: not computed, as the study asks for no networks")
    for name, compute in steps.items():
        tell(f"report: {name}")
        found.attempt(name, compute)
    return found


def _compared(predicted: xr.Dataset | None, measured: xr.Dataset | None) -> Comparison:
    if predicted is None or measured is None:
        raise InvalidInput("compare", "a prediction or a measurement that is missing", "both")
    return compare(predicted, measured)


def _usable_order(found: Findings) -> int:
    """1 where every tensor that training needs exists and the inputs are few."""
    data = found.study.data
    few = len(data.X_train) + (0 if data.X_test is None else len(data.X_test)) <= _JOINT
    if few and found.theory is not None and "missing" not in found.theory.attrs:
        return 1
    found.notes.append("trained networks are predicted at infinite width: tensors are missing, or inputs too many")
    return 0


def _phases_around(net: MLP) -> xr.Dataset:
    """A grid that shows the network and the critical point."""
    try:
        point = critical(net.activation)
        place = (point.C_W, point.C_b)
    except InvalidInput:
        place = (1.0, 0.0)
    C_W, C_b = 1.6 * max(net.C_W[-1], place[0]), max(2.5 * max(net.C_b[-1], place[1]), 0.2)
    columns, rows = _GRID
    return phase_diagram(net.activation, np.linspace(0.0, C_W, columns)[1:], np.linspace(0, C_b, rows))


def _functions(study: Study) -> TrainedFunctions:
    X, y, _ = study.data.for_training()
    return trained_functions(
        study.net, X, y, networks=_NETWORKS_FOLLOWED // 2, points=_REPORT_PLACES, steps=_REPORT_STEPS, seed=study.seed
    )


def _curves(study: Study) -> tuple[xr.Dataset, xr.Dataset]:
    X, y, tests = study.data.for_training()
    if len(X) + len(tests) > _JOINT:
        raise InvalidInput(
            "data", f"{len(X) + len(tests)} inputs", f"at most {_JOINT} for learning curves to order 1/n"
        )
    rate = getattr(study.algorithm, "learning_rate", None) or 0.25 * max_learning_rate(study.net, X)
    return learning_curves(study.net, X, y, tests, rate, networks=_NETWORKS_FOLLOWED, seed=study.seed)


def learning_curves(
    net: MLP,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    learning_rate: float,
    steps: Any = CURVE_STEPS,
    networks: int = 64,
    seed: int = 0,
) -> tuple[xr.Dataset, xr.Dataset]:
    """Outputs at the test inputs after so many steps of gradient descent: predicted to order 1/n, and measured.

    Returns
    -------
    A Dataset with mean on (step, output, test) and cov on (step, output, test, output_, test_), and one with `path` on
    (network, step, output, test), for `plot_learning_curves`.

    >>> net, X = MLP([1, 64, 1], "tanh"), [[1.0]]
    >>> predicted, measured = learning_curves(net, X, [0.5], X, 0.3, steps=[0, 20], networks=4)
    >>> bool(abs(predicted["mean"][1, 0, 0] - 0.5) < 1e-3), measured["path"].shape
    (True, (4, 2, 1, 1))
    """
    X, y, tests = check_data(net, X_train, y_train, X_test)
    steps = np.asarray(steps, int)
    require_tensors(net, len(X) + len(tests), TRAINING_TENSORS)
    Theta = kernel_flow(net, X, last_only=True).Theta
    assert Theta is not None
    spectrum = Spectrum.of(Theta[0])
    spectrum.check(GradientDescent(learning_rate), Theta[0], X)
    flow = joint_flow(net, X, tests, TRAINING_TENSORS)
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y)
    found = [moments_at_tests(basis, Clock.of(GradientDescent(learning_rate, int(k)))) for k in steps]
    mean = np.stack([zero.mean + one.mean / net.n for zero, one in found])
    cov = np.stack([zero.covariance + one.covariance / net.n for zero, one in found])
    paths = descent_paths(net, X, y, tests, learning_rate, steps, networks, seed)
    coords, common = {"step": steps}, {"kind": "learning curves", "learning_rate": learning_rate}
    moments = {
        "mean": (("step", "output", "test"), mean),
        "cov": (("step", "output", "test", "output_", "test_"), cov),
    }
    sampled = {"path": (("network", "step", "output", "test"), paths)}
    return label(moments, net, coords, **common), label(sampled, net, coords, seed=seed, **common)
