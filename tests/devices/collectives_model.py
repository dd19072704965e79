"""What every collective does, element by element: the model that the machine of many devices is held to.

Written from XLA's operation semantics (and CollectiveOpGroupMode for who acts together), in loops over devices and
elements, without anything of hloexec. A device is a number, `replica * partitions + partition`; `values[device]` is
what one operand is on that device. `groups` are lists of device numbers in the order that counts.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Groups = list[list[int]]
CROSS_REPLICA, CROSS_PARTITION, CROSS_BOTH, FLATTENED = (
    "cross_replica",
    "cross_partition",
    "cross_replica_and_partition",
    "flattened_id",
)


def flattened_groups(mode: str, groups: Groups, replicas: int, partitions: int) -> Groups:
    """The device numbers that act together, for groups of replica, partition or device numbers."""
    if not groups:
        groups = [list(range(partitions if mode == CROSS_PARTITION else replicas))]
    result = []
    if mode == FLATTENED:
        return [list(group) for group in groups]
    if mode == CROSS_REPLICA:
        for group in groups:
            for partition in range(partitions):
                result.append([replica * partitions + partition for replica in group])
    elif mode == CROSS_PARTITION:
        for group in groups:
            for replica in range(replicas):
                result.append([replica * partitions + partition for partition in group])
    else:
        for group in groups:
            members = []
            for replica in group:
                for partition in range(partitions):
                    members.append(replica * partitions + partition)
            result.append(members)
    return result


def flattened_pairs(
    has_channel: bool, pairs: Sequence[tuple[int, int]], replicas: int, partitions: int
) -> list[tuple[int, int]]:
    """Pairs of devices for pairs of partitions (with a channel, in each replica) or of replicas."""
    result = []
    for source, target in pairs:
        if has_channel:
            for replica in range(replicas):
                result.append((replica * partitions + source, replica * partitions + target))
        else:
            for partition in range(partitions):
                result.append((source * partitions + partition, target * partitions + partition))
    return result


def iota_groups(shape: Sequence[int], reshape: Sequence[int], permutation: Sequence[int] | None) -> Groups:
    """`[shape]<=[reshape]T(permutation)`: 0, 1, 2, … in `reshape`, axes permuted, then read off in rows of `shape`."""
    permutation = list(permutation) if permutation is not None else list(range(len(reshape)))
    numbers = []
    for index in product(*[range(reshape[axis]) for axis in permutation]):
        original = [0] * len(reshape)
        for position, axis in enumerate(permutation):
            original[axis] = index[position]
        numbers.append(_row_major(original, reshape))
    size = shape[-1]
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def mesh_groups(sizes: Sequence[int], device_ids: Sequence[int], axes: Sequence[tuple[int, int, int]]) -> Groups:
    """Groups along (axis, pre-size, size) parts of mesh axes; the parts in the order given, first one major.

    A part divides its axis's coordinate: pre-size parts are before it, what remains of the axis after it.
    """
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for position, device in enumerate(device_ids):
        coordinates = _unravelled(position, sizes)
        rank = 0
        rest = list(coordinates)
        for axis, before, size in axes:
            after = sizes[axis] // (before * size)
            digit = (coordinates[axis] // after) % size
            rank = rank * size + digit
            rest[axis] -= digit * after
        places.setdefault(tuple(rest), []).append((rank, device))
    return [[device for _, device in sorted(members)] for _, members in sorted(places.items())]


def partition_id(device: int, partitions: int) -> int:
    return device % partitions


def replica_id(device: int, partitions: int) -> int:
    return device // partitions


def all_gather(groups: Groups, values: Sequence[Array], dimension: int) -> list[Array]:
    """out[…, g·size + i, …] = the operand of the group's g-th device at […, i, …]."""
    results = [_untouched(value) for value in values]
    for group in groups:
        part = values[group[0]].shape[dimension]
        shape = list(values[group[0]].shape)
        shape[dimension] = part * len(group)
        for device in group:
            result = np.empty(shape, values[device].dtype)
            for rank, source in enumerate(group):
                for index in np.ndindex(*values[source].shape):
                    place = list(index)
                    place[dimension] += rank * part
                    result[tuple(place)] = values[source][index]
            results[device] = result
    return results


def all_reduce(
    groups: Groups, operands: Sequence[Sequence[Array]], reducer: Callable[..., Any], arity: int = 1
) -> list[list[Array]]:
    """Per element a fold over the group's devices, in the group's order, without an init value.

    `operands[n][device]` is operand n. `reducer` combines two scalars (Python numbers) for each operand by itself
    (arity 1), or 2·n scalars into n (arity n). Numbers are Python's: exact for integers, f64 for floats.
    """
    devices = len(operands[0])
    results = [[_untouched(operand[device]) for operand in operands] for device in range(devices)]
    for group in groups:
        first = [np.empty_like(operand[group[0]]) for operand in operands]
        if arity == 1:
            for number, operand in enumerate(operands):
                for index in np.ndindex(*first[number].shape):
                    total = operand[group[0]][index].item()
                    for device in group[1:]:
                        total = reducer(total, operand[device][index].item())
                    first[number][index] = _stored(total, first[number].dtype)
        else:
            for index in np.ndindex(*first[0].shape):
                totals = tuple(operand[group[0]][index].item() for operand in operands)
                for device in group[1:]:
                    totals = reducer(*totals, *(operand[device][index].item() for operand in operands))
                for number, total in enumerate(totals):
                    first[number][index] = _stored(total, first[number].dtype)
        for device in group:
            results[device] = [array.copy() for array in first]
    return results


