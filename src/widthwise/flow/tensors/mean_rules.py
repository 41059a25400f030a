"""Corrections of order 1/n to the mean of K and Θ (theory §5), on (a, b)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from widthwise.flow.tensors.legs import Legs
from widthwise.flow.tensors.tensor_rules import LayerStep, QuadrupleTensor, Terms, entries


def _on_pairs(tensor, indices: str):
    """The tensor at letters a, b, as a matrix over (a, b)."""
    found = entries(tensor, indices)
    return found if isinstance(tensor, QuadrupleTensor) else found[:, :, 0, 0]


def shift(legs: Legs, G1, V) -> tuple[Any, Any]:
    """The two parts of S[f_a f_b] = ½ Σ ⟨∂∂F⟩ G1 + ⅛ Σ ⟨∂∂∂∂F⟩ V."""
    n = np.arange(len(G1))
    diagonal = G1[n, n]
    first = 0.5 * (legs.aa * diagonal[:, None] + 2.0 * legs.ab * G1 + legs.aa.T * diagonal[None, :])
    assert legs.aaaa is not None
    assert legs.aaab is not None
    assert legs.aabb is not None
    second = legs.aaaa * _on_pairs(V, "aaaa") + legs.aaaa.T * _on_pairs(V, "bbbb")
    second = second + 4.0 * legs.aaab * _on_pairs(V, "aaab") + 4.0 * legs.aaab.T * _on_pairs(V, "bbab")
    both = 2.0 * _on_pairs(V, "aabb") + 4.0 * _on_pairs(V, "abab")
    return first, 0.125 * (second + legs.aabb * both)


def rule_G1(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    mean, fluctuation = shift(x.sigma, t["G1"], t["V"])
    return {"G1": x.r * x.C * mean, "V": x.r * x.C * fluctuation}


def rule_H1(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    values, slopes = shift(x.sigma, t["G1"], t["V"]), shift(x.slope, t["G1"], t["V"])
    D, F = t["D"], t["F"]
    first = _on_pairs(D, "aaab") + 2.0 * _on_pairs(F, "aaab")
    middle = _on_pairs(D, "abab") + _on_pairs(F, "aabb") + _on_pairs(F, "abba")
    last = _on_pairs(D, "bbab") + 2.0 * _on_pairs(F, "babb")
    correlated = x.slope.aa * first + 2.0 * x.slope.ab * middle + x.slope.aa.T * last
    return {
        "values G1": x.r * x.lam * values[0],
        "values V": x.r * x.lam * values[1],
        "slopes G1": x.r * x.C * x.H * slopes[0],
        "slopes V": x.r * x.C * x.H * slopes[1],
        "H1": x.r * x.C * x.slopes * t["H1"],
        "D and F": 0.5 * x.r * x.C * correlated,
    }
