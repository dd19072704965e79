"""Values to files and from them: the entries of a file put together to one value, or to the inputs of a module."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloexec.core import files
from hloexec.core.arguments import require_path
from hloexec.core.dtypes import element_type_of
from hloexec.core.files import FilePath, opened
from hloexec.core.ir import ArrayShape, BufferShape, Instruction, Shape, TupleShape, subshapes
from hloexec.core.ir.metadata import ParameterNames, Within
from hloexec.core.values import TOKEN, WHOLE, Array, Value, index_of, label_of
from hloexec.core.wording import listing, natural_number
from hloexec.errors import LiteralError, warn
from hloexec.language.literals.npz import Entry, Expected, encode, keyed_leaves, npz_entries, write_npz
from hloexec.language.literals.trees import are_numbered, pairings

_MAGIC = (b"PK", b"\x93N")
_SUFFIXES = (".npz", ".npy")


def holds_values(path: FilePath) -> bool:
    """Whether a file is one of values rather than one of a module, by its name or its content."""
    from hloexec.language.literals.xla import holds_literal

    filename = os.fspath(path)
    if filename.lower().endswith(_SUFFIXES):
        return True
    try:
        with opened(path) as file:
            return file.read(2) in _MAGIC or holds_literal(path)
    except OSError:
        return False  # which may be a module that a shell hands over


def entries(path: FilePath) -> Iterator[Entry]:
    """The entries of a file, with keys as `hloexec.literals` documents them; LiteralError where it holds no values."""
    from hloexec.language.literals.xla import holds_literal, literal_entries

    require_path("path", path)
    filename = os.fspath(path)
    try:
        with opened(path) as file:
            is_numpy = file.read(2) in _MAGIC
        if not is_numpy and holds_literal(path):
            yield from literal_entries(path)
            return
    except OSError as error:
        raise LiteralError(f"cannot read {filename!r}: {error.strerror or error}") from error
    if not is_numpy and not filename.lower().endswith(_SUFFIXES):
        raise LiteralError(
            f"{filename!r} holds no values: it is no .npz or .npy file, no serialized LiteralProto, and no text such "
            "as f32[2] {1, 2}; of numbers without type and shape, numpy.save makes a .npy file"
        )
    yield from npz_entries(path)


Path: TypeAlias = tuple[int, ...]
Place: TypeAlias = tuple[int, Path, Expected]
"""A parameter's number, and the index and shape of a leaf of it."""
_NOTHING = np.zeros(0, np.uint8)


def input_files(count: int) -> tuple[str, ...]:
    """The names of the files of so many lists of inputs, one for all devices or one for each."""
    return ("inputs.npz",) if count == 1 else tuple(f"inputs.{device}.npz" for device in range(count))


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if `save` could not write to `path`, before a long run instead of after it."""
    _format_of(os.fspath(path))
    files.require_writable(path)


def _format_of(filename: str) -> str:
    suffix = os.path.splitext(filename)[1].lower()
    if suffix not in (".npz", ".npy"):
        raise LiteralError(f"cannot tell the format of {filename!r}: its name should end in .npz or .npy")
    return suffix


def save(path: str | os.PathLike[str], value: Value | list[Any]) -> None:
    """Write a value to a `.npz` file, or an array to a `.npy` file; a list, as of inputs, is taken as a tuple.

    It is written under a temporary name and renamed. Raises LiteralError where the suffix is another, the file cannot
    be written, or the value is not one.
    """
    require_path("path", path)
    suffix = _format_of(os.fspath(path))
    stored = [(key, _NOTHING) if ":" in key else encode(key, leaf) for key, leaf in keyed_leaves(value)]
    if suffix == ".npy" and (len(stored) != 1 or stored[0][0] != WHOLE):
        content = (
            "a tuple or a token" if not isinstance(value, np.ndarray) else f"{element_type_of(value.dtype)} values"
        )
        raise LiteralError(f"a .npy file cannot hold {content}; write a .npz file instead of {os.fspath(path)!r}")
    try:
        with files.open_atomically(path) as file:
            if suffix == ".npy":
                np.lib.format.write_array(file, stored[0][1], allow_pickle=False)
            else:
                write_npz(file, stored)
    except OSError as error:
        raise LiteralError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def save_entries(path: FilePath, stored: Iterable[tuple[str, Array]]) -> None:
    """Write arrays to a `.npz` file behind their keys, as `stored_leaves` gives them, each as soon as it is there."""
    if _format_of(os.fspath(path)) != ".npz":
        raise LiteralError(f"several devices' values need a .npz file instead of {os.fspath(path)!r}")
    try:
        with files.open_atomically(path) as file:
            write_npz(file, stored)
    except OSError as error:
        raise LiteralError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def stored_leaves(value: object, device: int) -> Iterator[tuple[str, Array]]:
    """The entries of a file for the leaves of one of several devices' values."""
    for key, leaf in keyed_leaves(value):
        stem, colon, kind = key.partition(":")
        own = f"{device}.{stem}" if stem != WHOLE else str(device)
        yield (own + colon + kind, _NOTHING) if colon else encode(own, leaf)


