"""Which leaves of nested containers, or which arrays of a file, are the values of which parameters.

JAX flattens the arguments of a function, and names a parameter after the path of its leaf: `params['w']` in the
metadata, `params__w__.1` in the text. Leaves in order are the parameters; where there are more, since jit has dropped
what nothing uses, paths and shapes say which. The names of a function's arguments are in no tree, unless as keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.arrays import is_branch, tree_leaves, without_key_type
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.ir.metadata import mangled, path_of, stem_of
from hloexec.core.structs import frozen
from hloexec.core.wording import counted, listing
from hloexec.errors import InputError, warn

_UNNAMED = re.compile(r"arr_\d+")

Fits: TypeAlias = Callable[[int, int], bool]
"""Whether an array, by its number, may be the leaf of a number."""


def are_numbered(keys: Sequence[str]) -> bool:
    """Whether `numpy.savez` has made up these keys for arrays without names: arr_0, arr_1, …"""
    return bool(keys) and all(map(_UNNAMED.fullmatch, keys))


def pairings(keys: Sequence[str], count: int, fits: Fits) -> list[list[int]]:
    """The ways to take arrays of these keys for `count` leaves: the number of an array for each of them. One way is an
    answer; of several there may be more than are listed.

    Numbered arrays stand in the order of the leaves. Named ones stand in that order, or in the order of their names, as
    JAX flattens a dict; or each fits one leaf alone. There may be arrays that belong to no leaf, if they are numbered.
    """
    numbers = range(len(keys))
    if are_numbered(keys):
        orders = [sorted(numbers, key=lambda number: int(keys[number][4:]))]
    elif len(keys) == count:
        orders = [list(numbers), sorted(numbers, key=lambda number: keys[number])]
    else:
        return []
    ways = [way for order in orders for way in _ways(order, count, fits)]
    if not ways and len(keys) == count:
        choices = [[number for number in numbers if fits(number, leaf)] for leaf in range(count)]
        if all(len(choice) == 1 for choice in choices):
            ways = [[choice[0] for choice in choices]]
    return [way for place, way in enumerate(ways) if len(set(way)) == count and way not in ways[:place]]


def _ways(order: Sequence[int], count: int, fits: Fits) -> list[list[int]]:
    """The first and the last way to take arrays in this order: there is one alone if they are the same."""
    first = _first_way(order, range(count), fits)
    last = _first_way(order[::-1], range(count)[::-1], fits)
    return [] if first is None or last is None else [first, last[::-1]]


def _first_way(order: Sequence[int], leaves: Sequence[int], fits: Fits) -> list[int] | None:
    way = []
    rest = iter(order)
    for leaf in leaves:
        number = next((number for number in rest if fits(number, leaf)), None)
        if number is None:
            return None
        way.append(number)
    return way


_ROOT = re.compile(r"\w+(\[\d+\])?|kwargs\['\w+'\]")
"""What stands for an argument in a path; `args[0]` is one of many."""
_NUMBERED = re.compile(r"(arg|args|p|param|params|parameter|input|inputs)?_?\d*", re.IGNORECASE)


@frozen
class _Leaf:
    """A leaf by the number of its argument and the path within it."""

    argument: int
    path: str
    value: Any


@frozen
class _Name:
    """The path that a parameter is named after: as JAX writes it, or with `_` in place of what a name may not have."""

    text: str
    is_exact: bool

    def root(self, path: str) -> str | None:
        """What names the argument of which a leaf has this path; None where it has another one."""
        end = path if self.is_exact else mangled(path)
        if not self.text.endswith(end):
            return None
        root = self.text[: len(self.text) - len(end)]
        return root if _ROOT.fullmatch(root) else None

    def is_of(self, path: str) -> bool:
        """Whether this is the whole path, with the argument's name."""
        return self.text == (path if self.is_exact else mangled(path))


