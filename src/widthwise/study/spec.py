"""A study: network, data, training, measurement and seed, as one object and as TOML or JSON."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from widthwise.errors import InvalidInput, UnknownName
from widthwise.files import check_path
from widthwise.network import MLP, check_integer, network_from_dict, plain
from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum, NewtonStep
from widthwise.network.mlp import FIELDS
from widthwise.network.schedules import WARM_SHAPES
from widthwise.network.schedules import schedule as make_schedule
from widthwise.network.validation import LEAST, check_real, is_one_of
from widthwise.study.data import Data, dataset, load_data

ALGORITHM_CLASSES = {
    "gradient_flow": GradientFlow,
    "gradient_descent": GradientDescent,
    "newton_step": NewtonStep,
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
}
_TABLES = ("network", "data", "training", "measurement")
_SCHEDULE_KEYS = ("schedule", "warm_up", "end")
_DATA_KEYS = ("source", "points", "name", "X_train", "y_train", "X_test")


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that fixes a run. `networks` are sampled and `trained` are trained, both from `seed`; none if 0.

    >>> study = default_study()
    >>> Study.from_dict(json.loads(study.to_json())).to_json() == study.to_json()
    True
    """

    net: MLP
    data: Data
    algorithm: Any = field(default_factory=GradientFlow)
    networks: int = 1000
    trained: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "net", plain(self.net, "a study"))
        if not isinstance(self.data, Data):
            remedy = "Take `dataset(name)`, or Data(X_train, y_train, X_test)."
            raise InvalidInput("data", type(self.data).__name__, "widthwise.study.Data", remedy)
        _kind_of(self.algorithm)
        for name in ("networks", "trained", "seed"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 0))

    def to_dict(self) -> dict[str, Any]:
        """Plain tables: network, data with its numbers, training, measurement."""
        how = self.algorithm.settings()
        return {
            "network": self.net.to_dict(),
            "data": self.data.to_dict(),
            "training": {"algorithm": _kind_of(self.algorithm), **how, "networks": self.trained},
            "measurement": {"networks": self.networks, "seed": self.seed},
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], folder: Path | None = None) -> Study:
        """The inverse of `to_dict`; paths of data files are relative to `folder`, missing tables take defaults."""
        if not isinstance(tables, Mapping):
            raise InvalidInput("spec", type(tables).__name__, f"a dict with some of the tables {', '.join(_TABLES)}")
        if folder is not None:
            folder = check_path("folder", folder, "the folder that paths are relative to, or None")
        if "widths" in tables:
            network = {key: value for key, value in tables.items() if key in FIELDS}
            tables = {"network": network} | {key: value for key, value in tables.items() if key not in FIELDS}
        for name in tables:
            if not is_one_of(name, _TABLES):
                raise UnknownName.of("spec", name, _TABLES)
            if not isinstance(tables[name], Mapping):
                raise InvalidInput("spec", f"{name} = {tables[name]!r}", f"a table [{name}]")
        base = default_study()
        net = plain(network_from_dict(tables["network"]), "a study") if "network" in tables else base.net
        data = _study_data(tables["data"], folder) if "data" in tables else base.data
        training, measurement = dict(tables.get("training", {})), dict(tables.get("measurement", {}))
        trained = training.pop("networks", base.trained)
        unknown = sorted(set(measurement) - {"networks", "seed"})
        if unknown:
            raise UnknownName.of("[measurement]", unknown[0], ("networks", "seed"))
        return cls(net, data, make_algorithm(**training), trained=trained, **{"networks": base.networks} | measurement)

    @classmethod
    def from_toml(cls, path: str | Path) -> Study:
        """A TOML file with [network], [data], [training], [measurement], each optional, or a network's keys alone."""
        path = check_path("path", path, "the path of a TOML file")
        if not os.path.isfile(path):
            raise InvalidInput("spec", f"'{path}', which is not there", "an existing TOML file")
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise InvalidInput("spec", f"'{path}', malformed: {error}", "TOML, such as [network]") from error
        try:
            return cls.from_dict(tables, path.parent)
        except InvalidInput as error:
            raise InvalidInput(f"spec '{path}', {error.argument}", error.got, error.expected, error.remedy) from error


