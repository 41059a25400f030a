"""Corrections of order 1/n to the mean of K and Θ (theory §5), on (a, b)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from widthwise.flow.tensors.legs import Legs
from widthwise.flow.tensors.tensor_rules import Layer, Terms


def _entries(tensor, first: str, second: str):
    """tensor_(first)(second) with letters a, b, as a matrix over (a, b)."""
    if hasattr(tensor, "read"):
        return tensor.read(first + second)
    n = np.arange(tensor.shape[0])
    grid = {"a": n[:, None], "b": n[None, :]}
    return tensor[tuple(grid[letter] for letter in first + second)]


def shift(legs: Legs, G1, V) -> tuple[Any, Any]:
    """The two parts of S[f_a f_b] = ½ Σ ⟨∂∂F⟩ G1 + ⅛ Σ ⟨∂∂∂∂F⟩ V."""
    n = np.arange(len(G1))
    diagonal = G1[n, n]
    first = 0.5 * (legs.aa * diagonal[:, None] + 2.0 * legs.ab * G1 + legs.aa.T * diagonal[None, :])
    assert legs.aaaa is not None
    assert legs.aaab is not None
    assert legs.aabb is not None
    second = legs.aaaa * _entries(V, "aa", "aa") + legs.aaaa.T * _entries(V, "bb", "bb")
    second = second + 4.0 * legs.aaab * _entries(V, "aa", "ab") + 4.0 * legs.aaab.T * _entries(V, "bb", "ab")
    both = 2.0 * _entries(V, "aa", "bb") + 4.0 * _entries(V, "ab", "ab")
    return first, 0.125 * (second + legs.aabb * both)


def rule_G1(x: Layer, sigma: Legs, t: Mapping[str, Any]) -> Terms:
    mean, fluctuation = shift(sigma, t["G1"], t["V"])
    return {"G1": x.r * x.C * mean, "V": x.r * x.C * fluctuation}


def rule_H1(x: Layer, sigma: Legs, slope: Legs, t: Mapping[str, Any]) -> Terms:
    values, slopes = shift(sigma, t["G1"], t["V"]), shift(slope, t["G1"], t["V"])
    D, F = t["D"], t["F"]
    first = _entries(D, "aa", "ab") + 2.0 * _entries(F, "aa", "ab")
    middle = _entries(D, "ab", "ab") + _entries(F, "aa", "bb") + _entries(F, "ab", "ba")
    last = _entries(D, "bb", "ab") + 2.0 * _entries(F, "ba", "bb")
    correlated = slope.aa * first + 2.0 * slope.ab * middle + slope.aa.T * last
    return {
        "values G1": x.r * x.lam * values[0],
        "values V": x.r * x.lam * values[1],
        "slopes G1": x.r * x.C * x.H * slopes[0],
        "slopes V": x.r * x.C * x.H * slopes[1],
        "H1": x.r * x.C * x.slopes * t["H1"],
        "D and F": 0.5 * x.r * x.C * correlated,
    }
