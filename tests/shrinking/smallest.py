"""Modules with the smallest sizes that their relations allow, and with any others."""

from collections.abc import Callable
from random import Random

import numpy as np

import hloexec
from conformance.xla import available, knows_latest_opcodes, parse_hlo
from hloexec.core.ir import Module, leaf_shapes
from hloexec.core.tree import flat
from hloexec.engine.devices.topology import topology_of
from hloexec.ops import LATEST
from hloexec.tools.shrinking.dimensions import dimensions_of
from hloexec.tools.shrinking.grouping import Groups, groups_of
from hloexec.tools.shrinking.positions import constants_for, tie_positions
from hloexec.tools.shrinking.rewriting import Workload, rewritten
from hloexec.tools.shrinking.solving import Demand, Solver


def smallest(module: Module) -> Module:
    """The module with sizes as small as they get."""
    return _shrunken(module, lambda groups: [])


def shuffled(module: Module, seed: int) -> Module:
    """The module with sizes drawn at random, so that dimensions that are not tied hardly stay the same."""
    random = Random(seed)

    def demands(groups: Groups) -> list[Demand]:
        found = []
        for group in groups.groups:
            units = [
                unit for unit in range(group.least, group.unit + 1) if not (group.is_divided and group.unit % unit)
            ]
            if not group.is_divided or random.random() < 0.3:
                found.append(Demand(group.number, random.choice(units)))
        return found

    return _shrunken(module, demands)


def _shrunken(module: Module, demands: Callable[[Groups], list[Demand]]) -> Module:
    devices = topology_of(module, None, None).count
    dimensions = dimensions_of(module, devices)
    tie_positions(dimensions.relations)
    groups = groups_of(dimensions.relations, dimensions.of_inputs(module))
    largest = Workload(module, dimensions, groups, devices).largest()
    sizing = Solver(groups, largest, demands(groups)).solve(0) or Solver(groups, largest).solve(0)
    assert sizing is not None
    sizes = sizing.sizes(groups, dimensions.relations)
    literals, _ = constants_for(module, dimensions, sizes)
    return rewritten(module, dimensions, sizes, literals)


def assert_valid(module: Module) -> None:
    """It verifies, prints and reads as the same module, and XLA's parser and verifier accept it."""
    hloexec.verify(module)
    text = hloexec.format(module)
    assert hloexec.parse(text) == module
    opcodes = {instruction.opcode for computation in module for instruction in computation}
    if available() and (not opcodes & LATEST or knows_latest_opcodes()):
        parse_hlo(text)


def assert_same_results(shrunken: Module, small: Module, *, optimized: bool) -> None:
    """Two modules of the same sizes compute the same."""
    inputs = hloexec.random_inputs(small, seed=1)
    actual, expected = (hloexec.run(module, *inputs) for module in (shrunken, small))
    if optimized:
        # XLA:CPU optimizes the two sizes differently; each element may be off by what rounding does to it.
        compared = hloexec.compare(actual, expected, module=small, inputs=inputs)
        assert compared.agrees, str(compared)
        return
    for ours, theirs in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def sizes_of(module: Module) -> dict[str, list[tuple[int, ...]]]:
    """The dimensions of the leaves of each instruction of the entry computation."""
    return {
        instruction.name: [getattr(leaf, "dimensions", ()) for _, leaf in leaf_shapes(instruction.shape)]
        for instruction in module.entry.instructions
    }
