"""`minify` on one case: a planted fault, or a module on which a command crashes (`crashing`)."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import attrs

import hloexec
from evaluation.minifying.crashing import has_pattern
from evaluation.minifying.deep_programs import DEEP, made
from evaluation.minifying.reasons import has_the_same_reason
from evaluation.minifying.small_programs import SMALL
from evaluation.pairs.drawing import NUMBERS, Drawn, Pair, draw
from evaluation.pairs.models import model
from evaluation.processes import Record
from evaluation.programs import PROGRAMS, Program
from evaluation.programs.lowering import lowered
from hloexec.core.ir import Module
from hloexec.tools.minifying.case import counted

_TRIES = 3
"""Pairs that are tried for a case of which the reason is judged."""


def _register_own() -> None:
    PROGRAMS.update(SMALL)
    for name in DEEP:
        PROGRAMS.setdefault(name, Program(name, lambda jax, name=name: made(jax, name)))  # type: ignore[misc]


def measured(name: str) -> Record:
    """What minifying a case gives."""
    kind, _, rest = name.partition(" ")
    _register_own()
    record: Record = {"kind": kind}
    start = time.perf_counter()
    inputs: Any
    if kind == "crash":
        program, _, number = rest.partition(" ")
        if program.startswith("@"):
            module, inputs = model(program[1:]).module, model(program[1:]).inputs_per_device
        else:
            module = lowered(program).before if int(number) % 2 == 0 else lowered(program).optimized
            inputs = lowered(program).inputs_per_device
        pattern = _pattern(module, Random(name))
        script = Path(__file__).with_name("crashing.py")
        command = shlex.join([sys.executable, "-I", "-S", str(script), pattern])
        arguments: Record = {"command": command, "outcome": "crash", "jobs": 2}
        record |= {"pattern": pattern}
    else:
        name_of_pair, _, counterpart = rest.partition(" ")
        try:
            drawn = _drawn(Pair.of(name_of_pair), _TRIES if kind == "reason" else 1)
        except LookupError as reason:
            return record | {"not_drawn": str(reason)}
        module, inputs, planted = drawn.after.module, drawn.inputs_per_device, drawn.planted
        arguments = {"differs_from": drawn.before}
        if counterpart:
            arguments = {"expected": hloexec.run_devices(drawn.before, inputs)[0]}
        record |= {"fault": drawn.kind}
    record |= {"drawing_seconds": time.perf_counter() - start, "devices_before": _devices(module)}
    record |= {"instructions_before": counted(module), "all_instructions_before": module.instruction_count}
    spent = time.process_time()
    found = hloexec.minify(module, inputs, **arguments)
    record |= {"own_cpu_seconds": time.process_time() - spent}
    small = hloexec.parse(hloexec.format(found.module))
    if kind == "crash":
        fails = has_pattern(hloexec.format(small), record["pattern"])
    else:
        other = None if found.other is None else hloexec.parse(hloexec.format(found.other))
        fails = _differ(small, other, found.inputs, found.expected)
        left = {each.name for computation in small for each in computation}
        record |= {"has_planted": bool(planted & left), "notes": list(found.notes)}
        if kind == "reason":
            record |= has_the_same_reason(drawn, small, other, found)
    return record | {
        "fails": fails,
        "instructions": found.instruction_count,
        "largest_dimension": found.largest_dimension,
        "trials": found.trial_count,
        "seconds": found.seconds,
        "is_complete": found.is_complete,
        "is_confirmed": found.is_confirmed,
        "devices": _devices(small),
        "text": hloexec.format(small),
        "other": None if found.other is None else hloexec.format(found.other),
    }


def _pattern(module: Module, random: Random) -> str:
    """A chain of two or three instructions that a module has."""
    chains = []
    for computation in module:
        for user in computation:
            for operand in computation.operands_of(user):
                if not {"parameter", "constant", "tuple", "get-tuple-element"} & {user.opcode, operand.opcode}:
                    element_type = str(operand.shape).partition("[")[0].lstrip("(")
                    chains.append(f"{user.opcode}<-{operand.opcode}:{element_type}")
                    chains += [
                        f"{user.opcode}<-{operand.opcode}<-{further.opcode}"
                        for further in computation.operands_of(operand)
                        if further.opcode not in ("parameter", "constant", "tuple", "get-tuple-element")
                    ]
    rare = sorted(set(chains), key=lambda chain: (chains.count(chain), chain))
    return random.choice(rare[: max(1, len(rare) // 2)])


def _devices(module: Module) -> int:
    return module.replica_count * module.num_partitions


def _drawn(pair: Pair, tries: int) -> Drawn:
    """The pair, or one of those with the numbers after it."""
    for number in range(tries - 1):
        try:
            return draw(attrs.evolve(pair, number=pair.number + number * len(NUMBERS)))
        except LookupError:
            pass
    return draw(attrs.evolve(pair, number=pair.number + (tries - 1) * len(NUMBERS)))


def _differ(module: Module, other: Module | None, inputs: Any, expected: Any) -> bool:
    """Whether two modules, or a module and what it should give, differ beyond rounding."""
    ours = hloexec.run_devices(module, inputs)
    theirs = [expected] if other is None else hloexec.run_devices(other, inputs)
    other = other or module
    if len(ours) == 1:
        return not hloexec.compare(ours[0], theirs[0], module=other, inputs=inputs).agrees
    return not hloexec.compare(tuple(ours), tuple(theirs), module=other, inputs=inputs).agrees
