"""What `predict_model` leaves out of a network that is really trained by torch, over widths and seeds."""

import numpy as np
import torch
from torch import nn

import widthwise as ww

RATE, STEPS = 0.1, 60


def trained(model, groups, X, y, X_test):
    optimiser = torch.optim.SGD(groups)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (0.5 * ((model(torch.tensor(X)) - torch.tensor(y)) ** 2).sum()).backward()
        optimiser.step()
    return model(torch.tensor(X_test)).detach().numpy().T


def remainders(widths, seeds):
    """Mean squares of trained − predicted, (width, seed): of the free part alone, and with both corrections."""
    X, X_test = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]]), np.array([[0.6, -0.2, 0.4], [-0.5, 0.5, 1.0]])
    y, found = np.array([[1.5, -0.4], [0.5, 0.8]]), []
    for n in widths:
        net = ww.MLP([3, n, n, 2], "tanh", C_b=0.1, C_W=2.0, lambda_b=0.2)
        model, each = nn.Sequential(nn.Linear(3, n), nn.Tanh(), nn.Linear(n, n), nn.Tanh(), nn.Linear(n, 2)).double(), []  # fmt: skip
        for seed in seeds:
            ww.init_torch(model, net, seed)
            p = ww.predict_model(model, X, y, X_test, ww.GradientDescent(RATE, steps=STEPS), net)
            z = trained(model, ww.param_groups(model, net, RATE), X, y, X_test)
            each.append([np.mean((z - p[name].values) ** 2) for name in ("free", "mean")])
        found.append(each)
    return np.moveaxis(np.array(found), 2, 0)


def powers(widths, squares):
    """Slopes of log root mean square against log width: of the free part, and with both corrections."""
    logs = np.log(squares.mean(axis=2)) / 2
    return np.polyfit(np.log(widths), logs.T, 1)[0]
