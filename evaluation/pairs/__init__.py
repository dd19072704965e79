"""Pairs of modules, of which one has a fault or none: drawn by a seed from the programs, or written in a table."""
