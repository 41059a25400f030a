"""Bayesian inference, and training by the linear dynamics of infinite width."""
