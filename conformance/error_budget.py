"""How far two computations of one module may lie apart, relative to the size of its results, read off the module.

An array's error is that of the worst chain of roundings to it (`hloexec.numerics.error_budget`): independent, they add
up in squares, those inside of sums with the λ² of the probabilistic bound. Products and sums of random numbers keep the
relative error of a whole array as it is; what a program magnifies beyond that, by cancellation or steep functions, it
declares as its `condition`.
"""

from __future__ import annotations

import math

from hloexec.ir import Module
from hloexec.numerics.error_budget import leaf_chains

__all__ = ["error_budget"]


def error_budget(module: Module, policy: str) -> list[float]:
    """The relative error of each leaf of the result, in the order of the leaves."""
    return [math.sqrt(chain.weight) for chain in leaf_chains(module, policy).values()]
