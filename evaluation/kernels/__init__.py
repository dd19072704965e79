"""Kernels in programs that XLA has compiled for TPUs."""
