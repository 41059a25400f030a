"""noise pushes towards flat regions, at a rate of η² over the batch size

With L = Σ λ_i(θ̂)θ̃_i² and label noise of variance σ²/b the fast coordinates settle at ⟨θ̃²⟩ = ησ²/(2b)/(1 − ηλ), the
steady state of theory §10, and the slow ones drift along −⟨θ̃_i²⟩∇λ_i: Σλ falls by (η²σ²/2b)‖∇Σλ‖² a step. A network
that fits its data drifts as if its loss were L − (σ²/2b) log det(1 − ηJJᵀ/2) ≈ L + (ησ²/4b) tr H. Diffusion alone
leaves the density 1/D when its noise is fresh at every step, as in stochastic gradient descent, so that D = 1 and D = 2
on two halves of a circle give 2 : 1, and steps of one and of two sites 4 : 1; noise with memory gives 1/√D, that is
√2 : 1 for D = 1 and 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import ratio_and_error
from widthwise.plots.style import COLOURS, marks

SIZES, QUICK_SIZES = (1, 2, 4), (1, 4)
SIZE = "batch"
RUNS = 32
#: Two scales: stiff coordinates, slow ones, standard deviation of label noise, learning rates, time ηt of a run.
STIFF, SLOW, NOISE, RATES, TIME = 4, 2, 0.3, (0.05, 0.1), 200
#: Least and largest λ_i at the start. The step is stable for ηλ < 1.
SOFTEST, STIFFEST = 1.0, 4.0
#: Circle: walkers, steps, time step, and correlation time of noise with memory.
WALKERS, STEPS, TICK, MEMORY = 256, 40_000, 2e-3, 0.05
#: Sites of the ring.
SITES = 240
#: Real network: data, hidden width, learning rate times curvature, label noise, steps.
DATA, HIDDEN, SHARPNESS, LABEL_NOISE, TRAINING = 5, 8, 0.2, 0.2, 10_000


def stiffness(slow, scale, centre):
    """λ_i(θ̂) = c_i (1 + ½‖θ̂ − p_i‖²), (stiff,)."""
    return scale * (1.0 + 0.5 * jnp.sum((slow - centre) ** 2, axis=1))


def fast_variance(lam, eta, noise):
    """⟨θ̃_i²⟩ of θ̃ → θ̃ − η(2λθ̃ − √(2λ)ξ), ξ of variance `noise`, at fixed λ: (η noise/2)/(1 − ηλ)."""
    return 0.5 * eta * noise / (1.0 - eta * lam)


def predicted_rate(slow, scale, centre, eta, noise):
    """Mean change of Σλ per step: −η Σ ⟨θ̃_i²⟩ ∇λ_i·∇Σλ with its next order in ⟨θ̃²⟩, and η²/2 g·∇∇Σλ·g of the step g.

    Next order: the slow coordinates follow the scatter of θ̃_i², Cov(θ̃_i², θ̂) = κ_i∇λ_i with κ_i = v_i²(1 − 2ηλ_i)/
    (2λ_i(1 − ηλ_i)), which moves ⟨θ̃_i²⟩ from v_i by −κ_i|∇λ_i|²(1 − 2ηλ_i)/(λ_i(1 − ηλ_i)) and adds the covariance of
    θ̃_i² with ∇λ_i·∇Σλ.
    """
    lam, slopes = stiffness(slow, scale, centre), scale[:, None] * (slow - centre)
    v = fast_variance(lam, eta, noise)
    push, squares, down = v @ slopes, jnp.sum(slopes**2, axis=1), slopes @ slopes.sum(axis=0)
    scatter = squares @ (2 * v**2 + v * noise / (2 * lam)) + push @ push
    kept, loss = 1.0 - 2.0 * eta * lam, lam * (1.0 - eta * lam)
    follows = 0.5 * v**2 * kept / loss
    next_order = follows @ (scale * down + scale.sum() * squares - kept * squares * down / loss)
    return -eta * (v @ down + next_order) + 0.5 * eta**2 * scale.sum() * scatter


@partial(jax.jit, static_argnums=(4,))
def _two_scales(scale, centre, eta, noise, steps: int, keys):
    """Change of Σλ of each run, and the sum of predicted rates along it."""

    def batch_loss(fast, slow, xi):
        lam = stiffness(slow, scale, centre)
        return jnp.sum(lam * fast**2 - jnp.sqrt(2 * lam) * fast * xi)

    def one(key):
        for_start, for_steps = jax.random.split(key)
        begin = jnp.zeros(SLOW)
        spread = jnp.sqrt(fast_variance(stiffness(begin, scale, centre), eta, noise))

        def step(state, key):
            fast, slow = state
            xi = jnp.sqrt(noise) * jax.random.normal(key, (STIFF,))
            a, b = jax.grad(batch_loss, (0, 1))(fast, slow, xi)
            return (fast - eta * a, slow - eta * b), predicted_rate(slow, scale, centre, eta, noise)

        state = (spread * jax.random.normal(for_start, (STIFF,)), begin)
        (_, end), rates = jax.lax.scan(step, state, jax.random.split(for_steps, steps))
        return stiffness(end, scale, centre).sum() - stiffness(begin, scale, centre).sum(), rates.sum()

    return jax.vmap(one)(keys)


def _drift_claims(batch: int, seed: int) -> list[Claim]:
    random = np.random.default_rng([seed, 1])
    centre = random.normal(size=(STIFF, SLOW)) + np.array([1.5, 0.0])
    scale = random.uniform(SOFTEST, STIFFEST, STIFF) / np.asarray(stiffness(np.zeros(SLOW), 1.0, centre))
    claims = []
    for number, eta in enumerate(RATES):
        keys = jax.random.split(jax.random.PRNGKey(7919 * seed + 10 * batch + number), RUNS)
        found = _two_scales(scale, centre, eta, NOISE**2 / batch, round(TIME / eta), keys)
        wrong = {"no entropic force": 0.0, "the same at every batch size": float(batch)}
        if eta != RATES[0]:
            wrong["a rate like η, not η²"] = RATES[0] / eta
        ratio = ratio_and_error(*map(np.asarray, found))
        claims.append(Claim(f"drift of Σλ over prediction, η = {eta:g}", 1.0, *ratio).rejects(wrong))
    return claims


@partial(jax.jit, static_argnums=(1,))
def _walk(key, steps: int):
    """Share of time that each walker spends in the middle thirds of the quiet half (D = 1) and of the other (D = 2),
    once with fresh noise and once with noise that is correlated over `MEMORY`: (2, walkers, 2)."""

    def amplitude(angle):
        return jnp.where(jnp.cos(angle) > 0, jnp.sqrt(2.0), 2.0)

    def middles(angle):
        return jnp.stack([jnp.cos(angle) > 0.5, jnp.cos(angle) < -0.5], axis=-1).astype(float)

    def step(state, key):
        fresh, remembering, memory, seen = state
        kick = jax.random.normal(key, (WALKERS,))
        fresh = fresh + amplitude(fresh) * jnp.sqrt(TICK) * kick
        remembering = _across(remembering, TICK * memory, amplitude)
        memory = memory - TICK / MEMORY * memory + jnp.sqrt(TICK) / MEMORY * kick
        return (fresh, remembering, memory, seen + jnp.stack([middles(fresh), middles(remembering)])), None

    # all begin in the stationary state: shares of the quiet half 2 : 1 and √2 : 1, and the variance of the memory
    place, side, other_side, for_memory = jax.random.split(jax.random.fold_in(key, 0x5EED), 4)
    quiet = jax.random.uniform(place, (WALKERS,), minval=-0.5 * jnp.pi, maxval=0.5 * jnp.pi)
    fresh = quiet + jnp.pi * jax.random.bernoulli(side, 1.0 / 3.0, (WALKERS,))
    remembering = quiet + jnp.pi * jax.random.bernoulli(other_side, jnp.sqrt(2.0) - 1.0, (WALKERS,))
    memory = jax.random.normal(for_memory, (WALKERS,)) / jnp.sqrt(2 * MEMORY - TICK)
    begin = (fresh, remembering, memory, jnp.zeros((2, WALKERS, 2)))
    return jax.lax.scan(step, begin, jax.random.split(key, steps))[0][3] / steps


def _across(angle, move, amplitude):
    """Where dx = a(x)·`move` ends: beyond an edge between two halves, ±π/2, it goes on with the speed over there."""
    end = angle + amplitude(angle) * move
    edge = jnp.pi * (jnp.floor(0.5 * (angle + end) / jnp.pi) + 0.5)
    crossed = amplitude(angle) != amplitude(end)
    return jnp.where(crossed, edge + (end - edge) * amplitude(end) / amplitude(angle), end)


def _circle_claims(batch: int, seed: int) -> list[Claim]:
    seen = np.asarray(_walk(jax.random.PRNGKey(104729 * batch + seed), STEPS))
    found = [ratio_and_error(quiet, loud) for quiet, loud in np.moveaxis(seen, -1, 1)]
    root = np.sqrt(2.0)
    return [
        Claim("density where D = 1 over D = 2, fresh noise", 2.0, *found[0]).rejects({"√2": root, "even": 1.0}),
        Claim("density where D = 1 over D = 2, noise with memory", root, *found[1]).rejects({"2": 2.0, "even": 1.0}),
        Claim.exactly(
            "density over density, steps of one and two sites", 4.0 - 8.0 / (SITES + 4), ring_ratio(SITES), 1e-9
        ).rejects({"√2, as in notes": root, "2, that of D = 1 and 2": 2.0, "4 on a ring of any size": 4.0}),
    ]


def ring_ratio(sites: int) -> float:
    """Stationary density of a walk on a ring with steps ±1 on one half over that on the other, where steps are ±2.

    Densities are those of the middles of the halves. On N sites, N a multiple of 16, the ratio is 4 − 8/(N + 4): on the
    half with steps of two, odd sites are entered at one end and even ones at the other, which takes a flow.

    >>> [round((4.0 - ring_ratio(sites)) * (sites + 4), 6) for sites in (48, 96, 400)]
    [8.0, 8.0, 8.0]
    """
    at = np.arange(sites)
    step, moves = np.where(at < sites // 2, 1, 2), np.zeros((sites, sites))
    for sign in (1, -1):
        moves[(at + sign * step) % sites, at] += 0.5
    # ρ = Pρ and Σρ = 1, by least squares
    system, target = np.vstack([moves - np.eye(sites), np.ones(sites)]), np.append(np.zeros(sites), 1.0)
    density = np.linalg.lstsq(system, target)[0]
    quarter = sites // 8
    return float(
        density[quarter : 3 * quarter].mean() / density[sites // 2 + quarter : sites // 2 + 3 * quarter].mean()
    )


def tanh_outputs(theta, X):
    """One hidden layer of tanh, θ = (W, b, last)."""
    W, b, last = theta
    return jnp.tanh(X @ W.T + b) @ last


def loss(theta, X, y):
    """½ Σ (z − y)²."""
    return 0.5 * jnp.sum((tanh_outputs(theta, X) - y) ** 2)


def tanh_kernel(theta, X):
    """JJᵀ, (data, data); where the data are fitted its trace is that of the Hessian."""
    rows = [J.reshape(len(X), -1) for J in jax.jacobian(tanh_outputs)(theta, X)]
    return sum(J @ J.T for J in rows)


def effective_loss(theta, X, y, eta, noise):
    """L − (σ²/2b) log det(1 − ηJJᵀ/2): the loss whose descent the noisy one follows on average."""
    return loss(theta, X, y) - 0.5 * noise * jnp.linalg.slogdet(jnp.eye(len(X)) - 0.5 * eta * tanh_kernel(theta, X))[1]


def _down(theta, gradient, eta):
    return jax.tree.map(lambda a, b: a - eta * b, theta, gradient)


@jax.jit
def _flatten(theta, X, y, noise, keys):
    """tr H at the start, and after each tenth of the steps: on the effective loss (10,), under noise (runs, 10); η."""

    def fit(theta, eta, steps):
        return jax.lax.fori_loop(0, steps, lambda _, t: _down(t, jax.grad(loss)(t, X, y), eta), theta)

    def sharpest(theta):
        return jnp.linalg.eigvalsh(tanh_kernel(theta, X))[-1]

    theta = fit(theta, 0.1 * SHARPNESS / sharpest(theta), TRAINING)
    eta = SHARPNESS / sharpest(theta)
    theta = fit(theta, eta, TRAINING)

    def noisy(theta, key):
        targets = y + jnp.sqrt(noise) * jax.random.normal(key, y.shape)
        return _down(theta, jax.grad(loss)(theta, X, targets), eta), None

    def pushed(theta, _):
        return _down(theta, jax.grad(effective_loss)(theta, X, y, eta, noise), eta), None

    def follow(step, xs):
        def tenth(theta, xs):
            theta = jax.lax.scan(step, theta, xs)[0]
            # where plain descent would now end
            return theta, jnp.trace(tanh_kernel(fit(theta, eta, 500), X))

        return jax.lax.scan(tenth, theta, xs)[1]

    part = TRAINING // 10
    found = jax.vmap(lambda key: follow(noisy, jax.random.split(key, (10, part))))(keys)
    return jnp.trace(tanh_kernel(theta, X)), follow(pushed, jnp.zeros((10, part))), found, eta


def _flatness_claim(batch: int, seed: int) -> tuple[Claim, dict[str, np.ndarray]]:
    random = np.random.default_rng([seed, 2])
    X, y = random.normal(size=(DATA, 2)), random.normal(size=DATA)
    theta = (random.normal(size=(HIDDEN, 2)), random.normal(size=HIDDEN), random.normal(size=HIDDEN))
    keys = jax.random.split(jax.random.PRNGKey(611953 * (seed + 1) + batch), RUNS)
    start, predicted, found, eta = map(np.asarray, _flatten(theta, X, y, LABEL_NOISE**2 / batch, keys))
    falls = (found[:, -1] - start) / (predicted[-1] - start)
    claim = Claim.mean("fall of tr H over prediction, tanh network", 1.0, falls).rejects(
        {"gradient descent stays": 0.0, "half the force": 0.5}
    )
    times = float(eta) * TRAINING / 10 * np.arange(11)
    curve = np.array([times, np.append(1.0, predicted / start), np.append(1.0, found.mean(axis=0) / start)])
    return claim, {"network": curve}


def experiment(batch: int, seed: int) -> Outcome:
    """One batch size: label noise of variance σ²/batch."""
    flatness, curves = _flatness_claim(batch, seed)
    return Outcome((*_drift_claims(batch, seed), *_circle_claims(batch, seed), flatness), curves)


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    sizes = list(outcomes)
    for number, eta in enumerate(RATES):
        found = [[o.claims[number] for o in outcomes[size]] for size in sizes]
        means = [np.mean([c.measured for c in some]) for some in found]
        errors = [np.hypot.reduce([c.standard_error for c in some]) / len(some) for some in found]
        at = np.array(sizes) + 0.05 * number
        left.errorbar(at, means, errors, capsize=2, **marks(number), label=rf"$\eta$ = {eta:g}")
    left.axhline(1.0, color="black", linewidth=0.7)
    left.set(xlabel="batch size", xticks=sizes, title=r"two scales: drift of $\Sigma\lambda$, measured/predicted")
    left.legend()
    for number, size in enumerate(sizes):
        time, predicted, found = outcomes[size][0].curves["network"]
        right.plot(time, predicted, color=COLOURS[number % 4], label=f"predicted, batch {size}")
        right.plot(time, found, **marks(number), label=f"measured, batch {size}")
    right.axhline(1.0, color="black", linewidth=0.7, linestyle=":", label="gradient descent")
    right.set(xlabel=r"time $\eta t$", title=r"tanh network: tr$\,H$ over its start")
    right.legend(fontsize=9)
