"""Trained networks to order 1/n: reference cases, direct iteration of the difference equations, limits, bad input."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from conftest import load_cases, network
from difference_equations import coefficients, iterate

import widthwise as ww
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.corrections import TRAINING_TENSORS, at_output
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.predict import expected_error, trained_kernel
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import contracted
from widthwise.inference.trained.trained_moments import (
    Basis,
    kernel_change,
    moments_at_tests,
    moments_at_training,
    trained_output,
)
from widthwise.network.algorithms import NewtonStep

CASES = load_cases("trained")
X_TRAIN = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.7, 0.5, 0.6]])
X_TEST = np.array([[0.6, -0.2, 0.4], [0.1, 0.8, -0.3]])
Y = np.array([[2.0, -0.7], [1.3, 0.4], [-0.5, 0.9]])
NET = ww.MLP([3, 48, 64, 2], "tanh", C_b=0.1, C_W=[1.5, 1.7, 1.4], lambda_b=0.2, lambda_W=[1.0, 0.8, 1.2])


def algorithm_of(case, kind):
    return ww.GradientFlow() if kind == "flow" else ww.GradientDescent(case[kind]["learning_rate"])


class TestReference:
    @pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
    @pytest.mark.parametrize("kind", ["flow", "descent"])
    def test_cases(self, case, kind):
        X, y = np.array(case["X"]), np.array(case["y"]).T
        p = ww.predict(network(case), X[case["train"]], y, X[case["test"]], algorithm_of(case, kind), order=1)
        assert np.allclose(p["mean0"].values[:, 0], case["flow"]["mean0"], rtol=1e-10)
        assert np.allclose(p["cov0"].values[:, 0, :, 0], case["flow"]["cov0"] * np.eye(y.shape[1]), atol=1e-10)
        assert np.allclose(p["mean1"].values[:, 0], case[kind]["mean1"], rtol=1e-7, atol=1e-8)
        assert np.allclose(p["cov1"].values[:, 0, :, 0], case[kind]["cov1"], rtol=1e-7, atol=1e-8)
        assert np.allclose(p["mean"], p["mean0"] + p["mean1"] / p.attrs["n"])
        assert np.allclose(p["cov"], p["cov0"] + p["cov1"] / p.attrs["n"])

    @pytest.mark.parametrize("left_out", ["B", "H1", "A", "D", "F", "P", "Q", "R", "S", "T", "U", "G1"])
    def test_every_tensor_is_seen(self, left_out):
        """Leaving one out moves mean1 or cov1 of the deepest case by far more than its tolerance."""
        case, tensors, Theta = CASES[3], *tensors_of(CASES[3])
        spectrum = Spectrum.of(Theta[:2, :2])
        y = np.array(case["y"]).T
        clock = Clock.of(algorithm_of(case, "flow"))
        changed = tensors | {left_out: np.zeros_like(tensors[left_out])}
        _, right = moments_at_tests(Basis.of(spectrum, Theta, tensors, y), clock)
        _, wrong = moments_at_tests(Basis.of(spectrum, Theta, changed, y), clock)
        assert np.allclose(right.mean[:, 0], case["flow"]["mean1"], rtol=1e-7)
        assert max(np.abs(right.mean - wrong.mean).max(), np.abs(right.covariance - wrong.covariance).max()) > 1e-3


def evaluate_polynomial(polynomial, result, values):
    """A polynomial at given values: z[I, a], H[I, J, a, b], dH[I, J, K, a, b, c], and so on.

    >>> from widthwise.inference.trained.cumulants import monomial
    >>> square = monomial(np.ones(2), "a", ("z", "I", "a"), ("z", "I", "a"))
    >>> evaluate_polynomial([square], "Ia", {"z": np.array([[1.0, 3.0]])}).tolist()
    [[1.0, 9.0]]
    """
    total = 0.0
    for term in polynomial:
        named = [(values[factor.kind], factor.outputs + factor.inputs) for factor in term.factors]
        # an index that a coefficient runs over only in part
        parts = [(array[tuple(slice(term.sizes.get(letter)) for letter in at)], at) for array, at in named]
        total = total + contracted([*term.coefficients, *parts], result)
    return total


def tensors_of(case):
    flow = finite_flow(network(case), np.array(case["X"]), TRAINING_TENSORS, last_only=True)
    return at_output(flow), flow.Theta[-1]


# Direct iteration. ΔH counts as one power of a small parameter, dH and the two ddH as two: the expansion of theory §8.

RNG = np.random.default_rng(11)
TRAIN, ALL, OUTPUTS = 3, 5, 2
RATES = np.array([0.6, 1.0, 1.7])


def some_tensors():
    rotation, _ = np.linalg.qr(RNG.normal(size=(TRAIN, TRAIN)))
    Theta = RNG.normal(size=(ALL, ALL))
    Theta = (Theta + Theta.T) / 2
    Theta[:TRAIN, :TRAIN] = rotation @ np.diag(RATES) @ rotation.T
    shapes = {"H": 2, "dH": 3, "ddI": 4, "ddII": 4}
    found = {name: 0.3 * RNG.normal(size=(OUTPUTS,) * legs + (ALL,) * legs) for name, legs in shapes.items()}
    found["H"] = (found["H"] + found["H"].transpose(1, 0, 3, 2)) / 2
    # symmetries that the differentials have: dH in its last two slots, ddI in its last three, ddII under its exchange
    found["dH"] = (found["dH"] + found["dH"].transpose(0, 2, 1, 3, 5, 4)) / 2
    orders = ((1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1))
    found["ddI"] = sum(found["ddI"].transpose(0, *o, 4, *(4 + k for k in o)) for o in orders) / 6
    found["ddII"] = (found["ddII"] + found["ddII"].transpose(1, 0, 3, 2, 5, 4, 7, 6)) / 2
    return Theta, found, RNG.normal(size=(OUTPUTS, ALL)), RNG.normal(size=(OUTPUTS, TRAIN))


THETA, TENSORS, Z, TARGET = some_tensors()


def by_iteration(rate, steps, what=0, **left_out):
    """Coefficients in powers 0, 1, 2 of the small parameter of the trained outputs, or kernels with what=1."""

    def run(s):
        def scaled(name, power):
            tensor = left_out.get(name, TENSORS[name])
            return s.reshape(-1, *(1 for _ in tensor.shape)) ** power * tensor

        H = np.einsum("ij,ab->ijab", np.eye(OUTPUTS), THETA) + scaled("H", 1)
        start = np.broadcast_to(Z, (len(s), *Z.shape)).astype(complex)
        return iterate(start, H, scaled("dH", 2), scaled("ddI", 2), scaled("ddII", 2), TARGET, rate, steps)[what]

    return coefficients(run, 2)


def eigenbasis():
    """Rates, the change of basis on all inputs, and every tensor in it."""
    rates, U = np.linalg.eigh(THETA[:TRAIN, :TRAIN])
    turn = np.eye(ALL)
    turn[:TRAIN, :TRAIN] = U
    values = {"z": Z - np.pad(TARGET, ((0, 0), (0, ALL - TRAIN)))} | TENSORS
    for name, tensor in values.items():
        for axis in range(tensor.ndim // 2, tensor.ndim):
            tensor = np.moveaxis(np.tensordot(tensor, turn, (axis, 0)), -1, axis)
        values[name] = tensor
    return rates, turn, values


def by_formula(clock):
    """The same from the closed forms: at the training inputs, and at the test inputs."""
    rates, turn, values = eigenbasis()
    U = turn[:TRAIN, :TRAIN]
    orders = (slice(0, 1), slice(1, 2), slice(2, None))
    readout = np.hstack([-THETA[TRAIN:, :TRAIN] @ U, np.eye(ALL - TRAIN)])
    at_tests, at_training = (
        [evaluate_polynomial(terms[part], "Ia", values) for part in orders]
        for terms in (
            trained_output(clock, rates, ALL - TRAIN),
            trained_output(clock, rates, 0, at_training=True),
        )
    )
    shift = [TARGET, 0.0, 0.0]
    ends = [part @ U.T + offset for part, offset in zip(at_training, shift, strict=True)]
    return [np.hstack([end, test @ readout.T]) for end, test in zip(ends, at_tests, strict=True)]


class TestDifferenceEquations:
    @pytest.mark.parametrize("share", [0.05, 0.4, 0.5, 0.9])
    @pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 40])
    def test_descent_for_a_number_of_steps(self, share, steps):
        rate = share * 2 / RATES[-1]
        measured, closed = by_iteration(rate, steps), by_formula(Clock(rate, steps))
        for one, other in zip(measured, closed, strict=True):
            assert np.allclose(one, other, rtol=1e-9, atol=1e-9)

    def test_rates_that_change(self):
        schedule = np.array([0.1, 0.9, 0.5, 0.3, 0.7, 0.2, 0.8]) * 2 / RATES[-1]
        measured = by_iteration(schedule, len(schedule))
        closed = by_formula(Clock(schedule[0], len(schedule), schedule=tuple(schedule)))
        backwards = by_formula(Clock(schedule[-1], len(schedule), schedule=tuple(schedule[::-1])))
        for one, other in zip(measured, closed, strict=True):
            assert np.allclose(one, other, rtol=1e-10, atol=1e-10)
        # at infinite width their order does not matter, at order 1/n it does
        assert np.allclose(measured[0], backwards[0], atol=1e-10)
        assert np.abs(measured[2] - backwards[2]).max() > 1e-3

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
    def test_descent_to_convergence(self, share):
        rate = share * 2 / RATES[-1]
        measured, closed = by_iteration(rate, 260), by_formula(Clock(rate, None))
        for one, other in zip(measured, closed, strict=True):
            assert np.allclose(one, other, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("time", [0.7, 2.5])
    def test_flow_is_the_limit_of_small_steps(self, time):
        closed = by_formula(Clock(0.0, time))[2]
        steps = 20 * 2 ** np.arange(6)
        rows = [by_iteration(time / count, int(count))[2] for count in steps]
        errors = np.array([np.abs(row - closed).max() for row in rows])
        order = np.polyfit(np.log(steps), np.log(errors), 1)[0]
        assert order == pytest.approx(-1.0, abs=0.05)
        for power in range(1, len(rows)):  # Richardson: the error is a series in the step
            rows = [(2**power * fine - coarse) / (2**power - 1) for coarse, fine in pairwise(rows)]
        assert np.allclose(rows[-1], closed, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(("share", "steps"), [(0.2, 1), (0.5, 2), (0.9, 7), (0.9, None)])
    def test_the_kernel_after_training(self, share, steps):
        rate = share * 2 / RATES[-1]
        rates, turn, values = eigenbasis()
        closed = evaluate_polynomial(kernel_change(Clock(rate, steps), rates, ALL), "IJab", values)
        measured = by_iteration(rate, 260 if steps is None else steps, what=1)
        assert np.allclose(np.einsum("xa,yb,ijab->ijxy", turn, turn, closed), measured[2], rtol=1e-9, atol=1e-9)

    def test_a_single_step_that_fits(self):
        """θ' = θ − λ Jᵀ a: z_A − H a + ½ dH a a − ⅙ ddI a a a = y solved for a by iteration."""

        def run(s):
            def scaled(name, power):
                return s.reshape(-1, *(1 for _ in TENSORS[name].shape)) ** power * TENSORS[name][..., :TRAIN]

            H = np.einsum("ij,ab->ijab", np.eye(OUTPUTS), THETA)[..., :TRAIN] + scaled("H", 1)
            dH, ddI = scaled("dH", 2)[..., :TRAIN, :], scaled("ddI", 2)[..., :TRAIN, :TRAIN, :]
            square = H[..., :TRAIN, :].transpose(0, 1, 3, 2, 4).reshape(len(s), OUTPUTS * TRAIN, -1)
            a, shift = 0.0, np.zeros((len(s), OUTPUTS, ALL), complex)
            for _ in range(12):
                wanted = (Z - np.pad(TARGET, ((0, 0), (0, ALL - TRAIN))) + shift)[..., :TRAIN]
                a = np.linalg.solve(square, wanted.reshape(len(s), -1, 1)).reshape(len(s), OUTPUTS, TRAIN)
                shift = 0.5 * np.einsum("sijkabc,sjb,skc->sia", dH, a, a, optimize=True)
                shift = shift - np.einsum("sijkmabcd,sjb,skc,smd->sia", ddI, a, a, a, optimize=True) / 6
            return Z - np.einsum("sijab,sjb->sia", H, a) + shift

        for one, other in zip(coefficients(run, 2), by_formula(Clock.of(NewtonStep())), strict=True):
            assert np.allclose(one, other, rtol=1e-9, atol=1e-9)

    def test_long_flow_is_flow_to_convergence(self):
        for one, other in zip(by_formula(Clock(0.0, 80.0)), by_formula(Clock(0.0, None)), strict=True):
            assert np.allclose(one, other, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("name", ["H", "dH", "ddI", "ddII"])
    def test_leaving_one_tensor_out_of_the_iteration_is_noticed(self, name):
        rate = 0.5 * 2 / RATES[-1]
        measured = by_iteration(rate, 7, **{name: np.zeros_like(TENSORS[name])})
        closed = by_formula(Clock(rate, 7))
        assert np.abs(measured[2] - closed[2]).max() > 1e-3


class TestWeights:
    @pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.05])
    def test_the_symmetrised_weight_of_dH_knows_no_step_size(self, rate):
        """½(w_pq + w_qp) = 1/(2 λ_p λ_q) for dH_xpq, symmetric in p, q (theory §8)."""
        rates = np.array([0.3, 1.1, 1.8])
        term = trained_output(Clock(rate, None), rates, 1)[3]
        weight = term.coefficients[-1].values  # the end of the chain stands apart
        assert np.allclose((weight + weight.T) / 2, 1 / (2 * np.outer(rates, rates)), rtol=1e-12)

    def test_chains_are_divided_differences(self):
        rates, time = np.array([0.4, 1.3, 2.9]), 1.7
        nodes = np.array([0.0, *rates])

        def divided(values):
            for k in range(1, len(nodes)):
                values = [(b - a) / (nodes[j + k] - nodes[j]) for j, (a, b) in enumerate(pairwise(values))]
            return values[0]

        assert Clock(0.0, time).chain(*rates) == pytest.approx(-divided(np.exp(-nodes * time)), rel=1e-12)
        assert Clock(0.3, 6).chain(*rates) == pytest.approx(-divided((1 - 0.3 * nodes) ** 6), rel=1e-12)

    def test_coinciding_and_vanishing_rates_are_no_trouble(self):
        time = 2.0
        assert Clock(0.0, time).chain(0.0, 0.0, 0.0) == pytest.approx(time**3 / 6, rel=1e-13)
        assert Clock(0.0, time).chain(1.0, 1.0) == pytest.approx(1 - 3 * np.exp(-2.0), rel=1e-13)
        assert Clock(0.5, 4).chain(0.0, 0.0) == pytest.approx(0.25 * 6, rel=1e-13)
        near = Clock(0.0, time).chain(1.0, 1.0 + 1e-9)
        assert near == pytest.approx(float(Clock(0.0, time).chain(1.0, 1.0)), rel=1e-8)

    def test_stiff_and_slow_modes_keep_their_digits(self):
        slow, fast = 1e-6, 1e4
        exact = (1 - np.exp(-slow * 10.0)) / slow
        assert Clock(0.0, 10.0).chain(slow) == pytest.approx(exact, rel=1e-9)
        assert Clock(0.0, 10.0).chain(fast) == pytest.approx(1 / fast, rel=1e-12)


