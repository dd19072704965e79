"""Steps that call other computations: calls, fusions, maps, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape
from hloexec.testing.bodies import INDEX, PRED, Body, Value
from hloexec.testing.elementwise import same

Kinds = tuple[ElementType, ...]
_MOST_NESTED = 4
_MOST_ITERATIONS = 3


def call(body: Body, kinds: Kinds) -> None:
    name, callee, result = _callee(body)
    body.emit(result.shape, f"call({body.arguments(callee)}), to_apply={name}")


def fusion(body: Body, kinds: Kinds) -> None:
    name, callee, result = _callee(body)
    body.emit(result.shape, f"fusion({body.arguments(callee)}), kind=kLoop, calls={name}")


def _callee(body: Body) -> tuple[str, Body, Value]:
    """A computation of a few steps: its name, its body and its result."""
    callee = body.nested()
    callee.fill(1, _MOST_NESTED)
    result = callee.result()
    return callee.finish(body.program.fresh("callee"), result.name), callee, result


def map_(body: Body, kinds: Kinds) -> None:
    first = body.operand(kinds)
    operands = [first, *(same(body, first) for _ in range(body.integer(0, 1)))]
    callee = body.nested([ArrayShape(first.element_type)] * len(operands), is_scalar=True)
    callee.fill(1, _MOST_NESTED)
    result = callee.result()
    name = callee.finish(body.program.fresh("callee"), result.name)
    names = ", ".join(value.name for value in operands)
    axes = ",".join(map(str, range(first.rank)))
    shape = first.shape.with_element_type(result.element_type)
    body.emit(shape, f"map({names}), dimensions={{{axes}}}, to_apply={name}")


def conditional(body: Body, kinds: Kinds) -> None:
    result = body.operand(body.program.element_types).shape
    branches, operands = [], []
    for _ in range(2):
        operand = body.operand(body.program.element_types)
        branch = body.nested([operand.shape])
        branch.fill(0, _MOST_NESTED)
        root = branch.operand_of(result.element_type, result.dimensions)
        branches.append(branch.finish(body.program.fresh("branch"), root.name))
        operands.append(operand.name)
    if body.flag():
        chosen = body.operand_of(INDEX, ())
        names = f"branch_computations={{{', '.join(branches)}}}"
    else:
        chosen = body.operand_of(PRED, ())
        names = f"true_computation={branches[0]}, false_computation={branches[1]}"
    body.emit(result, f"conditional({chosen.name}, {', '.join(operands)}), {names}")


def while_(body: Body, kinds: Kinds) -> None:
    """A loop over a counter and a few carried values, that runs some times or none."""
    count = body.integer(1, 3)
    carried = [body.operand(body.program.element_types) for _ in range(count)]
    shapes = [ArrayShape(INDEX), *(value.shape for value in carried)]
    state = f"({', '.join(map(str, shapes))})"
    name = body.program.fresh("loop")
    _loop_body(body, name, state, shapes)
    limit = body.integer(0, _MOST_ITERATIONS)
    condition = [
        f"state = {state} parameter(0)",
        "counter = s32[] get-tuple-element(state), index=0",
        f"limit = s32[] constant({limit})",
        "ROOT less = pred[] compare(counter, limit), direction=LT",
    ]
    body.program.add(f"{name}_condition", condition)
    names = [body.scalar(INDEX, "0"), *(value.name for value in carried)]
    start = body.line("t", state, f"tuple({', '.join(names)})")
    end = body.line("t", state, f"while({start}), condition={name}_condition, body={name}_body")
    kept = body.integer(1, count)
    body.emit(shapes[kept], f"get-tuple-element({end}), index={kept}")


def _loop_body(body: Body, name: str, state: str, shapes: Sequence[ArrayShape]) -> None:
    inner = body.nested([])
    carried = inner.line("t", state, "parameter(0)")
    counter, *_ = (inner.emit(shape, f"get-tuple-element({carried}), index={k}") for k, shape in enumerate(shapes))
    following = [inner.line("c", "s32[]", f"add({counter.name}, {inner.scalar(INDEX, '1')})")]
    inner.fill(1, _MOST_NESTED)
    following += [inner.operand_of(shape.element_type, shape.dimensions).name for shape in shapes[1:]]
    inner.finish(f"{name}_body", inner.line("t", state, f"tuple({', '.join(following)})"))
