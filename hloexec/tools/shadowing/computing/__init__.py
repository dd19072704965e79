"""Computing shadows: widened kernels, elementwise chains, moves, whole arrays, f64, collectives."""
