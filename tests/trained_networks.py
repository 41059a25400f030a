"""Inputs, targets and networks that the tests of training share."""

import numpy as np

import widthwise as ww
from widthwise.experiments.sampler import network_key, sample_parameters

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])
DATA, TEST = X[:2], X[2:]
Y_ONE, Y_TWO = np.array([[2.0], [2.0]]), np.array([[1.5, 0.3], [0.5, -0.4]])
#: Up to four training inputs, of which the first two are DATA, with targets for up to two outputs.
POINTS = np.array([*DATA, [-0.7, 0.5, 0.9], [0.4, 1.1, -0.3]])
TARGETS = np.array([[1.5, 0.3], [0.5, -0.4], [-0.6, 0.8], [0.9, 0.2]])
Y_LARGE = np.array([[2.0, -1.0], [2.0, 1.0]])


def reference_network(activation, depth, width, outputs=1):
    widths = [3, *[width] * (depth - 1), outputs]
    return ww.MLP(widths, activation, C_b=0.1, C_W=2.0, lambda_b=0.2, lambda_W=1.0)


def start_of(net, index=0, seed=0):
    return sample_parameters(net, network_key(seed, index))
