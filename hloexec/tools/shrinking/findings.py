"""What shrinking a module did: which dimensions became what, which stayed and why, and what was guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Described
from hloexec.tools.shrinking.devices.arrangements import AxisChange
from hloexec.tools.shrinking.dimensions import Dimensions
from hloexec.tools.shrinking.grouping import Groups
from hloexec.tools.shrinking.positions import ConstantChange

_MOST_ROLES = 3


@frozen
class SizeChange:
    """A size that became another, everywhere where it is the same dimension."""

    before: int
    """The size, as it was."""
    after: int
    """What it became."""
    arrays: int
    """Of how many arrays it is a dimension."""
    parameters: tuple[str, ...]
    """Inputs of which it is a dimension, such as `tokens[1]`."""
    roles: tuple[str, ...]
    """The operations in which it occurs most often, by the names that a framework gave them."""


@frozen
class KeptSize:
    """A size that stays, and why, with one place where that was found."""

    size: int
    """The size of a dimension."""
    arrays: int
    """Of how many arrays it is a dimension."""
    reason: str
    computation: str
    instruction: str


@frozen
class Shrinkage(Described):
    """A smaller module, and how it differs from the given one.

    Bytes and floating-point operations are those of a run on all devices; `peak_bytes` is what the run allocates
    beyond its inputs, None where the module cannot run.
    """

    module: Module
    changes: tuple[SizeChange, ...]
    """The sizes of dimensions that changed."""
    kept: tuple[KeptSize, ...]
    """The sizes of dimensions that stay, and why."""
    constants: tuple[ConstantChange, ...]
    """Constants that may encode a size; those that are not certain were guessed, or left as they are."""
    is_proven: bool
    """Whether the sizes are the best for their bound; else the search for better ones was ended at its limit."""
    devices: int
    """How many devices the module runs on."""
    devices_before: int
    """How many it ran on before."""
    axes: tuple[AxisChange, ...]
    """Of the grid of devices, major to minor; none where the number of devices stays."""
    argument_bytes_before: int
    """The size of the inputs of all devices, as it was."""
    argument_bytes: int
    """The size of the inputs of all devices."""
    peak_bytes: int | None
    """What a run allocates beyond its inputs; None where the module cannot run."""
    flops_before: int
    """Operations of contractions on all devices, as they were."""
    flops: int
    """Operations of contractions on all devices."""

    @property
    def total_bytes(self) -> int | None:
        """Those of the inputs, and what a run allocates beyond them."""
        return None if self.peak_bytes is None else self.argument_bytes + self.peak_bytes

    def __str__(self) -> str:
        return f"{self.module}, {len(self.changes)} sizes changed"


@define
class _Uses:
    arrays: int = 0
    parameters: list[str] = attrs.field(factory=list)
    roles: Counter[str] = attrs.field(factory=Counter)


def _uses(module: Module, dimensions: Dimensions) -> dict[int, _Uses]:
    """Where each root occurs."""
    found: dict[int, _Uses] = {}
    root = dimensions.relations.root
    for computation in module:
        values = dimensions.values[computation.name]
        for instruction in computation.instructions:
            role = _role(instruction.op_name)
            is_input = computation is module.entry and instruction in module.entry.parameters
            for axes in values[instruction.name].leaves.values():
                for number, axis in enumerate(axes):
                    uses = found.setdefault(root(axis), _Uses())
                    uses.arrays += 1
                    if role:
                        uses.roles[role] += 1
                    if is_input and len(uses.parameters) < _MOST_ROLES:
                        uses.parameters.append(f"{instruction.name}[{number}]")
    return found


def _role(op_name: str | None) -> str:
    """The last two parts of the name that a framework gave an operation."""
    parts = (op_name or "").rsplit("/", 2)[-2:]
    return "/".join(part.partition("[")[0].strip() for part in parts)


def size_changes(
    module: Module, dimensions: Dimensions, groups: Groups, sizes: Mapping[int, int]
) -> tuple[SizeChange, ...]:
    """The roots that changed, those of the same size, group and new size together, the most frequent first."""
    uses = _uses(module, dimensions)
    merged: dict[tuple[int, int, int], _Uses] = {}
    for root, after in sizes.items():
        before = dimensions.relations.sizes[root]
        if before != after and root in uses:  # else it is an axis of devices
            total = merged.setdefault((groups.of_root.get(root, -1 - root), before, after), _Uses())
            one = uses[root]
            total.arrays += one.arrays
            total.parameters += one.parameters
            total.roles += one.roles
    changes = [
        SizeChange(
            before,
            after,
            each.arrays,
            tuple(each.parameters[:_MOST_ROLES]),
            tuple(role for role, _ in sorted(each.roles.items(), key=lambda item: (-item[1], item[0]))[:_MOST_ROLES]),
        )
        for (_, before, after), each in merged.items()
    ]
    return tuple(sorted(changes, key=lambda change: (-change.arrays, -change.before, change.parameters, change.roles)))


def kept_sizes(module: Module, dimensions: Dimensions, groups: Groups) -> tuple[KeptSize, ...]:
    """The sizes that stay, those of one size and reason together, the largest first."""
    uses = _uses(module, dimensions)
    found: dict[tuple[int, str], KeptSize] = {}
    for root, (reason, place) in groups.kept.items():
        if root not in uses:
            continue
        size = dimensions.relations.sizes[root]
        key = size, reason
        before = found.get(key, KeptSize(size, 0, reason, *place))
        found[key] = attrs.evolve(before, arrays=before.arrays + uses[root].arrays)
    return tuple(sorted(found.values(), key=lambda kept: (-kept.size, -kept.arrays, kept.reason)))
