"""What devices exchange otherwise than they should: parts of a sum that nothing adds up, as an all-reduce was left out,
and collectives between the wrong devices.

All results have to come right once the module is changed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.values import Array
from hloexec.core.wording import listing
from hloexec.ops.common import wide
from hloexec.ops.operations import exchanges, traits_of
from hloexec.tools.diffing.agreement import is_near
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.blaming import Blamed
from hloexec.tools.diffing.localization.edits import Edit, moved_otherwise
from hloexec.tools.diffing.partitioned.adding import with_sum
from hloexec.tools.diffing.partitioned.steps import contents_of
from hloexec.tools.diffing.searching import Search


def with_exchanges(found: Search, ours: Graph, theirs: Graph, is_right: Callable[[Module], bool]) -> Search:
    """The same search; if what its first finding gives on several devices adds up to the right value, that is said.

    So it is if all results are right once that, or what it is computed from, is added up; or, where the finding is not
    certain, once a collective before it exchanges otherwise. `is_right` runs a module in place of `after`, and says
    whether its results are right.
    """
    if found.first is None or not found.findings or len(ours.outputs) < 2:
        return found
    first, *others = found.findings
    group = _group(found.first, ours)
    if group and first.is_certain:
        return attrs.evolve(found, findings=(attrs.evolve(first, reason=_reason(group)), *others))
    if first.is_certain and not first.reason:
        return found
    right: dict[int, tuple[Node, Sequence[int]]] = {}
    for node, groups in _candidates(found.first, ours, theirs):
        edited = None if node.number in right else with_sum(ours.module, node, groups)
        if edited is not None and is_right(edited):
            right[node.number] = node, next(group for group in groups if node.device in group)
    if right:
        # What takes parts in the place of their sum may give parts, too.
        node, own = right[min(right)]
        return _blaming(found, node, _reason(own))
    if group:
        found = attrs.evolve(found, findings=(attrs.evolve(first, reason=_reason(group)), *others))
    return found if first.is_certain or found.first is None else _exchanging(found, found.first, ours.module, is_right)


def _exchanging(found: Search, blamed: Blamed, module: Module, is_right: Callable[[Module], bool]) -> Search:
    """The search with a collective as its only finding, if it is the only one of those before the first finding that,
    exchanging otherwise, puts all results right; that it is to blame is then not certain."""
    right: dict[tuple[str, str], tuple[Node, str]] = {}
    for node, edit in islice(_other_exchanges(blamed.node, module), LIMITS.rewirings):
        if node.instance.static not in right and is_right(edit.module):
            right[node.instance.static] = node, f"the results are right if it is {edit.text}"
    if len(right) != 1:
        return found
    ((node, reason),) = right.values()
    if node.instance.static == blamed.node.instance.static:
        return found
    return _blaming(found, node, reason, is_certain=False)


def _other_exchanges(blamed: Node, module: Module) -> Iterator[tuple[Node, Edit]]:
    for node in _behind(blamed):
        instance = node.instance
        if exchanges(instance.instruction):
            computation = module.by_name[instance.computation.name]
            for edit in moved_otherwise(module, computation, instance.instruction.name):
                yield node, edit


def _reason(group: Sequence[int]) -> str:
    names = listing(map(str, group), 16)
    return f"devices {names} have parts of a sum that nothing adds up: an all-reduce over them is missing"


def _blaming(found: Search, node: Node, reason: str, is_certain: bool = True) -> Search:
    """The search with an instruction as its only finding."""
    first, *_ = found.findings
    assert found.first is not None
    if node.instance.static == found.first.node.instance.static and found.first.place is None:
        finding = attrs.evolve(first, is_certain=is_certain, reason=reason, region=(), graph=())
        blamed = attrs.evolve(found.first, is_certain=is_certain, region=(), reason=reason)
    else:
        finding = attrs.evolve(
            first,
            after=node.place,
            before=None,
            comparison=None,
            is_certain=is_certain,
            reason=reason,
            region=(),
            graph=(),
        )
        blamed = Blamed(node, None, None, node.value, None, found.first.wrong, reason, is_certain=is_certain)
    return attrs.evolve(found, blamed=[blamed], findings=(finding,), first=blamed)


def _group(blamed: Blamed, ours: Graph) -> Sequence[int]:
    """The devices whose values add up to what the instruction should have given, or to what takes it and is right with
    it: a multiple of the sum. Empty where none do."""
    node, right = blamed.node, blamed.value
    if right is None and blamed.compared is not None:
        node, right = blamed.compared.ours, blamed.compared.theirs.value
    if right is None or right.shape != node.shape or is_near(node.value, right):
        return ()
    parts = _on_devices(node, ours)
    for groups in _groupings(sorted(parts)):
        group = next(group for group in groups if node.device in group)
        if _are_parts(parts, group) and is_near(_total(parts, group), right):
            return group
    return ()


def _candidates(blamed: Blamed, ours: Graph, theirs: Graph) -> Iterator[tuple[Node, Sequence[Sequence[int]]]]:
    """What may give parts of a sum, and how devices add up to something that `before` has."""
    for node in _behind(blamed.node):
        if not element_type_of(node.dtype).is_inexact:
            continue
        parts = _on_devices(node, ours)
        if len(parts) != len(ours.outputs):
            continue
        for groups in _groupings(sorted(parts)):
            if not all(_are_parts(parts, group) for group in groups):
                continue
            group = next(group for group in groups if node.device in group)
            if _has(theirs, _total(parts, group), node):
                yield node, groups


def _behind(node: Node) -> Iterator[Node]:
    """A node, and what it is computed from, the nearest first and each instruction once; the first ones. What exchanges
    values is passed if it does not add them up."""
    pending = {node.instance.name: node}
    seen: set[str] = set()
    while pending and len(seen) < LIMITS.steps_to_sums:
        name = next(iter(pending))
        current = pending.pop(name)
        seen.add(name)
        yield current
        instance = current.instance
        if not exchanges(instance.instruction) or traits_of(instance.instruction).moves is not None:
            inputs = [entry for part in instance.operands for entry in part]
            pending |= {entry.instance.name: entry for entry in inputs if entry.instance.name not in seen}


def _has(graph: Graph, value: Array, like: Node) -> bool:
    """Whether a graph has about the numbers of a value on a device, in whatever order."""
    wanted = contents_of(value)
    arrays = graph.arrays
    count, family = like.digest.count, like.digest.family
    seen: set[int] = set()
    for number, array in enumerate(graph.columns.array):
        if array in seen or graph.device_of(number) != like.device:
            continue
        seen.add(array)
        digest = arrays.digest(array)
        if digest.count == count and digest.family == family and wanted.are_in(contents_of(arrays[array])):
            return True
    return False


def _on_devices(node: Node, ours: Graph) -> dict[int, Array]:
    """What an instruction gave in the same iterations on each device."""
    instance = node.instance
    alike = (entry for entry in ours.runs[instance.static] if entry.scope == instance.scope)
    return {entry.device: entry.results[node.leaf].value for entry in alike}


def _total(parts: dict[int, Array], group: Sequence[int]) -> Array:
    total = sum((wide(parts[device]) for device in group[1:]), wide(parts[group[0]]))
    return np.asarray(total).astype(parts[group[0]].dtype)


def _are_parts(parts: dict[int, Array], group: Sequence[int]) -> bool:
    """Whether values may be parts of a sum: where they are all the same, the sum is but a multiple of them, and where
    one is the sum, the others are zero."""
    first, *others = members = [parts[device] for device in group]
    if any(other.shape != first.shape for other in others) or all(is_near(other, first) for other in others):
        return False
    total = _total(parts, group)
    return not any(is_near(part, total) for part in members)


def _groupings(devices: Sequence[int]) -> Iterator[Sequence[Sequence[int]]]:
    """How devices may be divided into groups, as the axes of a mesh divide them: neighbours, or those at equal
    distances."""
    count = len(devices)
    for size in (size for size in range(count, 1, -1) if count % size == 0):
        yield [devices[start : start + size] for start in range(0, count, size)]
        if size < count:
            yield [devices[start :: count // size] for start in range(count // size)]
