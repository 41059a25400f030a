"""Layer-to-layer recursions: kernels of pairs, tensors of order 1/n, one input, action and density, exact laws."""
