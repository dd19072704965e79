"""JAX programs at two sizes: what `shrink` makes of the large one computes what the small one does."""
