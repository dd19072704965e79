"""`diff` on modules that XLA's partitioner has made, and on those with a fault of its kinds."""
