"""hloexec: XLA HLO, run on NumPy."""
