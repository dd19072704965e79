"""Linear algebra: LAPACK, cuSOLVER, cuSPARSE, XLA's own decompositions."""
