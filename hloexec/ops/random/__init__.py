"""Random numbers: rng, rng-bit-generator, and their generators."""
