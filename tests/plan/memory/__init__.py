"""Estimates, limits and counts of memory."""
