"""The same values by other instructions.

`rewrite_exactly` changes no bit. `rewrite_sums` changes in which order sums are taken, and so what is rounded: results
agree but for that. An instruction that is rewritten leaves its name to the one that has its value, and what leads to it
is called after it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs

from evaluation.faults.editing import Draft, array
from evaluation.faults.refusing import base, code
from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape, Instruction, SliceDimension
from hloexec.ops.registry import OPCODES

Rewriting = Callable[[Draft, Instruction, Random], bool]
"""Rewrites an instruction, or says that it does not apply."""

_COMMUTATIVE = frozenset("add multiply maximum minimum and or xor".split())
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}


def rewrite_exactly(draft: Draft, random: Random, share: float) -> None:
    """Write a share of the instructions in another way, to the same bits."""
    _rewrite(draft, random, share, _EXACT)


def rewrite_sums(draft: Draft, random: Random, share: float) -> None:
    """Take a share of the sums of f32 and f64 in another order."""
    _rewrite(draft, random, share, _REORDERING)


def _rewrite(draft: Draft, random: Random, share: float, ways: tuple[Rewriting, ...]) -> None:
    for home in list(code(draft)):
        for instruction in list(draft.computations[home].values()):
            if random.random() < share and instruction.name in draft and not instruction.control_predecessors:
                any(way(draft, draft[instruction.name], random) for way in random.sample(ways, len(ways)))


def _before(
    draft: Draft, instruction: Instruction, opcode: str, operands: list[str], shape: ArrayShape, **attributes: Any
) -> str:
    """An instruction on the way to another."""
    name = draft.fresh(base(instruction.name))
    return draft.add(instruction.name, opcode, operands, shape, name=name, **attributes)


def _becomes(draft: Draft, instruction: Instruction, opcode: str, operands: list[str], **attributes: Any) -> None:
    kind = OPCODES[opcode].attributes
    draft.change(
        instruction.name,
        opcode=opcode,
        operands=tuple(operands),
        attributes=None if kind is None else kind(**attributes),
        backend_config=None,
    )


def _array(instruction: Instruction) -> ArrayShape | None:
    shape = instruction.shape
    return shape if isinstance(shape, ArrayShape) and shape.is_array and not shape.is_dynamic else None


def _is_float(shape: ArrayShape | None, *names: str) -> bool:
    if shape is None or shape.element_type.kind is not Kind.FLOAT:
        return False
    return not names or shape.element_type.name in names


# To the same bits


def _commute(draft: Draft, instruction: Instruction, _: Random) -> bool:
    if instruction.opcode in _COMMUTATIVE:
        draft.change(instruction.name, operands=instruction.operands[::-1])
    elif instruction.opcode == "compare":
        mirrored = _MIRRORED[instruction.attributes.direction]
        draft.change(instruction.name, operands=instruction.operands[::-1], attributes={"direction": mirrored})
    else:
        return False
    return True


def _negate(draft: Draft, instruction: Instruction, _: Random) -> bool:
    """a − b as a + (−b)."""
    shape = _array(instruction)
    if instruction.opcode != "subtract" or shape is None:
        return False
    lhs, rhs = instruction.operands
    _becomes(draft, instruction, "add", [lhs, _before(draft, instruction, "negate", [rhs], shape)])
    return True


def _multiply_by_minus_one(draft: Draft, instruction: Instruction, _: Random) -> bool:
    shape = _array(instruction)
    if instruction.opcode != "negate" or shape is None or not _is_float(shape):
        return False
    one = _before(
        draft,
        instruction,
        "negate",
        [_before(draft, instruction, "abs", [draft.filled(instruction.name, 1, shape)], shape)],
        shape,
    )
    _becomes(draft, instruction, "multiply", [instruction.operands[0], one])
    return True


def _select_the_other_way(draft: Draft, instruction: Instruction, _: Random) -> bool:
    if instruction.opcode != "select":
        return False
    predicate, on_true, on_false = instruction.operands
    shape = draft[predicate].shape
    assert isinstance(shape, ArrayShape)
    draft.change(instruction.name, operands=(_before(draft, instruction, "not", [predicate], shape), on_false, on_true))
    return True


def _in_other_dimensions(draft: Draft, instruction: Instruction, random: Random) -> bool:
    """An elementwise instruction on what is transposed, or reshaped, and back."""
    shape = _array(instruction)
    operands = [_array(operand) for operand in map(draft.__getitem__, instruction.operands)]
    if shape is None or not OPCODES[instruction.opcode].is_elementwise or shape.rank < 2 or not operands:
        return False
    if any(operand is None or operand.dimensions != shape.dimensions for operand in operands):
        return False
    order = random.sample(range(shape.rank), shape.rank)
    transposes = random.random() < 0.5
    sizes = tuple(shape.dimensions[axis] for axis in order) if transposes else (shape.element_count,)

    def turned(name: str, theirs: ArrayShape) -> str:
        result = array(theirs.element_type.name, *sizes)
        if transposes:
            return _before(draft, instruction, "transpose", [name], result, dimensions=tuple(order))
        return _before(draft, instruction, "reshape", [name], result)

    values = [
        turned(name, theirs) for name, theirs in zip(instruction.operands, operands, strict=True) if theirs is not None
    ]
    inner = draft.put(
        draft.home(instruction.name),
        attrs.evolve(
            instruction,
            name=draft.fresh(base(instruction.name)),
            operands=tuple(values),
            shape=array(shape.element_type.name, *sizes),
        ),
    )
    if transposes:
        back = tuple(order.index(axis) for axis in range(shape.rank))
        _becomes(draft, instruction, "transpose", [inner], dimensions=back)
    else:
        _becomes(draft, instruction, "reshape", [inner])
    return True


def _copy(draft: Draft, instruction: Instruction, _: Random) -> bool:
    shape = _array(instruction)
    if shape is None or instruction.opcode in ("parameter", "constant") or draft.is_root(instruction.name):
        return False
    users = [user.name for user in draft.users(instruction.name)]
    draft.rewire(instruction.name, _before(draft, instruction, "copy", [instruction.name], shape), users=users)
    return True


def _concatenate_in_steps(draft: Draft, instruction: Instruction, _: Random) -> bool:
    shape = _array(instruction)
    if instruction.opcode != "concatenate" or shape is None or len(instruction.operands) < 3:
        return False
    dimension = instruction.attributes.dimension
    first, second, *rest = instruction.operands
    sizes = list(shape.dimensions)
    sizes[dimension] = sum(draft[name].shape.dimensions[dimension] for name in (first, second))  # type: ignore[union-attr]
    both = _before(
        draft, instruction, "concatenate", [first, second], array(shape.element_type.name, *sizes), dimension=dimension
    )
    draft.change(instruction.name, operands=(both, *rest))
    return True


def _reducer(draft: Draft, instruction: Instruction) -> str:
    """The opcode that a reduction's computation consists of."""
    computation = instruction.attributes.to_apply
    root = draft[draft.roots[computation]]
    inputs = [draft[name].opcode for name in root.operands]
    return root.opcode if inputs == ["parameter", "parameter"] and len(set(root.operands)) == 2 else ""


