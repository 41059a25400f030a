"""What follows from the moments of trained networks: expected error, the tangent kernel after training."""
