"""Many devices in lockstep: who takes part in a collective and what it exchanges, and what each class of devices that
hold equal values runs by itself."""
