"""Commands that describe modules, opcodes and records, without running them: info, fmt, memory, ops, plan, schema."""
