"""Commands that describe modules, opcodes and records."""
