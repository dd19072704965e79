"""The form of a generator of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from conformance.cell import Example

Generator = Callable[[str, str, np.random.Generator, int], Iterator[Example]]
"""(opcode, element type, random numbers, count) → examples.

Generators yield an example for every element type, sensible or not: whether a type is allowed is for XLA's and
hloexec's verifiers to say.
"""
