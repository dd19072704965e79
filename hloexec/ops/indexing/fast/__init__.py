"""Variants of gathers and scatters that take less time than their definitions, with the same bits."""
