"""n bits and 32 n numbers without steep slopes describe a class of functions about equally well

ε_n is the radius to which 2^n balls cover a compact set, n in bits. Functions on [0, 1] with f(0) = 0 and |f'| ≤ 1 have
ε_n = 1/(n+1) exactly in the maximum norm; a ball in d dimensions has ε_n like 2^{−n/d}, an ellipsoid with axes k^{−s}
like n^{−s}. In a Hilbert space maps into R^{32n} and back whose Lipschitz constants multiply to 2 reach 3ε_n: δ_{32n} ≤
3ε_n (theory §10), by a Johnson–Lindenstrauss embedding of a net, extended by Kirszbraun's theorem. With fewer numbers
per bit the embedding stretches distances like the extremes of χ²; with two it fails. Conversely, 2^n points d apart
within R cannot go to m numbers and back without constants whose product is (2^{n/m} − 1)d/2R. Values at n points
describe Lipschitz functions to 1/(2n + 1) at best, and hide one, with its negative, from every learner.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist, pdist
from scipy.stats import chi2

from widthwise.errors import InvalidInput
from widthwise.experiments.sampler import forward, sample_parameters
from widthwise.labs.base import Outcome, Outcomes, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import LabEstimate, slope_and_drift
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style

SIZES = (8, 9, 10)
SIZE = "bits"
#: Members of a class, points at which they are seen, and members at which the two maps are tried.
MEMBERS, POINTS, TRIED = 1500, 512, 10
#: Distance of grid points in the disc, decay of the ellipsoids' axes.
GRID, DECAYS = 0.01, (1.0, 2.0)
#: Numbers per bit in the inequality, and the product of Lipschitz constants that its proof allows.
PER_BIT, STEEPNESS = 32, 2.0
#: Numbers per bit at which the embedding is tried, and the chance that one exceeds its bound.
SWEPT, CHANCE = (2, 4, 8, 16, 32, 64), 1e-5
#: Numbers, in all, that are too few; neurons of the network that learns from values.
FEW_NUMBERS, LEARNING_NEURONS = (1, 2, 3), 256
ROUNDING = 1e-9


@over_networks
def _outputs(net: MLP, key, X):
    return forward(net, sample_parameters(net, key), X)[1][-1][:, 0]


def network_functions(seed: int) -> np.ndarray:
    """Functions of random tanh networks at `POINTS` inputs, as vectors of the Hilbert space of their mean square."""
    X = np.random.default_rng([seed, 1]).normal(size=(POINTS, 4))
    return _outputs(MLP([4, 16, 16, 1], "tanh", C_b=0.1, C_W=2.0), seed, MEMBERS, X) / np.sqrt(POINTS)


def lipschitz_functions(seed: int) -> np.ndarray:
    """Functions on [0, 1] with f(0) = 0 and slopes between −1 and 1 that change sign at random."""
    random = np.random.default_rng([seed, 2])
    turns = random.random((MEMBERS, POINTS)) < random.uniform(0.0, 0.2, (MEMBERS, 1))
    signs = random.choice([-1.0, 1.0], (MEMBERS, 1)) * (-1.0) ** np.cumsum(turns, axis=1)
    return np.cumsum(signs * random.uniform(0.5, 1.0, (MEMBERS, 1)), axis=1) / POINTS / np.sqrt(POINTS)


def ellipsoid_points(seed: int) -> np.ndarray:
    """Points on the ellipsoid with axes 1/k, their directions spread over the scales."""
    random = np.random.default_rng([seed, 3])
    k = np.arange(1, POINTS + 1)
    x = random.normal(size=(MEMBERS, POINTS)) * k ** -random.uniform(0.0, 1.0, (MEMBERS, 1))
    return x / np.linalg.norm(x, axis=1, keepdims=True) / k


CLASSES = {"networks": network_functions, "Lipschitz": lipschitz_functions, "ellipsoid": ellipsoid_points}


def stable_width(members: np.ndarray, bits: int, seed: int) -> tuple[float, float, float]:
    """Maps into R^{32 bits} and back, without steep slopes, from a Johnson–Lindenstrauss embedding of a net.

    A net of 2^bits members goes to R^{32 bits} by a Gaussian matrix; both directions are extended to the members
    that lie farthest from the net, one after the other, with constants whose product is 2. Returns r of the net, the
    entropy number lying in [r/2, r]; the product of the constants on the net; the largest distance between one of these
    members and where the two maps lead it.
    """
    net, radius = greedy_net(members, 2**bits)
    random = np.random.default_rng([seed, bits, 4])
    matrix = random.normal(size=(members.shape[1], PER_BIT * bits)) / np.sqrt(PER_BIT * bits)
    there, back = lipschitz_constants(members[net], members[net] @ matrix)
    room = np.sqrt(STEEPNESS / (there * back))
    distances = cdist(members, members[net])
    points, codes, found, worst = members[net], members[net] @ matrix, members[net], 0.0
    for index in np.argsort(distances.min(axis=1))[-TRIED:]:
        member, start = members[index], members[net[distances[index].argmin()]]
        code = extend(points, codes, there * room, member, member @ matrix)
        value = extend(codes, found, back * room, code, start)
        points, codes, found = np.vstack([points, member]), np.vstack([codes, code]), np.vstack([found, value])
        worst = max(worst, float(np.linalg.norm(member - value)))
    return radius, there * back, worst


def steepness_bound(points: int, numbers: int) -> float:
    """What the product of Lipschitz constants of a Gaussian map of so many points to R^numbers exceeds by CHANCE only.

    The squared length of each of the differences is multiplied by χ²_numbers/numbers; the chances of all add up.

    >>> round(steepness_bound(256, 256), 2), steepness_bound(256, 16) > 2
    (1.75, True)
    """
    tail = CHANCE / (points * (points - 1))
    return float(np.sqrt(chi2.isf(tail, numbers) / chi2.ppf(tail, numbers)))


def _sweep_claims(members: np.ndarray, bits: int, seed: int) -> tuple[list[Claim], np.ndarray]:
    """The product of the constants on a net of networks over the numbers per bit, against its bound."""
    net = members[greedy_net(members, 2**bits)[0]]
    random, found = np.random.default_rng([seed, bits, 6]), []
    for per_bit in SWEPT:
        image = net @ random.normal(size=(net.shape[1], per_bit * bits)) / np.sqrt(per_bit * bits)
        found.append(np.prod(lipschitz_constants(net, image)))
    bounds = np.array([steepness_bound(len(net), per_bit * bits) for per_bit in SWEPT])
    least = float(min(per_bit for per_bit, steep in zip(SWEPT, found, strict=True) if steep <= STEEPNESS))
    claims = [
        Claim.exactly(
            "networks: product of constants over its bound, largest", 1.0, np.max(found / bounds), 0.0, "at most"
        ).rejects({"half of it": 0.5}),
        Claim.exactly("networks: product with two numbers per bit", STEEPNESS, found[0], 0.0, "at least").fails_for(
            {"32 numbers": LabEstimate(found[SWEPT.index(PER_BIT)], 0.0, np.inf)}
        ),
        Claim.exactly("networks: fewest numbers per bit for a product of 2", PER_BIT, least, 0.0, "at most").rejects(
            {"two": SWEPT[0]}
        ),
    ]
    return claims, np.array([found, bounds])


def steepness_needed(points: np.ndarray, numbers: int) -> float:
    """What maps of some points to R^numbers and back have as product of their Lipschitz constants at least.

    Images of N points d apart lie as far from each other as d over one constant, in a ball whose radius is theirs
    times the other: balls around them do not overlap, so that N ≤ (1 + 2R product/d)^numbers.

    >>> round(steepness_needed(np.arange(9.0)[:, None], 1), 9)              # on a line no less is possible
    1.0
    """
    radius = np.linalg.norm(points - points.mean(axis=0), axis=1).max()
    return float((len(points) ** (1.0 / numbers) - 1.0) * pdist(points).min() / (2.0 * radius))


def _converse_claim(members: np.ndarray, bits: int) -> Claim:
    """Few numbers, those along which a net of networks is widest."""
    net = members[greedy_net(members, 2**bits)[0]]
    along = np.linalg.svd(net - net.mean(axis=0), full_matrices=False)[2]
    needed = np.array([steepness_needed(net, few) for few in FEW_NUMBERS])
    found = np.array([np.prod(lipschitz_constants(net, net @ along[:few].T)) for few in FEW_NUMBERS])
    claim = Claim.exactly(
        "networks: product with few numbers over the least, smallest", 1.0, np.min(found / needed), 0.0, "at least"
    )
    return claim.fails_for({"as with 32n numbers": LabEstimate(STEEPNESS / needed[0], 0.0, np.inf)})


def _between(values: np.ndarray, at: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The middle between the largest and the least function with these values, (…, points), and slopes in [−1, 1]."""
    away = np.abs(t[:, None] - at)
    return 0.5 * ((values[:, None] + away).min(axis=-1) + (values[:, None] - away).max(axis=-1))