@pytest.fixture(scope="module")
def basis():
    flow = finite_flow(NET, np.vstack([X_TRAIN, X_TEST]), TRAINING_TENSORS, last_only=True)
    return Basis.of(Spectrum.of(flow.Theta[-1][:3, :3]), flow.Theta[-1], at_output(flow), Y)


class TestMoments:
    @pytest.mark.parametrize(
        "algorithm",
        [ww.GradientFlow(), ww.GradientFlow(0.8), ww.GradientDescent(0.2), ww.GradientDescent(0.2, 5)],
        ids=repr,
    )
    def test_infinite_width_is_that_of_order_zero(self, basis, algorithm):
        p = ww.predict(NET, X_TRAIN, Y, X_TEST, algorithm)
        clock = Clock.of(algorithm)
        (tests, _), (training, _) = moments_at_tests(basis, clock), moments_at_training(basis, clock)
        assert np.allclose(tests.mean, p["mean0"], atol=1e-12)
        assert np.allclose(tests.covariance, p["cov0"], atol=1e-12)
        assert np.allclose(training.mean, p["train_mean0"], atol=1e-9)
        assert np.allclose(training.covariance, p["train_cov0"], atol=1e-9)

    def test_a_training_input_as_test_input_agrees_with_the_training_moments(self):
        algorithm = ww.GradientDescent(0.2, 5)
        p = ww.predict(NET, X_TRAIN[:2], Y[:2], X_TRAIN[:2], algorithm, order=1)
        assert np.allclose(p["mean1"].values, p["train_mean1"].values, atol=1e-8)
        assert np.allclose(p["cov1"].values, p["train_cov1"].values, atol=1e-8)
        assert np.abs(p["train_mean1"]).max() > 1e-2

    def test_where_training_ends_depends_on_the_algorithm_at_order_one_only(self, basis):
        ends = [
            moments_at_tests(basis, Clock.of(algorithm))
            for algorithm in (ww.GradientFlow(), ww.GradientDescent(0.01), ww.GradientDescent(0.3), NewtonStep())
        ]
        flow, slow, fast, newton = (order1.mean for _, order1 in ends)
        assert all(np.allclose(order0.mean, ends[0][0].mean) for order0, _ in ends)
        assert np.abs(flow - slow).max() < 0.1 * np.abs(flow - fast).max()
        assert np.abs(flow - fast).max() > 1e-2
        assert np.abs(flow - newton).max() > 1e-2

    def test_at_the_start_the_moments_are_those_of_the_prior(self, basis):
        for clock in (Clock(0.0, 0.0), Clock(0.2, 0)):
            _, first = moments_at_tests(basis, clock)
            assert np.all(first.mean == 0.0)
            G1 = basis.tensors["G1"][3:, 3:]
            assert np.allclose(first.covariance, np.einsum("ij,xy->ixjy", np.eye(2), G1))

    def test_trained_to_convergence_the_training_inputs_are_fitted(self):
        p = ww.predict(NET, X_TRAIN[:2], Y[:2], X_TRAIN[:2], order=1)
        assert np.abs(p["mean1"]).max() < 1e-6
        assert np.abs(p["cov1"]).max() < 1e-6

    def test_permuting_outputs_and_flipping_signs(self, basis):
        """mean1 is odd in the targets, cov1 even; permuted outputs give permuted moments."""
        clock = Clock(0.2, None)
        _, one = moments_at_tests(basis, clock)
        other = Basis(basis.rates, basis.vectors, basis.Theta, basis.tensors, -basis.target[::-1])
        _, two = moments_at_tests(other, clock)
        assert np.allclose(one.mean, -two.mean[::-1])
        assert np.allclose(one.covariance, two.covariance[::-1, :, ::-1])
        assert np.allclose(one.covariance, one.covariance.transpose(2, 3, 0, 1))
        # negative control: the corrections do not vanish, and outputs are correlated
        assert np.abs(one.mean).min() > 1e-4
        assert np.abs(one.covariance[0, :, 1]).max() > 1e-3

    def test_one_more_output_with_target_zero_is_not_the_same_network(self, basis):
        """n_L enters B and F: outputs share the hidden layers."""
        flow_one = ww.predict(NET.replace(widths=[3, 48, 64, 1]), X_TRAIN, Y[:, 0], X_TEST, order=1)
        _, two = moments_at_tests(
            Basis(basis.rates, basis.vectors, basis.Theta, basis.tensors, basis.target * [[1.0], [0.0]]),
            Clock(0.0, None),
        )
        assert np.abs(flow_one["mean1"].values[0] - two.mean[0]).max() > 1e-3
        assert np.abs(two.mean[1]).max() < 1e-10

    def test_no_hidden_layer_no_correction(self):
        p = ww.predict(ww.MLP([3, 1], "tanh", C_b=0.1), X_TRAIN[:2], [1.0, -1.0], X_TEST, order=1)
        assert np.all(p["mean1"] == 0)
        assert np.all(p["cov1"] == 0)


