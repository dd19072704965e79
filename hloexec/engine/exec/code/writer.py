"""Generating a Python function for a plan: one line per step, one variable per slot."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.ir import leaf_shapes
from hloexec.core.structs import define
from hloexec.core.tree import flat
from hloexec.engine.exec.code.compiling import KEY, Code, Line, code_of, loop_code_of
from hloexec.engine.exec.code.scalars import index_text, is_scalar, operation_of
from hloexec.engine.exec.placement import UNSHARED_VARIABLE
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.engine.plan.steps import Conditional, Invocation, Plan, Step, While
from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.ops.indexing.fast.indexing import Moving, WindowReader, WindowWriter
from hloexec.ops.movement.strided import Indexing
from hloexec.ops.resources import is_own

_UNNAMEABLE = re.compile(r"\W")


class UnwritableError(Exception):
    """A plan within this one could not be written."""


@define(eq=False)
class Values:
    """The variables of one plan's slots, and which of them outlive the plan's steps."""

    plan: Plan
    names: dict[int, str] = attrs.field(factory=dict)
    scalars: dict[int, str] = attrs.field(factory=dict)
    """Those that hold NumPy's scalars; a slot may have one of either kind."""
    counts: dict[int, tuple[str, str]] = attrs.field(factory=dict)
    """Python's integers in the place of slots, and the expressions that make arrays of them."""
    places: dict[tuple[int, int], str] = attrs.field(factory=dict)
    """Python's integers of slots that are moved to lie between 0 and a number."""
    kept: frozenset[int] = frozenset()
    """Slots that the plan may neither drop nor overwrite, though it does not need them any more."""


