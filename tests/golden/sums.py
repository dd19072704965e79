"""A module of long products and sums of functions, in any floating type; apart from JAX, which takes long to import."""

SUMS = """HloModule sums_T

add {
  a = T[] parameter(0)
  b = T[] parameter(1)
  ROOT sum = T[] add(a, b)
}

ENTRY main {
  x = T[64,700] parameter(0)
  y = T[700,48] parameter(1)
  product = T[64,48] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  curve = T[64,48] tanh(product)
  growth = T[64,48] exponential(curve)
  wave = T[64,48] sine(product)
  mixed = T[64,48] multiply(growth, wave)
  zero = T[] constant(0)
  total = T[] reduce(mixed, zero), dimensions={0,1}, to_apply=add
  rows = T[64] reduce(x, zero), dimensions={1}, to_apply=add
  ROOT result = (T[64,48], T[], T[64]) tuple(mixed, total, rows)
}
"""
"""T stands for the element type."""
