"""Reports of commands that describe modules and opcodes: graphs, memory, and the element types of opcodes."""
