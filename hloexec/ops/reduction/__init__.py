"""Folds of many elements into one: reduce, reduce-window, scan, select-and-scatter, batch normalization."""
