"""Parts of a sum that no instruction adds up: the all-reduce that a partitioner has left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from hloexec.diffing.agreement import is_near
from hloexec.diffing.graph import Graph, Node
from hloexec.diffing.localization.blaming import Blamed
from hloexec.diffing.searching import Search
from hloexec.ops.common import wide
from hloexec.values import Array
from hloexec.wording import listing

__all__ = ["with_missing_sums"]


def with_missing_sums(found: Search, ours: Graph, *, is_partitioned: bool) -> Search:
    """The same search; if what its first finding gives on several devices adds up to the right value, that is said."""
    if not is_partitioned or found.first is None or not found.findings:
        return found
    group = _group(found.first, ours)
    if not group:
        return found
    names = listing(map(str, group), 16)
    reason = f"devices {names} have parts of a sum that nothing adds up: an all-reduce over them is missing"
    first, *others = found.findings
    return attrs.evolve(found, findings=(attrs.evolve(first, reason=reason), *others))


def _group(blamed: Blamed, ours: Graph) -> Sequence[int]:
    """The devices whose values add up to what the instruction should have given, or to what takes it and is right with
    it: a multiple of the sum. Empty where none do."""
    node, right = blamed.node, blamed.value
    if right is None and blamed.compared is not None:
        node, right = blamed.compared.ours, blamed.compared.theirs.value
    if right is None or right.shape != node.shape or is_near(node.value, right):
        return ()
    parts = _on_devices(node, ours)
    for group in _groups(sorted(parts), node.device):
        total = sum((wide(parts[device]) for device in group[1:]), wide(parts[group[0]]))
        if is_near(np.asarray(total).astype(right.dtype), right):
            return group
    return ()


def _on_devices(node: Node, ours: Graph) -> dict[int, Array]:
    """What an instruction gave in the same iterations on each device."""
    instance = node.instance
    alike = (entry for entry in ours.runs[instance.static] if entry.scope == instance.scope)
    return {entry.device: entry.results[node.leaf].value for entry in alike}


def _groups(devices: Sequence[int], device: int) -> Iterator[Sequence[int]]:
    """Groups of a device, as the axes of a mesh have them: neighbours, or those at equal distances."""
    count = len(devices)
    place = devices.index(device)
    for size in (size for size in range(count, 1, -1) if count % size == 0):
        yield devices[place // size * size :][:size]
        yield devices[place % (count // size) :: count // size]