def _kind_of(algorithm: Any) -> str:
    """The name of an algorithm's class."""
    for name, cls in ALGORITHM_CLASSES.items():
        if type(algorithm) is cls:
            return name
    names = ", ".join(cls.__name__ for cls in ALGORITHM_CLASSES.values())
    raise InvalidInput("algorithm", type(algorithm).__name__, f"one of {names}")


def make_algorithm(algorithm: str = "gradient_flow", **settings: Any) -> Any:
    """A training algorithm by name; schedule, warm_up and end are those of `schedule`, with learning_rate as its peak.

    >>> make_algorithm("gradient_descent", learning_rate=0.1)
    GradientDescent(learning_rate=0.1, steps=None)
    >>> make_algorithm("gradient_descent", learning_rate=0.1, steps=3, schedule="linear")
    GradientDescent(learning_rate=Schedule(0.1, 0.0666667, 0.0333333), steps=3)
    """
    if not is_one_of(algorithm, ALGORITHM_CLASSES):
        raise UnknownName.of("algorithm", algorithm, ALGORITHM_CLASSES)
    known = [f.name for f in fields(ALGORITHM_CLASSES[algorithm])]
    if "learning_rate" in known:
        known += _SCHEDULE_KEYS
    for name in settings:
        if name not in known:
            expected = f"a setting of {algorithm}: {', '.join(known)}" if known else f"no setting of {algorithm}"
            raise InvalidInput(name, f"{settings[name]!r} with {algorithm}", expected)
    if "learning_rate" in known and "learning_rate" not in settings:
        raise InvalidInput("learning_rate", "none", f"a positive number for {algorithm}")
    if algorithm == "sgd" and "batch_size" not in settings:
        raise InvalidInput("batch_size", "none", "a positive integer for sgd")
    shape = {name: settings.pop(name) for name in _SCHEDULE_KEYS if name in settings}
    return ALGORITHM_CLASSES[algorithm](**(_with_schedule(settings, **shape) if shape else settings))


def _with_schedule(settings: Mapping[str, Any], schedule: Any = None, **shape: Any) -> dict[str, Any]:
    """The settings of an algorithm with the rates of a schedule for its one rate."""
    if schedule is None:
        name, value = next(iter(shape.items()))
        raise InvalidInput(name, f"{value!r} without a schedule", "a schedule: " + ", ".join(WARM_SHAPES))
    if settings.get("steps") is None:
        raise InvalidInput("steps", f"none with schedule={schedule!r}", "the number of steps of the schedule")
    if not is_one_of(schedule, WARM_SHAPES):
        raise UnknownName.of("schedule", schedule, WARM_SHAPES)
    peak = check_real("learning_rate", settings["learning_rate"], "a finite positive number, the peak", least=LEAST)
    return {**settings, "learning_rate": make_schedule(peak, settings["steps"], decay=schedule, **shape)}


def default_study() -> Study:
    """The network of the demonstration: three hidden layers of 64 tanh neurons, four points of a spiral.

    Its numbers are those of `MLP`, so that the command line, the explorer and the report have the defaults of Python.
    """
    net = MLP(widths=[2, 64, 64, 64, 1], activation="tanh")
    return Study(net, dataset("spiral"))


def _study_data(table: Mapping[str, Any], folder: Path | None) -> Data:
    for name in table:
        if name not in _DATA_KEYS:
            raise UnknownName.of("[data]", name, _DATA_KEYS)
    if "source" not in table and "X_train" not in table:
        raise InvalidInput(
            "[data]", f"only {', '.join(table) or 'an empty table'}", "source, or X_train with its numbers"
        )
    if "source" not in table:
        return Data(**{name: value for name, value in table.items() if name != "points"})
    source = str(table["source"])
    beside = (folder or Path()) / source
    return load_data(beside if Path(source).suffix else source, table.get("points", 4))
