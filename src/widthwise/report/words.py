"""Sentences, captions and equations of the page, in one place."""

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

TEXT = {
    "network": "Biases have variance C<sub>b</sub> and weights C<sub>W</sub>/fan-in; training moves them at "
    "the rates λ<sub>b</sub> and λ<sub>W</sub>/fan-in. All numbers are pure: the theory has no units.",
    "criticality": "With depth the kernel K of a single input is mapped by the layers, and nearby inputs "
    "separate by a factor χ per layer:",
    "susceptibilities": "⟨·⟩ is the mean over a Gaussian z of variance K. χ<sub>⊥</sub> is the factor a layer puts on "
    "squared gradients, χ<sub>∥</sub> the one on changes of size; an initialisation with both equal to one at the "
    "fixed point is critical.",
    "kernels": "K<sub>ab</sub> is the covariance of a neuron's value on inputs a and b over random networks, "
    "Θ<sub>ab</sub> the neural tangent kernel: how much a step on b moves the output on a. Both at infinite width.",
    "finite width": "At width n the outputs of random networks are not Gaussian and the neural tangent kernel Ĥ "
    "fluctuates, by amounts of order 1/n:",
    "training": "if it is trained to convergence; A are the training inputs, x a test input. To order 1/n mean and "
    "covariance get corrections from every tensor above.",
    "measurement": "A pull is (measured − predicted)/standard error. χ² sums their squares over the entries that are "
    "not equal by symmetry; they are correlated and count as fewer independent ones in the column so named. "
    "“agrees after the next order in 1/n” means: off at the largest width that was measured, by a difference that "
    "falls with the width and vanishes at infinite width. “at” are the inputs of the entry with the worst pull, whose "
    "values follow; the probability is that of a larger χ².",
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
    "What a network shows is the ratio over the width of the layer below.",
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
    "measured minus predicted": "Every distinct entry at the output, bars of one standard error.",
}
