"""Shadows of loops on small arrays: many iterations are run, and then accounted for together."""