def _sample_claims(bits: int, members: np.ndarray, seed: int) -> list[Claim]:
    """n values, at points with the least widest gap: 0, and 2k/(2n + 1); the last gap is half as wide.

    The distance from these points vanishes at all of them. A learner gives the same function for it and its negative,
    and is off by 1/(2n + 1) on one of them. This one is a network whose last layer is trained.
    """
    at, t = np.arange(0, 2 * bits + 1, 2) / (2 * bits + 1), np.linspace(0.0, 1.0, 8 * (2 * bits + 1) + 1)
    hidden = np.abs(t[:, None] - at).min(axis=1)
    given = np.array([np.interp(at, np.arange(POINTS + 1) / POINTS, [0.0, *f]) for f in members])
    real = np.array([np.interp(t, np.arange(POINTS + 1) / POINTS, [0.0, *f]) for f in members])
    followed = max(np.abs(real - _between(given, at, t)).max(), hidden.max())
    random = np.random.default_rng([seed, bits, 7])
    W, b = 3.0 * random.normal(size=LEARNING_NEURONS), random.normal(size=LEARNING_NEURONS)
    seen, everywhere = np.tanh(np.outer(at, W) + b), np.tanh(np.outer(t, W) + b)
    start = random.normal(size=LEARNING_NEURONS) / np.sqrt(LEARNING_NEURONS)

    def learned(values: np.ndarray) -> np.ndarray:
        return everywhere @ (start + np.linalg.lstsq(seen, values - seen @ start, rcond=1e-10)[0])

    scale, unseen = 2 * bits + 1, learned(np.zeros(len(at)))
    lost = max(np.abs(unseen - sign * hidden).max() for sign in (1.0, -1.0))
    smooth = np.abs(learned(np.sin(at)) - np.sin(t)).max()
    return [
        Claim.exactly("Lipschitz: error of n values × (2n + 1)", 1.0, scale * followed, ROUNDING).rejects(
            {"that of n bits": scale / (bits + 1), "half": 0.5}
        ),
        Claim.exactly(
            "what values hide: error of a network × (2n + 1)", 1.0, scale * lost, ROUNDING, "at least"
        ).fails_for({"a sine": LabEstimate(scale * smooth, 0.0, np.inf)}),
    ]


