"""Trained outputs as polynomials in what is random at initialisation, averaged to order 1/n (theory §8)."""
