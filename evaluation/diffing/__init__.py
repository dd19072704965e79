"""How often `diff` names the instruction that a fault was planted in, and what it says where there is none."""