def nearest_zigzag(values: np.ndarray, bits: int) -> np.ndarray:
    """Greatest distance of each function from the member of `lipschitz_net` that follows it, at the ends of intervals.

    values : (functions, bits + 1). The distance is largest at an end: between ends f minus a slope ±1 is monotone.
    """
    followed = np.zeros_like(values)
    for k in range(1, bits + 1):
        followed[:, k] = followed[:, k - 1] + np.where(values[:, k] > followed[:, k - 1], 1.0, -1.0) / (bits + 1)
    known = {tuple(row) for row in (lipschitz_net(bits) * (bits + 1)).round().astype(int)}
    if not all(tuple(row) in known for row in (followed * (bits + 1)).round().astype(int)):
        raise AssertionError("a function followed a path that is not in the net")
    return np.abs(values - followed).max(axis=1)


def _lipschitz_claims(bits: int, seed: int) -> list[Claim]:
    random = np.random.default_rng([seed, bits])
    slopes = random.uniform(-1.0, 1.0, (4000, bits + 1))
    slopes[:2] = [[1.0], [-1.0]]
    exact = 1.0 / (bits + 1)
    covered = nearest_zigzag(np.cumsum(slopes, axis=1) * exact, bits).max()
    packed = lipschitz_packing(bits)
    apart = min(cdist(packed[i : i + 1], packed[i + 1 :], "chebyshev").min() for i in range(len(packed) - 1))
    wrong = {"1/n": 1 / bits, "half": exact / 2}
    return [
        Claim.exactly("Lipschitz functions: radius of 2^n balls", exact, covered, ROUNDING).rejects(wrong),
        Claim.exactly("half the distance in a packing of 2^(n+1)", exact, apart / 2, ROUNDING).rejects(wrong),
    ]


