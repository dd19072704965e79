"""Convolution, in the forms that shapes and strides allow."""
