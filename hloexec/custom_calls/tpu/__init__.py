"""Calls that only TPU dumps hold."""
