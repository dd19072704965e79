"""The invariants of plans between passes, and their check.

1. Each slot is filled once, by a parameter, a constant or one step, before anything reads it.
2. Each value that is used exists: results, and operands of all steps.
3. An instruction's kernel has an operand and a result slot for each leaf that the instruction declares, of the same
   dimensions and, except for floats, the same element type.
4. A flow step has as many operands and results as the plans that it runs have; what a loop carries keeps its type and
   dimensions.
5. Steps with side effects keep the order of the program.
6. Everything that the program computes and that is not marked as only shown is available from the steps: a slot of the
   program that no step fills is computed by a pure step.
7. The annotations of loops (counters, buffers, compared leaves) fit their plans.
8. A step of a finished plan overwrites an operand only if nothing reads it afterwards.

`tests/conftest.py` has each plan checked after every pass.
"""

from collections.abc import Iterable, Sequence

from hloexec.core.ir import ArrayShape, flat_shapes
from hloexec.engine.plan.kernels import InstructionKernel, Leaf
from hloexec.engine.plan.steps import Buffers, Conditional, Invocation, Plan, Step, While, inner_plans
from hloexec.errors import HloError


class PlanError(HloError):
    """A plan is not what plans are between passes: a fault of hloexec's."""


def verify_plan(plan: Plan, before: Plan | None = None) -> None:
    """PlanError unless a plan is as the head of this file says; `before` is what the last pass was given."""
    _verify_order(plan, plan.steps, "steps")
    _verify_order(plan, plan.program, "program")
    for step in plan.steps:
        _verify_step(plan, step)
        for inner in inner_plans(step.flow):
            _verify_reuse(inner)
    _verify_effects(plan)
    _verify_program_is_known(plan)
    if before is not None and len(before.results) != len(plan.results):
        raise PlanError(f"{_name(plan)} has {len(plan.results)} results, and had {len(before.results)}")


def _require(condition: bool, plan: Plan, step: Step | None, what: str) -> None:
    if not condition:
        where = "" if step is None else f", %{step.instruction.name}"
        raise PlanError(f"{_name(plan)}{where}: {what}")


def _name(plan: Plan) -> str:
    return f"the plan of {plan.computation.name}"


def _verify_order(plan: Plan, steps: Iterable[Step], what: str) -> None:
    """1 and 2, of a list of steps."""
    given = [*plan.parameters, *plan.constants]
    filled = set(given)
    _require(len(filled) == len(given), plan, None, "a slot is a parameter or a constant twice")
    _require(max(filled, default=-1) < len(plan.slot_shapes), plan, None, "a slot has no shape")
    for step in steps:
        missing = set(step.operands) - filled
        _require(not missing, plan, step, f"{what} read slots {sorted(missing)} before they are filled")
        if step.kernel is None and not inner_plans(step.flow) and step.is_shown_only:
            continue
        twice = filled.intersection(step.results)
        _require(not twice, plan, step, f"{what} fill slots {sorted(twice)} again")
        _require(max(step.results, default=0) < len(plan.slot_shapes), plan, step, "a result has no shape")
        filled.update(step.results)
    missing = set(plan.results) - filled
    _require(not missing, plan, None, f"{what} never fill slots {sorted(missing)}, which are results")


def _verify_step(plan: Plan, step: Step) -> None:
    """3, 4 and 7."""
    _require((step.kernel is None) != (step.flow is None), plan, step, "a step is a kernel or a flow")
    if isinstance(step.kernel, InstructionKernel):
        declared = flat_shapes(step.instruction.shape)
        _require(len(declared) == len(step.results), plan, step, "the results are not those of the instruction")
        for slot, shape in zip(step.results, declared, strict=True):
            _require(_alike(plan.slot_shapes[slot], shape), plan, step, f"slot {slot} is not {shape}")
        if step.kernel.orders is not None:
            _require(len(step.kernel.orders) == len(step.operands), plan, step, "an operand has no order")
    overwrites = None if step.kernel is None else step.kernel.overwrites
    _require(overwrites is None or 0 <= overwrites < len(step.operands), plan, step, "there is no operand to overwrite")
    flow = step.flow
    if isinstance(flow, Invocation):
        _verify_call(plan, step, flow.plan, step.operands)
    elif isinstance(flow, Conditional):
        for branch in flow.branches:
            _verify_call(plan, step, branch.plan, step.operands[branch.start : branch.stop])
    elif isinstance(flow, While):
        _verify_loop(plan, step, flow)


