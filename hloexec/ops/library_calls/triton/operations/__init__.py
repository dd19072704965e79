"""What operations of Triton's dialect compute, and control flow in which instances take different ways."""
