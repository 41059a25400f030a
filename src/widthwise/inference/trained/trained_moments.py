"""Mean and covariance, over initialisations, of trained outputs to order 1/n (theory §8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.cumulants import Cumulants, Monomial, average, covariance
from widthwise.inference.trained.einsum import einsum
from widthwise.inference.trained.trained_output import trained_output
from widthwise.inference.training_kernel import Spectrum

#: Names of the second factor's indices in a covariance.
SECOND_COPY = str.maketrans("IJKMapqr", "ABCDbstu")


class Moments(NamedTuple):
    """Mean (outputs, inputs) and covariance (outputs, inputs, outputs, inputs) of one order in 1/n."""

    mean: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True, eq=False)
class Basis:
    """Everything on training and test inputs, with training inputs turned into eigenvectors of their Θ.

    `tensors` holds K, G1, H1 and the tensors of theory §3; `target` is y in the eigenbasis, (outputs, modes).
    """

    rates: np.ndarray
    vectors: np.ndarray
    Theta: np.ndarray
    tensors: Mapping[str, np.ndarray]
    target: np.ndarray

    @classmethod
    def of(cls, spectrum: Spectrum, Theta: np.ndarray, tensors: Mapping[str, np.ndarray], y: np.ndarray) -> Basis:
        """From arrays over training inputs, then test inputs, and y (training inputs, outputs)."""
        U = spectrum.vectors
        turned = {name: rotate(tensor, U) for name, tensor in tensors.items()}
        return cls(spectrum.values, U, rotate(Theta, U), turned, (U.T @ y).T)

    @property
    def others(self) -> int:
        return len(self.Theta) - len(self.rates)

    @property
    def cumulants(self) -> Cumulants:
        """Averages over initialisation of ε = z − y on modes and z on test inputs."""
        mean = np.concatenate([-self.target, np.zeros((len(self.target), self.others))], axis=1)
        return Cumulants(self.tensors, mean)


def rotate(tensor: np.ndarray, U: np.ndarray) -> np.ndarray:
    """Every slot of a tensor from training inputs, which come first, to their eigenvectors; test inputs stay."""
    for axis in range(tensor.ndim):
        moved = np.moveaxis(tensor, axis, 0)
        turned = np.tensordot(U.T, moved[: len(U)], 1)
        tensor = np.moveaxis(np.concatenate([turned, moved[len(U) :]]), 0, axis)
    return tensor


def moments_at_tests(basis: Basis, clock: Clock) -> tuple[Moments, Moments]:
    """Moments at the test inputs, of order 1 and of order 1/n."""
    modes = len(basis.rates)
    readout = np.concatenate([-basis.Theta[modes:, :modes], np.eye(basis.others)], axis=1)
    return _moments(trained_output(clock, basis.rates, basis.others), basis.cumulants, readout)


def moments_at_training(basis: Basis, clock: Clock) -> tuple[Moments, Moments]:
    """The same at the training inputs; the mean of order 1 includes the targets."""
    outputs, modes = basis.target.shape
    if clock.duration is None:
        zero = np.zeros((outputs, modes)), np.zeros((outputs, modes, outputs, modes))
        return Moments(zero[0] + basis.target @ basis.vectors.T, zero[1]), Moments(*zero)
    errors = trained_output(clock, basis.rates, 0, at_training=True)
    order0, order1 = _moments(errors, basis.cumulants, basis.vectors)
    return Moments(order0.mean + basis.target @ basis.vectors.T, order0.covariance), order1


def _moments(outputs: list[Monomial], cumulants: Cumulants, readout: np.ndarray) -> tuple[Moments, Moments]:
    copies = [term.renamed(SECOND_COPY) for term in outputs]
    means = average(outputs, "Ia", cumulants)
    spreads = [np.zeros((*part.shape, *part.shape)) for part in means]
    for k, term in enumerate(outputs):
        # the other order of two different terms is the transpose
        same = covariance([term], copies[k : k + 1], "IaAb", cumulants)
        mixed = covariance([term], copies[k + 1 :], "IaAb", cumulants) if k + 1 < len(copies) else None
        for power, spread in enumerate(spreads):
            spread += same[power]
            if mixed is not None:
                spread += mixed[power] + mixed[power].transpose(2, 3, 0, 1)
    return tuple(
        Moments(mean @ readout.T, einsum("xa,iajb,yb->ixjy", readout, spread, readout))
        for mean, spread in zip(means, spreads, strict=True)
    )  # pyright: ignore[reportReturnType]
