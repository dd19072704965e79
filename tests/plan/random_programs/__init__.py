"""Random programs that try to make a run depend on how it is carried out.

They hold what optimisations work on: transposes before sums and products, products added to carried values, loops of
known, unknown and data-dependent length, chains that become regions, nested calls, fusions and conditionals, tokens,
updates in place, narrow and complex types, several devices. A program is HLO text with inputs, made from a seed alone.
"""

from tests.plan.random_programs.programs import random_program
from tests.plan.random_programs.writing import RandomProgram

__all__ = ["RandomProgram", "random_program"]
