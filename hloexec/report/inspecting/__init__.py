"""Reports of commands that describe modules and opcodes."""