def reduce_scatter(
    groups: Groups, operands: Sequence[Sequence[Array]], reducer: Callable[..., Any], dimension: int
) -> list[list[Array]]:
    """An all-reduce, of which the group's g-th device keeps the g-th of equal parts along `dimension`."""
    reduced = all_reduce(groups, operands, reducer)
    for group in groups:
        for rank, device in enumerate(group):
            reduced[device] = [_block(array, dimension, rank, len(group)) for array in reduced[device]]
    return reduced


def all_to_all(groups: Groups, values: Sequence[Array], dimension: int) -> list[Array]:
    """Part j of the i-th device becomes part i of the j-th device; parts lie along `dimension`."""
    results = [_untouched(value) for value in values]
    for group in groups:
        size = values[group[0]].shape[dimension] // len(group)
        for to, device in enumerate(group):
            result = np.empty_like(values[device])
            for sent, source in enumerate(group):
                part = _block(values[source], dimension, to, len(group))
                for index in np.ndindex(*part.shape):
                    place = list(index)
                    place[dimension] += sent * size
                    result[tuple(place)] = part[index]
            results[device] = result
    return results


def all_to_all_tuple(groups: Groups, operands: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Operand j of the i-th device becomes result i of the j-th device."""
    devices = len(operands[0])
    results = [[_untouched(operand[device]) for operand in operands] for device in range(devices)]
    for group in groups:
        for to, device in enumerate(group):
            results[device] = [operands[to][source].copy() for source in group]
    return results


def ragged_all_to_all(groups: Groups, operands: Sequence[Sequence[Array]]) -> list[Array]:
    """Operands: input, output, input_offsets, send_sizes, output_offsets, recv_sizes.

    For its group's j-th device, a device sends its input's rows input_offsets[j] … + send_sizes[j], which become rows
    output_offsets[j] … of j's output. (So output_offsets are the sender's; recv_sizes say again what arrives.)
    Offsets of shape [devices, n] send n pieces to each device.
    """
    data, output, input_offsets, send_sizes, output_offsets, _ = operands
    results = [array.copy() for array in output]
    for group in groups:
        for sender in group:
            pieces = prod(input_offsets[sender].shape) // len(group)
            starts = input_offsets[sender].reshape(-1)
            sizes = send_sizes[sender].reshape(-1)
            places = output_offsets[sender].reshape(-1)
            for rank, receiver in enumerate(group):
                for piece in range(rank * pieces, (rank + 1) * pieces):
                    for row in range(int(sizes[piece])):
                        results[receiver][int(places[piece]) + row] = data[sender][int(starts[piece]) + row]
    return results


def collective_permute(pairs: Sequence[tuple[int, int]], values: Sequence[Array]) -> list[Array]:
    """A target gets its source's value, a device that is no target zeros."""
    results = [np.zeros_like(value) for value in values]
    for source, target in pairs:
        results[target] = values[source].copy()
    return results


def collective_permute_in_place(
    pairs: Sequence[tuple[int, int]],
    values: Sequence[Array],
    outputs: Sequence[Array],
    input_starts: Sequence[Sequence[int]],
    output_starts: Sequence[Sequence[int]],
    sizes: Sequence[int],
) -> list[Array]:
    """A slice of the source's value is written into the target's output; other outputs stay as they are.

    Where the slice is read is the source's knowledge, where it is written the target's.
    """
    results = [output.copy() for output in outputs]
    for source, target in pairs:
        for index in np.ndindex(*sizes):
            read = tuple(start + i for start, i in zip(input_starts[source], index, strict=True))
            written = tuple(start + i for start, i in zip(output_starts[target], index, strict=True))
            results[target][written] = values[source][read]
    return results


def collective_broadcast(groups: Groups, values: Sequence[Array]) -> list[Array]:
    """The value of the group's first device; zeros on devices in no group."""
    results = [np.zeros_like(value) for value in values]
    for group in groups:
        for device in group:
            results[device] = values[group[0]].copy()
    return results


def _row_major(index: Sequence[int], shape: Sequence[int]) -> int:
    number = 0
    for place, size in zip(index, shape, strict=True):
        number = number * size + place
    return number


def _unravelled(number: int, shape: Sequence[int]) -> list[int]:
    index = []
    for size in reversed(shape):
        index.append(number % size)
        number //= size
    return index[::-1]


def _untouched(value: Array) -> Array:
    """What a device in no group would have; no module of the tests has such a device where this is used."""
    return np.full_like(value, 0)


def _block(array: Array, dimension: int, number: int, count: int) -> Array:
    """The number-th of `count` equal parts along a dimension."""
    shape = list(array.shape)
    shape[dimension] //= count
    result = np.empty(shape, array.dtype)
    for index in np.ndindex(*shape):
        place = list(index)
        place[dimension] += number * shape[dimension]
        result[index] = array[tuple(place)]
    return result


def _stored(number: Any, dtype: np.dtype[Any]) -> Any:
    """A Python number as an element of `dtype`: integers wrap, floats round once."""
    if dtype.kind in "iu" or dtype.name in "int4 uint4 int2 uint2".split():
        bits = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}.get(dtype.name, dtype.itemsize * 8)
        wrapped = int(number) % 2**bits
        signed = dtype.kind == "i" or dtype.name.startswith("int")
        return dtype.type(wrapped - 2**bits if signed and wrapped >= 2 ** (bits - 1) else wrapped)
    return dtype.type(number)
