"""Hyperparameters that transfer from a small model to a large one: rules, parameter groups, and the check of both."""
