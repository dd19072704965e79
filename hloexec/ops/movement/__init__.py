"""Operations that move elements and compute nothing: views by strides, concatenation, padding, bitcasts."""
