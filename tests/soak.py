"""Hours of random calls, valid and not, over the whole public surface: nothing but answers and lines that say why not.

python tests/soak.py --hours 2 --seed 1        one line a minute; failures, shrunken, in soak-1.jsonl; Ctrl-C ends it
python tests/soak.py --minutes 9 --seed 2      the same beside it: seeds share nothing but the folder of their logs
python tests/soak.py --table soak.log          the table of docs/reliability.md from what a run has printed
python tests/soak.py --seed 1 --call 4711      one call of a run again, as it was made

Every argument is a Python expression, so that a failure can be read, and made again, from its line in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import namespace_calls
import numpy as np
import public_calls
from namespace_calls import EVERY_CALL
from public_calls import HOSTILE
from reliability import OUTCOMES, PATIENCE, outcome

import widthwise as ww
from widthwise.activations.catalogue import ACTIVATION_NAMES
from widthwise.network.losses import NAMED_LOSSES

#: Outcomes that must not occur. What takes long is counted and kept in the log; much of it is large, and not wrong.
WRONG, SLOW = OUTCOMES[3:5], OUTCOMES[5]
#: Calls after which jax forgets what it has compiled, as in any process that lives long.
FORGET = 200
#: Growth of memory over the last three quarters of a run that is none: a share of its mean, or bytes.
FLAT_SHARE, FLAT_BYTES = 0.1, 300e6
#: The number of glibc's setting for how many heaps the threads of a process have.
M_ARENA_MAX = -8
#: Bytes that a process may ask for: a request without bound becomes a MemoryError.
MOST_MEMORY = 6 << 30
NAMES = {"ww": ww, "np": np, "HOSTILE": HOSTILE, **vars(public_calls), **vars(namespace_calls)}

#: Beside the hostile values of the table: right kinds, at the edge of what they may be.
EDGES = (
    "1", "2", "-0.0", "0.5", "1.5", "1e-300", "1e-12", "1e12", "1e154", "2**31", "2**63", "10**6", "np.inf", "False",
    "np.float32(0.3)", "np.int64(2)", "np.array(1.0)", "np.array([1.0])", "np.array([[1.0, 0.3]])", "np.zeros((2, 2))",
    "np.ones((3, 2))", "1e200 * np.ones((2, 2))", "1e-200 * np.ones((2, 2))", "np.array([[np.inf, 1.0]])", "[1, 2, 3]",
    "(1, 2)", "[0.0]", "[True]", "['tanh']", "'relu'", "'K'", "'all'", "X", "Y", "NET", "RELU", "LINEAR", "theory()",
    "ww.Dense(2, 8)", "ww.GradientFlow()", "np.ones((2, 2), dtype=int)", "np.array([[1, 2]], dtype=np.uint8)",
    "np.ones((2, 2), dtype=complex)", "range(3)", "iter([1, 2])", "'ａ\\x00\\n'", "Opaque", "ww",
)  # fmt: skip


@dataclass
class Draw:
    """Random valid arguments that belong together: one network, its inputs and targets."""

    random: random.Random
    name: str
    inputs: int = 1
    outputs: int = 1
    depth: int = 1
    activation: str = "tanh"
    net: str = ""
    X: str = ""

    def __post_init__(self) -> None:
        pick = self.random
        self.inputs, self.outputs, self.depth = pick.randint(1, 4), pick.choice([1, 1, 2]), pick.randint(1, 5)
        self.activation = self.an_activation()
        self.net, self.X = self.a_net(), self.points(pick.randint(1, 4))

    def an_activation(self) -> str:
        if self.name.startswith(("special", "exact")) and self.random.random() < 0.8:
            linear = ("deep_linear", "interpolation")
            return "linear" if self.name.endswith(linear) else self.random.choice(["relu", "leaky_relu", "linear"])
        return self.random.choice(ACTIVATION_NAMES)

    def number(self, least: float, most: float) -> str:
        """Even in the logarithm, or a round one."""
        low, high = np.log10(least), np.log10(most)
        return f"{10 ** self.random.uniform(low, high):.3g}" if self.random.random() < 0.8 else "1.0"

    def integer(self, least: int, most: int) -> str:
        return str(self.random.randint(least, most))

    def one_of(self, *of: Any) -> str:
        return repr(self.random.choice(of))

    def some_of(self, of: str) -> str:
        return repr(self.random.sample(of.split(), self.random.randint(1, 3)))

    def bias(self) -> str:
        return self.random.choice(["0.0", self.number(1e-3, 3)])

    def widths(self, hidden: int | None = None) -> str:
        pick = self.random
        middle = [pick.randint(1, 64) for _ in range(self.depth)] if hidden is None else [hidden] * self.depth
        return str([self.inputs, *middle, self.outputs])

    def a_net(self) -> str:
        variances = f"C_b={self.bias()}, C_W={self.number(0.2, 4)}"
        kind, width = self.random.random(), self.random.randint(1, 64)
        if kind < 0.1:
            return f"ww.ResMLP({self.widths(width)}, {self.activation!r}, {variances}, norm={self.one_of(None, 'rms', 'ln')})"
        if kind < 0.2:
            return f"ww.NormMLP({self.widths()}, {self.activation!r}, {self.norms()}, {variances}, affine=(1.0, 0.5))"
        if kind < 0.3:
            first, last = f"ww.Dense({self.inputs}, {width}, {variances})", f"ww.Dense({width}, {self.outputs})"
            return f"ww.Network([{first}, ww.RMSNorm(), ww.Affine(), {self.activation!r}, {last}])"
        return f"ww.MLP({self.widths()}, {self.activation!r}, {variances})"

    def image_net(self) -> str:
        """A convolution, and how its positions end; three positions of two channels come in."""
        first = f"ww.Conv(2, 4, ({self.integer(1, 3)},), padding={self.one_of('SAME', 'CIRCULAR')}, C_W={self.number(0.2, 4)})"
        end = self.random.choice(
            ["ww.GlobalAvgPool()", "ww.Flatten()", "ww.AvgPool((3,)), ww.Flatten()", "ww.GlobalSumPool()"]
        )
        features = "12" if end == "ww.Flatten()" else "4"
        middle = self.random.choice(["", "ww.LayerNorm(), ", "ww.Dropout(0.3), ", "ww.Attention(4, 4, 2), "])
        return f"ww.Network([{first}, {self.activation!r}, {middle}{end}, ww.Dense({features}, 1)])"

    def images(self) -> str:
        return f"{self.number(1e-3, 1e3)} * IMAGES[:{self.integer(1, 2)}]"

    def norms(self) -> str:
        return str([(self.random.choice(["rms", "ln"]), self.random.choice(["pre", "post"]), 1e-5)] * self.depth)

    def points(self, count: int) -> str:
        scale = self.random.choice([1.0, 1.0, 1.0, 1e-6, 30.0, 1e5])
        rows = [[float(f"{scale * self.random.gauss(0, 1):.4g}") for _ in range(self.inputs)] for _ in range(count)]
        return f"np.array({rows})"

    def targets(self, count: int) -> str:
        rows = [[round(self.random.gauss(0, 1), 3) for _ in range(self.outputs)] for _ in range(count)]
        return f"np.array({rows})"

    def algorithm(self) -> str:
        rate, steps = self.number(1e-4, 10), self.integer(1, 10)
        return self.random.choice([
            "None", f"ww.GradientFlow({self.number(1e-3, 1e3)})", f"ww.GradientDescent({rate}, steps={steps})",
            f"ww.Momentum({rate}, steps={steps})", f"ww.SGD({rate}, 1, steps={steps})", f"ww.Adam({rate}, steps={steps})",
        ])  # fmt: skip


#: Arguments that are True or False.
FLAGS = (
    "unit", "by_layer", "recognise", "in_values", "padding_counts", "nesterov", "normalize_edges", "approximate", "wide", "device",
    "linear_scaling", "exact",
)  # fmt: skip


def rows_of(points: str) -> int:
    return len(eval(points, NAMES))


#: By the name of an argument, or of a function and its argument: an expression for a valid value.
VALID: dict[str, Callable[[Draw], str]] = {
    "net": lambda draw: draw.net,
    **{f"{name} of images.net": Draw.image_net for name in ("theory", "measure")},
    **{f"{name} of images.{X}": Draw.images for name in ("theory", "measure") for X in ("X", "X2")},
    **dict.fromkeys(("X", "X_train", "x1"), lambda draw: draw.X),
    **dict.fromkeys(("y", "y_train"), lambda draw: draw.targets(rows_of(draw.X))),
    **dict.fromkeys(("X_test", "X2"), lambda draw: draw.points(2)),
    "y_test": lambda draw: draw.targets(2),
    **dict.fromkeys(("x", "a", "b", "direction"), lambda draw: draw.points(1) + "[0]"),
    "chunks": lambda draw: draw.one_of(None, 1, 3, 100),
    "four_point.activation": lambda draw: f"ww.activation({draw.activation!r})",
    "four_point.K": lambda draw: f"np.eye({draw.integer(1, 3)}) + {draw.number(1e-3, 10)}",
    "families": lambda draw: str([tuple(draw.random.randint(0, 3) for _ in range(4))]),
    "loss": lambda draw: draw.one_of(*NAMED_LOSSES),
    "cumulants": lambda draw: draw.one_of(2, 3, 4),
    "rule": lambda draw: draw.one_of("standard", "ntk", "mup", "depth-mup", "completep", "CompleteP"),
    "optimiser": lambda draw: draw.one_of("sgd", "momentum", "adam", "adamw", "muon"),
    "mechanism": lambda draw: draw.one_of("identity", "softmax", "relu", "abs"),
    "scaling": lambda draw: draw.one_of("1/n", "1/sqrt(n)"),
    "join": lambda draw: draw.one_of("sum", "concatenate", "product"),
    "padding": lambda draw: draw.one_of("SAME", "VALID", "CIRCULAR", 1),
    **dict.fromkeys(("window", "window_shape", "filter_shape"), lambda draw: f"({draw.integer(1, 3)},)"),
    **dict.fromkeys(("stride", "strides"), lambda draw: draw.random.choice(["None", f"({draw.integer(1, 3)},)"])),
    "get": lambda draw: draw.one_of("nngp", "ntk", ("nngp", "ntk"), "cov1", None),
    "parameterization": lambda draw: draw.one_of("ntk", "standard"),
    "degree": lambda draw: draw.integer(0, 8),
    "coef": lambda draw: str([round(draw.random.gauss(0, 1), 3) for _ in range(draw.random.randint(1, 6))]),
    **dict.fromkeys(("out_dim", "out_chan", "n_chan_out", "heads", "n_heads"), lambda draw: draw.integer(1, 16)),
    **dict.fromkeys(("z", "g", "p", "q", "rho", "log_rho", "log_S"), lambda draw: draw.number(1e-6, 1e3)),
    "k": lambda draw: draw.integer(0, 12),
    "draws": lambda draw: draw.integer(1, 8),
    "rate": lambda draw: draw.number(1e-3, 0.999),
    "activation": lambda draw: repr(draw.activation),
    "what": lambda draw: repr(draw.activation),
    "widths": lambda draw: draw.widths(),
    "ResMLP.widths": lambda draw: draw.widths(draw.random.randint(1, 64)),
    "measure.widths": lambda draw: draw.random.choice(["None", "None", "[4, 8]"]),
    "NormMLP.norm": Draw.norms,
    **dict.fromkeys(("ResMLP.norm", "critical.norm", "depth_growth.norm"), lambda draw: draw.one_of(None, "rms", "ln")),
    "phase_diagram.norm": lambda draw: draw.one_of(None, "rms", ("ln", "pre", 1e-5), ("rms", "post", 0.0)),
    "branch": lambda draw: draw.one_of(1.0, "1/L", "1/sqrt(L)", 0.3),
    "affine": lambda draw: f"({draw.number(1e-2, 2)}, {draw.bias()})",
    "layers": lambda draw: draw.one_of("all", "last"),
    "Network.layers": lambda draw: (
        f"[ww.Dense({draw.inputs}, 8), ww.LayerNorm(), ww.Affine(), {draw.activation!r}, "
        f"ww.Residual([{draw.activation!r}, ww.Dense(8, 8)]), ww.Dense(8, {draw.outputs})]"
    ),
    "body": lambda draw: f"[ww.RMSNorm(), {draw.activation!r}, ww.Dense(8, 8, C_b={draw.bias()})]",
    **dict.fromkeys(("C_b", "lambda_b", "lambda_shift", "noise", "b_std"), Draw.bias),
    **dict.fromkeys(("C_W", "lambda_W", "W_std", "lambda_gain", "scale", "skip"), lambda draw: draw.number(0.1, 5)),
    **dict.fromkeys(("beta1", "beta2", "momentum", "probability", "level"), lambda draw: draw.number(1e-3, 0.999)),
    **dict.fromkeys(("learning_rate", "epsilon", "tolerance"), lambda draw: draw.number(1e-10, 1.0)),
    **dict.fromkeys(("time", "theta_b", "theta_W", "near", "x_square"), lambda draw: draw.number(1e-3, 1e3)),
    **dict.fromkeys(("K", "K_aa", "K_bb", "K_star", "chi", "alpha", "kappa"), lambda draw: draw.number(1e-6, 1e4)),
    "K_ab": lambda draw: draw.number(1e-6, 1.0),
    **dict.fromkeys(("shaped.a", "shaped.b", "shaped.c"), lambda draw: draw.number(1e-3, 10)),
    **dict.fromkeys(("residual", "curvature", "coupling", "target", "C_0", "R"), lambda draw: draw.number(1e-3, 10)),
    **dict.fromkeys(("steps", "depth", "m_1", "m_2", "hyperplanes", "dimension"), lambda draw: draw.integer(1, 5)),
    **dict.fromkeys(("outputs", "inputs", "width"), lambda draw: draw.integer(1, 64)),
    **dict.fromkeys(("networks", "trained"), lambda draw: draw.integer(3, 32)),
    **dict.fromkeys(("samples", "points", "batch_size", "max_points"), lambda draw: draw.integer(1, 4)),
    **dict.fromkeys(("seed", "random_state"), lambda draw: draw.integer(0, 2**31)),
    "hidden_layers": lambda draw: draw.integer(0, 4),
    "deepest": lambda draw: draw.integer(1, 40),
    "count": lambda draw: draw.integer(2, 20),
    "layer": lambda draw: draw.integer(1, draw.depth + 1),
    "neurons": lambda draw: draw.integer(1, 2),
    "order": lambda draw: draw.integer(0, 1),
    **dict.fromkeys(FLAGS, lambda draw: draw.one_of(True, False)),
    "scale_free_moments.order": lambda draw: draw.integer(1, 4),
    "orders": lambda draw: f"({draw.integer(0, 3)}, {draw.integer(0, 3)})",
    "with_respect_to": lambda draw: draw.one_of("aa", "ab", "bb"),
    "vary": lambda draw: draw.one_of("shift", "leak"),
    "about": lambda draw: draw.one_of("K", "G"),
    "choose": lambda draw: draw.one_of(None, None, "evidence"),
    "solver": lambda draw: draw.one_of("auto", "cholesky", "cg"),
    "name": lambda draw: draw.one_of("circle", "sine", "spiral", "xor"),
    "data": lambda draw: f"ww.dataset({draw.one_of('circle', 'sine', 'spiral', 'xor')})",
    "statistics": lambda draw: draw.some_of("K Theta V D F A B"),
    "theory.inputs": lambda draw: draw.one_of("all", "pairs", "diagonal"),
    "theory.tensors": lambda draw: draw.random.choice(["['K']", "['K', 'Theta']", "None"]),
    "single_input.tensors": lambda draw: draw.some_of("K Theta V D F A B P Q"),
    **dict.fromkeys(("phase_diagram.C_W", "phase_diagram.C_b"), lambda draw: f"[0.1, {draw.number(1e-2, 3)}]"),
    **dict.fromkeys(("grid.depth", "grid.width"), lambda draw: draw.integer(1, 3)),
    "algorithm": Draw.algorithm,
    "algorithms": lambda draw: f"[{draw.algorithm()}, {draw.algorithm()}]",
    "kernel": lambda draw: f"np.eye({draw.integer(1, 4)}) + {draw.number(1e-3, 10)}",
    "kurtosis": lambda draw: draw.number(1.0, 10),
    "compare.theory": lambda draw: f"ww.theory({draw.net}, {draw.X})",
    "compare.measurement": lambda draw: f"ww.measure({draw.net}, {draw.X}, networks=8)",
    "network_of.dataset": lambda draw: f"ww.theory({draw.net}, {draw.X})",
    "save.dataset": lambda draw: f"ww.theory({draw.net}, {draw.X})",
    "save.path": lambda draw: draw.one_of("a.nc", "b.nc", "c"),
    "load.path": lambda draw: f"ww.save(ww.theory({draw.net}, {draw.X}), 'd.nc')",
    "NTKClassifier.y": lambda draw: str([place % 2 for place in range(rows_of(draw.X))]),
}


def drawn(seed: int, number: int) -> tuple[str, dict[str, str]]:
    """Call `number` of a run: a function, and the arguments that differ from its valid call, as expressions."""
    pick = random.Random(f"{seed}:{number}")
    name = pick.choice(list(EVERY_CALL))
    last, arguments = name.rpartition(".")[2].partition(" ")[0], list(EVERY_CALL[name][1]())
    replaced = {}
    if pick.random() < 0.7:
        draw = Draw(pick, name)
        known = {one: VALID.get(f"{name}.{one}") or VALID.get(f"{last}.{one}") or VALID.get(one) for one in arguments}
        replaced = {argument: make(draw) for argument, make in known.items() if make is not None}
    if pick.random() < 0.5:
        for argument in pick.sample(arguments, min(len(arguments), pick.choice([1, 1, 1, 2, 3]))):
            hostile = [f"HOSTILE[{described!r}]()" for described in HOSTILE]
            replaced[argument] = pick.choice([*hostile, *EDGES])
    return name, replaced


def made(name: str, expressions: dict[str, str]) -> tuple[str, str]:
    """What comes of a call. Expressions that cannot be computed are no call of the function."""
    values = {}
    for argument, text in expressions.items():
        try:
            values[argument] = eval(text, NAMES)
        except ww.WidthwiseError as error:
            return "refused in one line", f"{type(error).__name__} of an argument"
    return outcome(name, values)


def kind_of(words: str) -> str:
    """Type and place of an error, without what it says."""
    return words.partition(": ")[0]


def shrunken(name: str, expressions: dict[str, str], found: tuple[str, str]) -> dict[str, str]:
    """As few arguments as possible that differ from the valid call and still fail in the same way."""

    def fails_likewise(fewer: dict[str, str]) -> bool:
        again = made(name, fewer)
        return again[0] == found[0] and kind_of(again[1]) == kind_of(found[1])

    for argument, text in expressions.items():
        if fails_likewise({argument: text}):
            return {argument: text}
    for argument in list(expressions):
        fewer = {key: text for key, text in expressions.items() if key != argument}
        if fails_likewise(fewer):
            expressions = fewer
    return expressions


@dataclass
class Record:
    """What a run has seen so far."""

    seed: int
    seconds: float = 0.0
    calls: int = 0
    outcomes: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)
    #: Resident bytes at the last full minute, before programs were forgotten.
    rss: int = 0
    #: Bytes that are held, one for each minute, with the seconds since the start.
    memory: list[tuple[float, int]] = field(default_factory=list)

    def line(self) -> str:
        now = dict(self.outcomes) | {"refusals": dict(self.refusals)}
        last = self.memory[-1][1] if self.memory else 0
        sizes = {"rss": self.rss or resident(), "held": last}
        return json.dumps({"seconds": round(self.seconds), "calls": self.calls, **sizes, **now})

    def growth(self) -> tuple[float, float]:
        """Bytes by which a line through the last three quarters of the run grows, and their mean."""
        late = [(at, size) for at, size in self.memory if at >= self.seconds / 4]
        if len(late) < 8:
            return 0.0, float(resident())
        at, size = np.array(late, float).T
        return float(np.polyfit(at, size, 1)[0] * (at[-1] - at[0])), float(size.mean())

    def flat(self) -> bool:
        grown, mean = self.growth()
        return grown < max(FLAT_SHARE * mean, FLAT_BYTES)


def held() -> int:
    """Resident bytes after compiled programs are forgotten and what the allocator keeps of freed arrays has gone back."""
    jax.clear_caches()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def somewhere_else() -> Iterator[None]:
    """Calls that write do so into a folder that goes, and find little memory to take."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def soak(seconds: float, seed: int, log: Path, say: Callable[[str], object] = print) -> tuple[Record, list[dict]]:
    """Calls for so many seconds; what was seen, and each kind of failure once, shrunken, which is also in the log."""
    record, failures, kinds, start, spoken = Record(seed), [], set(), time.monotonic(), 0.0
    log = log.absolute()
    # freed blocks scattered over the heaps of many threads looked like growth: what is held is to be seen
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    with somewhere_else(), contextlib.suppress(KeyboardInterrupt):
        while record.seconds < seconds:
            name, expressions = drawn(seed, record.calls)
            # where the call does not come back to Python at all, its stack is printed and the process ends
            faulthandler.dump_traceback_later(20 * PATIENCE, exit=True)
            found = made(name, expressions)
            record.calls += 1
            record.outcomes[found[0]] += 1
            if found[0] == OUTCOMES[0]:
                record.refusals[found[1]] += 1
            if found[0] in (*WRONG, SLOW):
                kind = name, found[0], kind_of(found[1])
                first = kind not in kinds and found[0] in WRONG
                kinds.add(kind)
                fewest = shrunken(name, expressions, found) if first else expressions
                failure = {"call": record.calls - 1, "name": name, "arguments": fewest, "found": found, "first": first}
                failures += [failure] if first else []
                with log.open("a") as lines:
                    lines.write(json.dumps(failure) + "\n")
            if record.calls % FORGET == 0:
                jax.clear_caches()
            record.seconds = time.monotonic() - start
            if record.seconds >= spoken + 60.0:
                spoken = record.seconds
                record.rss = resident()
                record.memory.append((record.seconds, held()))
                say(record.line())
    faulthandler.cancel_dump_traceback_later()
    return record, failures