class _Source:
    """What debuggers and tracebacks ask for the text of generated code."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, _: str) -> str:
        return self._text


def is_free(name: str) -> str:
    """The expression for whether nothing but a variable refers to its array."""
    return f"references({name}) == UNSHARED and is_own({name})"


class Writer:
    """Writes one function."""

    def __init__(self, name: str) -> None:
        self.lines: list[tuple[str, Line | None]] = []
        self.indent = "    "
        self.loop: tuple[Step, Plan] | None = None
        """The loop that the lines are in, and its condition or body."""
        self._callees: dict[int, Code] = {}
        self._namespace: dict[str, Any] = {
            "references": sys.getrefcount,
            "UNSHARED": UNSHARED_VARIABLE,
            "is_own": is_own,
        }
        self._names_of_objects: dict[int, str] = {}
        self._scalar_constants: dict[int, Any] = {}
        """By the identities of the arrays."""
        self._taken = {"arguments", "branch", "callee", "iteration", "state", "until", *self._namespace}
        self.name = self.fresh(name)

    def of_plan(self, plan: Plan) -> Code:
        """The function of a plan."""
        values = Values(plan)
        self.name_parameters(values)
        self.unpack([values.names[slot] for slot in plan.parameters], "arguments")
        self.write("arguments.clear()")
        self.drop(values, plan.dead_on_entry)
        for step in plan.steps:
            self.step(values, step)
        results = ", ".join([self.value(values, slot) for slot in plan.results])
        self.write(f"return [{results}]")
        return self.compiled("arguments")

    def compiled(self, parameters: str) -> Code:
        """The function of the lines that have been written."""
        lines = [f"def {self.name}({parameters}):", *(line for line, _ in self.lines)]
        source = "\n".join(lines) + "\n"
        numbered = {number: line for number, (_, line) in enumerate(self.lines, 2) if line is not None}
        code = Code(source, numbered, tuple(self._callees.values()))
        filename = f"<plan of {self.name}>"
        self._namespace |= {"__name__": filename, "__loader__": _Source(source), KEY: code}
        # The text is made here, of names that hold nothing but letters, digits and underscores.
        exec(compile(source, filename, "exec"), self._namespace)
        code.function = self._namespace[self.name]
        return code

    # Steps

    def step(self, values: Values, step: Step) -> None:
        """Write a step, and delete the values that die with it."""
        first = len(self.lines)
        flow = step.flow
        if step.function is not None:
            self.kernel(values, step)
        elif isinstance(flow, Invocation):
            self._call(values, step, f"{self._callee(code_of(flow.plan))}(arguments)")
        elif isinstance(flow, While):
            self._call(values, step, f"{self._callee(loop_code_of(step))}(arguments, 0, -1)[0]")
        elif isinstance(flow, Conditional):
            self._conditional(values, step, flow)
        else:
            # Only for display: plans that communicate are run by the interpreter.
            operands = ", ".join(self.value(values, slot) for slot in step.operands)
            call = f"{self.known_as(step.instruction.opcode, flow)}({operands})"
            self._drop_operands(values, step)
            targets = self.targets(values, step)
            if isinstance(step.tree, int):
                self.write(f"{targets[0]} = {call}")
            else:
                self.unpack(targets, call)
        if len(self.lines) > first:
            self.lines[-1] = (f"{self.lines[-1][0]}  # {self.note(step)}", None)
        line = Line(step, *(self.loop or (None, None)))
        self.lines[first:] = [(text, line) for text, _ in self.lines[first:]]
        # Steps that run other plans have given up their operands before.
        self.drop(values, [slot for slot in step.dead if step.function is not None or slot in step.results])

    def note(self, step: Step) -> str:
        """What the comment on a step's line says."""
        shape = str(step.instruction.shape)
        if not isinstance(step.kernel, RegionKernel):
            return shape
        region = step.kernel.region
        opcodes = ", ".join(part.step.instruction.opcode for part in region.parts)
        return f"{shape} by {region.block} of {region.rows} rows: {opcodes}"

    def kernel(self, values: Values, step: Step) -> None:
        """Write the line of a kernel."""
        kernel = step.kernel
        assert kernel is not None
        if self._scalar_kernel(values, step):
            return
        numbers_from = kernel.numbers_from
        operands = ", ".join(
            values.counts[slot][0] if slot in values.counts and place >= numbers_from else self.value(values, slot)
            for place, slot in enumerate(step.operands)
        )
        ufunc = kernel.ufunc
        function = self.known_as(step.instruction.opcode if ufunc is None else ufunc.__name__, step.function)
        call = f"{function}({operands})"
        if step.reused != NO_SLOT and step.reused not in values.kept:
            target = self.value(values, step.reused)
            call = f"{function}({operands}, out={target}) if {is_free(target)} else {call}"
        targets = self.targets(values, step)
        if isinstance(step.tree, int):
            self.write(f"{targets[0]} = {call}")
        elif all(isinstance(branch, int) for branch in step.tree):
            self.unpack(targets, call)
        else:
            self.unpack(targets, f"{self.known_as('flat', flat)}({call})")

    def _scalar_kernel(self, values: Values, step: Step) -> bool:
        """Write the line of a kernel that gives, or reads, single elements as operators do; whether it is one."""
        shapes = values.plan.slot_shapes
        index = step.function.index if isinstance(step.function, Indexing) else None
        if index is not None:
            text = index_text(index)
            operand = self.value(values, step.operands[0])
            if is_scalar(shapes[step.result]) and None not in index:
                values.scalars[step.result] = name = self.fresh(step.instruction.name)
            else:
                text = f"{text}, ..." if ... in index else text
                (name,) = self.targets(values, step)
            self.write(f"{name} = {operand}[{text}]")
            return True
        function = step.function
        if isinstance(function, (WindowReader, WindowWriter)) and isinstance(function.index, Moving):
            self._window(values, step, function, function.index)
            return True
        operation = operation_of(step, shapes)
        if operation is None:
            return False
        operands = [self.scalar(values, slot) for slot in step.operands]
        if not isinstance(operation, str):
            operation = f"{self.known_as(step.instruction.opcode, operation)}({', '.join(['{}'] * len(operands))})"
        values.scalars[step.result] = name = self.fresh(step.instruction.name)
        self.write(f"{name} = {operation.format(*operands)}")
        return True

    def _window(self, values: Values, step: Step, function: WindowReader | WindowWriter, window: Moving) -> None:
        """Write the lines of a slice, or the update of one, that moves along one dimension."""
        kernel = step.kernel
        assert kernel is not None
        shapes = values.plan.slot_shapes
        place = self._place(values, step.operands[int(kernel.numbers_from) + window.axis], window.last)
        operand = self.value(values, step.operands[0])
        if isinstance(function, WindowReader):
            if window.drops and is_scalar(shapes[step.result]):
                values.scalars[step.result] = name = self.fresh(step.instruction.name)
                self.write(f"{name} = {operand}[{place}]")
                return
            index = f"{place}:{place} + {window.extent}"
            if window.drops:
                # A last `...` keeps an array where no dimension is left.
                index = place if getattr(shapes[step.result], "dimensions", ()) else f"{place}, ..."
            (name,) = self.targets(values, step)
            self.write(f"{name} = {operand}[{':, ' * window.axis}{index}]")
            return
        update = values.scalars.get(step.operands[1]) or self.value(values, step.operands[1])
        # A row may have its first dimension, of one element, or not; a single element may not.
        is_row = getattr(shapes[step.operands[0]], "rank", 0) > 1 or is_scalar(shapes[step.operands[1]])
        index = f"{':, ' * window.axis}{place}:{place} + {window.extent}"
        if window.extent == 1 and not window.axis and is_row:
            index = place
        copy = f"{self.known_as('writeable', writeable)}({operand})"
        if step.reused != NO_SLOT and step.reused not in values.kept:
            copy = f"{operand} if {is_free(operand)} else {copy}"
        (name,) = self.targets(values, step)
        self.write(f"{name} = {copy}")
        self.write(f"{name}[{index}] = {update}")

    def _place(self, values: Values, slot: int, last: int) -> str:
        """The variable of an index that is moved to where a window fits, written where it is new."""
        if (slot, last) not in values.places:
            values.places[slot, last] = place = self.fresh("place")
            start = values.counts[slot][0] if slot in values.counts else place
            if start == place:
                self.write(f"{place} = int({values.scalars.get(slot) or self.value(values, slot)})")
            self.write(f"{place} = 0 if {start} < 0 else {last} if {start} > {last} else {start}")
        return values.places[slot, last]

    def _call(self, values: Values, step: Step, call: str) -> None:
        """Write the list of a callee's arguments, to which alone those belong then that die, and the call."""
        arguments = ", ".join([self.value(values, slot) for slot in step.operands])
        self.write(f"arguments = [{arguments}]")
        self._drop_operands(values, step)
        self.unpack(self.targets(values, step), call)

    def _conditional(self, values: Values, step: Step, flow: Conditional) -> None:
        first, *others = step.operands
        selector = values.scalars.get(first) or self.value(values, first)
        if values.plan.slot_shapes[first].array_shape.element_type.kind is Kind.PRED:
            self.write(f"branch = 0 if {selector} else 1")
        else:
            last = len(flow.branches) - 1
            self.write(f"branch = int({selector})")
            self.write(f"branch = branch if 0 <= branch < {last} else {last}")
        operands = [self.value(values, slot) for slot in others]
        for number, branch in enumerate(flow.branches):
            arguments = ", ".join(operands[branch.start - 1 : branch.stop - 1])
            callee = self._callee(code_of(branch.plan))
            self.write(f"{'elif' if number else 'if'} branch == {number}:")
            self.write(f"    callee, arguments = {callee}, [{arguments}]")
        self._drop_operands(values, step)
        self.unpack(self.targets(values, step), "callee(arguments)")

    def _drop_operands(self, values: Values, step: Step) -> None:
        self.drop(values, [slot for slot in step.dead if slot not in step.results])

    def drop(self, values: Values, slots: Sequence[int]) -> None:
        """Delete the values of slots."""
        self.clear(values.names[slot] for slot in slots if slot not in values.kept and slot in values.names)

    def clear(self, names: Iterable[str]) -> None:
        """Delete the values of variables."""
        targets = " = ".join(dict.fromkeys(names))
        if targets:
            self.write(f"{targets} = None")

    # Names

    def name_parameters(self, values: Values) -> None:
        """Name the slots of a plan's parameters."""
        names = [
            parameter.name for parameter in values.plan.computation.parameters for _ in leaf_shapes(parameter.shape)
        ]
        # What a loop gives its body besides was computed before it.
        makers = {slot: step.instruction.name for step in values.plan.program for slot in step.results}
        for number, slot in enumerate(values.plan.parameters):
            values.names[slot] = self.fresh(names[number] if number < len(names) else makers.get(slot, "unread"))

    def targets(self, values: Values, step: Step) -> list[str]:
        """New variables for a step's results."""
        for slot in step.results:
            values.names[slot] = self.fresh(step.instruction.name)
        return [values.names[slot] for slot in step.results]

    def value(self, values: Values, slot: int) -> str:
        """The expression for a slot's array: its variable, or the name of a constant."""
        if slot in values.names:
            return values.names[slot]
        if slot not in values.scalars and slot not in values.counts:
            return self.known_as("constant", values.plan.constants[slot])
        if slot in values.counts:
            base, expression = values.counts[slot]
        else:
            base = values.scalars[slot]
            expression = f"{self.known_as('asarray', np.asarray)}({base})"
        values.names[slot] = name = self.fresh(base)
        self.write(f"{name} = {expression}")
        return name

    def scalar(self, values: Values, slot: int) -> str:
        """The expression for a slot's only element."""
        if slot not in values.scalars:
            if slot in values.plan.constants:
                array = values.plan.constants[slot]
                return self.known_as("constant", self._scalar_constants.setdefault(id(array), array[()]))
            array = self.value(values, slot)
            values.scalars[slot] = name = self.fresh(array)
            self.write(f"{name} = {array}[()]")
        return values.scalars[slot]

    def _callee(self, code: Code | None) -> str:
        if code is None:
            raise UnwritableError
        self._callees[id(code)] = code
        return self.known_as(code.function.__name__, code.function)

    def known_as(self, name: str, value: object) -> str:
        """The name, `name` or like it, by which the code knows an object."""
        alias = self._names_of_objects.get(id(value))
        if alias is None:
            alias = self._names_of_objects[id(value)] = self.fresh(name)
            self._namespace[alias] = value
        return alias

    def fresh(self, name: str) -> str:
        """A Python name like `name` that is not taken yet."""
        base = _UNNAMEABLE.sub("_", name if name.isascii() else name.encode("ascii", "replace").decode())
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        candidate, number = base, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{base}_{number}"
        self._taken.add(candidate)
        return candidate

    # Lines

    def write(self, line: str) -> None:
        """Write a line that belongs to no step, or to one that is being written."""
        self.lines.append((self.indent + line, None))

    def unpack(self, targets: Sequence[str], expression: str) -> None:
        """Write an assignment to several variables, or to none."""
        if targets:
            self.write(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {expression}")
        else:
            self.write(expression)
