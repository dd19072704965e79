"""Buffers: values of a loop's body get arrays that belong to the loop, so that iterations do not allocate them.

They are results of NumPy functions, which accept an output array. Only such functions, and others of whose operands
nothing is left, read them; a buffer is therefore free again once its value is dead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import Leaf
from hloexec.engine.plan.steps import Buffers, Plan, Step, While
from hloexec.ops.elementwise.formula import choose
from hloexec.ops.indexing.fast.indexing import WindowWriter
from hloexec.ops.movement.fast.movement import Joining

_LEAVE_NOTHING = frozenset({"dot"})
"""Opcodes whose kernels make a new array and keep none of their operands, as NumPy's functions do."""


_MOST_CHOSEN = 1 << 11
"""Selects of more elements take less time with masks than where a processor guesses which element comes next."""


def with_buffers(plan: Plan) -> Plan:
    """The plan, with buffers assigned in its loops."""
    return plan.with_loops(_buffers)


def _buffers(flow: While) -> Mapping[str, Buffers]:
    own = None if flow.body.depth is None else _own_slots(flow)
    return {"buffers": _allocated(flow.body, own)} if own else {}


def _own_slots(flow: While) -> frozenset[int]:
    """The slots of a loop's body whose values can be kept in buffers.

    A carried leaf is one if the result that takes its place is; neither may be carried elsewhere.
    """
    body, condition = flow.body, flow.condition
    read_otherwise = {slot for step in body.steps for slot in _kept_operands(body, step)}
    for step in condition.steps:
        kept = _kept_operands(condition, step)
        read_otherwise |= {body.parameters[leaf] for leaf, slot in enumerate(condition.parameters) if slot in kept}
    made = {step.result for step in body.steps if _is_plain(body, step) and step.result not in read_otherwise}
    times = Counter(body.results)
    found = made - times.keys()
    for parameter, result in zip(body.parameters, body.results, strict=True):
        is_alone = times[result] == 1 and parameter not in times
        is_alike = _kind(body.slot_shapes[parameter]) == _kind(body.slot_shapes[result])
        if result in made and is_alone and is_alike and parameter not in read_otherwise:
            found |= {parameter, result}
    return frozenset(found)


def _kept_operands(plan: Plan, step: Step) -> Sequence[int]:
    """The operands to which something that is left of a step may refer."""
    if isinstance(step.function, WindowWriter):
        return step.operands[:1]
    is_copied = step.function is choose or isinstance(step.function, Joining)
    return () if is_copied or _is_plain(plan, step) or step.instruction.opcode in _LEAVE_NOTHING else step.operands


def _is_plain(plan: Plan, step: Step) -> bool:
    """Whether a step is a NumPy function that gives one array, of a size that is known, and not of one element; or a
    select of few elements."""
    shape = plan.slot_shapes[step.result] if len(step.results) == 1 else None
    is_choice = step.function is choose and getattr(shape, "element_count", _MOST_CHOSEN) < _MOST_CHOSEN
    return (
        step.kernel is not None
        and (step.kernel.ufunc is not None or is_choice)
        and isinstance(shape, ArrayShape)
        and bool(shape.dimensions)
        and not shape.dynamic_dimensions
    )


def _allocated(body: Plan, own: frozenset[int]) -> Buffers:
    """A buffer for each of these slots, the same for several that do not live at the same time."""
    shapes: list[Leaf] = []
    buffer_of: dict[int, int] = {}
    free: defaultdict[object, list[int]] = defaultdict(list)

    def new_buffer(slot: int) -> int:
        shapes.append(body.slot_shapes[slot])
        return len(shapes) - 1

    carried = {leaf: new_buffer(slot) for leaf, slot in enumerate(body.parameters) if slot in own}
    for leaf, buffer in carried.items():
        slot = body.parameters[leaf]
        buffer_of[slot] = buffer
        if slot in body.dead_on_entry:
            free[_kind(body.slot_shapes[slot])].append(buffer)
    for step in body.steps:
        dying = [slot for slot in dict.fromkeys(step.operands) if slot in step.dead and slot in own]
        if step.result in own:
            kind = _kind(body.slot_shapes[step.result])
            # A select takes least time over what it keeps where pred is false: the last operand.
            inputs = dying[::-1] if step.function is choose else dying
            fitting = [buffer_of[slot] for slot in inputs if _kind(body.slot_shapes[slot]) == kind]
            if not fitting:
                fitting = [free[kind].pop() if free[kind] else new_buffer(step.result)]
            buffer_of[step.result] = fitting[0]
        for slot in dying:
            if step.result not in own or buffer_of[slot] != buffer_of[step.result]:
                free[_kind(body.slot_shapes[slot])].append(buffer_of[slot])
    written = {slot: buffer for slot, buffer in buffer_of.items() if slot not in body.parameters}
    following = {buffer: written[body.results[leaf]] for leaf, buffer in carried.items()}
    loose = [buffer for buffer in range(len(shapes)) if buffer not in following.values()]
    for buffer in range(len(shapes)):
        if buffer not in following:
            kind = _kind(shapes[buffer])
            fitting = [other for other in loose if _kind(shapes[other]) == kind]
            following[buffer] = buffer if buffer in fitting else fitting[0]
            loose.remove(following[buffer])
    return Buffers(tuple(shapes), carried, written, tuple(following[buffer] for buffer in range(len(shapes))))


def _kind(shape: Leaf) -> object:
    """What buffers that can take each other's place have in common."""
    assert isinstance(shape, ArrayShape)
    return shape.element_type.storage, shape.dimensions
