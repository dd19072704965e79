"""Elements of a result that depend on what HLO, or the text, leaves open (`dataflow.dependences`): if they
differ, nothing can be said of them.

Which leaves depend on it, the text tells. Which of their elements do, a run on the inputs tells: a mask goes along with
each array that depends on an open value. Where elements are moved, their masks are moved. A computed element is open if
one in its place is or, where a result is made of more than that, if it is NaN once open elements are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import starmap
from typing import Any, TypeVar

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of
from hloexec.analysis.numerics.comparison import LeafComparison, Undecided, Verdict
from hloexec.analysis.numerics.leaves import Pair, leaves_of
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.ir.editing import change_computations, change_entry
from hloexec.core.places import spell_name
from hloexec.core.structs import define
from hloexec.core.tree import flat
from hloexec.core.values import Array, Inputs, Value, arrays_of, label_of
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Activation, Event
from hloexec.engine.exec.running import repeated_run, run_devices
from hloexec.engine.options import Options
from hloexec.errors import HloError, unwarned
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.flow import make_parameter
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, exchanges, find_opcode, is_elementwise, role_of, traits_of
from hloexec.ops.relations import Place

_T = TypeVar("_T")

_ORDERED = (-64.0, 64.0)
"""Numbers that a reducer keeps which keeps the smaller, or the larger, of two."""
_FIRST = 4
"""How many elements are listed."""
_REASONS = 3
_DUMPING = (
    "; a dump with --xla_dump_large_constants has the constants, and --elided FILE.npz gives their values to a run"
)


@define(slots=False, eq=False)
class UndecidedLeaves:
    """Looks at leaves that differ once more, where something is left open."""

    _module: Module | None
    _inputs: Sequence[Sequence[Value]] | None
    _numerics: str | NumericsPolicy
    _elided: str | Mapping[str, Any] | None
    _is_of_one_device: bool

    def resolve(
        self, leaves: Sequence[LeafComparison], pairs: Sequence[Pair], again: Callable[[Pair], LeafComparison]
    ) -> Iterator[LeafComparison]:
        """The leaves, those of which all that differs is left open being *not decided*; `again` compares a leaf."""
        arrays = {label: (actual, expected) for label, actual, expected in pairs}
        for leaf in leaves:
            is_different = leaf.verdict is Verdict.DIFFERENT and leaf.measured is not None
            yield self._resolved(leaf, arrays[leaf.label], again) if is_different else leaf

    def _resolved(self, leaf: LeafComparison, arrays: tuple[Any, Any], again: Callable[..., Any]) -> LeafComparison:
        actual, expected = arrays
        undecided, mask = self.found(leaf.label, actual)
        if undecided is None:
            return leaf
        # What is left open agrees with anything.
        rest: LeafComparison = again((leaf.label, np.where(mask, expected.astype(actual.dtype), actual), expected))
        if rest.verdict is Verdict.DIFFERENT:
            return attrs.evolve(rest, undecided=undecided)
        return attrs.evolve(leaf, verdict=Verdict.NOT_DECIDED, undecided=undecided)

    def found(self, label: str, array: Array) -> tuple[Undecided | None, Array]:
        """What leaves elements of a leaf open, None if nothing does, and a mask of these."""
        places = self._places(label)
        mask = self._mask(label, array) if places else np.zeros(array.shape, np.bool_)
        if not mask.any():
            return None, mask
        first = [tuple(map(int, index)) for index in np.argwhere(mask)[:_FIRST]]
        reasons = {place: self._values[place] for place in sorted(places)}
        return Undecided(int(mask.sum()), tuple(first), tuple(starmap(spell_name, reasons)), _reason(reasons)), mask

    @cached_property
    def _values(self) -> Mapping[Place, str]:
        """What is left open, and why."""
        if self._module is None:
            return {}
        stated: Container[str] = () if self._elided is None or isinstance(self._elided, str) else self._elided
        if self._elided is None:
            stated = {instruction.name for computation in self._module for instruction in computation}
        from hloexec.analysis.dataflow.dependences import open_values

        return open_values(self._module, stated)

    @cached_property
    def _leaves(self) -> Mapping[str, Collection[Place]]:
        """What leaves open which leaves of a device's result, by label."""
        if self._module is None or not self._values:
            return {}
        from hloexec.analysis.dataflow.dependences import open_leaves

        return {label_of(index): places for index, places in open_leaves(self._module, self._values).items()}

    @cached_property
    def _masks(self) -> Sequence[Mapping[str, Array | None]] | None:
        """Which elements of the leaves of each device's result are left open; None where no run tells."""
        if self._module is None or self._inputs is None:
            return None
        return open_elements(self._module, self._inputs, self._numerics, self._values, self._elided)

    @cached_property
    def _are_of_one_device(self) -> bool:
        """Whether leaves are not those of several devices."""
        count = 1 if self._module is None else topology_of(self._module, None, None).count
        return self._is_of_one_device or count == 1

    def _own(self, label: str) -> tuple[int, str]:
        """The device that a leaf is of, and its label there."""
        device, _, rest = label.partition(".")
        if self._are_of_one_device or not device.isdecimal():
            return 0, label
        return int(device), rest or "value"

    def _places(self, label: str) -> Collection[Place]:
        _, own = self._own(label)
        return _by_label(self._leaves, own) or ()

    def _mask(self, label: str, array: Array) -> Array:
        """Which elements are left open: all, unless a run tells more."""
        device, own = self._own(label)
        if self._masks is None:
            return np.ones(array.shape, np.bool_)
        mask = _by_label(self._masks[device], own)
        if mask is None:
            return np.zeros(array.shape, np.bool_)
        return mask if mask.shape == array.shape else np.ones(array.shape, np.bool_)