def values_of_tree(computation: Computation, argument: Sequence[Any] | Mapping[Any, Any]) -> list[Any] | None:
    """The values of the parameters, in order, that the leaves of `argument` are: of a list of arguments, of one
    container, or of a dict of arguments by name. None for a dict whose keys are not what the module calls anything.

    InputError, with both counts, where the leaves do not say one value for each parameter.
    """
    names = _names(computation.parameters)
    if isinstance(argument, Mapping):
        parameter_values = _by_argument(names, argument)
        if parameter_values is not None:
            return parameter_values
    readings = _readings(argument, any(names))
    count, wanted = len(readings[0]), len(names)
    if count == wanted:
        return _in_order(computation, names, readings, is_mapping=isinstance(argument, Mapping))
    if count > wanted:
        parameter_values = _chosen(computation, names, readings)
        if parameter_values is not None:
            return parameter_values
    taken = listing((f"{parameter.name}: {parameter.shape}" for parameter in computation.parameters), 20)
    more = "; which of them are its inputs does not show" if count > wanted else ""
    raise InputError(
        f"the inputs hold {counted(count, 'array')}, but computation {computation.name} takes {wanted} inputs "
        f"({taken}){more}"
    )


def _readings(argument: Sequence[Any] | Mapping[Any, Any], has_names: bool) -> list[list[_Leaf]]:
    """The leaves in order, by what each item may be: a part of the one argument, or an argument."""
    whole = [_Leaf(0, path, value) for path, value in tree_leaves(argument)]
    if isinstance(argument, Mapping):
        # The order of a function's arguments may be that in which a dict names them.
        items = [] if has_names else [_leaves(argument.values())]
        return [whole, *items]
    return [_leaves(argument), whole]


def _leaves(arguments: Any) -> list[_Leaf]:
    return [
        _Leaf(number, path, value) for number, argument in enumerate(arguments) for path, value in tree_leaves(argument)
    ]


def _by_argument(names: Sequence[_Name | None], given: Mapping[Any, Any]) -> list[Any] | None:
    """The values where keys are names of arguments; None where one is not, or the module does not name a parameter."""
    leaves = [
        (f"{key}{path}", value)
        for key, argument in given.items()
        if isinstance(key, str)
        for path, value in tree_leaves(argument)
    ]
    order = []
    for name in names:
        numbers = [] if name is None else [number for number, (path, _) in enumerate(leaves) if name.is_of(path)]
        if len(numbers) != 1:
            return None
        order += numbers
    if len(set(order)) < len(order):
        return None
    _warn_of_dropped([path for number, (path, _) in enumerate(leaves) if number not in order])
    return [leaves[number][1] for number in order]


def _in_order(
    computation: Computation, names: Sequence[_Name | None], readings: Sequence[Sequence[_Leaf]], *, is_mapping: bool
) -> list[Any] | None:
    """The leaves as they come, where there are as many as parameters; a warning says where that may not be meant."""
    parameters = computation.parameters
    numbers = range(len(names))
    fitting = [reading for reading in readings if _is_named(names, reading, numbers)]
    chosen = (fitting or readings)[0]
    if is_mapping and not fitting:
        return None
    if is_mapping and not any(names) and parameters:
        orders = [each for each in readings if all(map(_may_be, (leaf.value for leaf in each), _shapes(computation)))]
        if len({tuple(id(leaf.value) for leaf in each) for each in orders}) > 1:
            paths = listing((leaf.path for leaf in chosen), 8)
            raise InputError(
                f"inputs hold {paths}, which fit the parameters of {computation.name} in several ways; give a list of "
                "values, or name the parameters"
            )
        chosen = (orders or readings)[0]
    if any("['" in leaf.path for leaf in readings[0]) and (not fitting or (is_mapping and not any(names))):
        said = (f"{leaf.path} is {parameter.name}" for leaf, parameter in zip(chosen, parameters, strict=True))
        problem = (
            "the module names its parameters otherwise" if any(names) else "the module does not name its parameters"
        )
        warn(f"{problem}, and they are taken in order: {listing(said, 20)}")
    return [leaf.value for leaf in chosen]


