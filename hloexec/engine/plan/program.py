"""Finding everything in a module that this version cannot run, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import TRANSFERS, reason_against
from hloexec.engine.plan.schedule import callees_first, computation_named, effectful_computations, schedule
from hloexec.errors import UnsupportedError
from hloexec.ops.attributes import computation_names, has_words, unknown_words
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import Entry, Role, entry_of, find_opcode, role_of

_LISTED = 50


@frozen
class Requirement:
    """An opcode or a library call that a module needs and that does not run."""

    kind: str
    """`opcode` or `custom-call`."""
    name: str
    """The opcode, or the custom call's target."""
    reason: str | None
    """Why a known target or opcode cannot be used this way, as a clause; None where the name alone decides."""
    count: int
    """How many instructions need it."""
    computation: str
    """Where it is needed first, in the order of execution."""
    instruction: str
    """The instruction that needs it first."""
    is_conditional: bool = False
    """Whether only branches of conditionals need it."""

    def __str__(self) -> str:
        subject = f'custom call "{self.name}"' if self.kind == "custom-call" else f"opcode {self.name}"
        times = "once" if self.count == 1 else f"{self.count} times"
        because = f", where {self.reason}" if self.reason else ""
        branches = "; only in branches of conditionals" if self.is_conditional else ""
        return f"{subject} ({times}; first: %{self.instruction} in computation {self.computation}{branches}){because}"


def called_computation(instruction: Instruction) -> str | None:
    """The computation that an instruction calls, if it is a call or a fusion, or starts one asynchronously."""
    if role_of(instruction) not in (Role.CALL, Role.ASYNC_START):
        return None
    return next(iter(computation_names(instruction.attributes)), None)


def starts(instruction: Instruction) -> bool:
    """Whether an instruction starts an asynchronous computation."""
    return role_of(instruction) is Role.ASYNC_START


class Program:
    """The computations that an entry reaches, and the order of the instructions that run in each."""

    def __init__(self, module: Module, entry: Computation) -> None:
        self.module = module
        self.entry = entry
        self.computations = callees_first(module, entry)
        self._effectful = effectful_computations(self.computations)
        self._schedules: dict[str, list[Instruction]] = {}
        self._calling: dict[str, list[Instruction]] = {}

    def schedule(self, computation: Computation) -> list[Instruction]:
        """The instructions of a computation that run, in order."""
        instructions = self._schedules.get(computation.name)
        if instructions is None:
            instructions = schedule(computation, self._effectful, is_scheduled=self.module.is_scheduled)
            self._schedules[computation.name] = instructions
        return instructions

    def calling(self, computation: Computation) -> list[Instruction]:
        """Those of the instructions of a computation that run which name computations."""
        instructions = self._calling.get(computation.name)
        if instructions is None:
            instructions = [entry for entry in self.schedule(computation) if computation_names(entry.attributes)]
            self._calling[computation.name] = instructions
        return instructions

    @cached_property
    def live_computations(self) -> list[Computation]:
        """The computations that instructions which run name, the entry first."""
        return list(self._reached(branches=True).values())

    @cached_property
    def certain_computations(self) -> Collection[str]:
        """The names of those that are reached whichever branches of conditionals are taken."""
        return self._reached(branches=False)

    def _reached(self, *, branches: bool) -> dict[str, Computation]:
        computations = {self.entry.name: self.entry}
        pending = [self.entry]
        while pending:
            for instruction in self.calling(pending.pop()):
                if not branches and role_of(instruction) is Role.CONDITIONAL:
                    continue
                for name in computation_names(instruction.attributes):
                    if name not in computations:
                        computations[name] = computation_named(self.module, name, instruction)
                        pending.append(computations[name])
        return computations

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """The opcodes of all instructions that run."""
        return frozenset(entry.opcode for computation in self.live_computations for entry in self.schedule(computation))

    @cached_property
    def plain_opcodes(self) -> frozenset[str]:
        """Those of them that run whatever the instruction says."""
        return frozenset(
            name
            for name in self.opcodes
            if (entry := find_opcode(name)) is not None
            and entry.is_supported
            and entry.is_reproducible
            and entry.supports is None
            and not has_words(entry.attributes)
            and entry.role is not Role.CUSTOM_CALL
            and name not in TRANSFERS
        )


