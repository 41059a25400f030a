"""Kinds of layers: small immutable objects, one file a kind. A network is a list of them."""
