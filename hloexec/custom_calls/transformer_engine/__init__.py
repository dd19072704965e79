"""Transformer Engine: attention, products, normalizations, activations, quantization."""
