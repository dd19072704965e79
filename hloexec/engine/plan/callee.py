"""Called computations as kernels use them: evaluated on whole arrays.

A reducer or comparator is a program on scalars. Here it runs once on arrays that hold many such scalars in *leading*
dimensions (the batch). Elementwise instructions need no change; a value that does not depend on the parameters has no
batch dimensions until it is combined with one that has. If loops and conditionals take different paths for different
elements of the batch, each path continues with the elements that took it. What cannot be done on the whole batch is
done element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.ir import ArrayShape, BufferShape, Computation
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import NO_SLOT, Conversion, InstructionKernel, converted, float_types, unflatten
from hloexec.engine.plan.steps import COMMUNICATION, Conditional, Invocation, Plan, Step, While, inner_plans
from hloexec.errors import EvaluationError, UnsupportedError


class PlanCallee:
    """`registry.Callee` on top of a plan, whose program it evaluates."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        shapes = [plan.slot_shapes[slot] for slot in plan.parameters]
        self._types = [entry for shape in shapes for entry in float_types(shape)]
        self._ranks = [shape.array_shape.rank for shape in shapes]
        self._programs = {id(inner): _Program(inner) for inner in _all_plans(plan)}
        self._calls = _direct_calls(plan)

    @property
    def computation(self) -> Computation:
        return self._plan.computation

    def __call__(self, *arguments: Any) -> Any:
        """The computation's result on arrays whose leading dimensions are the batch, which they share."""
        plan = self._plan
        if len(arguments) != len(plan.parameters):
            raise EvaluationError(
                f"computation {self.computation.name} takes {len(plan.parameters)} arrays, but a kernel gave it "
                f"{len(arguments)}"
            )
        given = [converted(argument, wanted) for argument, wanted in zip(arguments, self._types, strict=True)]
        if self._calls is not None and all(argument.shape == given[0].shape for argument in given):
            slots: dict[int, Any] = dict(zip(plan.parameters, given, strict=True))
            for function, operands, result, dead in self._calls:
                slots[result] = function(*[slots[slot] for slot in operands])
                for slot in dead:
                    del slots[slot]
            return unflatten(plan.result_tree, slots)
        batch = np.broadcast_shapes(
            *(array.shape[: array.ndim - rank] for array, rank in zip(arguments, self._ranks, strict=True))
        )
        results = self._run(plan, given, batch)
        shapes = [plan.slot_shapes[slot] for slot in plan.results]
        by_slot = {
            slot: _with_batch(value, batch, shape.array_shape.rank)
            for slot, value, shape in zip(plan.results, results, shapes, strict=True)
        }
        return unflatten(plan.result_tree, by_slot)

    def _run(self, plan: Plan, arguments: list[Any], batch: tuple[int, ...]) -> list[Any]:
        """The results' leaves; those that do not depend on the arguments lack the batch."""
        slots = plan.initial.copy()
        for slot, argument in zip(plan.parameters, arguments, strict=True):
            slots[slot] = argument
        for step, rule, dead in self._programs[id(plan)].steps:
            if rule is not None:
                value = rule(step.fetch(slots), batch)
            else:
                value = self._flow(step, [slots[slot] for slot in step.operands], batch)
            if step.result != NO_SLOT:
                slots[step.result] = value if rule is not None else value[0]
            else:
                for slot, leaf in zip(step.results, value, strict=True):
                    slots[slot] = leaf
            for slot in dead:
                slots[slot] = None
        return [slots[slot] for slot in plan.results]

    # Control flow

    def _flow(self, step: Step, operands: list[Any], batch: tuple[int, ...]) -> Sequence[Any]:
        flow = step.flow
        if isinstance(flow, Invocation):
            return self._run(flow.plan, operands, batch)
        if isinstance(flow, Conditional):
            return self._conditional(flow, operands, batch)
        assert isinstance(flow, While)
        return self._while(flow, operands, batch)

    def _conditional(self, flow: Conditional, operands: list[Any], batch: tuple[int, ...]) -> list[Any]:
        selector = operands[0]
        if selector.ndim == 0:
            branch = flow.select(selector)
            return self._run(branch.plan, operands[branch.start : branch.stop], batch)
        count = len(flow.branches)
        chosen = np.where(selector, 0, 1) if selector.dtype.kind == "b" else selector
        chosen = np.where((chosen < 0) | (chosen >= count), count - 1, chosen).reshape(-1)
        results: _Scattered = _Scattered(prod(batch))
        for number in np.unique(chosen):
            branch = flow.branches[number]
            taken = np.flatnonzero(chosen == number)
            arguments = [
                _elements(value, taken, batch, branch.plan.slot_shapes[slot].array_shape.rank)
                for value, slot in zip(operands[branch.start : branch.stop], branch.plan.parameters, strict=True)
            ]
            values = self._run(branch.plan, arguments, taken.shape)
            ranks = [branch.plan.slot_shapes[slot].array_shape.rank for slot in branch.plan.results]
            results.put(taken, [_with_batch(v, taken.shape, rank) for v, rank in zip(values, ranks, strict=True)])
        return results.reshaped(batch)

    def _while(self, flow: While, operands: list[Any], batch: tuple[int, ...]) -> list[Any]:
        state = list(operands)
        while True:
            (again,) = self._run(flow.condition, list(state), batch)
            if again.ndim:
                break
            if not again:
                return state
            state = self._run(flow.body, state, batch)
        return self._diverging_while(flow, state, again, batch)

    def _diverging_while(self, flow: While, state: list[Any], again: Any, batch: tuple[int, ...]) -> list[Any]:
        """Go on with a loop whose condition differs between elements, keeping only those that still turn."""
        ranks = [flow.body.slot_shapes[slot].array_shape.rank for slot in flow.body.parameters]
        active = np.arange(prod(batch))
        state = [_elements(value, active, batch, rank) for value, rank in zip(state, ranks, strict=True)]
        again = np.broadcast_to(again, batch).reshape(-1)
        results = _Scattered(prod(batch))
        while True:
            results.put(active[~again], [value[~again] for value in state])
            active = active[again]
            if not active.size:
                return results.reshaped(batch)
            state = [value[again] for value in state]
            next_values = self._run(flow.body, state, active.shape)
            state = [_with_batch(value, active.shape, rank) for value, rank in zip(next_values, ranks, strict=True)]
            (again,) = self._run(flow.condition, list(state), active.shape)
            again = np.broadcast_to(again, active.shape)


