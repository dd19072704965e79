"""Operations that move elements and compute nothing: views with strides, concatenation, padding, bitcasts."""
