"""The instructions that a policy is about, in groups: a search begins with large ones, and parts those that matter."""

from __future__ import annotations

from hloexec.analysis.calls import entered_computations
from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.ops.policies.backends import concerns
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, combined, mixed
from hloexec.tools.summary import summarize_computations

_WORK = 10**11
"""Operations that a search may take, of contractions and beside them."""
_OF_AN_INSTRUCTION = 20_000
"""Operations that take as long as an instruction of few elements does."""
_RUNS = (60, 1000)
"""A search has so many runs at least, and at most."""


@frozen
class Group:
    """Some instructions of one opcode."""

    opcode: str
    names: tuple[str, ...]
    """As policies name them: `body/dot.3`."""

    def parts(self, count: int) -> list[Group]:
        """The group in so many parts of neighbours, at most."""
        size = -(-len(self.names) // max(1, count))
        return [Group(self.opcode, self.names[at : at + size]) for at in range(0, len(self.names), size)]


def single_units(module: Module, policy: NumericsPolicy, base: NumericsPolicy = REFERENCE) -> list[str]:
    """The instructions that a policy may compute otherwise, in the order in which they run, but for those for which
    `base` has a policy that contradicts it."""
    return [
        f"{computation.name}/{instruction.name}"
        for computation in entered_computations(module)
        for instruction in computation
        if concerns(policy, computation, instruction)
        and all(combined(part, policy) for part in base.of(computation.name, instruction.name).plain_parts)
    ]


def groups_of(module: Module, policy: NumericsPolicy, base: NumericsPolicy = REFERENCE) -> list[Group]:
    """The instructions that a policy may compute otherwise, by opcode, in the order in which they run."""
    found: dict[str, list[str]] = {}
    for name in single_units(module, policy, base):
        home, _, instruction = name.partition("/")
        found.setdefault(module.by_name[home].by_name[instruction].opcode, []).append(name)
    return [Group(opcode, tuple(names)) for opcode, names in found.items()]


def spelled(module: Module, policy: NumericsPolicy) -> NumericsPolicy:
    """The same policy with all that is chosen for instructions spelled out, each by its name."""
    found: NumericsPolicy = policy
    for part in policy.chosen_parts:
        if part not in policy.plain_parts:
            continue
        names = [name for group in groups_of(module, part) for name in group.names]
        having = [name for name in names if part in policy.of(*name.split("/", 1)).plain_parts]
        bare = found.without_default(part)
        spelled = mixed(bare, part, having)
        found = spelled if spelled is not None else found
    return found


def most_runs(module: Module) -> int:
    """How many runs of a module a search may take: so that the same question has the same answer on any machine, it is
    work that is limited, not time. Loops count as often as they say."""
    work = sum(
        summary.flops + summary.runs * summary.instructions * _OF_AN_INSTRUCTION
        for summary in summarize_computations(module)
    )
    return min(max(_WORK // max(1, work), _RUNS[0]), _RUNS[1])
