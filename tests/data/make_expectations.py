"""Reference values of ⟨σ^(p)(z_a) σ^(q)(z_b)⟩ at 30 digits with mpmath, independent of the library.

The inner Gaussian average is done in closed form where mathematics has one and by quadrature otherwise, the outer one
by quadrature in 40-digit arithmetic. Run `python tests/data/make_expectations.py` to make expectations.json anew (it takes about
an hour: the plain two-dimensional integrals are slow).
"""

import json
from pathlib import Path

from mpmath import cos, erf, exp, expm1, inf, log1p, mp, mpf, ncdf, npdf, pi, quad, sin, sqrt, tanh  # noqa: F401

mp.dps = 40


def heaviside(z):
    return mpf(1) if z > 0 else mpf(0)


def sigmoid(z):
    return 1 / (1 + exp(-z))


def sigmoid_slope(z):
    return sigmoid(z) * sigmoid(-z)


#: σ and its first two derivatives.
FUNCTIONS = {
    "relu": [lambda z: z if z > 0 else mpf(0), heaviside],
    "step": [heaviside],
    "leaky_relu(0.25)": [lambda z: z if z > 0 else z / 4, lambda z: mpf(1) if z > 0 else mpf(1) / 4],
    "erf": [erf, lambda z: 2 / sqrt(pi) * exp(-z * z), lambda z: -4 * z / sqrt(pi) * exp(-z * z)],
    "gelu": [lambda z: z * ncdf(z), lambda z: ncdf(z) + z * npdf(z), lambda z: (2 - z * z) * npdf(z)],
    "sin": [sin, cos, lambda z: -sin(z)],
    "linear": [lambda z: z, lambda z: mpf(1), lambda z: mpf(0)],
    "quadratic": [lambda z: z * z, lambda z: 2 * z, lambda z: mpf(2)],
    "cubic": [lambda z: z**3, lambda z: 3 * z * z, lambda z: 6 * z],
    "tanh": [tanh, lambda z: 1 - tanh(z) ** 2, lambda z: -2 * tanh(z) * (1 - tanh(z) ** 2)],
    "sigmoid": [sigmoid, sigmoid_slope],
    "softplus": [lambda z: log1p(exp(z)) if z < 0 else z + log1p(exp(-z)), sigmoid],
    "swish": [lambda z: z * sigmoid(z), lambda z: sigmoid(z) + z * sigmoid_slope(z)],
}


def _gelu_slope(m, s):
    t = sqrt(1 + s * s)
    return ncdf(m / t) + m / t**3 * npdf(m / t)


def _relu(m, s):
    return m * ncdf(m / s) + s * npdf(m / s)


#: ⟨σ^(q)(m + s v)⟩ over a standard normal v, where it is known.
CONDITIONAL = {
    ("relu", 0): _relu,
    ("relu", 1): lambda m, s: ncdf(m / s),
    ("step", 0): lambda m, s: ncdf(m / s),
    ("leaky_relu(0.25)", 0): lambda m, s: m / 4 + mpf(3) / 4 * _relu(m, s),
    ("leaky_relu(0.25)", 1): lambda m, s: mpf(1) / 4 + mpf(3) / 4 * ncdf(m / s),
    ("erf", 0): lambda m, s: erf(m / sqrt(1 + 2 * s * s)),
    ("erf", 1): lambda m, s: 2 / sqrt(pi * (1 + 2 * s * s)) * exp(-m * m / (1 + 2 * s * s)),
    ("gelu", 0): lambda m, s: m * ncdf(m / sqrt(1 + s * s)) + s * s / sqrt(1 + s * s) * npdf(m / sqrt(1 + s * s)),
    ("gelu", 1): _gelu_slope,
    ("sin", 0): lambda m, s: sin(m) * exp(-s * s / 2),
    ("sin", 1): lambda m, s: cos(m) * exp(-s * s / 2),
    ("linear", 0): lambda m, s: m,
    ("linear", 1): lambda m, s: mpf(1),
    ("quadratic", 0): lambda m, s: m * m + s * s,
    ("quadratic", 1): lambda m, s: 2 * m,
    ("cubic", 0): lambda m, s: m**3 + 3 * m * s * s,
    ("cubic", 1): lambda m, s: 3 * (m * m + s * s),
}


