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


class OutputMoments(NamedTuple):
    """Mean (outputs, inputs) and covariance (outputs, inputs, outputs, inputs) of one order in 1/n."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def zero(cls, outputs: int, inputs: int) -> OutputMoments:
        return cls(np.zeros((outputs, inputs)), np.zeros((outputs, inputs, outputs, inputs)))

    def read_out(self, readout: np.ndarray) -> OutputMoments:
        """The same of linear combinations (combinations, inputs) of the inputs."""
        covariance = einsum("xa,iajb,yb->ixjy", readout, self.covariance, readout)
        return OutputMoments(self.mean @ readout.T, covariance)


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


def readout_at_tests(Theta: np.ndarray, modes: int) -> np.ndarray:
    """z*_x = Y_x − Θ_xu Y_u as a matrix (tests, modes and tests), from Θ on modes and test inputs."""
    return np.concatenate([-Theta[modes:, :modes], np.eye(len(Theta) - modes)], axis=1)


def moments_at_tests(basis: Basis, clock: Clock) -> tuple[OutputMoments, OutputMoments]:
    """Moments at the test inputs, of order 1 and of order 1/n."""
    order0, order1 = _joint_moments(trained_output(clock, basis.rates, basis.others), basis.cumulants)
    readout = readout_at_tests(basis.Theta, len(basis.rates))
    return order0.read_out(readout), order1.read_out(readout)


def moments_at_training(basis: Basis, clock: Clock) -> tuple[OutputMoments, OutputMoments]:
    """The same at the training inputs; the mean of order 1 includes the targets."""
    order0 = order1 = OutputMoments.zero(*basis.target.shape)
    # trained to convergence the training data are fitted: nothing is random there
    if clock.duration is not None:
        errors = trained_output(clock, basis.rates, 0, at_training=True)
        order0, order1 = (part.read_out(basis.vectors) for part in _joint_moments(errors, basis.cumulants))
    return order0._replace(mean=order0.mean + basis.target @ basis.vectors.T), order1


def _joint_moments(outputs: list[Monomial], cumulants: Cumulants) -> tuple[OutputMoments, OutputMoments]:
    """Moments, of order 1 and of order 1/n, of polynomials over "Ia"."""
    copies = [term.renamed(SECOND_COPY) for term in outputs]
    means = average(outputs, "Ia", cumulants)
    covariances = [np.zeros((*part.shape, *part.shape)) for part in means]
    for k, term in enumerate(outputs):
        # the other order of two different terms is the transpose
        same = covariance([term], copies[k : k + 1], "IaAb", cumulants)
        mixed = covariance([term], copies[k + 1 :], "IaAb", cumulants) if k + 1 < len(copies) else None
        for power, total in enumerate(covariances):
            total += same[power]
            if mixed is not None:
                total += mixed[power] + mixed[power].transpose(2, 3, 0, 1)
    return OutputMoments(means.order0, covariances[0]), OutputMoments(means.order1, covariances[1])