class TestObservables:
    def test_the_expected_error_is_bias_and_variance(self):
        y_test = np.array([[0.3, -0.2], [0.1, 0.4]])
        e = expected_error(NET, X_TRAIN, Y, X_TEST, y_test, order=1)
        p = ww.predict(NET, X_TRAIN, Y, X_TEST, order=1)
        variance = np.einsum("ixix->ix", p["cov"].values)
        exact = (p["mean"].values - y_test.T) ** 2 + variance
        # they differ by the square of the correction to the mean, which is of order 1/n²
        assert np.allclose(e["error"] + (p["mean1"] / 64) ** 2, exact, rtol=1e-12)
        assert np.allclose(e["error"], e["bias"] + e["variance"])
        assert "error1" not in expected_error(NET, X_TRAIN, Y, X_TEST, y_test)
        with pytest.raises(ValueError, match=r"y_test: got shape \(2,\); expected shape \(2, 2\)"):
            expected_error(NET, X_TRAIN, Y, X_TEST, [1.0, 2.0])

    @pytest.mark.parametrize("y", [0.0, 0.5, 2.0])
    def test_the_kernel_of_a_linear_network_moves_by_its_conservation_law(self, y):
        """Two linear layers, one datum: gradient flow conserves H² − 4z²/n, so E[H* − Ĥ] = (y² − 1)/n."""
        net = ww.MLP([1, 64, 1], "linear", lambda_b=0.0)
        k = trained_kernel(net, [[1.0]], [y], [[1.0]])
        assert float(k["change1"].squeeze()) == pytest.approx(y**2 - 1, abs=1e-9)

    def test_the_kernel_moves_more_in_deeper_networks(self):
        moved = []
        for depth in (2, 3, 4):
            net = ww.MLP([3, *[64] * (depth - 1), 2], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2)
            k = trained_kernel(net, X_TRAIN, Y, X_TEST)
            moved.append(float(np.linalg.norm(k["change1"]) / np.linalg.norm(k["kernel0"])))
        assert moved[0] < moved[1] < moved[2]
        start = trained_kernel(net, X_TRAIN, Y, X_TEST, ww.GradientFlow(0.0))
        assert np.all(start["change1"] == 0.0)


