"""The neural tangent kernel after training: H* − Ĥ as a polynomial, and its mean to order 1/n (theory §8).

With events ordered in time as for the outputs, sums over modes q, r and outputs k, m understood,
    H*_ij;ab − Ĥ_ij;ab = −(dĤ_ijk;abq + dĤ_jik;baq) ε_kq φ(λ_q)
        + (ddI_ijkm;abqr + ddII_ijkm;abqr + ddII_ikjm;aqbr + the same with ia ↔ jb) ε_kq ε_mr μ_q φ(λ_q, λ_qr)
        + (ddI_ijkm;abqr + ddI_jikm;baqr + 2 ddII_ijkm;abqr) ε_kq ε_mr (η/2) φ(λ_qr).
At infinite width the kernel does not move: this is the leading measure of representation learning.
"""

from __future__ import annotations

import numpy as np

from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.cumulants import Factor, Monomial, average
from widthwise.inference.trained.einsum import Operand, einsum
from widthwise.inference.trained.trained_moments import Basis


def kernel_change(clock: Clock, rates: np.ndarray, inputs: int) -> list[Monomial]:
    """H* − Ĥ over the indices "IJab": a, b run over the modes with these rates and then over the other inputs.

    >>> [len(term.factors) for term in kernel_change(Clock(0.0, None), np.array([1.0, 2.0]), 3)]
    [2, 2, 3, 3, 3, 3, 3, 3]
    """
    q, r = rates[:, None], rates
    single = clock.chain(rates)
    if clock.single:
        at_once = 0.5 * clock.chain(q, r)
        pair = np.zeros_like(at_once)
    else:
        pair = clock.kept(q) * clock.chain(q, clock.joint(q, r))
        at_once = 0.5 * clock.step * clock.chain(clock.joint(q, r))
    errors = Factor("z", "K", "q"), Factor("z", "M", "r")
    free = Operand(np.ones(inputs), "a"), Operand(np.ones(inputs), "b")

    def term(weight: np.ndarray, kind: str, outputs: str, places: str) -> Monomial:
        letters = "qr"[: weight.ndim]
        return Monomial((Operand(weight, letters), *free), (Factor(kind, outputs, places), *errors[: weight.ndim]))

    return [
        term(-single, "dH", "IJK", "abq"),
        term(-single, "dH", "JIK", "baq"),
        term(pair + at_once, "ddI", "IJKM", "abqr"),
        term(pair + at_once, "ddI", "JIKM", "baqr"),
        term(pair + at_once, "ddII", "IJKM", "abqr"),
        term(pair + at_once, "ddII", "JIKM", "baqr"),
        term(pair, "ddII", "IKJM", "aqbr"),
        term(pair, "ddII", "JKIM", "bqar"),
    ]


def mean_kernel_change(basis: Basis, clock: Clock) -> np.ndarray:
    """Coefficient of 1/n of E[H* − Ĥ] on (output, input, output, input): training inputs, then test inputs."""
    terms = kernel_change(clock, basis.rates, len(basis.Theta))
    change = average(terms, "IJab", basis.cumulants).order1
    back = np.eye(len(basis.Theta))
    back[: len(basis.rates), : len(basis.rates)] = basis.vectors
    return einsum("xa,yb,ijab->ixjy", back, back, change)
