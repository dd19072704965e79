"""Plans as Python: straight-line code that does what the machine does, without its loop over steps.

Each slot becomes a local variable, named after the instruction that fills it, and each step a line that calls its
kernel. A plan is a function from the list of its arguments, which it empties, to the list of its results; a loop is a
function of its carried values, with the steps of its condition and body between them. What a loop would compute anew in
each iteration from the same values is computed once, before it. `hloexec plan` prints the code.

Nothing that exchanges values with other devices or the host can be part of it, nor can values that differ between
devices: the machine walks the steps then. An error is traced to its step by the line that it came from.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.exec.in_place import UNSHARED_VARIABLE, InPlace, is_own
from hloexec.exec.observers import Context
from hloexec.exec.plan import Conditional, Invocation, Plan, Step, While, flat
from hloexec.exec.split import Split
from hloexec.ir import leaf_shapes
from hloexec.ops.registry import Role, find_opcode

__all__ = ["RUNS_BEFORE_CODE", "Code", "can_be_code", "code_of", "loop_code_of", "place_of", "sources"]

RUNS_BEFORE_CODE = 16
"""So often a plan, or a loop's body, is walked first: making code of it costs about as much as so many runs save."""

_DEEPEST = 64
"""Plans that nest deeper are walked, so that Python's stack does not limit them."""

_LONGEST = 20_000
"""Plans with more steps are walked: compiling them takes seconds."""

_HOISTED_BYTES = 1 << 20
"""What a loop's iterations have in common is kept from one to the next if it takes no more memory than this."""

_DRAWS = frozenset({"rng", "rng-get-and-update-state"})
"""Opcodes that give something else each time."""

_KEY = "__hloexec_code__"
_UNNAMEABLE = re.compile(r"\W")


@attrs.frozen
class Place:
    """What a line of code does: a step, and the loop that it is in, if any."""

    step: Step
    loop: Step | None = None
    plan: Plan | None = None
    """The loop's condition or body."""


@attrs.define(eq=False)
class Code:
    """A function made from a plan or from a loop."""

    source: str
    places: Mapping[int, Place]
    """By the numbers of lines."""
    callees: tuple[Code, ...]
    """The functions that it calls."""
    function: Callable[..., Any] = attrs.field(init=False)


def can_be_code(what: Plan | While, arguments: Sequence[Any]) -> bool:
    """Whether a plan or a loop can run as code on these arguments."""
    plans = (what,) if isinstance(what, Plan) else (what.condition, what.body)
    is_small = all(plan.depth is not None and plan.depth < _DEEPEST and len(plan.steps) < _LONGEST for plan in plans)
    return is_small and Split not in map(type, arguments)


def code_of(plan: Plan) -> Code:
    """The code of a plan, made when it is first asked for: a function from arguments to results, both in lists."""
    if plan.code is None:
        plan.code = _Writer(plan.computation.name).of_plan(plan)
    return plan.code  # type: ignore[no-any-return]


def loop_code_of(step: Step) -> Code:
    """The code of a loop: a function (state, iteration, until) → (state, iteration, whether the loop is over).

    It goes on from the number of an iteration to another, or for ever where that is -1.
    """
    flow = step.flow
    assert isinstance(flow, While)
    if flow.code is None:
        flow.code = _Writer(step.instruction.name).of_loop(step, flow)
    return flow.code  # type: ignore[no-any-return]


def sources(code: Code) -> Iterator[str]:
    """The source of a function and of those that it calls, callees first."""
    seen: set[int] = set()
    pending: list[tuple[Code, bool]] = [(code, False)]
    while pending:
        current, is_ready = pending.pop()
        if is_ready:
            yield current.source
        elif id(current) not in seen:
            seen.add(id(current))
            pending.append((current, True))
            pending.extend((callee, False) for callee in reversed(current.callees))


