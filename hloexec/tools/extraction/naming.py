"""Which instruction is meant by its name, or by the path of one of its runs as traces and searches state it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hloexec.core.ir import Computation, Module
from hloexec.core.wording import listing, quoted, suggestion
from hloexec.errors import InputError
from hloexec.ops.attributes import computation_names


def run_path(instruction: str) -> str | None:
    """The path of a run, such as `loop[2]:body/fusion/add.3`; None where it is a mere name."""
    return instruction if "/" in instruction or re.search(r"\[\d+\]", instruction) else None


def instruction_name(instruction: str) -> str:
    """The name of the instruction, of which a path may have been given."""
    return instruction.rpartition("/")[2].removeprefix("%")


def holding_computation(
    module: Module, instruction: str, in_computation: str | None = None, entry_name: str | None = None
) -> Computation:
    """The computation that has the instruction; InputError where there is none, or where there are several."""
    path, name = run_path(instruction), instruction_name(instruction)
    if in_computation is not None:
        found = module.by_name.get(in_computation.removeprefix("%"))
        if found is None:
            raise InputError(f"module {module.name} has no computation {in_computation!r}")
        if name not in found.by_name:
            raise InputError(f"computation {found.name} has no instruction {quoted(name)}")
        return found
    holders = [computation for computation in module if name in computation.by_name]
    if path is not None and len(holders) > 1:
        callers = re.sub(r"\[\d+\](?::[^/]*)?", "", path).split("/")[:-1]
        wanted = _called(module, callers, path, entry_name)
        holders = [computation for computation in holders if computation.name == wanted] or holders
    if not holders:
        known = [instruction.name for computation in module for instruction in computation]
        raise InputError(f"module {module.name} has no instruction {quoted(name)}{suggestion(name, known, 3)}")
    if len(holders) > 1:
        names = listing((computation.name for computation in holders), 8)
        raise InputError(f"{len(holders)} computations have an instruction {name!r}: {names}; say which one")
    return holders[0]


def _called(module: Module, callers: Sequence[str], path: str, entry_name: str | None) -> str | None:
    """The computation at the end of a path of calls."""
    current = module.by_name.get(entry_name or module.entry_name)
    for part, caller in zip(path.split("/"), callers, strict=False):
        if current is None or caller.partition(":")[0] not in current.by_name:
            return None
        chosen = part.partition(":")[2]
        names = list(computation_names(current.by_name[caller.partition(":")[0]].attributes))
        current = module.by_name.get(chosen or (names[0] if names else ""))
    return None if current is None else current.name
