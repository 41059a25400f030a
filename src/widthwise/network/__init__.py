"""Networks made of layers, their hyperparameters, the conventions people know them by, and training algorithms."""

from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum, NewtonStep
from widthwise.network.layered import Network, Stack, check_network
from widthwise.network.layers.affine import Affine
from widthwise.network.layers.attention import Attention
from widthwise.network.layers.base import Layer, layer_kind, number, width
from widthwise.network.layers.conv import Conv
from widthwise.network.layers.dense import Dense, WeightLayer
from widthwise.network.layers.dropout import Dropout
from widthwise.network.layers.elementwise import Elementwise
from widthwise.network.layers.normalisation import LayerNorm, RMSNorm
from widthwise.network.layers.parallel import Parallel
from widthwise.network.layers.pooling import AvgPool, Flatten, GlobalAvgPool, GlobalSumPool, SumPool
from widthwise.network.layers.residual import Residual
from widthwise.network.mlp import (
    MLP,
    PER_LAYER,
    network_from_dict,
    network_from_json,
    plain,
    simplified,
    widths_from_json,
)
from widthwise.network.schedules import Schedule, schedule
from widthwise.network.skips_and_norms import NormMLP, ResMLP
from widthwise.network.validation import (
    check_inputs,
    check_integer,
    check_networks,
    check_one_input,
    check_per_layer,
    check_real,
    check_seed,
    check_targets,
    check_widths,
    real_array,
)

__all__ = [
    "MLP",
    "PER_LAYER",
    "SGD",
    "Adam",
    "Affine",
    "Attention",
    "AvgPool",
    "Conv",
    "Dense",
    "Dropout",
    "Elementwise",
    "Flatten",
    "GlobalAvgPool",
    "GlobalSumPool",
    "GradientDescent",
    "GradientFlow",
    "Layer",
    "LayerNorm",
    "Momentum",
    "Network",
    "NewtonStep",
    "NormMLP",
    "Parallel",
    "RMSNorm",
    "ResMLP",
    "Residual",
    "Schedule",
    "Stack",
    "SumPool",
    "WeightLayer",
    "check_inputs",
    "check_integer",
    "check_network",
    "check_networks",
    "check_one_input",
    "check_per_layer",
    "check_real",
    "check_seed",
    "check_targets",
    "check_widths",
    "layer_kind",
    "network_from_dict",
    "network_from_json",
    "number",
    "plain",
    "real_array",
    "schedule",
    "simplified",
    "width",
    "widths_from_json",
]
