"""The nearly Gaussian action and the density it means (theory §6)."""
