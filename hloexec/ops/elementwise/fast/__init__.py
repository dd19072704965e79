"""Variants of elementwise opcodes that take less time than their definitions, with the same bits."""
