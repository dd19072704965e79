"""Reading results from files of values (of hloexec, XLA, JAX or PyTorch), and from snapshots."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from hloexec.core.ir import ArrayShape, Module, leaf_shapes
from hloexec.core.values import Array, index_of, label_of, labelled_arrays
from hloexec.core.wording import listing
from hloexec.errors import InputError, LiteralError, warn
from hloexec.language.literals.files import entries, holds_values
from hloexec.language.literals.trees import are_numbered, pairings
from hloexec.language.loading import load_with_values


def read_result(path: str | os.PathLike[str], shapes: Mapping[str, ArrayShape] | None = None) -> dict[str, Array]:
    """The arrays in a file of a result, by their labels: `value`, or index paths such as `1.0`, or names.

    A file of values (`hloexec.literals`), or a snapshot with a result. Where the keys are not those of the leaves in
    `shapes`, what the arrays hold decides. Arrays of narrow types that NumPy stored as raw bytes are read where
    `shapes` says what they are.
    Raises LiteralError or InputError where the file cannot be read or holds no result.
    """
    name = os.fspath(path)
    if not holds_values(path):
        return _result_of_snapshot(name)
    arrays: dict[str, Array] = {}
    labels = _labels_by_content(name, shapes or {})
    for entry in entries(path):
        label = labels.get(entry.key, entry.number)
        if label in arrays:
            raise LiteralError(f"{entry.where}: the file has another entry for the same leaf")
        try:
            value = entry.read(None)
        except LiteralError:
            shape = shape_of_leaf(label, shapes or {})
            if entry.type_name or shape is None:
                raise
            value = entry.read(shape)
        if isinstance(value, np.ndarray):
            arrays[label] = value
    return arrays


def _labels_by_content(name: str, shapes: Mapping[str, ArrayShape]) -> dict[str, str]:
    """The label for each key of a file whose keys are not those of the leaves, if what it holds says them."""
    file_entries = list(entries(name))
    labels = list(shapes)
    are_places = all(index_of(label) is not None for label in labels)
    if len(file_entries) != len(labels) or not are_places or {entry.number for entry in file_entries} == shapes.keys():
        return {}
    if len(file_entries) == 1:
        return {file_entries[0].key: labels[0]}
    stems = [entry.stem for entry in file_entries]
    is_numbered = are_numbered(stems)
    if not is_numbered and any(index_of(stem) is not None for stem in stems):
        return {}
    sizes = [entry.header()[0] for entry in entries(name)]
    # Numbered arrays may be wholes of what several devices have.
    ways = pairings(stems, len(labels), lambda key, leaf: is_numbered or sizes[key] == shapes[labels[leaf]].dimensions)
    if len(ways) != 1:
        return {}
    taken = {file_entries[number].key: labels[leaf] for leaf, number in enumerate(ways[0])}
    if not is_numbered:
        said = (f"{key} is {label}" for key, label in taken.items())
        warn(f"{name!r} is not keyed by leaf of the result: {listing(said, 20)}")
    return taken


def shape_of_leaf(label: str, shapes: Mapping[str, ArrayShape]) -> ArrayShape | None:
    """The shape of a leaf; a value that is no tuple may be stored as a tuple of one."""
    if label not in shapes and len(shapes) == 1:
        label = {"0": "value", "value": "0"}.get(label, label)
    return shapes.get(label)


def _result_of_snapshot(name: str) -> dict[str, Array]:
    try:
        snapshot = load_with_values(name)
    except InputError as error:
        if not os.path.isfile(name):
            raise
        raise InputError(f"{error.message}; of numbers without type and shape, numpy.save makes a .npy file") from error
    if snapshot.result is None:
        raise InputError(
            f"{name!r} holds a module, but no result; a result is a .npz or .npy file, or a snapshot of an execution"
        )
    return labelled_arrays(snapshot.result)


def result_shapes(module: Module) -> dict[str, ArrayShape]:
    """The shapes of the leaves of a module's result, by their labels; tokens left out."""
    labelled_shapes = ((label_of(index), leaf) for index, leaf in leaf_shapes(module.entry.result_shape))
    return {label: leaf for label, leaf in labelled_shapes if isinstance(leaf, ArrayShape) and leaf.is_array}