class _Scattered:
    """Results that arrive for some elements of a flat batch at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._leaves: list[Array] | None = None

    def put(self, elements: Array, values: list[Any]) -> None:
        if self._leaves is None:
            self._leaves = [np.empty((self._count, *value.shape[1:]), value.dtype) for value in values]
        for leaf, value in zip(self._leaves, values, strict=True):
            leaf[elements] = value

    def reshaped(self, batch: tuple[int, ...]) -> list[Any]:
        return [leaf.reshape(batch + leaf.shape[1:]) for leaf in self._leaves or ()]


_Call: TypeAlias = tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]]
"""A function, the slots of its operands, that of its result, and those of what dies with it."""


def _direct_calls(plan: Plan) -> list[_Call] | None:
    """The calls of a plan that computes element by element from scalars that depend on its parameters, and from nothing
    else; None of others."""
    scalars = {slot for slot in plan.parameters if not plan.slot_shapes[slot].array_shape.rank}
    calls: list[_Call] = []
    for step, rule, dead in _Program(plan).steps:
        is_elementwise = isinstance(rule, partial) and rule.func is _elementwise
        if not is_elementwise or not step.operands or not scalars.issuperset(step.operands) or step.result == NO_SLOT:
            return None
        scalars.add(step.result)
        assert step.function is not None
        calls.append((step.function, step.operands, step.result, dead))
    return calls if scalars.issuperset(plan.results) else None


# How a step runs on a batch


_Rule = Callable[[Sequence[Any], "tuple[int, ...]"], Any]


class _Program:
    """The steps of a plan's program that compute, each with how it runs on a batch, and what dies with it."""

    def __init__(self, plan: Plan) -> None:
        self.steps: list[tuple[Step, _Rule | None, tuple[int, ...]]] = []
        needed = {*plan.results, *plan.constants}
        for step in reversed(plan.program):
            # A flow without results is a send or the like, which `_all_plans` refuses.
            if step.is_shown_only or not step.results:
                continue
            touched = dict.fromkeys((*step.operands, *step.results))
            dead = tuple(slot for slot in touched if slot not in needed)
            self.steps.append((step, None if step.kernel is None else _rule(step), dead))
            needed.update(touched)
        self.steps.reverse()


