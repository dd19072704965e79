"""The `exact` numerics policy: results that are the same bits on every machine, nearly as good as rounding allows.

Everything here uses only what IEEE 754 rounds correctly everywhere (+ − × ÷ √, and exact operations on bits), in an
order that shapes alone decide. `doubled` has sums and products of pairs of f64, `exponentials` the constants, and the
other modules the elementary functions, contractions and reductions made of them.
"""
