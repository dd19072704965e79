"""Snapshots in commands: a module with the inputs and the result of an execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hloexec.core.errors import InputError

if TYPE_CHECKING:
    from hloexec.core.ir import Computation
    from hloexec.core.values import Value
    from hloexec.language.interop import Snapshot


def recorded_inputs(
    snapshot: Snapshot, computation: Computation, given: Mapping[int, Value], count: int
) -> list[list[Value]]:
    """The recorded inputs, for all devices or for each of `count`, with the `given` values replacing theirs."""
    recorded = snapshot.inputs_per_device
    if len(recorded) not in (1, count):
        raise InputError(f"the snapshot has the inputs of {len(recorded)} devices, but the module runs on {count}")
    for values in recorded:
        if len(values) != len(computation.parameters):
            raise InputError(
                f"the snapshot has {len(values)} inputs, but {computation.name} has {len(computation.parameters)} "
                f"parameters; --random-inputs generates others"
            )
    return [[given.get(number, value) for number, value in enumerate(values)] for values in recorded]
