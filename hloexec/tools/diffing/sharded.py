"""One device against many: what a function computes on whole arrays, and what XLA's partitioner made of it for a mesh.

`before` is the module for the mesh before the partitioner, `after` that behind it, and `one` the function for one
device. Where `after` differs from `one`, it differs from `before` as well if the partitioner is to blame, and else the
function is not the same on many devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import attrs
import numpy as np

from hloexec.core import ir
from hloexec.core.ir import Computation, Instruction, Module, TupleSharding
from hloexec.core.ir.editing import map_instructions, replace_computation
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described, Value
from hloexec.engine.sharding import parameter_sharding, result_shardings
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.control.flow import make_constant, make_conversion, make_tuple
from hloexec.ops.registry import Role, exchanges, role_of
from hloexec.tools.diffing import Diff, diff
from hloexec.tools.diffing.findings import Verdict
from hloexec.tools.diffing.partitioned.scales import Scale, scaled_by_devices, wrong_scale

Cause: TypeAlias = Literal["program", "partitioner"]


@frozen
class ShardedModules:
    """A function for one device and for many; all take the same whole arrays."""

    one: Module | None
    """For one device; None where it says nothing of devices but shardings, so that `before` is that as well."""
    before: Module
    """For the mesh, before XLA's partitioner."""
    after: Module
    """For the mesh, behind it."""
    many: Module | None = None
    """For the mesh, as `one` was made for one device; None where that is None."""


@frozen(eq=False)
class ShardedDiff(Described):
    """One device against many, on the same whole arrays."""

    verdict: Verdict
    """How the results on many devices compare with those on one."""
    cause: Cause | None
    """Whether the function itself is another one on many devices, or XLA's partitioner made another of it; None unless
    the verdict is `differ`."""
    hlo: str | None
    """The collective, slice, padding or other instruction that is wrong; None where nothing is."""
    source: tuple[str, ...]
    """Its source lines, the innermost call first."""
    reason: str
    """What is wrong with it, in a clause."""
    is_certain: bool
    """Whether nothing else can be meant."""
    diff: Diff = attrs.field(metadata=UNTOLD)
    """`after` compared with `one` or, where the partitioner is to blame, with `before`."""

    @property
    @told
    def notes(self) -> tuple[str, ...]:
        """What else there is to say."""
        return self.diff.notes

    @property
    def agrees(self) -> bool:
        """Whether nothing but rounding differs."""
        return self.diff.agrees

    def __str__(self) -> str:
        if self.cause is None:
            return f"{self.verdict}: many devices compute what one does" if self.agrees else self.verdict
        where = f" at {self.source[0]}" if self.source else ""
        whose = "XLA's partitioner made it wrong" if self.cause == "partitioner" else "the program is wrong"
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.verdict}, and {whose}{where}{reason}\n  {self.hlo}"


def compare_on_devices(modules: ShardedModules, inputs: Sequence[Value], **options: Any) -> ShardedDiff:
    """Compare what many devices compute with what one does, on whole arrays; `options` are those of `diff`.

    Raises InputError where an array is not divided evenly among the devices, and whatever `diff` raises.
    """

    def compared(one: Module) -> Diff:
        return diff(one, modules.after, inputs, **options)

    if modules.one is None:
        return _judged(compared(modules.before), "partitioner")
    comparison = compared(on_one_device(modules.one, modules.before))
    if comparison.verdict == "differ":
        partitioning = compared(modules.before)
        if partitioning.verdict == "differ":
            return _judged(partitioning, "partitioner")
    scaled = scaled_by_devices(modules.one, modules.many) if comparison.verdict == "differ" and modules.many else None
    if scaled is None:
        return _judged(comparison, "program")
    # Constants that depend on the number of devices are no fault of their own.
    among_shards = compared(on_one_device(scaled.module, modules.before))
    if among_shards.verdict == "differ":
        return _judged(among_shards, "program")
    scale = wrong_scale(scaled, inputs, modules.before.num_partitions)
    return _judged(comparison, "program") if scale is None else _judged_by_scale(comparison, scale)


def _judged(comparison: Diff, cause: Cause) -> ShardedDiff:
    if not comparison.findings:
        return ShardedDiff(comparison.verdict, None, None, (), "", False, comparison)
    first, module = comparison.findings[0], comparison.after
    run, reason = first.after, first.reason
    return ShardedDiff(
        comparison.verdict, cause, run.line(module), run.source(module), reason, first.is_certain, comparison
    )


def _judged_by_scale(comparison: Diff, scale: Scale) -> ShardedDiff:
    source = tuple(map(str, source_lines(scale.module, scale.instruction)))
    line = hlo_line(scale.instruction)
    return ShardedDiff(comparison.verdict, "program", line, source, scale.reason, False, comparison)


def on_one_device(one: Module, before: Module) -> Module:
    """A module for one device as one for all devices of `before`, each of which computes the whole: with the shardings
    of `before`'s parameters and results, and without collectives, which on one device exchange nothing."""
    alone = map_instructions(one, _alone, replica_count=1, num_partitions=before.num_partitions)
    shardings = {
        parameter.attributes.number: parameter_sharding(before, parameter) for parameter in before.entry.parameters
    }
    entry = alone.entry
    instructions = tuple(
        attrs.evolve(instruction, sharding=shardings[instruction.attributes.number])
        if role_of(instruction) is Role.PARAMETER
        else instruction
        for instruction in entry
    )
    stated_results = result_shardings(before)
    results = [sharding for sharding in stated_results if sharding is not None]
    if results and len(results) == len(stated_results):
        stated = TupleSharding(tuple(results)) if ir.parts_of(entry.result_shape) else results[0]
        root = attrs.evolve(entry.root, sharding=stated)
        instructions = tuple(root if instruction.name == root.name else instruction for instruction in instructions)
    return replace_computation(alone, attrs.evolve(entry, instructions=instructions))


def _alone(computation: Computation, instruction: Instruction) -> Instruction:
    """An instruction on a device that is alone."""
    kept: dict[str, Any] = {"metadata": instruction.metadata}
    if role_of(instruction) in (Role.PARTITION_ID, Role.REPLICA_ID):
        shape: Any = instruction.shape
        zero = ir.Literal.from_array(np.zeros((), shape.element_type.storage), shape)
        return attrs.evolve(make_constant(instruction.name, zero), **kept)
    instruction = attrs.evolve(instruction, sharding=None, frontend_attributes=None)
    pairs: Sequence[Sequence[int]] | None = getattr(instruction.attributes, "source_target_pairs", None)
    shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
    if not exchanges(instruction) or (pairs is not None and not pairs):
        return instruction
    if shapes == (instruction.shape,):
        return attrs.evolve(make_conversion(instruction.name, instruction.shape, *instruction.operands), **kept)
    if shapes == ir.parts_of(instruction.shape):
        return attrs.evolve(make_tuple(instruction.name, instruction.shape, instruction.operands), **kept)
    return instruction
