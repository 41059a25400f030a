"""Real networks, trained: gradient flow, descent and its relatives, reduced to moments with standard errors."""
