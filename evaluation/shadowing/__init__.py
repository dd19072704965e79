"""Whether the shares of `shadow` are what the rounding of each primitive alone does to a program's outputs."""
