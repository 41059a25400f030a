"""The averages of theory §8 summed over tiles of quadruples, without tensors on all of them."""
