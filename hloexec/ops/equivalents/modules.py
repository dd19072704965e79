"""Making of a module one that XLA compiles."""

from __future__ import annotations

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.ir.editing import change_computations
from hloexec.core.wording import counted
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.attributes import computation_names
from hloexec.ops.equivalents.calls import rule_of_call
from hloexec.ops.equivalents.instructions import Values, rule_of
from hloexec.ops.equivalents.writing import Writer, plain_shape
from hloexec.ops.registry import Role, entry_of, operation_name, role_of


def is_optimized(module: Module) -> bool:
    """Whether a module has what only XLA's optimizations make, which StableHLO cannot express."""
    return module.is_scheduled or any(
        instruction.opcode in ("fusion", "bitcast") or role_of(instruction) in (Role.LIBRARY, Role.ASYNC_START)
        for computation in module
        for instruction in computation
    )


def compiled_by_xla(module: Module) -> Module:
    """What XLA is given in place of a module, and computes the same."""
    if is_optimized(module):
        return for_xla(module)
    # An execution would use up the inputs that the result may alias.
    return attrs.evolve(module, input_output_alias=(), buffer_donor=())


def for_xla(module: Module, replicas: int | None = None, partitions: int | None = None) -> Module:
    """A module that computes the same in operations that XLA compiles from StableHLO, on XLA:CPU at least.

    Fusions and calls become their instructions, asynchronous pairs the operations themselves, bitcasts transposes and
    reshapes, library calls what they stand for; layouts, schedules and all that says only how code is made are left
    out. Of a module for several partitions each device becomes a replica, replica · partitions + partition: XLA's
    partitioner need not run then. `replicas` and `partitions` are those of the module where its header does not say so.
    UnsupportedError names all that has no equivalent.
    """
    replicas, partitions = replicas or module.replica_count, partitions or module.num_partitions
    refused: dict[tuple[str, str], dict[str, None]] = {}
    changed: dict[str, Computation] = {}
    added: dict[str, Computation] = {}
    pending = [module.entry_name]
    while pending:
        name = pending.pop()
        if name in changed or name in added:
            continue
        changed[name] = _changed(module, module.by_name[name], added, refused, replicas, partitions)
        pending += [callee for made in changed[name] for callee in computation_names(made.attributes)]
        pending += [callee for made in added.values() for part in made for callee in computation_names(part.attributes)]
    if refused:
        raise UnsupportedError(f"{module.name} has no equivalent that XLA:CPU compiles: {_reasons(refused)}")
    computations = [*added.values(), *(changed[part.name] for part in module if part.name in changed)]
    return change_computations(
        module,
        computations,
        replica_count=replicas * partitions,
        num_partitions=1,
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
    refused: dict[tuple[str, str], dict[str, None]],
    replicas: int,
    partitions: int,
) -> Computation:
    def translate(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
        try:
            return _equivalent(write, instruction, operands)
        except (UnsupportedError, ShapeError) as error:
            names = refused.setdefault((operation_name(instruction), error.message), {})
            names[instruction.name] = None
            return attrs.evolve(instruction, shape=plain_shape(instruction.shape))

    write = Writer(module, computation, added, translate, replicas, partitions)
    root = write.write()
    return Computation(name=computation.name, instructions=tuple(write.made), root_name=root.name)


def _equivalent(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    entry = entry_of(instruction)
    if entry is None:
        raise UnsupportedError("hloexec does not know it")
    if role_of(instruction) is not Role.CUSTOM_CALL:
        return rule_of(instruction)(write, instruction, operands)
    if entry.role is not Role.LIBRARY:
        raise UnsupportedError("it is not public what it computes")
    return rule_of_call(entry, instruction)(write, instruction, operands)


def _reasons(refused: dict[tuple[str, str], dict[str, None]]) -> str:
    """One clause for each kind of what has no equivalent."""
    clauses = []
    for (operation, reason), names in refused.items():
        others = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
        clauses.append(f"%{next(iter(names))}{others} ({operation}): {reason}")
    return "; ".join(clauses)
