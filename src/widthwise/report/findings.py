"""Everything a report says, computed once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from widthwise.comparison import Comparison, compare
from widthwise.criticality.advice import Advice, advise
from widthwise.criticality.phase_diagram import phase_diagram
from widthwise.errors import InvalidInput
from widthwise.experiments.measure import measure
from widthwise.experiments.training.train import train
from widthwise.inference.predict import max_learning_rate, predict
from widthwise.report.curves import learning_curves
from widthwise.results.single_input import single_input
from widthwise.results.theory import theory
from widthwise.study import Study

#: Inputs for which the tensors of order 1/n are computed, and inputs of training and test together.
_INPUTS, _JOINT = 6, 12
#: Networks whose learning curves are followed.
_FOLLOWED = 64
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
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def attempt(self, name: str, compute: Callable[[], Any]) -> None:
        """Keep a result under its name, or the reason why there is none."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            try:
                setattr(self, name, compute())
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
    found = Findings(study, X)
    if len(X) < len(study.data.X_train):
        found.notes.append(f"kernels, tensors and measurement are those of the first {len(X)} training inputs")
    steps: dict[str, Callable[[], Any]] = {
        "advice": lambda: advise(net, X),
        "phases": lambda: _phases(net),
        "single": lambda: single_input(net, X[0]),
        "theory": lambda: theory(net, X, order=1),
        "measured": lambda: _measured(study, X),
        "comparison": lambda: _compared(found.theory, found.measured),
        "predicted": lambda: predict(net, *study.data.for_training(), study.algorithm, order=_order(found)),
        "trained": lambda: train(
            net, *study.data.for_training(), study.trained, study.algorithm, study.seed, progress=False
        ),
        "training": lambda: _compared(found.predicted, found.trained),
        "curves": lambda: _curves(study),
    }
    for name in left_out(study):
        del steps[name]
        found.notes.append(f"{name}: not computed, as the study asks for no networks")
    for name, compute in steps.items():
        tell(f"report: {name}")
        found.attempt(name, compute)
    return found


def left_out(study: Study) -> tuple[str, ...]:
    """What a study without sampled, or without trained, networks does not have."""
    sampled = () if study.networks else ("measured", "comparison")
    return sampled + (() if study.trained else ("trained", "training", "curves"))


def hidden_widths(study: Study) -> list[int]:
    """Once and twice the last hidden width: what the measurement is extrapolated from."""
    return [study.net.n, 2 * study.net.n]


def _measured(study: Study, X: np.ndarray) -> xr.Dataset:
    widths = hidden_widths(study) if study.net.depth > 1 and min(study.net.widths[1:-1]) > 1 else None
    return measure(study.net, X, study.networks, study.seed, statistics="all", widths=widths, progress=False)


def _compared(predicted: xr.Dataset | None, measured: xr.Dataset | None) -> Comparison:
    if predicted is None or measured is None:
        raise InvalidInput("compare", "a prediction or a measurement that is missing", "both")
    return compare(predicted, measured)


def _order(found: Findings) -> int:
    """1 where every tensor that training needs exists and the inputs are few."""
    data = found.study.data
    few = len(data.X_train) + (0 if data.X_test is None else len(data.X_test)) <= _JOINT
    if few and found.theory is not None and "missing" not in found.theory.attrs:
        return 1
    found.notes.append("trained networks are predicted at infinite width: tensors are missing, or inputs too many")
    return 0


def _phases(net) -> xr.Dataset:
    """A grid that shows the network and the critical point."""
    from widthwise.criticality.critical import critical

    try:
        point = critical(net.activation)
        place = (point.C_W, point.C_b)
    except InvalidInput:
        place = (1.0, 0.0)
    C_W, C_b = max(net.C_W[-1], place[0]), max(net.C_b[-1], place[1])
    columns, rows = _GRID
    return phase_diagram(
        net.activation, np.linspace(0.0, 1.6 * C_W, columns)[1:], np.linspace(0, max(2.5 * C_b, 0.2), rows)
    )


def _curves(study: Study) -> tuple[xr.Dataset, xr.Dataset]:
    X, y, tests = study.data.for_training()
    if len(X) + len(tests) > _JOINT:
        raise InvalidInput(
            "data", f"{len(X) + len(tests)} inputs", f"at most {_JOINT} for learning curves to order 1/n"
        )
    rate = getattr(study.algorithm, "learning_rate", None) or 0.25 * max_learning_rate(study.net, X)
    return learning_curves(study.net, X, y, tests, rate, networks=_FOLLOWED, seed=study.seed)
