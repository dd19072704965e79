"""Sums of products: dot, scaled-dot, ragged-dot, and the matrix products that implement them."""