def _disc_claims(bits: int, seed: int) -> list[Claim]:
    """Areas: 2^n balls of radius ε_n cover the unit disc, so that ε_n ≥ 2^{−n/2}; the 2^n + 1 discs of radius r/2 about
    the net lie in one of radius 1 + r/2 and do not overlap, so that r/2 < 1/(2^{n/2} − 1). The net begins at random."""
    side = np.arange(-1.0, 1.0 + GRID / 2, GRID)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    grid = np.random.default_rng([seed, bits, 5]).permutation(grid[np.linalg.norm(grid, axis=1) <= 1.0])
    _, radius = greedy_net(grid, 2**bits)
    bound = 1.0 / (1.0 - 2.0 ** (-bits / 2))
    covering, packing = (radius + GRID) * 2 ** (bits / 2), radius / 2 * 2 ** (bits / 2)
    covers = Claim.exactly("disc: covering radius × 2^(n/2)", 1.0, covering, ROUNDING, "at least")
    packs = Claim.exactly("disc: packing radius × 2^(n/2)", bound, packing, ROUNDING, "at most")
    return [covers.rejects({"twice": 2.0}), packs.rejects({"half": bound / 2})]


def _rate_claims() -> tuple[list[Claim], dict[str, Any]]:
    axes, scales, claims, curves = np.arange(1.0, 200_000.0), np.geomspace(1e-2, 2e-4, 12), [], {}
    for decay in DECAYS:
        both = np.array([ellipsoid_bits(axes**-decay, r**decay) for r in scales])
        curves[f"ellipsoid {decay:g}"] = (both, scales**decay)
        for bound, name in zip(both.T, ("least", "most"), strict=True):
            fit = slope_and_drift(np.log(bound), decay * np.log(scales))
            what = f"axes k^-{decay:g}: exponent of n in ε, {name}"
            claims.append(Claim.exactly(what, -decay, *fit).rejects({"half": -decay / 2, "twice": -2 * decay}))
    return claims, curves


def experiment(bits: int, seed: int) -> Outcome:
    """Entropy numbers of `bits` bits."""
    rates, curves = _rate_claims()
    claims, widths = [*_lipschitz_claims(bits, seed), *_disc_claims(bits, seed), *rates], {}
    drawn = {name: members(seed) for name, members in CLASSES.items()}
    for name, members in drawn.items():
        radius, steepness, worst = stable_width(members, bits, seed)
        widths[name] = (radius, worst)
        steep = Claim.exactly(f"{name}: product of Lipschitz constants", STEEPNESS, steepness, ROUNDING, "at most")
        reach = Claim.exactly(
            f"{name}: error with 32n numbers over ε_n", 3.0, worst / (radius / 2), ROUNDING, "at most"
        )
        claims += [steep.rejects({"an isometry": 1.0}), reach.rejects({"no more than ε_n": 1.0})]
    swept, sweep = _sweep_claims(drawn["networks"], bits, seed)
    claims += [*swept, _converse_claim(drawn["networks"], bits)]
    claims += _sample_claims(bits, drawn["Lipschitz"] * np.sqrt(POINTS), seed)
    return Outcome(tuple(claims), curves | {"widths": widths, "sweep": sweep})


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    largest = outcomes[max(outcomes)][0].curves
    for number, decay in enumerate(DECAYS):
        both, radii = largest[f"ellipsoid {decay:g}"]
        left.fill_betweenx(radii, both[:, 0], both[:, 1], color=COLOURS[number], alpha=0.5, linewidth=0)
        left.plot(both.mean(axis=1), radii, **style(number), label=f"axes $k^{{-{decay:g}}}$")
    n = np.geomspace(100, 1e5, 10)
    left.plot(n, 1 / (n + 1), **style(2), label="Lipschitz on [0, 1], exact")
    left.set(xscale="log", yscale="log", xlabel="n (bits)", ylabel=r"$\varepsilon_n$", title="entropy numbers")
    left.legend()
    for number, name in enumerate(CLASSES):
        radii, errors = np.transpose(
            [np.mean([o.curves["widths"][name] for o in found], axis=0) for found in outcomes.values()]
        )
        at, half, points = np.array(list(outcomes)) + 0.12 * (number - 1), radii / 2, marks(number)
        bars = points | {"marker": "", "capsize": 3, "elinewidth": 2, "label": rf"{name}: $\varepsilon_n$ lies here"}
        right.errorbar(at, 1.5 * half, [half / 2, half / 2], **bars)
        right.plot(at, errors, **points)
        right.plot(at, 3 * half, **(points | {"marker": "_", "markersize": 12}))
    right.set(xlabel="n (bits)", xticks=list(outcomes), yscale="log", ylim=(None, 3.0))
    right.set_title(r"error of $32n$ numbers (points); $3\varepsilon_n$ at least (dashes)", fontsize=9)
    right.legend(fontsize=9)


