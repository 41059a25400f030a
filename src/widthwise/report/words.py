"""Sentences, captions and equations of the page, in one place."""

from widthwise.criticality.depth_width import REGIMES

#: Equations of a section in TeX, several in a line, each with what is read out.
EQUATIONS = {
    "criticality": {
        r"K \to C_b + C_W \langle\sigma^2\rangle": "K goes to C_b plus C_W times the mean of sigma squared",
        r"\chi_\perp = C_W \langle\sigma'^2\rangle": "chi perp is C_W times the mean of sigma prime squared",
        r"\chi_\parallel = \frac{C_W}{K}\langle z\,\sigma\,\sigma'\rangle": "chi parallel is C_W over K times the mean "
        "of z sigma sigma prime",
    },
    "kernels": {
        r"K' = C_b + C_W\langle\sigma_a\sigma_b\rangle": "next K is C_b plus C_W times the mean of sigma a sigma b",
        r"\Theta' = \lambda_b + \lambda_W\langle\sigma_a\sigma_b\rangle + "
        r"C_W\,\Theta\,\langle\sigma'_a\sigma'_b\rangle": (
            "next Theta is lambda b plus lambda W times the mean of sigma a sigma b, plus C_W Theta times the mean of "
            "sigma prime a sigma prime b"
        ),
    },
    "finite width": {
        r"E[z\,z] = K + \frac{G_1}{n}": "the mean of z z is K plus G1 over n",
        r"E[\hat H] = \Theta + \frac{H_1}{n}": "the mean of the tangent kernel is Theta plus H1 over n",
        r"\mathrm{cov}(z_i^2, z_j^2) = \frac{V}{n}\quad (i \neq j)": "the squares of two outputs have covariance "
        "V over n",
        r"\mathrm{cov}(\hat H_{ii}, \hat H_{jj}) = \frac{A}{n}\quad (i \neq j)": "the tangent kernels of two outputs "
        "have covariance A over n",
    },
    "training": {
        r"\bar z = \Theta_{xA}\Theta_{AA}^{-1}\,y": "the mean is Theta x A times the inverse of Theta A A times y",
        r"\mathrm{cov} = M K M^{T}": "the covariance is M K M transposed",
        r"M = 1 - \Theta_{xA}\Theta_{AA}^{-1}": "M is one minus Theta x A times the inverse of Theta A A",
    },
}

#: What a verdict of `advise` means, without symbols.
VERDICT_MEANS = {
    "critical": "Signals and gradients pass through this network undamaged: its initialisation needs no change.",
    "not critical, but harmless at this depth": "Signals and gradients get through this network because it is not very "
    "deep; a deeper one would need another initialisation.",
    "signals or gradients vanish": "Signals or gradients die out on the way through this network, so it will train "
    "slowly or not at all. The section on criticality has an initialisation and learning rates to use instead.",
    "cannot be trained by gradients": "Gradient descent cannot train this network, because its activation has jumps.",
    "signals or gradients explode": "Signals or gradients grow out of bounds on the way through this network, so "
    "training will be unstable. The section on criticality has an initialisation and learning rates to use instead.",
}
#: What a regime of `depth_width` means, without symbols; by how much the output kernels of single networks differ.
REGIME_MEANS = dict(zip(REGIMES.values(), (
    "Networks that differ only in their random start behave almost alike: their output kernels vary by {}.",
    "Networks that differ only in their random start behave noticeably differently: their output kernels vary by {}.",
    "Networks that differ only in their random start behave very differently: their output kernels vary by {}. "
    "Averages over several networks, or a wider network, are more reliable than a single one.",
    "Networks that differ only in their random start have little in common: their output kernels vary by {}. Make the "
    "network wider or shallower.",
), strict=True))  # fmt: skip

TEXT = {
    "network": "Biases have variance C<sub>b</sub> and weights C<sub>W</sub>/fan-in; their learning rates are "
    "λ<sub>b</sub> and λ<sub>W</sub>/fan-in. All numbers are dimensionless.",
    "criticality": "Every layer maps the kernel K of an input to a new one, and nearby inputs "
    "separate by a factor χ per layer:",
    "susceptibilities": "⟨·⟩ is the mean over a Gaussian z of variance K. Every layer multiplies squared gradients by "
    "χ<sub>⊥</sub> and small changes of K by χ<sub>∥</sub>; an initialisation with both equal to one at the "
    "fixed point is critical.",
    "kernels": "K<sub>ab</sub> is the covariance of a neuron's value on inputs a and b over random networks, "
    "Θ<sub>ab</sub> the neural tangent kernel: how much a gradient step on b changes the output on a. Both are at "
    "infinite width.",
    "finite width": "At width n the outputs of random networks are not Gaussian and the neural tangent kernel Ĥ "
    "fluctuates, by amounts of order 1/n:",
    "training": "if it is trained to convergence; A are the training inputs, x is a test input. To order 1/n every "
    "tensor above corrects the mean and the covariance.",
    "measurement": "A pull is (measured − predicted)/standard error. χ² is the sum of their squares over the entries "
    "that are not equal by symmetry. These are correlated; the column “independent” says how many independent entries "
    "they are worth. “Agrees after the next order in 1/n” means that theory and measurement differ at the largest "
    "width, by a difference that falls with the width and vanishes at infinite width. “At” are the inputs of the entry "
    "with the worst pull, whose values follow; the probability is that of a larger χ².",
}

#: Captions of figures by what is read out.
CAPTIONS = {
    "phase diagram": "Phases of the activation over the variances of weights and biases. Grey lines: χ<sub>⊥</sub> at "
    "the kernel that an input with x·x/n<sub>0</sub> = 1 reaches.",
    "learning rates by layer": "First panel: learning rates, at the critical initialisation, with which every layer "
    "contributes equally to the neural tangent kernel Θ. Second panel: the contributions.",
    "kernels against the layer": "Lines: theory at infinite width. Points: sampled networks at the output, "
    "extrapolated to infinite width, with one standard error.",
    "spectrum of the kernels": "Eigenvalues of Θ set the speed at which directions in the space of targets are "
    "learnt; the largest stable step of gradient descent is 2 over the largest.",
    "dimensionless ratios against depth": "Input 0: kernels, and every tensor over its natural scale, layer by layer. "
    "In a network of width n the effect is the ratio divided by the width of the layer below.",
    "density of the output": "One output at input 0: points are sampled networks, lines the Gaussian of infinite "
    "width, the density to order 1/n and the exact one.",
    "running couplings": "First panel: the quadratic coupling of m neurons of a layer; it runs with m because the "
    "neurons share one random kernel. Second panel: the relative variance of that kernel.",
    "trained functions": "The first output along the line from each training input to the next, and a little beyond, "
    "after the same number of steps of gradient descent: mean and one standard deviation over initialisations, at "
    "infinite width and to order 1/n, and single networks that were trained.",
    "trained outputs": "First panel: bars are one standard deviation over initialisations, of the ensemble and not of "
    "its mean. Second panel: that standard deviation; bars are standard errors.",
    "learning curves": "Gradient descent: outputs at the test inputs, predicted to order 1/n, and those of real "
    "networks.",
    "measured minus predicted": "Every distinct entry at the output, with bars of one standard error.",
}
