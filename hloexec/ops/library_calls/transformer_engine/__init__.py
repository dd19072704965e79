"""Transformer Engine: attention, products, normalizations, activations, quantization.

Its calls say what to compute in typed attributes whose names, and the operands that go with them, change between
versions; an attribute that hloexec does not know refuses the call, since it may change values. Source: NVIDIA
TransformerEngine, transformer_engine/jax.
"""
