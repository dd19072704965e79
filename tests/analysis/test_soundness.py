"""Every static analysis is sound against a run: what it says of a module before that runs holds for what the run gives.

An analysis is registered by a function that raises AssertionError where a run contradicts it. What the runs give is
settled by the definitions of opcodes, which are tested against XLA and exact arithmetic elsewhere.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec import testing
from hloexec.analysis.buffers.dataflow import analyse, flatten
from hloexec.analysis.buffers.live_ranges import lifetimes
from hloexec.analysis.dataflow.dependences import depending_leaves
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape
from hloexec.core.places import Place
from hloexec.core.tree import leaves
from hloexec.core.values import label_of
from hloexec.engine.inputs.bounds import frame_of, opaque_bounds
from hloexec.ops.registry import Role, role_of
from hloexec.tools.graphing.flow import Flow
from hloexec.tools.shrinking.devices.constants import DeviceValues
from hloexec.tools.shrinking.ranges import Numbers, Ranges
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


@registered
def ranges_of_integers(module: hloexec.Module, inputs: Sequence[Any], _: st.DataObject) -> None:
    """Each integer lies within its bounds, and is what is said of it where it does not depend on inputs."""
    facts: dict[tuple[str, str], Numbers] = {}

    class Recorded(Ranges):
        def found(self, place: tuple[str, str], fact: Numbers) -> None:
            facts[place] = facts[place].joined(fact) if place in facts else fact

    Recorded.of(module)

    class Integers:
        def on_instruction(self, event: Any) -> None:
            fact = facts.get((event.computation.name, event.instruction.name))
            if fact is None or not isinstance(event.value, np.ndarray) or event.value.dtype.kind not in "iub":
                return
            assert not event.value.size or fact.low <= event.value.astype(float).min()
            assert not event.value.size or event.value.astype(float).max() <= fact.high
            if fact.constant is not None:
                np.testing.assert_array_equal(event.value, fact.constant)

    hloexec.run(module, *inputs, observers=[Integers()])


def _require_within(array: Any, low: float, high: float, element_type: ElementType) -> None:
    """Sums and products are bounded as if they were exact, so that elements may be a rounding beyond."""
    elements = np.asarray(array).astype(np.float64)
    elements = elements[~np.isnan(elements)]
    sizes = np.where(np.isfinite(elements), np.abs(elements), 0)
    rounding = 2.0 ** -(element_type.mantissa_bits + 1) * sizes if element_type.is_floating else 0
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
    ran: set[str] = set()

    class Iterations:
        def on_instruction(self, event: Any) -> None:
            ran.add(event.name)
            first = event.path[0] if event.path else None
            if first is not None and first.iteration is not None:
                is_body = first.computation == first.instruction.attributes.body
                seen[first.instruction.name] = max(seen[first.instruction.name], (first.iteration + 1) * is_body)

    hloexec.run(module, *inputs, observers=[Iterations()])
    # A body without instructions is not seen.
    assert {name: seen[name] for name in known if seen[name]} == {name: known[name] for name in known if seen[name]}
    assert all(known[name] == 0 for name in ran.intersection(known) if not seen[name] and _computes(module, name))


def _computes(module: hloexec.Module, loop: str) -> bool:
    body = module.by_name[module.entry.by_name[loop].attributes.body]
    return any(role_of(each) is Role.KERNEL for each in body)


@registered
def results_that_depend_on_a_value(module: hloexec.Module, inputs: Sequence[Any], data: st.DataObject) -> None:
    """What depends on the users of a parameter is all that another value of it changes."""
    others, number = _with_another(module, inputs, data)
    if number is None:
        return
    users = module.entry.users[module.entry.parameters[number].name]
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


@registered
def values_at_positions(module: hloexec.Module, inputs: Sequence[Any], _: st.DataObject) -> None:
    """The value that is said to be at a position is there, and its buffer is held whenever it is read."""
    flat = flatten(module)
    dataflow = analyse(module, flat)
    lives = lifetimes(module, flat, dataflow)
    sharing = {number: group for group in lives.groups for number in group}
    made: dict[int, bytes] = {}

    class Positions:
        def on_instruction(self, event: Any) -> None:
            home, name = event.computation.name, event.instruction.name
            if (home, name) not in flat.times:
                return
            for index, array in leaves(event.value):
                value, *others = dataflow.at[home, name][index]
                if not others and not value.is_phi and isinstance(array, np.ndarray):
                    if value.place == Place(home, name, index):
                        made[value.number] = array.tobytes()
                    assert made[value.number] == array.tobytes()
            if role_of(event.instruction) in (Role.KERNEL, Role.CUSTOM_CALL):
                read = (value for operand in event.instruction.operands for value in dataflow.at[home, operand][()])
                for value in read:
                    starts, stops = zip(*(lives.spans[number] for number in sharing[value.number]), strict=True)
                    assert min(starts) <= flat.times[home, name] <= max(stops)

    hloexec.run(module, *inputs, observers=[Positions()])


@registered
def data_flow(module: hloexec.Module, inputs: Sequence[Any], data: st.DataObject) -> None:
    """Another value of a parameter changes nothing but what is said to be computed from it."""
    others, number = _with_another(module, inputs, data)
    if number is None:
        return
    start = module.entry_name, module.entry.parameters[number].name
    flow = Flow(module, module.entry_name)
    reached = {start}
    before = 0
    while before != len(reached):
        before = len(reached)
        reached |= {edge.target for edge in flow.edges if edge.source in reached}
    seen: list[dict[tuple[str, str], list[bytes]]] = []
    for values in (inputs, others):
        given: dict[tuple[str, str], list[bytes]] = defaultdict(list)

        class Recorder:
            def on_instruction(self, event: Any, given: Any = given) -> None:
                place = event.computation.name, event.instruction.name
                given[place] += [np.asarray(array).tobytes() for _, array in leaves(event.value)]

        hloexec.run(module, *values, observers=[Recorder()])
        seen.append(given)
    there = {*flow.places}
    changed = {place for place in there if seen[0].get(place) != seen[1].get(place)}
    # How often a computation runs, a loop's condition and a conditional's index decide.
    assert changed <= reached or _decides_a_run(module, reached)


def _decides_a_run(module: hloexec.Module, reached: Collection[tuple[str, str]]) -> bool:
    conditions = {
        each.attributes.condition for computation in module for each in computation if role_of(each) is Role.WHILE
    }
    chosen = {
        (computation.name, each.operands[0])
        for computation in module
        for each in computation
        if role_of(each) is Role.CONDITIONAL
    }
    return not chosen.isdisjoint(reached) or any(
        (name, module.by_name[name].root_name) in reached for name in conditions
    )


@registered
def dimensions(module: hloexec.Module, inputs: Sequence[Any], data: st.DataObject) -> None:
    """A module with smaller dimensions is well-formed, and runs."""
    size = sum(shape.byte_size for shape in module.entry.parameter_shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hloexec.HloWarning)
        try:
            smaller = hloexec.shrink(module, max_bytes=data.draw(st.integers(1, 2 * size + 1))).module
        except hloexec.ResourceError:
            return
        hloexec.verify(smaller)
        with suppress(hloexec.ResourceError):  # of a loop that does not end
            hloexec.run(smaller, *hloexec.random_inputs(smaller, 0), max_iterations=10)


@registered
def numbers_of_devices(module: hloexec.Module, inputs: Sequence[Any], _: st.DataObject) -> None:
    """What each of four devices is said to compute from its number is what it computes."""
    several = _with_device_numbers(module)
    if several is None:
        return
    known = DeviceValues.of(several, 2, 2).known
    seen: dict[tuple[str, str], dict[int, set[Any]]] = defaultdict(lambda: defaultdict(set))

    class Recorder:
        def on_instruction(self, event: Any) -> None:
            if isinstance(event.value, np.ndarray) and event.value.size == 1:
                for device in event.devices:
                    seen[event.computation.name, event.instruction.name][device].add(event.value.reshape(-1)[0].item())

    others = [
        value for value, shape in zip(inputs, module.entry.parameter_shapes, strict=True) if not _is_number(shape)
    ]
    hloexec.run_devices(several, [others], replicas=2, partitions=2, observers=[Recorder()])
    for place, fact in known.items():
        if fact.numbers is not None and place in seen:
            for device, values in seen[place].items():
                assert values == {fact.numbers[device].item()}, (place, device)


def _is_number(shape: Any) -> bool:
    return isinstance(shape, ArrayShape) and not shape.dimensions and str(shape.element_type) in ("s32", "u32")


def _with_device_numbers(module: hloexec.Module) -> hloexec.Module | None:
    """The module with numbers of devices for its parameters that are integers; None where it has none."""
    lines, names, count = [], [], 0
    for number, shape in enumerate(module.entry.parameter_shapes):
        if _is_number(shape):
            lines += [f"i{number} = u32[] {('partition-id', 'replica-id')[number % 2]}()"]
            lines += [f"a{number} = {shape} convert(i{number})"]
        else:
            lines += [f"a{number} = {shape} parameter({count})"]
            count += 1
        names.append(f"a{number}")
    if count == len(names):
        return None
    text = hloexec.format(attrs.evolve(module, entry_computation_layout=None)).replace("ENTRY ", "")
    called = module.entry
    call = f"ROOT r = {called.result_shape} call({', '.join(names)}), to_apply={called.name}"
    return hloexec.parse("\n".join([text, "ENTRY devices {", *lines, call, "}"]))


def _with_another(module: hloexec.Module, inputs: Sequence[Any], data: st.DataObject) -> tuple[list[Any], int | None]:
    """The inputs with another value of one parameter, and its number; None where there is no parameter."""
    others = [*inputs]
    if not inputs:
        return others, None
    number = data.draw(st.integers(0, len(inputs) - 1))
    others[number] = data.draw(testing.inputs(module))[number]
    return others, number


MODULES = {
    "any": testing.modules(max_instructions=10),
    "nested": testing.modules(INDEXING, ["s32", "pred", "f32"], max_instructions=12, max_depth=2),
    "indices": testing.modules(INDEXING, ["s32", "pred"], max_instructions=12),
}


def require_sound(check: Check, kind: str, phases: Sequence[Phase] = tuple(Phase)) -> None:
    """Run a check on drawn modules."""

    @settings(max_examples=examples(60), deadline=None, suppress_health_check=[*HealthCheck], phases=phases)
    @given(MODULES[kind], st.data())
    def holds(module: hloexec.Module, data: st.DataObject) -> None:
        check(module, data.draw(testing.inputs(module)), data)

    holds()


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("kind", MODULES)
def test_what_is_known_before_a_run_holds_in_it(kind: str, name: str) -> None:
    require_sound(ANALYSES[name], kind)


ANOTHER_VALUE = ("results_that_depend_on_a_value", "data_flow")
"""What also runs a module on another value, with which a loop may not end."""

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
@pytest.mark.parametrize("root", "not(p) constant(false) constant(true) copy(p)".split())
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
        if name not in ANOTHER_VALUE:
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