def _by_label(facts: Mapping[str, _T], label: str) -> _T | None:
    """What is known of a leaf; a lone leaf may be labelled in either way."""
    return facts.get(label, facts.get("value" if label == "0" else "0" if label == "value" else label))


def _reason(reasons: Mapping[Place, str]) -> str:
    """Why, in words."""
    said = [f"%{name} {reason}" for (_, name), reason in sorted(reasons.items())]
    more = f" and {len(said) - _REASONS} more like it" if len(said) > _REASONS else ""
    advice = _DUMPING if any("elided" in reason for reason in reasons.values()) else ""
    return ", ".join(said[:_REASONS]) + more + advice


def open_elements(
    module: Module,
    inputs: Sequence[Sequence[Value]],
    numerics: str | NumericsPolicy,
    values: Mapping[Place, str],
    elided: str | Mapping[str, Any] | None,
) -> list[dict[str, Array | None]] | None:
    """Which elements of the leaves of each device's result are left open, by label; None for none of them, or where the
    module does not run."""
    observer = _Observer(module, values)
    constants = "zeros" if elided is None else elided
    with unwarned():
        try:
            run_devices(module, inputs, numerics=numerics, elided=constants, unknown="zeros", observers=[observer])
        except HloError:
            return None
    return [observer.results[device] for device in sorted(observer.results)]


class _Observer:
    """Watches a run; afterwards `results` has the masks of each device's leaves, None where nothing is open."""

    def __init__(self, module: Module, values: Mapping[Place, str]) -> None:
        self._module = module
        self._values = values
        self._living: dict[int, tuple[weakref.ref[Array], Array]] = {}
        self._places: set[Place] = set()
        """Where an open value has been met, on any device."""
        self._choices: set[tuple[Activation, str]] = set()
        """Open conditions of loops and choices of conditionals, by the run that makes them and the instruction."""
        self._kernels: dict[Place, Callable[..., list[Value]]] = {}
        self._within = _computations_within(module, values)
        self.results: dict[int, dict[str, Array | None]] = {}

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        instruction, computation = event.instruction, event.computation
        place = computation.name, instruction.name
        role, leaves = role_of(instruction), arrays_of(event.value)
        if role in (Role.CONSTANT, Role.KERNEL, Role.CUSTOM_CALL, Role.MACHINE):
            is_open = place in self._values or bool(
                self._within.intersection(computation_names(instruction.attributes))
            )
            for leaf, mask in zip(leaves, self._made(event, leaves, is_open=is_open), strict=True):
                self._put(leaf, mask)
        elif role in (Role.WHILE, Role.CONDITIONAL) and (event.activation, instruction.name) in self._choices:
            for leaf in leaves:
                self._put(leaf, np.ones(leaf.shape, np.bool_))
        if any(self._get(leaf) is not None for leaf in leaves):
            self._places.add(place)
            self._note_choices(event)
        if instruction.name == computation.root_name and not event.path:
            masks = {label: self._get(leaf) for label, leaf in leaves_of(event.value, "run's")}
            self.results.update(dict.fromkeys(event.devices, masks))

    def _note_choices(self, event: Event) -> None:
        """Note what an open value decides: how often a loop runs, or which branch does."""
        computation, name = event.computation, event.instruction.name
        for user in computation.users[name]:
            if role_of(user) is Role.CONDITIONAL and user.operands[0] == name:
                self._choices.add((event.activation, user.name))
        path = event.path
        if path and name == computation.root_name and role_of(path[-1].instruction) is Role.WHILE:
            caller = path[-1].instruction
            if call_of(caller, CallKind.CONDITION) == computation.name:
                self._choices.add((event.activations()[-2], caller.name))

    def _made(self, event: Event, leaves: Sequence[Array], *, is_open: bool) -> Sequence[Array | None]:
        """The masks of what an instruction gives."""
        instruction, operands = event.instruction, flat(event.operands)
        whole: list[Array | None] = [np.ones(leaf.shape, np.bool_) for leaf in leaves]
        own: Array | None = None
        if is_open:
            rule = traits_of(instruction).open_elements
            found = None if rule is None or not operands else _of_rule(rule, instruction, operands)
            if found is None or any(found.shape != leaf.shape for leaf in leaves):
                return whole
            own = found
        names = [(event.computation.name, name) for name in instruction.operands]
        is_met = not self._places.isdisjoint(names)
        if exchanges(instruction):
            return whole if is_met else [own] * len(leaves)
        if not operands:
            # What a copy shows may be the array itself.
            known = [self._get(leaf) for leaf in leaves]
            return whole if is_met and all(mask is None for mask in known) else [_either(own, mask) for mask in known]
        masks = [self._get(operand) for operand in operands]
        if all(mask is None for mask in masks):
            return [own] * len(leaves)
        return [_either(own, mask) for mask in self._through(event, leaves, operands, masks) or whole]

    def _through(
        self, event: Event, leaves: Sequence[Array], operands: Sequence[Any], masks: Sequence[Array | None]
    ) -> Sequence[Array | None] | None:
        """The masks of results, given some of operands; None where all elements may be open."""
        instruction, traits = event.instruction, traits_of(event.instruction)
        masked = {number: mask for number, mask in enumerate(masks) if mask is not None}
        moved = set() if traits.reads_bits else set(traits.moved_operands(len(operands)))
        if masked.keys() <= moved:
            given = [
                _numbers(operand, masks[number]) if number in moved else operand
                for number, operand in enumerate(operands)
            ]
            results = self._results(event, given)
            return None if results is None else [array != 0 for array in results]
        if is_elementwise(instruction) and len(leaves) == 1:
            return [np.logical_or.reduce([np.broadcast_to(mask, leaves[0].shape) for mask in masked.values()])]
        entry = find_opcode(instruction.opcode)
        is_sorting = traits.only_compared or entry is None or entry.order is not None
        if is_sorting or not all(element_type_of(operands[number].dtype).has_nan for number in masked):
            return None
        # A reducer may drop a NaN where it keeps the larger number.
        numbers = (np.nan, *_ORDERED) if computation_names(instruction.attributes) else (np.nan,)
        plain, *others = (
            self._results(event, [_replaced(*pair, number) for pair in zip(operands, masks, strict=True)])
            for number in (1.0, *numbers)
        )
        if plain is None or not all(element_type_of(array.dtype).has_nan for array in plain):
            return None
        changed = [np.zeros(array.shape, np.bool_) for array in plain]
        for other in others:
            if other is None:
                return None
            changed = [mask | (array != one) for mask, array, one in zip(changed, other, plain, strict=True)]
        return changed

    def _results(self, event: Event, operands: Sequence[Any]) -> list[Array] | None:
        """What the instruction alone gives for other operands; None where that cannot be told."""
        place = event.computation.name, event.instruction.name
        if not all(isinstance(operand, np.ndarray) for operand in operands):
            return None
        if place not in self._kernels:
            self._kernels[place] = run_of(self._module, event.computation, event.instruction)
        try:
            results = flat(self._kernels[place](list(operands))[0])
        except HloError:
            return None
        return results if all(isinstance(array, np.ndarray) for array in results) else None

    def _put(self, array: Array, mask: Array | None) -> None:
        if mask is None or not mask.any():
            self._living.pop(id(array), None)
        else:
            self._living[id(array)] = weakref.ref(array), mask

    def _get(self, array: object) -> Array | None:
        held = self._living.get(id(array))
        return held[1] if held is not None and held[0]() is array else None


