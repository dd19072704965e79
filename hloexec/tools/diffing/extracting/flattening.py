"""Making a module of some instructions of a run, whichever fusions, calls and iterations they ran in.

Each run of an instruction becomes an instruction of the entry, which takes the values that it took in the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, TupleShape
from hloexec.core.ir.editing import take_name
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.tools.diffing.extracting.fits import Fit, step
from hloexec.tools.diffing.extracting.part import Part
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.partitioned.tiles import TileInstance
from hloexec.tools.extraction.running import Slice, slice_module


@frozen(eq=False)
class Feed:
    """A parameter, and the values of a part that are it."""

    name: str
    shape: ArrayShape
    fits: tuple[tuple[Node, Fit], ...]


def flat_module(module: Module, part: Part, feeds: Sequence[Feed], result: Fit) -> Module:
    """The module that computes the target of a part from parameters, and makes of it what `result` says."""
    return _Flat(module, part).module(feeds, result)


def shape_of(node: Node, value: Array) -> ArrayShape:
    """What a module declares a value to be, or what it is, where that is something else."""
    declared = node.instance.instruction.shape
    if isinstance(declared, TupleShape) and node.leaf < len(declared.elements):
        declared = declared.elements[node.leaf]
    kind = element_type_of(value.dtype)
    if isinstance(declared, ArrayShape) and declared.dimensions == tuple(value.shape):
        return declared.with_element_type(kind)
    return ArrayShape(kind, tuple(value.shape))


class _Flat:
    """The instructions of an entry, one after the other."""

    def __init__(self, module: Module, part: Part) -> None:
        self._module = module
        self._part = part
        self._instructions: list[Instruction] = []
        self._names: set[str] = set()
        self._held: dict[int, tuple[str, ArrayShape]] = {}
        """By number, what holds a node's value."""

    def module(self, feeds: Sequence[Feed], result: Fit) -> Module:
        boundary = []
        for feed in feeds:
            name = self._name(feed.name)
            # `slice_module` makes a parameter of what stands in its place.
            self._instructions.append(step(name, feed.shape, "copy(%)", name, feed.shape))
            boundary.append((name, feed))
        for name, feed in boundary:
            for node, fit in feed.fits:
                self._held[node.number] = self._fitted(name, feed.shape, fit)
        for node in self._part.inside:
            self._compute(node)
        root, _ = self._fitted(*self._held[self._part.target.number], result)
        parameters = tuple(name for name, _ in boundary)
        inside = tuple(entry.name for entry in self._instructions if entry.name not in parameters)
        entry = Computation(name=self._module.entry_name, instructions=tuple(self._instructions), root_name=root)
        return slice_module(self._module, Slice(entry, root, inside, parameters))

    def _compute(self, node: Node) -> None:
        """Add the run of an instruction, and what takes its arrays out of a tuple or cuts a tile out of them."""
        instance = node.instance
        source = instance.instruction
        name = self._name(source.name)
        operands = tuple(self._held[part[0].number][0] for part in instance.operands)
        made = attrs.evolve(
            source, name=name, operands=operands, control_predecessors=(), sharding=None, original_value=None, span=None
        )
        self._instructions.append(made)
        for entry in instance.results:
            shape = source.shape
            if isinstance(shape, TupleShape):
                leaf = shape.elements[entry.leaf]
                assert isinstance(leaf, ArrayShape)
                text = f"get-tuple-element(%), index={entry.leaf}"
                self._held[entry.number] = self._added(name, shape, leaf, text)
                continue
            assert isinstance(shape, ArrayShape)
            self._held[entry.number] = name, shape
            if isinstance(instance, TileInstance) and instance.cut:
                limits = zip(instance.cut, shape.dimensions, strict=True)
                places = ", ".join("[{}:{}]".format(*each.indices(size)[:2]) for each, size in limits)
                tile = ArrayShape(shape.element_type, entry.shape)
                self._held[entry.number] = self._added(name, shape, tile, f"slice(%), slice={{{places}}}")

    def _fitted(self, name: str, shape: ArrayShape, fit: Fit) -> tuple[str, ArrayShape]:
        """What makes of a value what a fit says."""
        for made, text in fit.steps(shape):
            name, shape = self._added(name, shape, made, text)
        return name, shape

    def _added(self, name: str, shape: ArrayShape | TupleShape, made: ArrayShape, text: str) -> tuple[str, ArrayShape]:
        new = self._name(text.partition("(")[0])
        self._instructions.append(step(new, made, text, name, shape))
        return new, made

    def _name(self, wanted: str) -> str:
        return take_name(wanted, self._names, 1)