def unknown_call_hint() -> str:
    """What can be done about a library call that hloexec does not know."""
    zeros, random = argument("unknown", "zeros"), argument("unknown", "random")
    return (
        f"A custom call can be implemented with {argument('hloexec.register_custom_call')}, or be given a made-up "
        f"result with {zeros} or {random}."
    )


def unsupported(module: Module, computation: Computation | None = None) -> list[Requirement]:
    """Every opcode and every custom-call target that keeps a module (or one computation of it) from running."""
    return _missing(Program(module, computation or module.entry))


def require_supported(program: Program, *, unknown: str, numerics: NumericsPolicy) -> None:
    """Raise one UnsupportedError that lists everything the program needs and hloexec lacks under a numerics policy.

    Unknown custom calls do not count where `unknown` says what they give, nor where only branches of conditionals have
    them: many a program has a branch that reports an error.
    """
    missing = [
        entry
        for entry in _missing(program, numerics)
        if entry.kind != "custom-call" or (unknown == "error" and not entry.is_conditional)
    ]
    if not missing:
        return
    lines = [f"  {entry}" for entry in missing[:_LISTED]]
    if len(missing) > _LISTED:
        lines.append(f"  … and {len(missing) - _LISTED} more")
    remedy = remedy_for(missing)
    if remedy is not None:
        lines.append(remedy)
    raise UnsupportedError(f"module {program.module.name} needs what hloexec does not run:\n" + "\n".join(lines))


def remedy_for(missing: Sequence[Requirement]) -> str | None:
    """What can be done about library calls that do not run; None where there are none."""
    return unknown_call_hint() if any(entry.kind == "custom-call" for entry in missing) else None


def _missing(program: Program, numerics: NumericsPolicy = REFERENCE) -> list[Requirement]:
    requirements: dict[tuple[str, str, str | None], Requirement] = {}
    plain = program.plain_opcodes
    for computation in program.live_computations:
        for instruction in program.schedule(computation):
            if instruction.opcode in plain:
                continue
            for key in needs_of(program.module, computation, instruction, numerics):
                requirement = requirements.get(key)
                is_conditional = computation.name not in program.certain_computations
                if requirement is None:
                    requirements[key] = Requirement(*key, 1, computation.name, instruction.name, is_conditional)
                else:
                    is_conditional = is_conditional and requirement.is_conditional
                    requirements[key] = attrs.evolve(
                        requirement, count=requirement.count + 1, is_conditional=is_conditional
                    )
    return list(requirements.values())


def call_reason(
    module: Module, computation: Computation, instruction: Instruction, call: Entry, numerics: NumericsPolicy
) -> str | None:
    """Why a custom call cannot be run by its entry under a policy, as a clause; None where it can."""
    from hloexec.engine.devices import manual_regions

    if manual_regions.is_boundary(instruction):
        return manual_regions.reason_against(module, computation, instruction)
    return call.reason_against(instruction, numerics)


def needs_of(
    module: Module, computation: Computation, instruction: Instruction, numerics: NumericsPolicy
) -> Iterator[tuple[str, str, str | None]]:
    """What an instruction needs and hloexec lacks, as kind, name and reason."""
    entry = entry_of(instruction)
    if entry is None:
        yield "opcode", instruction.opcode, None
    elif entry.role is Role.CUSTOM_CALL:
        yield "custom-call", instruction.attributes.custom_call_target, None
    elif entry.role is Role.LIBRARY:
        reason = call_reason(module, computation, instruction, entry, numerics)
        if reason is not None:
            yield "custom-call", entry.name, reason
    elif instruction.opcode in TRANSFERS:
        reason = reason_against(computation, instruction)
        if reason is not None:
            yield "opcode", instruction.opcode, reason
    elif not entry.is_supported:
        yield "opcode", instruction.opcode, None
    elif (unknown := next(unknown_words(instruction.attributes), None)) is not None:
        yield "opcode", instruction.opcode, f"{unknown[0].name} is {unknown[1]}, which hloexec does not know"
    elif (reason := entry.reason_against(instruction, numerics)) is not None:
        yield "opcode", instruction.opcode, reason