def breaks(scale, blur=None):
    """Subdivision in u: the Gaussian's own, the activation's features at 1/scale, and a kink blurred over `blur`."""
    points = {mpf(k) for k in (1, 2, 4, 6, 9, 14)}
    points |= {mpf(k) / scale for k in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if k / scale < 14}
    if blur is not None:
        points |= {blur * k for k in (1, 2, 4, 8, 16, 32) if blur * k < 14}
    ordered = sorted(points)
    merged = [ordered[0]]
    for point in ordered[1:]:
        if point > merged[-1] * mpf("1.05"):
            merged.append(point)
    return [-p for p in reversed(merged)] + [mpf(0)] + merged


def average(function, points):
    return quad(lambda u: function(u) * npdf(u), points, method="gauss-legendre")


def reference(name, p, q, K_aa, K_ab, K_bb):
    K_aa, K_ab, K_bb = (mpf(k) for k in (K_aa, K_ab, K_bb))
    f, g = FUNCTIONS[name][p], FUNCTIONS[name][q]
    a, b = sqrt(K_aa), sqrt(K_bb)
    determinant = K_aa * K_bb - K_ab**2
    if determinant <= mpf(10) ** -15 * K_aa * K_bb:  # parallel up to rounding
        sign = 1 if K_ab > 0 else -1
        return average(lambda u: f(a * u) * g(sign * b * u), breaks(max(a, b)))
    rho, width = K_ab / (a * b), sqrt(determinant / (K_aa * K_bb))
    blur = width / abs(rho) if rho else None
    if (name, q) in CONDITIONAL:
        given = CONDITIONAL[name, q]
        return average(lambda u: f(a * u) * given(b * rho * u, b * width), breaks(max(a, b), blur))
    inner = breaks(b * width)
    return average(
        lambda u: f(a * u) * average(lambda v: g(b * (rho * u + width * v)), inner), breaks(max(a, b * abs(rho)))
    )


def cases():
    closed = ("relu", "step", "leaky_relu(0.25)", "erf", "gelu", "sin", "linear", "quadratic", "cubic")
    kernels = [
        (1.0, 0.3, 1.0),
        (0.5, -0.4, 2.0),
        (2.0, 0.0, 3.0),
        (1e-12, 4e-13, 2e-12),
        (1e-12, -9e-13, 1e-12),
        (1e6, 3e5, 2e6),
        (1e6, 1e6 * (1 - 1e-8), 1e6),
        (1.0, 1 - 1e-8, 1.0),
        (1.0, -1 + 1e-8, 1.0),
        (2.5, 2.5 * (1 - 1e-12), 2.5),
        (3.0, 3.0, 3.0),
        (3.0, -3.0, 3.0),
        (1e6, 1e6, 1e6),
        (1e-12, 1e-12, 1e-12),
        (1e-6, 0.5, 1e6),
        (4.0, 2.0, 1.0),
        (4.0, -2.0, 1.0),
    ]
    for name in closed:
        for orders in ((0, 0), (1, 0), (1, 1)):
            if max(orders) < len(FUNCTIONS[name]):
                for kernel in kernels:
                    if name == "sin" and max(kernel) > 100:
                        continue  # thousands of oscillations: not resolved here
                    yield name, orders, kernel
    for name, orders in (("tanh", (0, 0)), ("tanh", (1, 1)), ("swish", (0, 0)), ("swish", (1, 1)),
                         ("sigmoid", (0, 0)), ("softplus", (0, 0))):  # fmt: skip
        for kernel in kernels:
            if kernel[2] <= 10 or abs(kernel[1]) == kernel[0]:
                yield name, orders, kernel


def main():
    target = Path(__file__).with_name("expectations.json")
    done = json.loads(target.read_text()) if target.exists() else []
    known = {(c["activation"], *c["orders"], *c["kernel"]) for c in done}
    for name, orders, kernel in cases():
        if (name, *orders, *kernel) in known:
            continue
        value = reference(name, *orders, *kernel)
        done.append({"activation": name, "orders": orders, "kernel": kernel, "value": mp.nstr(value, 30)})
        print(name, orders, kernel, mp.nstr(value, 20), flush=True)
        target.write_text("[\n" + ",\n".join(json.dumps(c) for c in done) + "\n]\n")


if __name__ == "__main__":
    main()
