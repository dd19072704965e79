"""Sums of products: dot, scaled-dot, ragged-dot, and the matrix products that they come down to."""
