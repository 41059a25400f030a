"""Infinite width: K and Θ of pairs of inputs (theory §2)."""
