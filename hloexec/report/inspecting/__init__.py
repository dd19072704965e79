"""Reports of commands that describe modules and opcodes: memory, and the element types of opcodes."""
