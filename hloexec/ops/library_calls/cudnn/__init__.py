"""cuDNN: attention, convolutions, layer normalization, block-scaled products."""
