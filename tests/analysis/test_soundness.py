"""Every static analysis is sound against a run: what it says of a module before that runs holds for what the run gives.

An analysis is registered by a function that raises AssertionError where a run contradicts it. What the runs give is
settled by the definitions of opcodes, which are tested against XLA and exact arithmetic elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec import testing
from hloexec.analysis.dataflow.open_values import depending_leaves
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.dtypes import ElementType
from hloexec.core.values import label_of
from hloexec.engine.inputs.bounds import frame_of, opaque_bounds
from hloexec.ops.registry import Role, role_of
from tests.drawing import examples

Check: TypeAlias = Callable[[hloexec.Module, Sequence[Any], st.DataObject], None]
ANALYSES: dict[str, Check] = {}
INDEXING = (
    "concatenate slice pad reshape transpose broadcast reverse add subtract multiply minimum maximum clamp compare select "
    "iota dynamic-slice dynamic-update-slice gather copy while call fusion conditional convert"
).split()


def registered(check: Check) -> Check:
    """Makes a check one of those that all drawn modules have to pass."""
    ANALYSES[check.__name__] = check
    return check


class _Entry:
    """The observer that calls a function with each array that an instruction of the entry gives."""

    def __init__(self, see: Callable[[Any, Any], None]) -> None:
        self._see = see

    def on_instruction(self, event: Any) -> None:
        if not event.path:
            self._see(event.instruction, event.value)


@registered
def bounds_of_values(module: hloexec.Module, inputs: Sequence[Any], _: st.DataObject) -> None:
    """Each element lies within the bounds of its value, and of its column."""
    scope = frame_of(module, module.entry, [opaque_bounds(shape) for shape in module.entry.parameter_shapes])

    def see(instruction: Any, value: Any) -> None:
        if not isinstance(value, np.ndarray) or not value.size or instruction.shape.element_type.is_complex:
            return
        (found,) = scope.bounds[instruction.name]
        its_type = instruction.shape.element_type
        _require_within(value, found.low, found.high, its_type)
        columns = found.columns
        if columns is not None and value.shape == instruction.shape.dimensions:
            parts = value.reshape(-1, columns.count, columns.stride)
            for number, (low, high) in enumerate(columns.ends):
                _require_within(parts[:, number], low, high, its_type)

    hloexec.run(module, *inputs, observers=[_Entry(see)])


def _require_within(array: Any, low: float, high: float, element_type: ElementType) -> None:
    """Sums and products are bounded as if they were exact, so that elements may be a rounding beyond."""
    elements = np.asarray(array).astype(np.float64)
    elements = elements[~np.isnan(elements)]
    rounding = 2.0 ** -(element_type.mantissa_bits + 1) * np.abs(elements) if element_type.is_floating else 0
    assert (low - rounding <= elements).all()
    assert (elements <= high + rounding).all()


@registered
def trip_counts(module: hloexec.Module, inputs: Sequence[Any], _: st.DataObject) -> None:
    """A loop of the entry goes round as often as is known of it."""
    known = {
        each.name: count
        for each in module.entry
        if role_of(each) is Role.WHILE and (count := loop_trips(module, module.entry, each)) is not None
    }
    seen: Counter[str] = Counter()

    class Iterations:
        def on_instruction(self, event: Any) -> None:
            first = event.path[0] if event.path else None
            if first is not None and first.iteration is not None:
                is_body = first.computation == first.instruction.attributes.body
                seen[first.instruction.name] = max(seen[first.instruction.name], (first.iteration + 1) * is_body)

    hloexec.run(module, *inputs, observers=[Iterations()])
    # A body without instructions is not seen.
    assert {name: seen[name] for name in known if seen[name]} == {name: known[name] for name in known if seen[name]}
    assert all(known[name] == 0 for name in known if not seen[name] and _computes(module, name))


def _computes(module: hloexec.Module, loop: str) -> bool:
    body = module.by_name[module.entry.by_name[loop].attributes.body]
    return any(role_of(each) is Role.KERNEL for each in body)


@registered
def results_that_depend_on_a_value(module: hloexec.Module, inputs: Sequence[Any], data: st.DataObject) -> None:
    """What depends on the users of a parameter is all that another value of it changes."""
    parameters = module.entry.parameters
    if not parameters:
        return
    number = data.draw(st.integers(0, len(parameters) - 1))
    others = [*inputs]
    others[number] = data.draw(testing.inputs(module))[number]
    users = module.entry.users[parameters[number].name]
    if any(role_of(user) is not Role.KERNEL for user in users):
        return
    depending = set(map(label_of, depending_leaves(module, {(module.entry.name, user.name) for user in users})))
    results = (hloexec.run(module, *values) for values in (inputs, others))
    ours, theirs = (dict(_labelled(result)) for result in results)
    changed = {label for label in ours if ours[label].tobytes() != theirs[label].tobytes()}
    assert changed <= depending


def _labelled(result: Any) -> Any:
    from hloexec.core.values import labelled_arrays

    return labelled_arrays(result).items()


MODULES = {
    "any": testing.modules(max_instructions=10),
    "nested": testing.modules(INDEXING, ["s32", "pred", "f32"], max_instructions=12, max_depth=2),
    "indices": testing.modules(INDEXING, ["s32", "pred"], max_instructions=12),
}


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("kind", MODULES)
def test_what_is_known_before_a_run_holds_in_it(kind: str, name: str) -> None:
    @settings(max_examples=examples(60), deadline=None, suppress_health_check=[*HealthCheck])
    @given(MODULES[kind], st.data())
    def holds(module: hloexec.Module, data: st.DataObject) -> None:
        ANALYSES[name](module, data.draw(testing.inputs(module)), data)

    holds()


LOOP = """HloModule loops
is_going_on {{ {carried}
  ROOT q = pred[] {condition} }}
next {{ {carried}
  ROOT r = {root} }}
ENTRY main {{
  x = pred[] parameter(0)
  {start}
  ROOT w = {shape} while(s), condition=is_going_on, body=next }}
"""


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("condition", ["copy(p)", "constant(false)", "not(p)"])
@pytest.mark.parametrize("root", ["not(p)", "constant(false)", "constant(true)", "copy(p)"])
@pytest.mark.parametrize("value", [False, True])
def test_what_is_known_of_a_loop_whose_condition_looks_like_its_body_holds(
    value: bool, root: str, condition: str, name: str
) -> None:
    if _goes_on_for_ever(value, root, condition):
        return
    module = hloexec.parse(
        LOOP.format(
            carried="p = pred[] parameter(0)",
            condition=condition,
            root=f"pred[] {root}",
            start="s = pred[] copy(x)",
            shape="pred[]",
        )
    )

    @settings(max_examples=2, deadline=None)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        if name != "results_that_depend_on_a_value":
            ANALYSES[name](module, [np.array(value)], data)

    holds()


def _goes_on_for_ever(value: bool, root: str, condition: str) -> bool:
    steps: dict[str, Callable[[bool], bool]] = {
        "copy(p)": lambda p: p,
        "not(p)": lambda p: not p,
        "constant(false)": lambda _: False,
        "constant(true)": lambda _: True,
    }
    for _ in range(3):
        if not steps[condition](value):
            return False
        value = steps[root](value)
    return True
