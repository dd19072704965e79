"""Convolution, with several algorithms that are chosen by shapes and strides."""
