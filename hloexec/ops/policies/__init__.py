"""Numerics policies, and the arithmetic that each brings along."""
