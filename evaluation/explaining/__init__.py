"""How often `explain` names the numerics of which XLA:CPU or NumPy gave the truth, and none where there is a fault."""
