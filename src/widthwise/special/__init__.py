"""Networks that can be solved exactly at finite size: ReLU paths, linear regions, deep linear networks."""
