"""What runs have computed, in little memory: arrays by number, what nodes hold, and another run for plots."""