def _chosen(
    computation: Computation, names: Sequence[_Name | None], readings: Sequence[Sequence[_Leaf]]
) -> list[Any] | None:
    """The values where there are more leaves than parameters; None where there is no way, InputError for several."""
    shapes = _shapes(computation)
    has_several = False
    for reading in readings:

        def fits(leaf: int, parameter: int, reading: Sequence[_Leaf] = reading) -> bool:
            name = names[parameter]
            if name is not None and name.root(reading[leaf].path) is None:
                return False
            return _may_be(reading[leaf].value, shapes[parameter])

        ways = pairings([f"arr_{number}" for number in range(len(reading))], len(names), fits)
        ways = [way for way in ways if len(ways) > 1 or _is_named(names, reading, way)]
        if len(ways) == 1:
            (way,) = ways
            dropped = [leaf for number, leaf in enumerate(reading) if number not in way]
            has_arguments = len({leaf.argument for leaf in reading}) > 1
            _warn_of_dropped(
                [f"argument {leaf.argument}{leaf.path}" if has_arguments else leaf.path for leaf in dropped]
            )
            return [reading[number].value for number in way]
        has_several |= len(ways) > 1
    if has_several:
        raise InputError(
            f"the inputs hold {len(readings[0])} arrays, which fit the {len(names)} parameters of {computation.name} "
            "in several ways; give a list with a value for each, or a dict with the names of arguments as keys"
        )
    return None


def _warn_of_dropped(paths: Sequence[str]) -> None:
    if paths:
        none = f"belong{'s' if len(paths) == 1 else ''} to no parameter"
        warn(f"inputs: {listing(paths, 8)} {none}, as arguments that jit drops since nothing uses them")


def _is_named(names: Sequence[_Name | None], reading: Sequence[_Leaf], numbers: Sequence[int]) -> bool:
    """Whether leaves have the paths of their parameters, and each argument one name, which no other has."""
    arguments: dict[str, int] = {}
    roots: dict[int, str] = {}
    for name, number in zip(names, numbers, strict=True):
        if name is None:
            continue
        leaf = reading[number]
        root = name.root(leaf.path)
        if root is None or arguments.setdefault(root, leaf.argument) != leaf.argument:
            return False
        if roots.setdefault(leaf.argument, root) != root:
            return False
    return True


def _names(parameters: Sequence[Instruction]) -> list[_Name | None]:
    """The paths that parameters are named after; None for one that has only a number, or shares its name."""
    names: list[_Name | None] = []
    for parameter in parameters:
        path, stem = path_of(parameter), stem_of(parameter)
        if path is not None and not _NUMBERED.fullmatch(path):
            names.append(_Name(path, True))
        else:
            names.append(None if _NUMBERED.fullmatch(stem) else _Name(stem, False))
    times = Counter(names)
    return [None if times[name] > 1 else name for name in names]


def _shapes(computation: Computation) -> list[ArrayShape]:
    return [shape for shape in computation.parameter_shapes if isinstance(shape, ArrayShape)]


def _may_be(value: Any, shape: ArrayShape) -> bool:
    """Whether a leaf may be of a shape, as far as its own shape and type say."""
    value = without_key_type(value)
    try:
        sizes = tuple(getattr(value, "shape", ()))
    except TypeError:
        return False
    if is_branch(value) or not shape.has_room_for(sizes):
        return False
    element_type = _type_of(value)
    return (
        element_type is None
        or element_type is shape.element_type
        or (element_type.is_integral and shape.element_type.is_integral)
    )


def _type_of(value: Any) -> ElementType | None:
    """The element type of an array of NumPy's types; None where it is not known."""
    try:
        return element_type_of(np.dtype(value.dtype))
    except (AttributeError, KeyError, TypeError):
        return None