def load(path: str | os.PathLike[str]) -> Value:
    """The value in a file that `save` wrote, or NumPy.

    Raises LiteralError where it cannot be read, or its keys do not make up one value.
    """
    leaves: dict[Path, Value] = {}
    for entry in entries(path):
        leaf = entry.read(None)
        index = index_of(entry.number)
        if index is None:
            raise LiteralError(f"{entry.where} is not the index path of a leaf, such as 0 or 1.0")
        if index in leaves:
            raise LiteralError(f"{entry.where}: the file has another entry for the same leaf")
        leaves[index] = leaf
    return _assemble(leaves, os.fspath(path))


def load_arrays(path: str | os.PathLike[str], *, allow_untyped: bool = False) -> dict[str, Array]:
    """The arrays in a file by their names (keys without the type), for values that belong to names. Those of narrow
    types that NumPy stored as raw bytes are such (`|V2`) if `allow_untyped`, and refused otherwise.

    Raises LiteralError where the file cannot be read or a key holds no array.
    """
    arrays: dict[str, Array] = {}
    for entry in entries(path):
        value = entry.read_untyped() if allow_untyped else entry.read(None)
        if not isinstance(value, np.ndarray):
            raise LiteralError(f"{entry.where} holds no array")
        if entry.stem in arrays:
            raise LiteralError(f"{entry.where}: the file has another entry of that name")
        arrays[entry.stem] = value
    return arrays


def load_value(path: str | os.PathLike[str], shape: Shape, what: str = "the value") -> Value:
    """The value in a file, which must be of `shape`; `what` names it in errors.

    Raises LiteralError where the file cannot be read, leaves are missing or too many, or one is of another element type
    or other dimensions.
    """
    expected = {label_of(index): (index, leaf) for index, leaf in _leaves_of(shape)}
    leaves: dict[Path, Value] = {}
    read_entries = list(entries(path))
    for entry in entries(path):
        stem = WHOLE if WHOLE in expected and (len(read_entries) == 1 or entry.stem == "arr_0") else entry.number
        if stem not in expected:
            raise LiteralError(f"{entry.where} belongs to no leaf of {what}, which is {shape}")
        index, leaf_shape = expected[stem]
        if index in leaves:
            raise LiteralError(f"{entry.where}: the file has another entry for the same leaf")
        leaves[index] = entry.read(leaf_shape)
    missing = _fill(leaves, shape)
    if missing:
        raise LiteralError(f"{os.fspath(path)!r} lacks {_listed(missing)} of {what}, which is {shape}")
    return _assemble(leaves, os.fspath(path))


def load_inputs(
    path: str | os.PathLike[str],
    parameters: Sequence[Instruction],
    given: Iterable[int] = (),
) -> dict[int, Value]:
    """The values of a computation's parameters by number, from a `.npz` file keyed by number or name, or by the
    path that a name stands for.

    Where the keys say neither (those of `numpy.savez` for all arguments of a function, some of which jit has dropped;
    names of a framework's), what the arrays hold decides, if there is but one way; a warning says what is taken for
    what. The parameters numbered in `given` are left alone: they may be missing in the file, and are not read. Raises
    LiteralError where the file cannot be read, lacks a parameter or a leaf of one, has keys that belong to none, or
    values that do not fit.
    """
    given = frozenset(given)
    keys = _Keys(parameters)
    chosen, is_all = _inputs_by_content(path, parameters, keys, given)
    leaves: dict[int, dict[Path, Value]] = {number: {} for number in range(len(parameters)) if number not in given}
    for entry in entries(path):
        if not parameters and entry.stem == WHOLE:
            entry.read(TupleShape())
            continue
        places = [chosen[entry.key]] if entry.key in chosen else [] if is_all else keys.places(entry)
        if is_all and not places:
            continue
        if len(places) != 1:
            raise LiteralError(f"{entry.where} {_stray(entry.stem, places, parameters, keys.names)}")
        ((number, index, shape),) = places
        if number in given:
            continue
        if index in leaves[number]:
            raise LiteralError(f"{entry.where}: the file has another entry for the same leaf of parameter {number}")
        leaves[number][index] = entry.read(shape)
    values: dict[int, Value] = {}
    missing: list[str] = []
    for number, leaf_values in leaves.items():
        absent = _fill(leaf_values, parameters[number].shape, str(number))
        missing += absent
        if not absent:
            values[number] = _assemble(leaf_values, os.fspath(path))
    if missing:
        raise LiteralError(
            f"{os.fspath(path)!r} lacks {_listed(missing)}; the module's {len(parameters)} parameters are keyed by "
            f"number or by name (0 or {parameters[0].name})"
        )
    return values


