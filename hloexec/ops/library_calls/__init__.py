"""Library calls: one file per library, one entry per target. The registry finds them."""
