"""Variants of reductions that take less time than their definitions, with the same bits."""
