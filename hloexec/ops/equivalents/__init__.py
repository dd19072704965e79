"""Modules that XLA compiles from StableHLO, computing what optimized ones do: operations in the place of fusions,
asynchronous pairs, bitcasts and library calls."""
