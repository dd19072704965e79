"""Running modules: plans, inputs, devices, and the machine."""
