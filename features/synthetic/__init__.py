"""Digits rendered from a seed, any number of them."""
