"""What an audit found, as text, HTML and JSON."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from widthwise.network import Network
from widthwise.readers.audit.model_checks import AuditFinding
from widthwise.readers.audit.observations import LayerSize, TensorFacts
from widthwise.text import text_table


@dataclass(frozen=True)
class Audit:
    """What was found in a model. `text`, `html` and `json` are the same report in three forms.

    `findings` are ranked, errors first; each has `tensor`, `kind`, `severity` ("error", "warning", "note"), `message`
    and `remedy`, the line of code that mends it. `tensors` says of every parameter how it is used, its fans, its mean
    and variance, the C_W or C_b that they mean and its share of the NTK; `layers` gives the size of signals and
    gradients, with standard errors of their logarithms over `draws` fresh draws. `net` is the network the model is,
    where that can be read, and `expected` has (layer, mean square of signals, K of theory) behind each of its
    layers and residual connections. Numbers that could not be measured are NaN in `tensors` and `layers`, and null in
    `json`.
    """

    model: str
    parameters: int
    findings: tuple[AuditFinding, ...]
    tensors: tuple[TensorFacts, ...]
    layers: tuple[LayerSize, ...] = ()
    draws: int = 0
    net: Network | None = None
    expected: tuple[tuple[int, float, float], ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        counts = {kind: sum(one.severity == kind for one in self.findings) for kind in ("error", "warning")}
        if not any(counts.values()):
            return "nothing wrong was found"
        return " and ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count)

    @cached_property
    def text(self) -> str:
        parts = [f"{self.model}, {self.parameters:,} parameters: {self.verdict}."]
        parts += ["\n".join(map(str, self.findings))] if self.findings else []
        parts.append(text_table(_TENSOR_COLUMNS, map(_tensor_row, self.tensors)))
        if self.layers:
            said = (
                f"Sizes by layer, with the spread of their logarithm over {self.draws} fresh draws"
                if self.draws
                else "Sizes by layer"
            )
            rows = [
                (s.name, s.kind, s.signal, _none(s.signal_se), s.gradient, _none(s.gradient_se)) for s in self.layers
            ]
            parts.append(f"{said}:\n" + text_table(("layer", "kind", "signal", "spread", "gradient", "spread"), rows))
        if self.expected:
            head = "Mean square of signals behind each layer or residual connection, against theory:\n"
            parts.append(head + text_table(_GROWTH_COLUMNS, self._growth_rows()))
        return "\n\n".join(parts)

    def _growth_rows(self) -> list[tuple[Any, ...]]:
        """Layer, size of the model and of theory, their ratio, and by what both grow in that layer."""
        rows, before = [], None
        for layer, own, expected in self.expected:
            growth = (
                [a / b if b else None for a, b in zip((own, expected), before, strict=True)] if before else [None] * 2
            )
            rows.append((layer, own, expected, own / expected if expected else None, *growth))
            before = own, expected
        return rows

    @cached_property
    def html(self) -> str:
        rows = "".join(
            f"<tr class={one.severity}>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in vars(one).values())
            + "</tr>"
            for one in self.findings
        )
        head = "".join(f"<th>{name}</th>" for name in ("tensor", "kind", "severity", "message", "remedy"))
        tensors = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in _tensor_row(one)) + "</tr>"
            for one in self.tensors
        )
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Audit</title><style>body{font:15px/1.5 "
            "sans-serif;max-width:80em;margin:2em auto;padding:0 1em}td,th{padding:2px 10px;text-align:left;"
            "border-bottom:1px solid #ddd}.error td{color:#a00}.warning td{color:#850}</style></head><body>"
            f"<h1>{html.escape(self.model)}: {html.escape(self.verdict)}</h1><table><tr>{head}</tr>{rows}</table>"
            f"<h2>Tensors</h2><table><tr>{''.join(f'<th>{c}</th>' for c in _TENSOR_COLUMNS)}</tr>{tensors}</table>"
            f"<pre>{html.escape(self.text)}</pre></body></html>"
        )

    @property
    def json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; None where a number is not finite."""
        found = {
            "model": self.model,
            "parameters": self.parameters,
            "verdict": self.verdict,
            "draws": self.draws,
            "findings": [asdict(one) for one in self.findings],
            "tensors": [asdict(one) for one in self.tensors],
            "layers": [asdict(one) for one in self.layers],
            "network": None if self.net is None else repr(self.net),
            "expected": [list(row) for row in self.expected],
        }
        return plain_numbers(found)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


_GROWTH_COLUMNS = ("layer", "model", "theory", "ratio", "model grows by", "theory by")
_TENSOR_COLUMNS = ("tensor", "shape", "used as", "fan in", "fan out", "law", "mean", "std", "C", "NTK share")


def _tensor_row(one: TensorFacts) -> tuple[Any, ...]:
    packed = f" ×{one.pieces}" if one.pieces > 1 else ""
    shape = "×".join(map(str, one.shape)) or "1"
    fans = [None if fan is None else f"{fan:g}" for fan in (one.fan_in, one.fan_out)]
    return (
        one.name,
        shape,
        (one.use or "-") + packed,
        *fans,
        one.distribution,
        one.mean,
        math.sqrt(one.variance),
        one.C,
        _none(one.share),
    )


def _none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def plain_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    return _none(value) if isinstance(value, float) else value