def _reduce_in_steps(draft: Draft, instruction: Instruction, opcodes: tuple[str, ...]) -> bool:
    """A reduction of its first dimension in two halves, the other dimensions and the halves after it."""
    shape = _array(instruction)
    if instruction.opcode != "reduce" or shape is None or len(instruction.operands) != 2:
        return False
    source = _array(draft.operand(instruction))
    axis = instruction.attributes.dimensions[0]
    if source is None or _reducer(draft, instruction) not in opcodes or source.dimensions[axis] % 2:
        return False
    size = source.dimensions[axis]
    if size < 4:
        return False
    name = source.element_type.name
    split = (*source.dimensions[:axis], 2, size // 2, *source.dimensions[axis + 1 :])
    halves = (*source.dimensions[:axis], 2, *source.dimensions[axis + 1 :])
    values, init_value = instruction.operands
    parts = _before(draft, instruction, "reshape", [values], array(name, *split))
    sums = _before(
        draft,
        instruction,
        "reduce",
        [parts, init_value],
        array(name, *halves),
        dimensions=(axis + 1,),
        to_apply=instruction.attributes.to_apply,
    )
    draft.change(instruction.name, operands=(sums, init_value))
    return True


def _choose_in_steps(draft: Draft, instruction: Instruction, _: Random) -> bool:
    return _reduce_in_steps(draft, instruction, ("maximum", "minimum", "and", "or"))


_EXACT: tuple[Rewriting, ...] = (
    _commute,
    _negate,
    _multiply_by_minus_one,
    _select_the_other_way,
    _in_other_dimensions,
    _copy,
    _concatenate_in_steps,
    _choose_in_steps,
)

# In another order


def _add_in_steps(draft: Draft, instruction: Instruction, _: Random) -> bool:
    """Where no value of less precision comes in between."""
    if not _is_float(_array(instruction), "f32", "f64"):
        return False
    init = draft.scalar(instruction.operands[-1]) if instruction.opcode == "reduce" else None
    return init == 0 and _reduce_in_steps(draft, instruction, ("add",))


def _swap_product(draft: Draft, instruction: Instruction, _: Random) -> bool:
    """lhs · rhs as the transpose of rhs · lhs."""
    shape = _array(instruction)
    if instruction.opcode != "dot" or shape is None or not _is_float(shape, "f32", "f64"):
        return False
    attributes = instruction.attributes
    if len(set(attributes.operand_precision)) > 1:
        return False
    lhs, rhs = (_array(draft.operand(instruction, number)) for number in (0, 1))
    assert lhs is not None and rhs is not None
    batch = len(attributes.lhs_batch_dims)
    free = lhs.rank - batch - len(attributes.lhs_contracting_dims)
    other = rhs.rank - batch - len(attributes.rhs_contracting_dims)
    # The result of the swapped product has rhs's free dimensions before lhs's.
    order = (*range(batch), *range(batch + other, batch + other + free), *range(batch, batch + other))
    back = [order.index(axis) for axis in range(shape.rank)]
    swapped = _before(
        draft,
        instruction,
        "dot",
        list(instruction.operands[::-1]),
        array(shape.element_type.name, *(shape.dimensions[axis] for axis in back)),
        lhs_batch_dims=attributes.rhs_batch_dims,
        rhs_batch_dims=attributes.lhs_batch_dims,
        lhs_contracting_dims=attributes.rhs_contracting_dims,
        rhs_contracting_dims=attributes.lhs_contracting_dims,
        operand_precision=attributes.operand_precision,
        algorithm=attributes.algorithm,
    )
    _becomes(draft, instruction, "transpose", [swapped], dimensions=order)
    return True


def _split_product(draft: Draft, instruction: Instruction, _: Random) -> bool:
    """The contracted dimension in two halves, whose products are added up."""
    shape = _array(instruction)
    if instruction.opcode != "dot" or shape is None or not _is_float(shape, "f32", "f64"):
        return False
    attributes = instruction.attributes
    halves: list[list[str]] = [[], []]
    for number, axes in enumerate((attributes.lhs_contracting_dims, attributes.rhs_contracting_dims)):
        source = _array(draft.operand(instruction, number))
        if source is None or not axes or source.dimensions[axes[0]] < 4:
            return False
        middle = source.dimensions[axes[0]] // 2
        for half, (start, limit) in enumerate(((0, middle), (middle, source.dimensions[axes[0]]))):
            halves[half].append(_part(draft, instruction, number, axes[0], start, limit))
    products = [
        draft.put(
            draft.home(instruction.name),
            attrs.evolve(instruction, name=draft.fresh(base(instruction.name)), operands=tuple(operands)),
        )
        for operands in halves
    ]
    _becomes(draft, instruction, "add", products)
    return True


def _part(draft: Draft, instruction: Instruction, number: int, axis: int, start: int, limit: int) -> str:
    """A range of an operand in one dimension."""
    source = _array(draft.operand(instruction, number))
    assert source is not None
    sizes = list(source.dimensions)
    sizes[axis] = limit - start
    ranges = [SliceDimension(0, size) for size in source.dimensions]
    ranges[axis] = SliceDimension(start, limit)
    shape = array(source.element_type.name, *sizes)
    return _before(draft, instruction, "slice", [instruction.operands[number]], shape, slice=tuple(ranges))


_REORDERING: tuple[Rewriting, ...] = (_add_in_steps, _swap_product, _split_product)
