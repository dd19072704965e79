"""Whole arrays as inputs and results of partitioned modules: `shard_inputs` and `unshard_outputs`.

The entry of a partitioned module takes and returns each device's shards. The parameters still carry the shardings of
the whole arrays, but for those of XLA since jaxlib 0.12. The result does not: its sharding and its shape are those of
the module before partitioning, and are lost if XLA chose them itself. There, JAX says them in `sharding`, or in
Shardy's frontend attributes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from hloexec.core.arguments import require_module, wrong
from hloexec.core.arrays import as_value
from hloexec.core.ir import (
    ArrayShape,
    BufferShape,
    Instruction,
    Module,
    NamedSharding,
    Shape,
    Sharding,
    ShardingType,
    TileSharding,
    TupleShape,
    TupleSharding,
    flat_shapes,
    leaf_shapes,
)
from hloexec.core.tree import Nested, mapped, rebuilt
from hloexec.core.values import Array, Inputs, Value, label_of
from hloexec.core.wording import argument
from hloexec.engine.devices.manual_regions import Tiles, index_of, sharding_of, tiles_of
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.engine.exec.arguments import inputs_by_device, require_inputs
from hloexec.engine.plan.kernels import fits
from hloexec.errors import InputError, ParseError, UnsupportedError
from hloexec.language.text.attributes.annotations import meshes_of, parse_shardings
from hloexec.language.text.attributes.shardings import parse_sharding
from hloexec.language.text.printer import sharding as sharding_text
from hloexec.language.text.shapes import parse_shape
from hloexec.ops.registry import operation_name

_LeafSharding: TypeAlias = TileSharding | NamedSharding | None
_Leaf: TypeAlias = ArrayShape | BufferShape
T = TypeVar("T")


def _remedy() -> str:
    sharding, before = argument("sharding", text="its sharding"), argument("before")
    return (
        f"give {sharding}, or as {before} a module before partitioning whose result has one, such as the last dump "
        "before spmd-partitioning"
    )


def shard_inputs(
    module: Module,
    inputs: Inputs,
    *,
    before: Module | None = None,
    replicas: int | None = None,
    partitions: int | None = None,
) -> list[list[Any]]:
    """Split whole arrays into the inputs of each device for `run_devices`. The arrays are a list with one value per
    parameter of the entry computation, or a mapping from parameter names.

    An array that is larger than its parameter is split according to the parameter's sharding. If a dimension does not
    divide evenly, it is padded with zeros at its end first, as XLA does. Devices that hold the same shard receive the
    same array, and so do all replicas. An array that already has the parameter's shape goes to every device as a whole;
    a module that has not been partitioned yet therefore receives whole arrays on every device.
    `before` is the same module before it was partitioned, whose parameters have the shardings that `module`'s lack (XLA
    leaves them out since jaxlib 0.12), or are taken by a `Sharding` that has one.

    Raises InputError if the shards do not have the parameter's shape, nothing says how an array is divided, the
    sharding is for another number of partitions, or `before` has other parameters.
    """
    require_module(module)
    if before is not None:
        require_module(before, "before")
    topology = topology_of(module, replicas, partitions)
    rows = inputs_by_device(module.entry, inputs)
    if len(rows) > 1:
        raise InputError(f"inputs must be whole values, one per parameter, but {len(rows)} lists of values were given")
    (values,) = rows
    require_inputs(module.entry, values)
    columns = []
    wholes = module.entry.parameters if before is None else before.entry.parameters
    if len(wholes) != len(values):
        raise InputError(f"the module has {len(values)} parameters, but {len(wholes)} before partitioning")
    for number, (parameter, whole, value) in enumerate(zip(module.entry.parameters, wholes, values, strict=True)):
        label = f"parameter {number} ({parameter.name})"
        sharding = parameter.sharding
        if sharding is None and before is not None:
            sharding = parameter_sharding(before, whole)
        shardings = iter(leaf_shardings(sharding, parameter.shape, label))
        # Each leaf becomes the list of its shards.
        tree = _mapped(value, parameter.shape, label, _cutting(shardings, label, topology))
        columns.append([_entry_of(tree, partition) for partition in range(topology.partitions)])
    return [[column[topology.partition_of(device)] for column in columns] for device in range(topology.count)]


def _cutting(shardings: Iterator[_LeafSharding], subject: str, topology: Topology) -> Callable[[Any, _Leaf], list[Any]]:
    def cut(value: object, shape: _Leaf) -> list[Any]:
        sharding = next(shardings)
        if not isinstance(value, np.ndarray) or not isinstance(shape, ArrayShape):
            return [value] * topology.partitions
        if value.shape == shape.dimensions or any(shape.dynamic_dimensions or ()):
            return [value] * topology.partitions
        if sharding is None and topology.partitions > 1:
            raise InputError(
                f"{subject} is {shape} on each device, and nothing says how the array {list(value.shape)} that was "
                f"given is divided; give as {argument('before')} the module before partitioning, with a "
                "sharding of it"
            )
        return [value] if sharding is None else _shards(value, shape, sharding, subject, topology)

    return cut


def _shards(
    value: Array, shape: ArrayShape, sharding: TileSharding | NamedSharding, subject: str, topology: Topology
) -> list[Any]:
    """The shard of each partition."""
    tiles = _tiles(sharding, value.ndim, subject, topology)
    counts = tiles.shape[:-1]
    tile = tuple(-(-size // count) for size, count in zip(value.shape, counts, strict=True))
    if tile != shape.dimensions:
        raise InputError(
            f"{subject} is {shape} on each device, but shards of the array {list(value.shape)} that was given would be "
            f"{list(tile)} (sharding={sharding_text(sharding)})"
        )
    shards: list[Any] = [None] * topology.partitions
    for place in np.ndindex(counts):
        piece = value[index_of(place, tile)]
        if piece.shape != tile:
            padded = np.zeros(tile, value.dtype)
            padded[tuple(map(slice, piece.shape))] = piece
            piece = padded
        for partition in tiles[place]:
            shards[partition] = piece
    return shards


def unshard_outputs(
    module: Module,
    outputs: Sequence[object],
    *,
    before: Module | None = None,
    sharding: Sharding | str | None = None,
    shape: Shape | str | None = None,
    replicas: int | None = None,
    partitions: int | None = None,
) -> Value:
    """Reassemble the whole result from the outputs of `run_devices`, one per device.

    `sharding` says how the whole is divided, and `shape` is its shape: both as objects or as HLO text, for a tuple one
    sharding and one shape per element. If they are not given, they are taken from `before`, the same module before it
    was partitioned: the sharding of its root, or of the elements of a root that is a tuple. (Among XLA's dumps, the
    last one before spmd-partitioning has all shardings; earlier ones lack those that XLA was left to choose.) Without
    `before`,

    - the sharding is that of `module`'s own root, if there is one;
    - the whole is as large as all shards together. If a dimension did not divide evenly, this includes the padding that
      XLA added at its end; only `shape` or `before` can tell where the array ends.

    A module that was not partitioned (XLA's partitioner appends `_spmd` to the name of the entry) gives the whole on
    every device, unless a sharding is given.

    Devices that hold the same shard must hold the same bits, and without a sharding all devices must. Raises InputError
    where they do not, or if the shards do not add up to the shape.
    """
    require_module(module)
    if before is not None:
        require_module(before, "before")
    if sharding is not None and not isinstance(sharding, (str, TileSharding, NamedSharding, TupleSharding)):
        raise wrong("sharding", "a Sharding, or the text of one", sharding)
    if shape is not None and not isinstance(shape, (str, ArrayShape, BufferShape, TupleShape)):
        raise wrong("shape", "a Shape, or the text of one", shape)
    if not isinstance(outputs, (list, tuple)):
        raise wrong("outputs", "a list with the output of each device", outputs)
    outputs = [as_value(output, f"the output of device {device}") for device, output in enumerate(outputs)]
    topology = topology_of(module, replicas, partitions)
    declared = module.entry.result_shape
    if len(outputs) != topology.count:
        raise InputError(f"there must be one output per device, {topology.count}, but {len(outputs)} were given")
    source = module if before is None else before
    if shape is None and (before is not None or (sharding is None and "_spmd" not in module.entry_name)):
        shape = source.entry.result_shape
    shapes = _whole_shapes(parse_shape(shape) if isinstance(shape, str) else shape, declared)
    shardings = _shardings(source, sharding, declared)
    if len(shardings) != len(shapes):
        raise InputError(f"the result has {len(shapes)} arrays, but {len(shardings)} before partitioning")
    rows = _rows(outputs, declared)
    names = [_leaf_name(index) for index, _ in leaf_shapes(declared)]
    columns = zip(*rows, strict=True) if names else []
    wholes = iter([_whole(*entry, topology) for entry in zip(columns, shardings, shapes, names, strict=True)])
    return _mapped(outputs[0], declared, "the output", lambda value, shape: next(wholes))


def _shardings(source: Module, sharding: Sharding | str | None, declared: Shape) -> list[_LeafSharding]:
    """The sharding of each leaf of the result: those that are given, or what the module says."""
    if sharding is None:
        return result_shardings(source)
    stated_sharding = parse_sharding(sharding) if isinstance(sharding, str) else sharding
    return leaf_shardings(stated_sharding, declared, "the result")


def shards_of_result(
    whole: Mapping[str, Array],
    module: Module,
    outputs: Sequence[Value],
    *,
    before: Module | None = None,
    sharding: Sharding | str | None = None,
    replicas: int | None = None,
    partitions: int | None = None,
) -> dict[str, Array]:
    """What each device should return where the arrays of the whole result, by label, are these: the inverse of
    `unshard_outputs`. In padding, which the whole lacks, what the device did return. Labels begin with its number.

    Raises InputError if the arrays do not divide into `outputs`, or nothing says how.
    """
    topology = topology_of(module, replicas, partitions)
    declared = module.entry.result_shape
    shardings = _shardings(module if before is None else before, sharding, declared)
    rows = _rows(outputs, declared)
    shards_by_label = {}
    for (index, shape), stated, *own in zip(leaf_shapes(declared), shardings, *rows, strict=True):
        array = whole[label_of(index)]
        shards, masks = (
            _cutting(iter([stated]), _leaf_name(index), topology)(value, shape)
            for value in (array, np.ones(array.shape, bool))
        )
        for device, output in enumerate(own):
            partition = topology.partition_of(device)
            shard, is_known = shards[partition], masks[partition]
            shards_by_label[label_of((device, *index))] = shard if is_known.all() else np.where(is_known, shard, output)
    return shards_by_label


def _whole(
    values: Sequence[object], sharding: _LeafSharding, shape: tuple[int, ...] | None, subject: str, topology: Topology
) -> Any:
    """One leaf of the result, from those of all devices."""
    first = values[0]
    everyone = range(topology.count)
    if not isinstance(first, np.ndarray) or shape == first.shape:
        return _agreed(values, everyone, f"{subject} is whole on every device")
    if sharding is None:
        if shape is not None:
            raise InputError(
                f"{subject} is {list(first.shape)} on each device and {list(shape)} as a whole, but nothing says how "
                f"it is divided; {_remedy()}"
            )
        return _agreed(
            values,
            everyone,
            f"nothing says how {subject} is divided ({_remedy()})",
        )
    if isinstance(sharding, TileSharding) and sharding.type is ShardingType.MAXIMAL:
        holder = sharding.devices[0] if sharding.device is None else sharding.device
        return _agreed(values, [_existing(holder, subject, topology)], subject)
    tiles = _tiles(sharding, first.ndim, subject, topology)
    counts = tiles.shape[:-1]
    whole = tuple(map(operator.mul, counts, first.shape)) if shape is None else shape
    if tuple(-(-size // count) for size, count in zip(whole, counts, strict=True)) != first.shape:
        raise InputError(
            f"shards {list(first.shape)} of {subject} do not make up {list(whole)} (sharding={sharding_text(sharding)})"
        )
    result = np.empty(whole, first.dtype)
    for place in np.ndindex(counts):
        holders = sorted(topology.device(r, int(p)) for p in tiles[place] for r in range(topology.replicas))
        piece = _agreed(values, holders, f"shard {list(place)} of {subject} has copies")
        index = index_of(place, first.shape)
        result[index] = piece[tuple(map(slice, result[index].shape))]
    return result


def _agreed(values: Sequence[Any], devices: Sequence[int], subject: str) -> Any:
    """The value that all of these devices hold."""
    first = values[devices[0]]
    for device in devices[1:]:
        other = values[device]
        if other is first or not isinstance(first, np.ndarray):
            continue
        if other.shape != first.shape or other.tobytes() != first.tobytes():
            raise InputError(f"{subject}, but devices {devices[0]} and {device} hold different values")
    return first


def _tiles(sharding: TileSharding | NamedSharding, rank: int, subject: str, topology: Topology) -> Tiles:
    try:
        tiles = tiles_of(sharding, rank, topology.partitions)
    except UnsupportedError as error:
        raise InputError(
            f"{subject} cannot be divided: {error.message} (sharding={sharding_text(sharding)})"
        ) from error
    if tiles.size != topology.partitions:
        raise InputError(
            f"{subject} is divided among {tiles.size} partitions, but there are {topology.partitions} ({topology}); "
            "set the number of partitions"
        )
    return tiles


def _existing(partition: int, subject: str, topology: Topology) -> int:
    if partition >= topology.partitions:
        raise InputError(f"{subject} is on partition {partition}, but there are {topology.partitions} ({topology})")
    return partition


def result_shardings(module: Module) -> list[_LeafSharding]:
    """The sharding of each leaf of the entry's result, as far as the text says it."""
    computation, own = module.entry, _own_sharding(module)
    root = computation.root
    stated = own(root)
    if stated is None and root.opcode == "tuple":
        operands = computation.operands_of(root)
        return [
            leaf
            for operand in operands
            for leaf in leaf_shardings(sharding_of(computation, operand, own), operand.shape, "the result")
        ]
    return leaf_shardings(stated, root.shape, "the result")


def parameter_sharding(module: Module, parameter: Instruction) -> Sharding | None:
    """The sharding of a parameter of the entry; XLA gives one that has none that of the `Sharding` calls that take it,
    if they agree, and Shardy that of the manual region that does."""
    own = _own_sharding(module)
    stated = own(parameter)
    if stated is not None:
        return stated
    takers = [taker for taker in module.entry if parameter.name in taker.operands]
    shardings: set[Sharding | None] = {own(taker) for taker in takers if operation_name(taker) == "Sharding"}
    for taker in takers:
        taken = _of_operands(taker, module)
        if taken is not None and len(taken) == len(taker.operands):
            shardings |= {taken[number] for number, name in enumerate(taker.operands) if name == parameter.name}
    return shardings.pop() if len(shardings) == 1 else None


def _own_sharding(module: Module) -> Callable[[Instruction], Sharding | None]:
    """What an instruction says of its result: in its `sharding`, or else in Shardy's frontend attributes."""

    def own(instruction: Instruction) -> Sharding | None:
        stated = instruction.sharding
        if stated is not None or not instruction.frontend_attributes:
            return stated
        attributes = dict(instruction.frontend_attributes)
        name = "xla.sdy.sharding"
        if operation_name(instruction) == "xla.sdy.LocalToGlobalShape":
            name = "xla.sdy.out_shardings"
        if name not in attributes:
            return None
        shardings = _by_shardy(attributes[name], module, instruction)
        return TupleSharding(shardings) if isinstance(instruction.shape, TupleShape) else next(iter(shardings), None)

    return own


def _of_operands(instruction: Instruction, module: Module) -> Sequence[NamedSharding] | None:
    """The shardings of the arrays that a manual region of Shardy takes."""
    text = dict(instruction.frontend_attributes or ()).get("xla.sdy.in_shardings")
    return None if text is None else _by_shardy(text, module, instruction)


def _by_shardy(text: str, module: Module, instruction: Instruction) -> tuple[NamedSharding, ...]:
    try:
        return parse_shardings(text, meshes_of(module))
    except ParseError as error:
        raise InputError(f"the sharding of %{instruction.name} cannot be read: {error.message}: {text}") from error


def leaf_shardings(sharding: Sharding | None, shape: Shape, subject: str) -> list[_LeafSharding]:
    """The sharding of each leaf of a shape; one that is no tuple's is that of all leaves."""
    count = len(flat_shapes(shape))
    if not isinstance(sharding, TupleSharding):
        return [_known(sharding)] * count
    # XLA gives the empty tuple one sharding.
    if count and len(sharding.elements) != count:
        raise InputError(f"{subject} has {count} arrays, but {len(sharding.elements)} shardings")
    return [_known(element) for element in sharding.elements[:count]]


def _known(sharding: _LeafSharding) -> _LeafSharding:
    is_unknown = isinstance(sharding, TileSharding) and sharding.type is ShardingType.UNKNOWN
    return None if is_unknown else sharding


def _whole_shapes(shape: Shape | None, declared: Shape) -> list[tuple[int, ...] | None]:
    """The dimensions of the whole of each leaf; None where they are not known."""
    parts = flat_shapes(declared)
    if shape is None:
        return [None] * len(parts)
    whole_dimensions: list[tuple[int, ...] | None] = []
    wholes = flat_shapes(shape)
    if len(wholes) != len(parts):
        raise InputError(f"the result as a whole should be {shape}, but on each device it is {declared}")
    for whole, part in zip(wholes, parts, strict=True):
        if not isinstance(whole, ArrayShape) or not isinstance(part, ArrayShape):
            whole_dimensions.append(None)
        elif whole.rank != part.rank or whole.element_type is not part.element_type:
            raise InputError(f"an array of the result should be {whole} as a whole, but on each device it is {part}")
        else:
            whole_dimensions.append(None if any(whole.dynamic_dimensions or ()) else whole.dimensions)
    return whole_dimensions


def _mapped(value: object, shape: Shape, subject: str, leaf: Callable[[Any, _Leaf], T]) -> Nested[T]:
    """A value with `leaf` applied to each of its leaves and their shapes; InputError where its tuples are others."""

    def parts(node: tuple[Any, Shape]) -> Sequence[Any] | None:
        current, declared = node
        if not isinstance(declared, TupleShape):
            return None
        if not isinstance(current, (tuple, list)) or len(current) != len(declared.elements):
            raise InputError(
                f"{subject} must be of the shape {shape}, but has no tuple of {len(declared.elements)} there"
            )
        return list(zip(current, declared.elements, strict=True))

    return rebuilt((value, shape), parts, lambda node: leaf(*node))


def _rows(outputs: Sequence[object], declared: Shape) -> list[list[Any]]:
    """The leaves of the output of each device."""
    return [_leaves(output, declared, f"the output of device {device}") for device, output in enumerate(outputs)]


def _leaves(value: object, shape: Shape, subject: str) -> list[Any]:
    """The leaves of an output, which must be of the module's shape."""
    leaves: list[Any] = []

    def add(leaf: Any, declared: _Leaf) -> None:
        if not fits(leaf, declared):
            raise InputError(f"{subject} must be of the shape {shape}, but has an array there that is not {declared}")
        leaves.append(leaf)

    _mapped(value, shape, subject, add)
    return leaves


def _leaf_name(index: Sequence[int]) -> str:
    return f"element {label_of(index)} of the result" if index else "the result"


def _entry_of(tree: object, partition: int) -> Any:
    """A value whose leaves are lists, with an entry in the place of each."""
    return mapped(tree, lambda shards: shards[partition])
