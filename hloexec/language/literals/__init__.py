"""Files of values: `.npz` and `.npy`, which plain NumPy can open.

A `.npz` file holds one value: the result of a module, or the tuple of its parameters' values. Each leaf is one entry:

- Its key is the tuple index of the leaf, joined by dots: `0`, `1.0`, `1.1`. A value that is not a tuple has the key
  `value`. In a file of parameters, the first number is the parameter's number, or its name may be used (`weights`, or
  `weights.0` for a leaf of a tuple). Tokens and empty tuples may be omitted. The keys `arr_0`, `arr_1`, … that
  `numpy.savez` generates are read as `0`, `1`, ….
- Element types that NumPy has are stored as they are. For others, the key ends in a colon and the HLO name
  (`1.0:bf16`), and the values are stored in a NumPy type: narrow floats as their bits, in an unsigned integer of the
  same width (`file["1.0:bf16"].view(ml_dtypes.bfloat16)` restores them), 1-, 2- and 4-bit integers as their values, in
  8 bits.
- A token is an empty array with the key `0:token`, an empty tuple one with the key `0:tuple`.

In place of a `.npz` file, values may be read as XLA writes them: a serialized LiteralProto, or text with one literal or
several, each behind its shape (`f32[2,2] {{1, 2}, {3, 4}}`).

Where the expected type is known, integers of another type are read as that type, if it holds all of them.

No entry needs pickle: `numpy.load(path)` opens every file, and nothing is unpickled when files are read. Equal values
give equal bytes. A `.npy` file holds one array of a NumPy type. If the expected type is known, arrays of narrow types
that `numpy.save` stored as raw bytes (`|V2`) can be read as well.
"""

from hloexec.language.literals.files import (
    input_files,
    load,
    load_arrays,
    load_inputs,
    load_value,
    require_writable,
    save,
    save_entries,
    stored_leaves,
)

__all__ = [
    "input_files",
    "load",
    "load_arrays",
    "load_inputs",
    "load_value",
    "require_writable",
    "save",
    "save_entries",
    "stored_leaves",
]
