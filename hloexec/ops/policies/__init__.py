"""Numerics policies, and the arithmetic of each."""