def ellipsoid_bits(axes: Any, radius: float) -> tuple[float, float]:
    """Lower and upper bound on log₂ of the least number of balls of a radius that cover {Σ(x_k/a_k)² ≤ 1} (theory §10).

    Volumes in the coordinates with a_k > ε give Σ log₂(a_k/ε) from below. From above: what lies beyond the coordinates
    with a_k > ε/√2 is shorter than ε/√2, and these are covered to ε/√2 by balls around a packing, at most
    Π 4a_k/(ε/√2) of them.

    `axes` are the semi-axes a_k ≥ 0, (dimension,), those that exceed radius/√2 at least; the radius is ε > 0.

    >>> [round(bits, 6) for bits in ellipsoid_bits([1.0, 0.5], 0.25)]
    [3.0, 8.0]
    """
    axes = np.asarray(axes, float)
    if radius <= 0.0:
        raise InvalidInput("radius", repr(radius), "a positive number")
    inner = radius / np.sqrt(2.0)
    return (float(np.log2(axes[axes > radius] / radius).sum()), float(np.log2(4.0 * axes[axes > inner] / inner).sum()))


def lipschitz_net(bits: int) -> np.ndarray:
    """2^bits functions within 1/(bits + 1) of every f on [0, 1] with |f'| ≤ 1 and f(0) = 0, in the maximum norm.

    Each is 0 on the first of bits + 1 intervals and has slope ±1 on the others. Values at the ends: (2^bits, bits + 1).

    >>> lipschitz_net(1)
    array([[ 0. , -0.5],
           [ 0. ,  0.5]])
    """
    signs = np.array(list(product((-1.0, 1.0), repeat=bits)))
    return np.cumsum(np.pad(signs, ((0, 0), (1, 0))), axis=1) / (bits + 1)


def lipschitz_packing(bits: int) -> np.ndarray:
    """2^(bits + 1) functions of the same class, slope ±1 on every interval, any two of them 2/(bits + 1) apart.

    >>> len(lipschitz_packing(2))
    8
    """
    return np.cumsum(np.array(list(product((-1.0, 1.0), repeat=bits + 1))), axis=1) / (bits + 1)


def greedy_net(points: Any, count: int) -> tuple[np.ndarray, float]:
    """Indices of `count` points of a set (points, features), each the farthest from those before it; and r.

    They begin with the first point. They and one more are r apart, and cover the set to r: its entropy number lies
    between r/2 and r.

    >>> greedy_net([[0.0], [1.0], [2.0], [3.0], [4.0]], 2)
    (array([0, 4]), 2.0)
    """
    points = np.asarray(points, float)
    chosen, nearest = [0], cdist(points[:1], points)[0]
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, cdist(points[chosen[-1:]], points)[0])
    return np.array(chosen), float(nearest.max())


def lipschitz_constants(points: Any, images: Any) -> tuple[float, float]:
    """Lipschitz constants of points → images, (count, features) each, and of its inverse.

    >>> lipschitz_constants([[0.0], [1.0], [2.0]], [[0.0], [3.0], [4.0]])
    (3.0, 1.0)
    """
    ratios = pdist(np.asarray(images, float)) / pdist(np.asarray(points, float))
    return float(ratios.max()), float(1.0 / ratios.min())


def extend(points: Any, images: Any, constant: float, at: Any, guess: Any, rounds: int = 20_000) -> np.ndarray:
    """A value at one more point that keeps a map's Lipschitz constant; Kirszbraun's theorem says that there is one.

    The value lies in the ball of radius constant × ‖at − points_j‖ about every images_j; the guess is projected on the
    ball that it is farthest out of until it is within all of them to a relative 1e-9.

    Parameters
    ----------
    points, images : (count, features) and (count, other features), the map so far.
    constant : a Lipschitz constant of the map; the search ends soon when it is not the least one.
    at : (features,), where to extend it.
    guess : (other features,), a value to begin with.

    Examples
    --------
    >>> extend([[0.0], [2.0]], [[0.0], [1.0]], 1.0, [1.0], [3.0])
    array([1.])
    """
    images, value = np.asarray(images, float), np.asarray(guess, float)
    radii = constant * np.linalg.norm(np.asarray(points, float) - at, axis=1)
    for _ in range(rounds):
        away = value - images
        lengths = np.linalg.norm(away, axis=1)
        worst = int((lengths - radii).argmax())
        if lengths[worst] <= radii[worst] * (1 + 1e-9) + 1e-15:
            return value
        value = images[worst] + away[worst] * (radii[worst] / lengths[worst])
    raise InvalidInput("constant", repr(constant), "a Lipschitz constant of the map, with room to spare")
