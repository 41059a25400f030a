"""Kernels, derivatives and trained predictions of one given model, from what it computes."""