class _Keys:
    """What the keys of a file of parameters mean: numbers, names, and the paths that names stand for."""

    def __init__(self, parameters: Sequence[Instruction]) -> None:
        self.names = ParameterNames(parameters)
        self._expected = _expected_inputs(parameters)
        self._leaves = {number: leaf for number, index, leaf in _array_leaves(parameters) if not index}

    def places(self, entry: Entry) -> list[Place]:
        """The leaves that the key of an entry may mean."""
        places = self._expected.get(entry.stem) or self._expected.get(entry.number, [])
        if places or index_of(entry.stem) is not None:
            return places
        return [(number, (), self._leaves[number]) for number in self.names.whole(entry.stem) if number in self._leaves]

    def within(self, file_entries: Iterable[Entry]) -> dict[str, tuple[Place, Within]]:
        """The leaf for each key that is the path of one without the argument's name, where no other one has that path.

        What begins with a number may have that of an argument there, but all or none of the keys.
        """
        meant: dict[str, tuple[Place, Within]] = {}
        for entry in file_entries:
            candidates = [within for within in self.names.within(entry.stem) if within.number in self._leaves]
            if len({within.number for within in candidates}) == 1:
                meant[entry.key] = (candidates[0].number, (), self._leaves[candidates[0].number]), candidates[0]
        numbered = {(within.position, within.argument) for _, within in meant.values() if within.position is not None}
        is_sure = len(numbered) == len(dict(numbered)) == len({argument for _, argument in numbered})
        return {key: candidates for key, candidates in meant.items() if is_sure or candidates[1].position is None}


def _array_leaves(parameters: Sequence[Instruction]) -> list[Place]:
    return [
        (number, index, leaf)
        for number, parameter in enumerate(parameters)
        for index, leaf in _leaves_of(parameter.shape)
        if isinstance(leaf, ArrayShape) and leaf.is_array
    ]


def _inputs_by_content(
    path: str | os.PathLike[str], parameters: Sequence[Instruction], keys: _Keys, given: Collection[int]
) -> tuple[dict[str, Place], bool]:
    """The leaf for each key of a file whose keys are not those of the parameters, and whether what has other keys
    belongs to no leaf. Nothing where the keys speak for themselves, or what the file holds does not say more.
    """
    file_entries = list(entries(path))
    meant = {entry.key: keys.places(entry) for entry in file_entries}
    named = {key: places[0] for key, places in meant.items() if len(places) == 1}
    if not parameters or len(named) == len(file_entries) or any(len(places) > 1 for places in meant.values()):
        return {}, False
    leaves = _array_leaves(parameters)
    if are_numbered([entry.stem for entry in file_entries]):
        named = {}
    elif any(index_of(entry.stem) is not None for entry in file_entries if entry.key not in named):
        return {}, False
    within = keys.within(entry for entry in file_entries if entry.key not in named)
    named |= {key: place for key, (place, _) in within.items()}
    said: Iterable[str] = ()
    names = named
    if not {number for number, *_ in leaves} - set(given) <= {number for number, *_ in named.values()}:
        by_shape = _named_by_shape(path, named, [leaf for leaf in leaves if leaf not in named.values()])
        if by_shape is None:
            return named, False
        said = names = by_shape
    elif len({each.argument for _, each in within.values() if each.position is None}) > 1:
        said = within  # one of the arguments may have had the other's leaf
    if taken := [f"{key} is {_key(names[key][1], parameters[names[key][0]].name)}" for key in said]:
        warn(f"{os.fspath(path)!r} is not keyed by parameter: {listing(taken, 20)}")
    if dropped := [entry.key for entry in file_entries if entry.key not in names]:
        none = f"belong{'s' if len(dropped) == 1 else ''} to no parameter"
        warn(f"{os.fspath(path)!r}: {listing(dropped, 8)} {none}, as arguments that jit drops since nothing uses them")
    return names, True


def _named_by_shape(
    path: str | os.PathLike[str], named: Mapping[str, Place], leaves: Sequence[Place]
) -> dict[str, Place] | None:
    """The leaf for each key, where what is not `named` fits the `leaves` in one way; LiteralError for several ways."""
    shapes = [leaf for _, _, leaf in leaves]
    rest = [entry for entry in entries(path) if entry.key not in named]
    keys = [entry.key for entry in rest]
    ways: list[list[int]] = []
    # Where arrays may belong to no leaf, one of the very type is no likelier than one of other integers.
    for any_integers in (False, True) if len(rest) == len(leaves) else (True,):
        ways = ways or _ways(path, keys, shapes, any_integers=any_integers)
    if len(ways) > 1:
        raise LiteralError(
            f"{os.fspath(path)!r} holds {listing(keys, 8)}, which fit the parameters in several ways; key them by "
            "number or name"
        )
    return {**named, **{keys[number]: leaves[leaf] for leaf, number in enumerate(ways[0])}} if ways else None


