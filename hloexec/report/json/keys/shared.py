"""Keys of many records: what was run, values, places, modules, and errors."""

from __future__ import annotations

from collections.abc import Mapping

SHARED: Mapping[str, tuple[str, str]] = {
    # What every record says of itself, and of what was run.
    "schema": ("text", "Which record it is."),
    "version": ("integer", "The version of its schema."),
    "warnings": ("[text]", "What was warned of, as on standard error."),
    "file": ("text", "The file that was given."),
    "folder": ("text", "The folder that was written or read."),
    "module": ("text", "The module's name."),
    "seed": ("integer", "Of random inputs, and of the random numbers that the module draws."),
    "numerics": ("text", "The numerics policy."),
    "device_count": ("integer", "How many devices the module runs on."),
    "instruction_count": ("integer", "How many instructions there are."),
    "computation_count": ("integer", "How many computations there are."),
    "seconds": ("number", "How long the first run took."),
    # Values.
    "inputs": ("[leaf]", "The arrays of the inputs."),
    "result": ("[leaf]", "The arrays of the result."),
    "operands": ("[leaf]", "The arrays of the operands."),
    "value": ("leaf", "What the instruction gave."),
    "arrays": ("[leaf]", "The arrays of a file."),
    "remarkable": ("[event]", "The first values that are not finite, then the largest ones."),
    "label": ("text", "The place or the name, with the devices where they do not all hold the same."),
    "shape": ("text", "The shape, as HLO text."),
    "result_shape": ("text", "The shape of the result, as HLO text."),
    "index": ("[integer]", "The place in a tuple; of an element, in its array."),
    "bytes": ("integer", "How large it is."),
    "minimum": ("number", "The smallest finite element; null where none is finite."),
    "maximum": ("number", "The largest finite element; null where none is finite."),
    "mean": ("number", "The mean of the finite elements."),
    "standard_deviation": ("number", "The standard deviation of the finite elements."),
    "nan_count": ("integer", "How many elements are NaN."),
    "infinity_count": ("integer", "How many elements are infinite."),
    "hash": ("text", "A hash of the elements' bytes in logical order."),
    # Places in a module and in a run.
    "entry": ("text", "The name of the entry computation."),
    "computation": ("text", "The name of the computation."),
    "instruction": ("text", "The name of the instruction."),
    "path": ("text", "Which run of the instruction: through loops, calls and fusions."),
    "iteration": ("integer", "The iteration of the innermost loop, from 0."),
    "device": ("integer", "The number of the device."),
    "devices": ("[integer]", "The numbers of the devices."),
    "hlo": ("text", "The instruction as HLO text."),
    "opcode": ("text", "The opcode."),
    "op_name": ("text", "The name that a framework gave it."),
    "source": ("[text]", "The lines of source it comes from, the innermost call first."),
    # Errors.
    "error": ("error_details", "What is wrong."),
    "line": ("integer", "The line of the file, from 1."),
    "column": ("integer", "The column of the line, from 1."),
}  # fmt: skip
