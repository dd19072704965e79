"""Commands that describe modules, opcodes and records: info, fmt, graph, memory, ops, plan, schema."""
