"""A large program, shrunken to the sizes of the small one, beside that one."""

from __future__ import annotations

from typing import Any

import hloexec
from evaluation.processes import Record
from evaluation.shrinking.programs import SEEN, Program
from evaluation.shrinking.reserve import RESERVE

SETS = {"seen": SEEN, "reserve": RESERVE}


def shrunken(program: Program, *, optimized: bool) -> tuple[hloexec.Shrinkage, hloexec.Module]:
    """The large module with the sizes of the small one's inputs, and with those that the program has beside them."""
    large, small = (program.lowered(sizes, optimized=optimized) for sizes in (program.large, program.small))
    dims = {size: program.small[name] for name, size in program.large.items()}
    for ours, theirs in zip(large.entry.parameter_shapes, small.entry.parameter_shapes, strict=True):
        dims |= dict(zip(ours.dimensions, theirs.dimensions, strict=True))
    present = {
        size
        for computation in large
        for instruction in computation.instructions
        for size in getattr(instruction.shape, "dimensions", ())
    }
    kept = {size for name, size in program.large.items() if program.small[name] == size}
    changed = {before: after for before, after in dims.items() if before != after and before in present}
    return hloexec.shrink(large, dims=changed, keep=kept & present), small


def dimensions_of_inputs(module: hloexec.Module) -> list[Any]:
    return [shape.dimensions for shape in module.entry.parameter_shapes]


def measured(program: Program, *, optimized: bool) -> Record:
    """Whether both compute the same, up to rounding once XLA has optimized them, and which constants may be wrong."""
    found, small = shrunken(program, optimized=optimized)
    hloexec.verify(found.module)
    has_sizes = dimensions_of_inputs(found.module) == dimensions_of_inputs(small)
    is_same = False
    if has_sizes:
        inputs = hloexec.random_inputs(small, seed=1)
        actual, expected = (hloexec.run(module, *inputs) for module in (found.module, small))
        compared = hloexec.compare(actual, expected, module=small, inputs=inputs)
        is_same = compared.agrees if optimized else compared.verdict is hloexec.Verdict.EQUAL
    unclear = [change.before for change in found.constants if change.after == change.before and not change.is_certain]
    return {"has_sizes": has_sizes, "is_same": is_same, "unclear": unclear}
