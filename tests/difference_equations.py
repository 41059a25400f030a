"""Direct iteration of the difference equations of training (theory §8), as a check that shares nothing with the library.

Arrays carry a batch axis first (letter s), then outputs, then inputs; the first inputs are the training inputs.
"""

import numpy as np


def iterate(z, H, dH, ddI, ddII, y, rates, steps):
    """Outputs and tangent kernel after `steps` steps; y is (outputs, training inputs). No expansion is made.

    `rates` is a number, or one for each step.
    """
    n = y.shape[1]

    def contract(letters, tensor, *errors):
        return np.einsum(letters, tensor, *errors, optimize=len(errors) > 1)

    for rate in np.broadcast_to(rates, steps):
        e = z[:, :, :n] - y
        ddI_e = contract("sijkmabcd,smd->sijkabc", ddI[..., :n], e)
        ddII_e = contract("sijkmabcd,smd->sijkabc", ddII[..., :n], e)
        dH_e = contract("sijkabc,skc->sijab", dH[..., :n], e)
        ddI_ee = contract("sijkabc,skc->sijab", ddI_e[..., :n], e)
        ddII_ee = contract("sijkabc,skc->sijab", ddII_e[..., :n], e)
        z_step = (
            -rate * contract("sijab,sjb->sia", H[..., :n], e)
            + rate**2 / 2 * contract("sijab,sjb->sia", dH_e[..., :n], e)
            - rate**3 / 6 * contract("sijab,sjb->sia", ddI_ee[..., :n], e)
        )
        H_step = -rate * (dH_e + flip(dH_e)) + rate**2 / 2 * (ddI_ee + flip(ddI_ee) + 2 * ddII_ee)
        # ddII_ikjm;acbd ε_md over (i, j, k, a, b, c)
        dH_step = -rate * (ddI_e + ddII_e + ddII_e.transpose(0, 1, 3, 2, 4, 6, 5))
        z, H, dH = z + z_step, H + H_step, dH + dH_step
    return z, H


def flip(tensor):
    """T_ji;ba of T_ij;ab."""
    return tensor.transpose(0, 2, 1, 4, 3)


def coefficients(function, orders, points=16, radius=0.01):
    """Taylor coefficients of a function of one small parameter, by Cauchy's formula on a circle.

    `function` takes complex values s (points,) and returns arrays with that axis first.
    """
    circle = radius * np.exp(2j * np.pi * np.arange(points) / points)
    values = function(circle)
    return [np.tensordot(circle**-order, values, 1).real / points for order in range(orders + 1)]
