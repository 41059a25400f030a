"""Real networks: sampled, differentiated, and reduced to means with standard errors."""
