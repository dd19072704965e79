"""What MLIR operations compute, in families: `registry` imports them, and `bridging` is the way to HLO's kernels."""