def _verify_call(plan: Plan, step: Step, callee: Plan, arguments: Sequence[int]) -> None:
    counts = len(arguments), len(step.results)
    fits = counts == (len(callee.parameters), len(callee.results))
    _require(fits, plan, step, f"{counts[0]} operands and {counts[1]} results do not fit {callee.computation.name}")
    pairs = [
        *zip(arguments, callee.parameters, strict=True),
        *zip(step.results, callee.results, strict=True),
    ]
    for outer, inner in pairs:
        _require(
            _alike(plan.slot_shapes[outer], callee.slot_shapes[inner]),
            plan,
            step,
            f"slot {outer} is {plan.slot_shapes[outer]}, but {callee.slot_shapes[inner]} in {callee.computation.name}",
        )


def _verify_loop(plan: Plan, step: Step, flow: While) -> None:
    body = flow.body
    _verify_call(plan, step, body, step.operands)
    _require(len(flow.condition.results) == 1, plan, step, "the condition gives no single value")
    fits = len(flow.condition.parameters) == len(step.operands)
    _require(fits, plan, step, f"{len(step.operands)} operands do not fit {flow.condition.computation.name}")
    for outer, inner in zip(step.operands, flow.condition.parameters, strict=True):
        fits = _alike(plan.slot_shapes[outer], flow.condition.slot_shapes[inner])
        _require(fits, plan, step, f"slot {outer} is something else in the condition")
    leaves = range(len(body.parameters))
    _require(set(flow.counters) <= set(leaves), plan, step, "a counter is not a carried leaf")
    _require(set(flow.compared) <= set(leaves), plan, step, "a compared value is not a carried leaf")
    _require(flow.limit is None or flow.limit.leaf in flow.counters or not flow.counters, plan, step, "no counter")
    for leaf in flow.sums:
        read = [slot for inner in body.steps for slot in (*inner.operands, inner.result)] + list(body.results)
        is_alone = read.count(body.parameters[leaf]) == 1 and read.count(body.results[leaf]) == 2
        _require(is_alone and leaf not in flow.compared, plan, step, f"leaf {leaf}, a sum, is read by something else")
    if flow.buffers is not None:
        _verify_buffers(plan, step, body, flow.buffers)


def _verify_buffers(plan: Plan, step: Step, body: Plan, buffers: Buffers) -> None:
    places = range(len(buffers.shapes))
    _require(sorted(buffers.following) == list(places), plan, step, "buffers get lost between iterations")
    for leaf, buffer in buffers.carried.items():
        held = buffers.written.get(body.results[leaf])
        _require(held == buffers.following[buffer], plan, step, f"leaf {leaf} is not where the next iteration reads it")
    alive = {buffer: body.parameters[leaf] for leaf, buffer in buffers.carried.items()}
    for inner in body.steps:
        for slot in inner.operands:
            is_there = slot not in buffers.written or alive.get(buffers.written[slot]) == slot
            _require(is_there, plan, step, f"slot {slot} was overwritten")
        if inner.result in buffers.written:
            buffer = buffers.written[inner.result]
            held = alive.get(buffer)
            is_free = held is None or held in inner.dead or not _is_read_after(body, inner, held)
            _require(is_free, plan, step, f"buffer {buffer} is written while slot {held} is needed")
            alive[buffer] = inner.result


def _is_read_after(plan: Plan, step: Step, slot: int) -> bool:
    position = plan.steps.index(step)
    return slot in plan.results or any(slot in later.operands for later in plan.steps[position:])


def _verify_reuse(plan: Plan) -> None:
    """8."""
    needed = {*plan.results, *plan.constants}
    for step in reversed(plan.steps):
        _require(step.reused not in needed, plan, step, f"it overwrites slot {step.reused}, which is read afterwards")
        needed |= {*step.operands}


def _verify_effects(plan: Plan) -> None:
    """5."""
    written = [id(step.instruction) for step in plan.program if not step.is_pure and not step.is_shown_only]
    done = [id(step.instruction) for step in plan.steps if not step.is_pure]
    _require(written == done, plan, None, "steps with effects are not those of the program, in its order")


def _verify_program_is_known(plan: Plan) -> None:
    """6."""
    filled = {slot for step in plan.steps for slot in step.results} | {*plan.parameters, *plan.constants}
    for step in plan.program:
        if not step.is_shown_only and not filled.issuperset(step.results):
            _require(step.is_pure, plan, step, "nothing gives its value")


def _alike(first: Leaf, second: Leaf) -> bool:
    """Whether two slots can hold the same: dimensions and element type are equal, floats may differ in width."""
    if not isinstance(first, ArrayShape) or not isinstance(second, ArrayShape):
        return type(first) is type(second)
    types = first.element_type, second.element_type
    is_same_type = types[0] is types[1] or all(entry.is_floating for entry in types)
    return is_same_type and first.dimensions == second.dimensions