class TestDataset:
    def test_dimensions_names_and_attributes(self):
        p = ww.predict(NET, X_TRAIN, Y, X_TEST, ww.GradientDescent(0.2, 3), order=1)
        assert p["mean1"].dims == ("output", "test")
        assert p["cov1"].dims == ("output", "test", "output_", "test_")
        assert p["train_mean1"].dims == ("output", "train")
        assert p.attrs["n"] == 64
        assert p.attrs["order"] == 1
        assert all("long_name" in variable.attrs for variable in p.variables.values())
        plain = ww.predict(NET, X_TRAIN, Y, X_TEST, ww.GradientDescent(0.2, 3))
        assert "mean1" not in plain
        for name in plain:
            if name not in ("mean", "cov"):
                assert np.array_equal(plain[name], p[name])


class TestBadInput:
    def test_a_kinked_activation_names_what_does_not_exist(self):
        net = ww.MLP([3, 64, 1], "relu", C_W=2.0)
        with pytest.raises(
            ww.errors.NotDifferentiable, match=r"net: got relu with order=1: .*gelu or swish for relu"
        ) as told:
            ww.predict(net, X_TRAIN, Y[:, 0], X_TEST, order=1)
        assert "`posterior(order=1)` needs no derivatives, and `train` measures" in str(told.value)

    def test_order_targets_and_steps(self):
        for order in (2, True, "1", -1):
            with pytest.raises(ValueError, match="order: got .*expected 0 or 1"):
                ww.predict(NET, X_TRAIN, Y, X_TEST, order=order)
        with pytest.raises(ValueError, match=r"y_train: got shape \(3, 3\); expected shape \(3, 2\)"):
            ww.predict(NET, X_TRAIN, np.ones((3, 3)), X_TEST, order=1)
        with pytest.raises(ValueError, match=r"less than 2/λ_max"):
            ww.predict(NET, X_TRAIN, Y, X_TEST, ww.GradientDescent(50.0), order=1)
        with pytest.raises(ww.errors.SingularKernel, match="rows 0 and 3 that coincide"):
            ww.predict(NET, np.vstack([X_TRAIN, X_TRAIN[0]]), np.vstack([Y, Y[0]]), X_TEST, order=1)

    @pytest.mark.parametrize("time", [1e300, 1e308])
    def test_times_up_to_the_largest_number_end_where_training_converges(self, time):
        """At 1e308 powers of two overflowed."""
        short, long = (
            ww.predict(NET, X_TRAIN, Y, X_TEST, order=1),
            ww.predict(NET, X_TRAIN, Y, X_TEST, ww.GradientFlow(time), order=1),
        )
        for name in ("mean1", "cov1"):
            np.testing.assert_allclose(long[name], short[name], rtol=1e-6, atol=1e-9)

    def test_repeated_inputs_train_for_a_finite_time(self):
        """A datum given twice counts twice: a finite time with it is a finite time with twice its pull."""
        X, y = np.vstack([X_TRAIN[:2], X_TRAIN[:1]]), np.vstack([Y[:2], Y[:1]])
        p = ww.predict(NET, X, y, X_TEST, ww.GradientFlow(1.0), order=1)
        assert np.allclose(p["train_mean1"][:, 0], p["train_mean1"][:, 2], atol=1e-9)
        assert np.all(np.isfinite(p["cov1"]))

    def test_a_narrow_network_is_warned_about_with_the_size_of_the_correction(self):
        narrow = NET.replace(widths=[3, 2, 2, 2])
        with pytest.warns(ww.errors.ExpansionWarning, match=r"at n = 2 the correction to the .* of the leading term"):
            ww.predict(narrow, X_TRAIN[:2], Y[:2], X_TEST, order=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ww.predict(NET, X_TRAIN, Y, X_TEST, order=1)

    def test_what_does_not_fit_is_refused_before_it_is_computed(self):
        many = np.random.default_rng(0).normal(size=(3000, 3))
        with pytest.raises(
            ww.errors.TooLarge, match=r"order=1 on 3003 training and test inputs.*Take up to \d+ inputs"
        ):
            ww.predict(NET, X_TRAIN, Y, many, order=1)