def _of_rule(rule: Callable[..., Array | None], instruction: Instruction, operands: Sequence[Array]) -> Array | None:
    try:
        return rule(instruction, operands)
    except (ValueError, IndexError):
        # Of arrays whose extents are known only now.
        return None


def _numbers(operand: Array, mask: Array | None) -> Array:
    """1 where elements are open, 0 elsewhere."""
    return np.zeros(operand.shape, operand.dtype) if mask is None else mask.astype(operand.dtype)


def _replaced(operand: Any, mask: Array | None, number: float) -> Any:
    """A number where elements are open, 1 elsewhere; integers as they are."""
    if not isinstance(operand, np.ndarray) or not element_type_of(operand.dtype).has_nan:
        return operand
    ones = np.ones(operand.shape, operand.dtype)
    if mask is not None:
        ones[mask] = number
    return ones


def _either(first: Array | None, second: Array | None) -> Array | None:
    return second if first is None else first if second is None else first | second


def _computations_within(module: Module, values: Mapping[Place, str]) -> set[str]:
    """The computations in which something is left open, or which call such."""
    names = {name for name, _ in values}
    callers = [
        (computation.name, set(computation_names(instruction.attributes)))
        for computation in module
        for instruction in computation
    ]
    while True:
        more = {name for name, called in callers if called & names} - names
        if not more:
            return names
        names |= more


def run_of(module: Module, computation: Computation, instruction: Instruction) -> Callable[[Inputs], list[Value]]:
    """The results of one instruction by itself on one device, for operands that are given again and again."""
    parameters = tuple(
        make_parameter(f"operand.{number}", operand.shape, number)
        for number, operand in enumerate(computation.operands_of(instruction))
    )
    root = attrs.evolve(
        instruction, operands=tuple(parameter.name for parameter in parameters), control_predecessors=()
    )
    entry = Computation(name="one.instruction", instructions=(*parameters, root), root_name=root.name)
    alone = change_entry(change_computations(module, (*module, entry)), entry.name)
    return repeated_run(alone, Options(replicas=1, partitions=1, verify=False))
