"""Reductions: reduce, reduce-window, scan, select-and-scatter, batch normalization."""
