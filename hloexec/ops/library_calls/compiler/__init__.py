"""Calls that compilers insert and that compute nothing (annotations, hints, rewrites), and calls that are refused."""
