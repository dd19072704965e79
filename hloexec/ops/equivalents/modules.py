"""Making of a module one that XLA compiles."""

from __future__ import annotations

import attrs

from hloexec.core.ir import Computation, Instruction, Module, TileSharding, TupleShape, TupleSharding, flat_shapes
from hloexec.core.ir.editing import change_computations
from hloexec.core.ir.sharding import ShardingType
from hloexec.core.wording import counted
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.attributes import computation_names
from hloexec.ops.equivalents.calls import rule_of_call
from hloexec.ops.equivalents.instructions import Values, rule_of
from hloexec.ops.equivalents.writing import Writer, plain_shape
from hloexec.ops.registry import Role, entry_of, operation_name, role_of

_MANUAL = TileSharding(ShardingType.MANUAL)


def for_xla(module: Module, replicas: int | None = None, partitions: int | None = None) -> Module:
    """A module that computes the same in operations that XLA compiles from StableHLO, on XLA:CPU at least.

    Fusions become calls, asynchronous pairs the operations themselves, bitcasts transposes and reshapes, library calls
    what they stand for; layouts, schedules and all that says only how code is made are left out. The instructions of a
    module of several partitions are said to be partitioned by hand, so that XLA runs them as they are (with
    `use_spmd_partitioning`). `replicas` and `partitions` are those of the module where its header does not say them.
    UnsupportedError names all that has no equivalent.
    """
    refused: dict[tuple[str, str], list[str]] = {}
    changed: dict[str, Computation] = {}
    added: dict[str, Computation] = {}
    pending = [module.entry_name]
    while pending:
        name = pending.pop()
        if name in changed or name in added:
            continue
        changed[name] = _changed(module, module.by_name[name], added, refused)
        pending += [callee for made in changed[name] for callee in computation_names(made.attributes)]
        pending += [callee for made in added.values() for part in made for callee in computation_names(part.attributes)]
    if refused:
        raise UnsupportedError(f"{module.name} has no equivalent that XLA:CPU compiles: {_reasons(refused)}")
    computations = [*added.values(), *(changed[part.name] for part in module if part.name in changed)]
    partitions = partitions or module.num_partitions
    if partitions > 1:
        computations = [_manual(computation) for computation in computations]
    return change_computations(
        module,
        computations,
        replica_count=replicas or module.replica_count,
        num_partitions=partitions,
        is_scheduled=False,
        input_output_alias=(),
        buffer_donor=(),
        alias_passthrough_params=False,
        entry_computation_layout=None,
        frontend_attributes=None,
        allow_spmd_sharding_propagation_to_parameters=(),
        allow_spmd_sharding_propagation_to_output=(),
        origin_recovery_table=None,
        stack_frames=None,
        unknown_attributes=(),
    )


def _changed(
    module: Module,
    computation: Computation,
    added: dict[str, Computation],
    refused: dict[tuple[str, str], list[str]],
) -> Computation:
    write = Writer(module, computation, added)
    for instruction in computation:
        write.prefix = instruction.name
        operands = [write.values[name] for name in instruction.operands]
        try:
            value = _equivalent(write, instruction, operands)
        except (UnsupportedError, ShapeError) as error:
            refused.setdefault((operation_name(instruction), error.message), []).append(instruction.name)
            value = attrs.evolve(instruction, shape=plain_shape(instruction.shape))
        write.values[instruction.name] = write.name_last(value, instruction.name)
    root = write.values[computation.root_name].name
    return Computation(name=computation.name, instructions=tuple(write.made), root_name=root)


def _equivalent(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    entry = entry_of(instruction)
    if entry is None:
        raise UnsupportedError("hloexec does not know it")
    if role_of(instruction) is not Role.CUSTOM_CALL:
        return rule_of(instruction)(write, instruction, operands)
    if entry.role is not Role.LIBRARY:
        raise UnsupportedError("it is not public what it computes")
    return rule_of_call(entry, instruction)(write, instruction, operands)


def _manual(computation: Computation) -> Computation:
    """The computation whose instructions each device runs on its own shards."""

    def manual(instruction: Instruction) -> Instruction:
        shape, sharding = instruction.shape, _MANUAL
        if isinstance(shape, TupleShape):
            return attrs.evolve(instruction, sharding=TupleSharding((_MANUAL,) * len(flat_shapes(shape))))
        return attrs.evolve(instruction, sharding=sharding)

    return attrs.evolve(computation, instructions=tuple(map(manual, computation)))


def _reasons(refused: dict[tuple[str, str], list[str]]) -> str:
    """One clause for each kind of what has no equivalent."""
    clauses = []
    for (operation, reason), names in refused.items():
        others = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
        clauses.append(f"%{names[0]}{others} ({operation}): {reason}")
    return "; ".join(clauses)