def _ways(
    path: str | os.PathLike[str], keys: Sequence[str], shapes: Sequence[Expected], *, any_integers: bool
) -> list[list[int]]:
    """The ways to take the entries of these keys for leaves of these shapes."""
    fitting = [
        (entry.stem, entry.fitting(shapes, any_integers=any_integers)) for entry in entries(path) if entry.key in keys
    ]
    return pairings([stem for stem, _ in fitting], len(shapes), lambda key, leaf: shapes[leaf] in fitting[key][1])


def _expected_inputs(parameters: Sequence[Instruction]) -> dict[str, list[Place]]:
    """Every key a file of parameters may have, with the leaves it can mean (a name with dots may mean several)."""
    expected: dict[str, list[Place]] = {}
    if len(parameters) == 1 and isinstance(parameters[0].shape, ArrayShape):
        expected[WHOLE] = [(0, (), parameters[0].shape)]
    for number, parameter in enumerate(parameters):
        for index, leaf in _leaves_of(parameter.shape):
            for stem in (str(number), parameter.name):
                expected.setdefault(_key(index, stem), []).append((number, index, leaf))
    return expected


def _stray(stem: str, places: Sequence[Place], parameters: Sequence[Instruction], names: ParameterNames) -> str:
    meant = sorted({place[0] for place in places} or {within.number for within in names.within(stem)})
    if len(meant) > 1:
        return f"may mean {names.listed(meant)}; key it by number"
    head, _, rest = stem.partition(".")
    number = natural_number(head)
    if number is not None and number < len(parameters):
        shape = parameters[number].shape
        kind = f"has no leaf {rest}" if rest else "is a tuple, whose leaves are keyed 0.0, 0.1, …"
        return f"does not fit: parameter {number} is {shape} and {kind}"
    if not parameters:
        return "belongs to no parameter: the module has none"
    return (
        f"belongs to no parameter: they are keyed by number, 0 to {len(parameters) - 1}, or by name, such as "
        f"{parameters[0].name}{names.near(stem)}"
    )


def _key(index: Path, stem: str) -> str:
    """The key of a leaf of what the stem names; of a value where it names nothing."""
    return ".".join([stem, *map(str, index)]) if stem else label_of(index)


def _listed(keys: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(map(repr, keys[:most]))
    return f"{shown} and {len(keys) - most} more" if len(keys) > most else shown


def _leaves_of(shape: Shape) -> Iterator[tuple[Path, Expected]]:
    """The leaves of a shape, empty tuples among them."""
    for index, part in subshapes(shape):
        if not isinstance(part, TupleShape) or not part.elements:
            yield index, part.element if isinstance(part, BufferShape) else part


def _fill(leaves: dict[Path, Value], shape: Shape, stem: str = "") -> list[str]:
    """Add what needs no data, tokens and empty tuples; the keys of the leaves that are still missing."""
    missing = []
    for index, leaf in _leaves_of(shape):
        if index in leaves:
            continue
        if isinstance(leaf, TupleShape):
            leaves[index] = ()
        elif leaf.is_token:
            leaves[index] = TOKEN
        else:
            missing.append(_key(index, stem))
    return missing


def _assemble(leaves: Mapping[Path, Value], filename: str) -> Value:
    """The value whose leaves (and empty tuples) are these."""
    by_depth: dict[int, dict[Path, Value]] = {}
    for index, leaf in leaves.items():
        by_depth.setdefault(len(index), {})[index] = leaf
    for depth in range(max(by_depth, default=0), 0, -1):
        groups: dict[Path, dict[int, Value]] = {}
        for index, leaf in by_depth.pop(depth, {}).items():
            groups.setdefault(index[:-1], {})[index[-1]] = leaf
        above = by_depth.setdefault(depth - 1, {})
        for index, children in groups.items():
            if index in above:
                raise LiteralError(f"{filename!r}: {label_of(index)!r} is an array and a tuple at once")
            absent = next(i for i in range(len(children) + 1) if i not in children)
            if absent < len(children):
                raise LiteralError(
                    f"{filename!r} lacks {label_of((*index, absent))!r}, but has later elements of its tuple"
                )
            above[index] = tuple(children[i] for i in range(len(children)))
    return by_depth.get(0, {}).get((), ())
