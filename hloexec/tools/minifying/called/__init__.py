"""Smaller modules by what is called: bodies and conditions of loops, branches of conditionals, calls and fusions.

`bodies` leaves out instructions of called computations and opens what these call, and `loops` makes states smaller and
branches fewer.
"""
