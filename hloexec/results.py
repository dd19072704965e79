"""Reading results from `.npz` and `.npy` files (of hloexec, JAX or PyTorch), and from snapshots."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from hloexec.errors import InputError, LiteralError, os_errors_named
from hloexec.ir import ArrayShape, Module, leaf_shapes
from hloexec.loading import load_with_values
from hloexec.literals.npz import entries
from hloexec.numerics.statistics import leaves
from hloexec.values import Array, Value, label_of

__all__ = ["labelled_arrays", "read_result", "result_shapes", "shape_of_leaf"]

_MAGIC = (b"PK", b"\x93N")


def read_result(path: str | os.PathLike[str], shapes: Mapping[str, ArrayShape] | None = None) -> dict[str, Array]:
    """The arrays in a file of a result, by their labels: `value`, or index paths such as `1.0`, or names.

    A `.npz` or `.npy` file (the keys arr_0, arr_1, … that `numpy.savez` generates are read as 0, 1, …), or a snapshot
    with a result. Arrays of narrow types that NumPy stored as raw bytes are read where `shapes` says what they are.
    Raises LiteralError or InputError where the file cannot be read or holds no result.
    """
    name = os.fspath(path)
    with os_errors_named(f"read {name!r}"), open(name, "rb") as file:
        magic = file.read(2)
    if magic not in _MAGIC:
        if name.lower().endswith((".npz", ".npy")):
            raise LiteralError(f"{name!r} is neither a .npz nor a .npy file")
        return _result_of_snapshot(name)
    found: dict[str, Array] = {}
    for entry in entries(path):
        label = entry.number
        if label in found:
            raise LiteralError(f"{entry.where}: the file has another entry for the same leaf")
        try:
            value = entry.read(None)
        except LiteralError:
            shape = shape_of_leaf(label, shapes or {})
            if entry.type_name or shape is None:
                raise
            value = entry.read(shape)
        if isinstance(value, np.ndarray):
            found[label] = value
    return found


def shape_of_leaf(label: str, shapes: Mapping[str, ArrayShape]) -> ArrayShape | None:
    """The shape of a leaf; a value that is no tuple may be stored as a tuple of one."""
    if label not in shapes and len(shapes) == 1:
        label = {"0": "value", "value": "0"}.get(label, label)
    return shapes.get(label)


def _result_of_snapshot(name: str) -> dict[str, Array]:
    snapshot = load_with_values(name)
    if snapshot.result is None:
        raise InputError(
            f"{name!r} holds a module, but no result; a result is a .npz or .npy file, or a snapshot of an execution"
        )
    return labelled_arrays(snapshot.result)


def labelled_arrays(value: Value) -> dict[str, Array]:
    """The arrays of a value by their labels, tokens left out."""
    found = ((label_of(index), leaf) for index, leaf in leaves(value))
    return {label: leaf for label, leaf in found if isinstance(leaf, np.ndarray)}


def result_shapes(module: Module) -> dict[str, ArrayShape]:
    """The shapes of the leaves of a module's result, by their labels; tokens left out."""
    found = ((label_of(index), leaf) for index, leaf in leaf_shapes(module.entry.result_shape))
    return {label: leaf for label, leaf in found if isinstance(leaf, ArrayShape) and leaf.is_array}