def _rule(step: Step) -> _Rule:
    """How a kernel step takes operands of which some have the batch in front."""
    kernel = step.kernel
    assert kernel is not None
    if isinstance(kernel, Conversion):
        return partial(_whole, kernel.function)
    if not isinstance(kernel, InstructionKernel) or (kernel.entry and kernel.entry.is_elementwise):
        # What programs have besides instructions' kernels are multiply-adds.
        return partial(_elementwise, kernel.function)
    shape = step.instruction.shape
    if len(step.operands) == 1 and isinstance(shape, ArrayShape) and shape.rank == 0 and not any(_operand_ranks(step)):
        # A kernel from one scalar to one scalar that is not elementwise moves data or reinterprets bits. With one
        # scalar there is nothing to move, and bits do not care for dimensions in front.
        return partial(_scalar_to_scalar, kernel)
    return partial(_one_by_one, kernel.function, _operand_ranks(step))


def _whole(function: Callable[..., Any], operands: Sequence[object], batch: tuple[int, ...]) -> Any:
    return function(*operands)


def _elementwise(function: Callable[..., Any], operands: Sequence[Any], batch: tuple[int, ...]) -> Any:
    if len(operands) > 1:
        shape = operands[0].shape
        if any(operand.shape != shape for operand in operands):
            shape = np.broadcast_shapes(*(operand.shape for operand in operands))
            operands = [np.broadcast_to(operand, shape) for operand in operands]
    return function(*operands)


def _scalar_to_scalar(kernel: InstructionKernel, operands: Sequence[Any], batch: tuple[int, ...]) -> Any:
    (operand,) = operands
    shape = kernel.given.get("shape")
    if operand.ndim == 0 or kernel.result_types is not None:
        return _one_by_one(kernel.function, [0], operands, batch)
    if shape is None or shape.element_type.storage == operand.dtype:
        return operand
    changed: dict[str, Any] = {"shape": ArrayShape(shape.element_type, operand.shape)}
    if "operand_shapes" in kernel.given:
        changed["operand_shapes"] = (ArrayShape(kernel.given["operand_shapes"][0].element_type, operand.shape),)
    return kernel.with_given(**changed)(operand)


def _one_by_one(
    function: Callable[..., Any], ranks: Sequence[int], operands: Sequence[Any], batch: tuple[int, ...]
) -> Any:
    """Run a kernel once per element of the batch: slow, and right for every kernel."""
    if all(operand.ndim == rank for operand, rank in zip(operands, ranks, strict=True)):
        return function(*operands)
    count = prod(batch)
    everything = np.arange(count)
    flat = [_elements(operand, everything, batch, rank) for operand, rank in zip(operands, ranks, strict=True)]
    values = [function(*(operand[element] for operand in flat)) for element in range(max(count, 1)) if count]
    if not values:
        raise EvaluationError("a called computation was given no elements at all")
    if isinstance(values[0], tuple):
        return tuple(np.stack(leaf).reshape(batch + np.shape(leaf[0])) for leaf in zip(*values, strict=True))
    return np.stack(values).reshape(batch + np.shape(values[0]))


# Shapes


def _operand_ranks(step: Step) -> list[int]:
    by_name = step.scope.computation.by_name
    shapes = [by_name[name].shape for name in step.instruction.operands]
    return [shape.array_shape.rank for shape in shapes if isinstance(shape, (ArrayShape, BufferShape))]


def _with_batch(value: object, batch: tuple[int, ...], rank: int) -> Any:
    """The value with the batch in front, if it lacks it."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.ndim == len(batch) + rank:
        return value
    return np.broadcast_to(value, batch + value.shape)


def _elements(value: object, elements: Array, batch: tuple[int, ...], rank: int) -> Any:
    """Some elements of a batch, by their numbers in the flat batch."""
    whole = _with_batch(value, batch, rank)
    return whole.reshape((prod(batch), *whole.shape[len(batch) :]))[elements]


def _all_plans(plan: Plan) -> list[Plan]:
    """A plan and those that its program runs; UnsupportedError where they communicate."""
    plans = [plan]
    seen = {id(plan)}
    for outer in plans:
        for step in outer.program:
            if isinstance(step.flow, COMMUNICATION):
                raise UnsupportedError(
                    f"%{step.instruction.name} in computation {step.scope.computation.name} has to do with "
                    f"other devices or the host, but {plan.computation.name} is evaluated on many elements at once, in "
                    "no order"
                )
            inner = [entry for entry in inner_plans(step.flow) if id(entry) not in seen]
            plans += inner
            seen.update(map(id, inner))
    return plans