def table(log: Path) -> str:
    """The last line of a run's output as a table."""
    *_, last = (json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"seconds"'))
    rows = [("calls", last["calls"]), ("hours", f"{last['seconds'] / 3600:.2f}")]
    rows += [(one, last.get(one, 0)) for one in OUTCOMES]
    rows += [(f"refused: {name}", count) for name, count in sorted(last["refusals"].items(), key=lambda row: -row[1])]
    rows += [(f"memory at the end, {one}", f"{last[one] / 1e6:.0f} MB") for one in ("rss", "held") if one in last]
    grown = re.search(r"^memory: .*$", log.read_text(), re.MULTILINE)
    lines = ["| what | count |", "| --- | ---: |", *(f"| {what} | {count} |" for what, count in rows)]
    return "\n".join([*lines, "", grown[0] if grown else "The run has not ended."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--minutes", type=float, help="instead of hours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="a line for each failure; soak-SEED.jsonl unless given")
    parser.add_argument("--call", type=int, help="only this call of the run")
    parser.add_argument("--table", type=Path, metavar="LOG", help="make a table from the output of a run")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return 0
    if options.call is not None:
        name, expressions = drawn(options.seed, options.call)
        print(f"{name}({', '.join(f'{key}={text}' for key, text in expressions.items())})")
        with somewhere_else():
            print(made(name, expressions))
        return 0
    seconds = 3600 * options.hours if options.minutes is None else 60 * options.minutes
    log = options.log or Path(f"soak-{options.seed}.jsonl")
    record, failures = soak(seconds, options.seed, log, lambda line: print(line, flush=True))
    grown, mean = record.growth()
    print(record.line())
    print(f"memory: {mean / 1e6:.0f} MB on average, {grown / 1e6:+.0f} MB over the last three quarters of the run")
    first, last = (record.memory[place][1] / 1e6 if record.memory else 0.0 for place in (0, -1))
    counts = ", ".join(f"{record.outcomes[one]} {one}" for one in OUTCOMES)
    print(f"seed {options.seed}: {record.calls} calls in {record.seconds / 60:.1f} minutes: {counts}")
    print(f"seed {options.seed}: memory held {first:.0f} MB after the first minute, {last:.0f} MB at the end")
    print(f"{len(failures)} kinds of failure, in {log}")
    return 1 if failures or not record.flat() else 0


if __name__ == "__main__":
    sys.exit(main())
