"""Fewer devices: the axes of their grid are dimensions, which shrink like others.

`grid` has axes and what counts along them, `numbers` what devices compute from their numbers, `axes` finds the grid of
a module, `constants` those that encode it, `dimensions` what depends on it, `permutes` and `rewriting` make the module,
and `arrangements` does it all.
"""