def place_of(error: BaseException, context: Context | None) -> tuple[Step, Context | None] | None:
    """The step that an error came from, and the way to it, by its traceback; None where no code of ours was running.

    `context` is that of the outermost function.
    """
    found: Step | None = None
    branch = 0
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_globals.get(_KEY)
        place = None if code is None else code.places.get(trace.tb_lineno)
        if place is not None:
            values = trace.tb_frame.f_locals
            if found is not None and isinstance(found.flow, Invocation):
                context = Context(found, found.flow.plan, None, context)
            elif found is not None and isinstance(found.flow, Conditional):
                context = Context(found, found.flow.branches[branch].plan, None, context)
            if place.loop is not None and place.plan is not None:
                context = Context(place.loop, place.plan, values["iteration"], context)
            found, branch = place.step, values.get("branch", 0)
        trace = trace.tb_next
    return None if found is None else (found, context)


class _Source:
    """What debuggers and tracebacks ask for the text of generated code."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, _: str) -> str:
        return self._text


@attrs.define(eq=False)
class _Values:
    """The variables of one plan's slots, and which of them outlive the plan's steps."""

    plan: Plan
    names: dict[int, str] = attrs.field(factory=dict)
    kept: frozenset[int] = frozenset()
    """Slots that the plan may neither drop nor overwrite, though it does not need them any more."""


class _Writer:
    """Writes one function."""

    def __init__(self, name: str) -> None:
        self._lines: list[str] = []
        self._places: dict[int, Place] = {}
        self._callees: dict[int, Code] = {}
        self._namespace: dict[str, Any] = {
            "references": sys.getrefcount,
            "UNSHARED": UNSHARED_VARIABLE,
            "is_own": is_own,
        }
        self._names_of_objects: dict[int, str] = {}
        self._taken = {"arguments", "branch", "callee", "iteration", "state", "until", *self._namespace}
        self._name = self._fresh(name)
        self._loop: tuple[Step, Plan] | None = None
        self._indent = "    "

    # Functions

    def of_plan(self, plan: Plan) -> Code:
        values = _Values(plan)
        self._write_start(f"def {self._name}(arguments):")
        self._name_parameters(values)
        self._unpack([values.names[slot] for slot in range(plan.parameter_count)], "arguments")
        self._write("arguments.clear()")
        self._drop(values, plan.dead_on_entry)
        for step in plan.steps:
            self._step(values, step)
        self._write(f"return [{', '.join(self._value(values, slot) for slot in plan.results)}]")
        return self._finished()

    def of_loop(self, step: Step, flow: While) -> Code:
        state = _Values(flow.body)
        self._write_start(f"def {self._name}(state, iteration, until):")
        self._name_parameters(state)
        names = [state.names[slot] for slot in range(flow.body.parameter_count)]
        self._unpack(names, "state")
        self._write("state.clear()")
        everything = frozenset(range(flow.condition.parameter_count))
        condition = _Values(flow.condition, dict(enumerate(names)), everything)
        hoisted = self._hoisted(step, state, [slot for slot in everything if flow.body.is_invariant(slot)])
        hoisted |= self._hoisted(step, condition, [slot for slot in everything if flow.body.is_invariant(slot)])
        self._write("while iteration != until:")
        self._indent = "        "
        self._loop = step, flow.condition
        for inner in flow.condition.steps:
            if id(inner) not in hoisted:
                self._step(condition, inner)
        again = self._value(condition, flow.condition.results[0])
        self._write(f"if not {again}:")
        self._write(f"    return [{', '.join(names)}], iteration, True")
        if flow.condition.results[0] not in flow.condition.constant_slots and again not in names:
            self._write(f"{again} = None")
        self._loop = step, flow.body
        self._drop(state, flow.body.dead_on_entry)
        for inner in flow.body.steps:
            if id(inner) not in hoisted:
                self._step(state, inner)
        self._carry(state, names)
        self._write("iteration += 1")
        self._indent = "    "
        self._write(f"return [{', '.join(names)}], iteration, False")
        return self._finished()

    def _carry(self, state: _Values, names: Sequence[str]) -> None:
        """Let the results of a loop's body take the places of its arguments."""
        body = state.plan
        changed = [leaf for leaf in range(len(names)) if not body.is_invariant(leaf)]
        if not changed:
            return
        values = [self._value(state, body.results[leaf]) for leaf in changed]
        self._write(f"{', '.join(names[leaf] for leaf in changed)} = {', '.join(values)}")
        kept = state.kept | body.constant_slots | set(range(body.parameter_count))
        self._clear(dict.fromkeys(state.names[slot] for slot in body.results if slot not in kept))

    def _hoisted(self, loop: Step, values: _Values, invariant: Sequence[int]) -> set[int]:
        """Write the steps that compute the same in each iteration, before the loop; returns their identities."""
        plan = values.plan
        known = plan.constant_slots | set(invariant)
        found: set[int] = set()
        self._loop = loop, plan
        for step in plan.steps:
            if _is_pure(step) and known.issuperset(step.operands):
                if sum(plan.slot_shapes[slot].byte_size for slot in step.results) > _HOISTED_BYTES:
                    continue
                known = known.union(step.results)
                values.kept = values.kept.union(step.operands, step.results)
                self._step(values, step)
                found.add(id(step))
        self._loop = None
        return found

    def _finished(self) -> Code:
        source = "\n".join(self._lines) + "\n"
        code = Code(source, self._places, tuple(self._callees.values()))
        namespace = self._namespace
        filename = f"<plan of {self._name}>"
        namespace |= {"__name__": filename, "__loader__": _Source(source), _KEY: code}
        # The text is made here from names that hold nothing but letters, digits and underscores.
        exec(compile(source, filename, "exec"), namespace)
        code.function = namespace[self._name]
        return code

    # Steps

    def _step(self, values: _Values, step: Step) -> None:
        first = len(self._lines) + 1
        for slot in step.results:
            values.names[slot] = self._fresh(step.instruction.name)
        flow = step.flow
        if step.function is not None:
            self._kernel(values, step)
        elif isinstance(flow, Invocation):
            self._pass(values, step)
            self._unpack(self._targets(values, step), f"{self._callee(code_of(flow.plan))}(arguments)")
        elif isinstance(flow, While):
            self._pass(values, step)
            targets = self._targets(values, step)
            self._unpack(targets, f"{self._callee(loop_code_of(step))}(arguments, 0, -1)[0]")
        elif isinstance(flow, Conditional):
            self._conditional(values, step, flow)
        else:
            # For people only: a plan that communicates is walked.
            given = ", ".join(self._value(values, slot) for slot in step.operands)
            self._unpack(self._targets(values, step), f"{self._global(step.instruction.opcode, flow)}({given})")
            self._drop_operands(values, step)
        if not self._lines[-1].endswith(" = None"):
            self._lines[-1] += f"  # {step.instruction.shape}"
        for line in range(first, len(self._lines) + 1):
            self._places[line] = Place(step, *(self._loop or (None, None)))
        # Steps that run other plans have given up their operands before.
        self._drop(values, [slot for slot in step.dead if step.function is not None or slot in step.results])

    def _kernel(self, values: _Values, step: Step) -> None:
        function = step.function
        operands = [self._value(values, slot) for slot in step.operands]
        given = ", ".join(operands)
        call = f"{self._global(_name_of(function, step), function)}({given})"
        if isinstance(function, InPlace):
            opcode = step.instruction.opcode
            call = f"{self._global(opcode, function.kernel)}({given})"
            if step.operands[function.place] not in values.kept:
                target = operands[function.place]
                over = f"{self._global(f'{opcode}_in_place', function.overwrite)}({given})"
                call = f"{over} if references({target}) == UNSHARED and is_own({target}) else {call}"
        targets = self._targets(values, step)
        if isinstance(step.tree, int):
            self._write(f"{targets[0]} = {call}")
        elif all(isinstance(branch, int) for branch in step.tree):
            self._unpack(targets, call)
        else:
            self._unpack(targets, f"{self._global('flat', flat)}({call})")

    def _conditional(self, values: _Values, step: Step, flow: Conditional) -> None:
        selector = self._value(values, step.operands[0])
        self._write(f"branch = {self._global('select', _selection(flow))}({selector})")
        for number, branch in enumerate(flow.branches):
            given = ", ".join(self._value(values, slot) for slot in step.operands[branch.start : branch.stop])
            callee = self._callee(code_of(branch.plan))
            self._write(f"{'elif' if number else 'if'} branch == {number}:")
            self._write(f"    callee, arguments = {callee}, [{given}]")
        self._drop_operands(values, step)
        self._unpack(self._targets(values, step), "callee(arguments)")

    def _pass(self, values: _Values, step: Step) -> None:
        """Write the list of a callee's arguments, to which alone those belong then that die."""
        self._write(f"arguments = [{', '.join(self._value(values, slot) for slot in step.operands)}]")
        self._drop_operands(values, step)

    def _drop_operands(self, values: _Values, step: Step) -> None:
        self._drop(values, [slot for slot in step.dead if slot not in step.results])

    def _drop(self, values: _Values, slots: Sequence[int]) -> None:
        self._clear([values.names[slot] for slot in slots if slot not in values.kept])

    def _clear(self, names: Any) -> None:
        if names:
            self._write(f"{' = '.join(names)} = None")

    # Names

    def _name_parameters(self, values: _Values) -> None:
        slot = 0
        for parameter in values.plan.computation.parameters:
            for _ in leaf_shapes(parameter.shape):
                values.names[slot] = self._fresh(parameter.name)
                slot += 1

    def _targets(self, values: _Values, step: Step) -> list[str]:
        return [values.names[slot] for slot in step.results]

    def _value(self, values: _Values, slot: int) -> str:
        """The expression for a slot: its variable, or the name of a constant."""
        if slot in values.names:
            return values.names[slot]
        return self._global("constant", values.plan.initial[slot])

    def _callee(self, code: Code) -> str:
        self._callees[id(code)] = code
        return self._global(code.function.__name__, code.function)

    def _global(self, name: str, value: Any) -> str:
        """The name by which the code knows an object."""
        known = self._names_of_objects.get(id(value))
        if known is None:
            known = self._names_of_objects[id(value)] = self._fresh(name)
            self._namespace[known] = value
        return known

    def _fresh(self, name: str) -> str:
        """A Python name like `name` that is not taken yet."""
        base = _UNNAMEABLE.sub("_", name if name.isascii() else name.encode("ascii", "replace").decode())
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        found, number = base, 1
        while found in self._taken:
            number += 1
            found = f"{base}_{number}"
        self._taken.add(found)
        return found

    # Lines

    def _write_start(self, line: str) -> None:
        self._lines.append(line)

    def _write(self, line: str) -> None:
        self._lines.append(self._indent + line)

    def _unpack(self, targets: Sequence[str], expression: str) -> None:
        if targets:
            self._write(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {expression}")
        else:
            self._write(expression)


def _is_pure(step: Step) -> bool:
    """Whether a step computes the same whenever its operands are the same, and does nothing else."""
    entry = find_opcode(step.instruction.opcode)
    is_kernel = step.function is not None and entry is not None and entry.role is Role.KERNEL
    return is_kernel and step.instruction.opcode not in _DRAWS


def _name_of(function: Any, step: Step) -> str:
    return function.__name__ if isinstance(function, np.ufunc) else step.instruction.opcode


def _selection(flow: Conditional) -> Callable[[Any], int]:
    return lambda selector: flow.branches.index(flow.select(selector))
