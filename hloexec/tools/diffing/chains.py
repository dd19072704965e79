"""The rounding error of each instruction of a module, alone and along a path."""

from __future__ import annotations

from collections.abc import Container, Iterator

import attrs

from hloexec.analysis.numerics.tolerances import LAMBDA, Chain, chains_of, own_chain, summing, worst
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, flat_shapes
from hloexec.core.precision import unit_roundoff
from hloexec.ops.attributes import computation_names
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS

NO_CHAIN = Chain()


class InstructionChains:
    """How much each instruction of a module rounds by itself."""

    def __init__(self, module: Module, policy: str | NumericsPolicy) -> None:
        self._known: dict[object, Chain] = {}
        """By the identity of the instruction, and by all that it depends on where that is its opcode and shapes, which
        instructions of one text share."""
        self._called: dict[str, dict[str, Chain]] = {}
        self._module, self._policy = module, policy
        self._bits = numerics_policy(policy).coarsest_operand_bits

    def of(self, node: Node) -> Chain:
        """What the instruction that gave a node adds."""
        key = id(node.instruction)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._alike(node.instruction, node.instance.computation)
        return found

    def _alike(self, instruction: Instruction, computation: Computation) -> Chain:
        if instruction.attributes is not None:
            return self._own(instruction, computation)
        shapes = (operand.shape for operand in computation.operands_of(instruction))
        key = (instruction.opcode, id(instruction.shape), *map(id, shapes))
        if key not in self._known:
            self._known[key] = self._own(instruction, computation)
        return self._known[key]

    def _own(self, instruction: Instruction, computation: Computation) -> Chain:
        shapes = [operand.shape for operand in computation.operands_of(instruction)]
        if traits_of(instruction).converts:
            types = [getattr(shape, "element_type", None) for shape in (shapes[0], instruction.shape)]
            if all(kind is not None and kind.is_floating for kind in types) and unit_roundoff(
                types[1]
            ) <= unit_roundoff(types[0]):
                return NO_CHAIN
        own = own_chain(instruction, shapes, self._bits)
        chain = NO_CHAIN
        names = list(computation_names(instruction.attributes))
        for name in names:
            if name not in self._called:
                self._called |= chains_of(self._module, self._policy, [name])
            called = worst(self._called[name].values())
            if own.terms and called.linear >= LIMITS.narrow_unit:
                # A reducer in a narrow type may round every partial sum, or the last one alone: both are meant.
                called = _summing_in_steps(own.terms, _coarsest(self._module.by_name[name]))
            chain = chain.then(called)
        if own.terms and names and not chain.linear:
            # A reducer that rounds nothing, as one that finds the largest number.
            return NO_CHAIN
        return chain.then(own)


def _summing_in_steps(terms: float, unit: float) -> Chain:
    """A sum of which each partial sum is rounded to a narrow type.

    Its errors are not independent, as those of the probabilistic bound are: behind one large term, all that are less
    than half a unit of it are lost, so that the errors of equal terms add up. No step is off by more than its term,
    since the sum before it is a number of the type. The sum of squares is such that the bound is min(n u, 1) Σ|t|.
    """
    return attrs.evolve(summing(terms, unit), sum_squares=3 * (min(terms * unit, 1) / LAMBDA) ** 2)


def _coarsest(computation: Computation) -> float:
    """The coarsest unit roundoff of what a computation computes."""
    shapes = flat_shapes(*(instruction.shape for instruction in computation))
    types = [leaf.element_type for leaf in shapes if isinstance(leaf, ArrayShape)]
    return max((unit_roundoff(entry) for entry in types if entry.is_floating), default=0.0)


def steps_from(node: Node, ends: Container[int], most: int) -> int:
    """How many nodes lie between those in `ends` and a node, that one included; more than `most` are not counted."""
    seen = {node.number}
    pending = [node]
    for current in pending:
        for entry in current.instance.inputs:
            if entry.number not in ends and entry.number not in seen:
                seen.add(entry.number)
                pending.append(entry)
        if len(seen) > most:
            break
    return len(seen)


def path_chain(node: Node, ends: Container[int], chains: InstructionChains) -> Chain:
    """The worst chain from nodes in `ends` to a node."""
    found: dict[int, Chain] = {}
    for current, inputs in on_the_way(node, ends):
        found[current.number] = worst(found[entry.number] for entry in inputs).then(chains.of(current))
    return found[node.number]


def on_the_way(node: Node, ends: Container[int]) -> Iterator[tuple[Node, list[Node]]]:
    """The nodes that lie between those in `ends` and a node, that one last, each behind its inputs among them.

    Of very many, the farthest are left out.
    """
    done: set[int] = set()
    stack = [node]
    while stack:
        current = stack[-1]
        if current.number in done:
            stack.pop()
            continue
        inputs = [entry for entry in current.instance.inputs if entry.number not in ends]
        missing = [entry for entry in inputs if entry.number not in done]
        if missing and len(done) + len(stack) < LIMITS.chain_steps:
            stack.extend(missing)
            continue
        stack.pop()
        yield current, [entry for entry in inputs if entry.number in done]
        done.add(current.number)
