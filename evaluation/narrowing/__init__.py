"""How much of a training step `precision` narrows, and whether XLA:CPU then still trains alike."""
