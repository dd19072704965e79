"""The verifier: checks that a module is a well-formed program.

`structure` and `shapes` check names, operands, parameters, called computations and aliases. The registry entry of each
opcode states the requirements on its operands: `shapes` calls `infer` and compares the result with the declared shape.
All errors are collected and raised once, with their positions in the text and in the source program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hloexec.core.arguments import require_flags, require_module
from hloexec.core.ir import Module
from hloexec.core.process import collection_paused
from hloexec.errors import HloError
from hloexec.language.verifier.shapes import check_shapes
from hloexec.language.verifier.structure import Note, Report, check_calls, check_computation, check_computation_names

__all__ = ["Note", "explained", "is_well_formed", "verify"]


def verify(module: Module, strict: bool = False) -> list[Note]:
    """Check that a module is a well-formed program; raise VerificationError with everything that is wrong.

    Names are unique and defined; operands, control predecessors and calls are acyclic; each computation has a root and
    parameters 0, 1, …; the header's layouts and aliases fit the entry computation; and every instruction's declared
    shape is the one that its opcode's rule infers, except for layouts and dynamic flags. Shapes that differ only in the
    width of floating-point types, which optimized modules have, are returned as notes, or are errors if `strict`.
    Instructions with unknown opcodes are not checked.
    """
    if not isinstance(module, Module) or strict is not False:
        require_module(module)
        require_flags(strict=strict)
    report = Report(module, strict)
    with collection_paused():
        check_computation_names(report)
        programs = {computation.name: check_computation(report, computation) for computation in module.computations}
        check_calls(report)
        if module.entry_computation_layout or module.input_output_alias or module.buffer_donor:
            # Imported late: few headers say anything of the entry.
            from hloexec.language.verifier.shapes import check_entry

            check_entry(report, programs.get(module.entry_name))
        check_shapes(report, programs)
    return report.finish()


def is_well_formed(module: Module) -> bool:
    """Whether `verify` finds nothing wrong with a module."""
    try:
        verify(module)
    except HloError:
        return False
    return True


@contextmanager
def explained(module: Module) -> Iterator[None]:
    """Work on a module that has not been verified: where that fails by accident, VerificationError says what is wrong
    with the module, if anything is."""
    try:
        yield
    except (HloError, MemoryError):
        raise
    except Exception:
        verify(module)
        raise
