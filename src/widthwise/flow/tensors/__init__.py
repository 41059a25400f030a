"""Order 1/n: every tensor of theory §3, by the recursions of §4 and §5."""
