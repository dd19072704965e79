"""What the accounts need of each iteration of a loop, kept while iterations run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array, flat
from hloexec.ops.common import is_inexact
from hloexec.tools.shadowing.computing.elements import Sample, energy_in, subtracted, taken
from hloexec.tools.shadowing.computing.wholes import operand_weights
from hloexec.tools.shadowing.looping.program import Kind, LoopProgram, Node, Wrong
from hloexec.tools.shadowing.store import Blame, Shadow, finite_energy_of, wide


@frozen(eq=False)
class Recording:
    """Some iterations, in which the condition gave true."""

    program: LoopProgram
    wrong: Wrong
    rows: int
    """How many there are."""
    state: list[Array]
    """What the loop carries after them."""
    exact: dict[int, Array]
    """Of that what may have errors, without rounding."""
    values: dict[int, Array]
    """By slot, the values of all iterations; of what is the same in all, that alone; of large arrays, at places."""
    numbers: dict[int, Array]
    """The same in f64 without rounding, of slots that may have errors."""
    energies: dict[int, Array]
    """The sums of the squared errors, for each iteration; of what is not recorded at places, those of finite ones."""
    scales: dict[int, Array]
    """Of what is recorded at places, the sums of the squared numbers without rounding, for each iteration."""
    zeros: dict[int, list[tuple[int, Sample]]]
    """By node whose result is recorded at places, the elements that are zero and exactly are not, of iterations that
    have some."""
    here: dict[int, Array]
    """By node that computes whole arrays of wrong operands, what it gives in f64 for them as they are."""
    weights: dict[int, Array]
    """By such a node with several wrong operands, how much of what it inherits comes from each: [rows, operands]."""
    decisions: dict[int, tuple[int, int]]
    """By node, how many elements would be others without rounding, and of how many."""

    def values_of(self, slot: int, places: Array | None) -> Array:
        """The values in f64, integers and preds as they are, at places (None for all): [rows, elements], or
        [1, elements] where all iterations have the same."""
        return wide(self._at(self.values[slot], slot, places))

    def numbers_of(self, slot: int, places: Array | None) -> Array:
        """The same without rounding."""
        return self._at(self.numbers[slot], slot, places)

    def _at(self, array: Array, slot: int, places: Array | None) -> Array:
        if slot not in self.program.invariant:
            return array.reshape(self.rows, -1)
        return (array if places is None else taken(array, places)).reshape(1, -1)


class Recorder:
    """Keeps what a recording has of each iteration."""

    def __init__(self, program: LoopProgram, wrong: Wrong, most: int) -> None:
        """There is room for so many iterations."""
        self._program, self._wrong = program, wrong
        self._rows = 0
        shapes = {slot: program.array_shape(slot) for slot in wrong.recorded}
        self._places = {slot: wrong.places(shape) for slot, shape in shapes.items()}
        sizes = {
            slot: shape.dimensions if (places := self._places[slot]) is None else places.shape
            for slot, shape in shapes.items()
        }
        self._values = {
            slot: np.empty((most, *sizes[slot]), shape.element_type.storage) for slot, shape in shapes.items()
        }
        self._numbers = {slot: np.empty((most, *sizes[slot])) for slot in wrong.recorded & wrong.slots}
        made = {
            number: node
            for number, node in enumerate(program.nodes)
            if node.is_accounted and node.result in wrong.slots
        }
        self._sampled = {
            node.result: (number, node) for number, node in made.items() if self._places[node.result] is not None
        }
        self._zeros: dict[int, list[tuple[int, Sample]]] = {number: [] for number, _ in self._sampled.values()}
        self._scales = {slot: np.empty(most) for slot in self._sampled}
        self._energies = {slot: np.empty(most) for slot in wrong.weighed.union(self._sampled)}
        self._wholes = {
            number: _Whole(node, wrong, most)
            for number, node in made.items()
            if node.kind is Kind.WHOLE and not wrong.slots.isdisjoint(node.operands)
        }
        self._deciding = [(number, node) for number, node in enumerate(program.nodes) if _decides(node, wrong)]
        self._decisions: dict[int, tuple[int, int]] = {}

    def note(self, values: Sequence[Array], exact: Sequence[Array], outside: dict[int, float]) -> None:
        """Keep what an iteration has computed, by slot. Of slots in `outside`, the sum of the squared errors is what it
        says."""
        row = self._rows
        for kept, arrays in ((self._values, values), (self._numbers, exact)):
            for slot, rows in kept.items():
                places = self._places[slot]
                rows[row] = arrays[slot] if places is None else taken(arrays[slot], places)
        for whole in self._wholes.values():
            whole.note(row, values, exact)
        for slot, rows in self._energies.items():
            if slot in outside:
                rows[row] = outside[slot]
                continue
            difference, zeros = subtracted(exact[slot], values[slot])
            if slot not in self._sampled:
                rows[row] = finite_energy_of(difference)
                continue
            rows[row], self._scales[slot][row] = energy_in(difference), energy_in(exact[slot])
            if zeros.size:
                number, node = self._sampled[slot]
                self._zeros[number].append((row, self._sample(number, node, values, exact, zeros)))
        for number, node in self._deciding:
            changed, count = self._decisions.get(number, (0, 0))
            its = _decided(node, values, exact)
            self._decisions[number] = changed + its[0], count + its[1]
        self._rows += 1

    def _sample(
        self, number: int, node: Node, values: Sequence[Array], exact: Sequence[Array], places: Array
    ) -> Sample:
        """What a node has at places in the last iteration."""
        ours, theirs = wide(taken(values[node.result], places)), taken(exact[node.result], places)
        if node.kind is Kind.WHOLE:
            here = taken(self._wholes[number].last, places) if number in self._wholes else theirs
            return Sample(ours, theirs, here, ours - here, here - theirs)
        assert node.kernel is not None
        given = [wide(taken(values[slot], places)) for slot in node.operands]
        known = [taken(exact[slot], places) if slot in self._wrong.slots else None for slot in node.operands]
        return Sample.of_elements(node.kernel, given, known, ours)

    @property
    def rows(self) -> int:
        """How many iterations have been kept."""
        return self._rows

    def recording(self, values: Sequence[Array], exact: Sequence[Array]) -> Recording:
        """All of it, and what the loop carries now."""
        program, wrong, rows = self._program, self._wrong, self._rows
        same = program.invariant
        return Recording(
            program=program,
            wrong=wrong,
            rows=rows,
            state=[values[slot] for slot in program.parameters],
            exact={number: exact[slot] for number, slot in enumerate(program.parameters) if slot in wrong.slots},
            values={slot: array[:rows] for slot, array in self._values.items()} | {slot: values[slot] for slot in same},
            numbers={slot: array[:rows] for slot, array in self._numbers.items()}
            | {slot: exact[slot] for slot in same & wrong.slots},
            energies={slot: array[:rows] for slot, array in self._energies.items()},
            scales={slot: array[:rows] for slot, array in self._scales.items()},
            zeros=self._zeros,
            here={number: whole.here[:rows] for number, whole in self._wholes.items()},
            weights={
                number: whole.weights[:rows] for number, whole in self._wholes.items() if whole.weights is not None
            },
            decisions=self._decisions,
        )


class _Whole:
    """What an instruction that computes whole arrays gives in each iteration for its operands as they are."""

    def __init__(self, node: Node, wrong: Wrong, most: int) -> None:
        self._node = node
        self._wrong = [place for place, slot in enumerate(node.operands) if slot in wrong.slots]
        self._places = wrong.places(node.shape)
        self.here = np.empty((most, node.shape.element_count if self._places is None else self._places.size))
        self.last: Array = self.here[0]
        """All of the last iteration's."""
        self.weights = np.empty((most, len(node.operands))) if len(self._wrong) > 1 else None

    def note(self, row: int, values: Sequence[Array], exact: Sequence[Array]) -> None:
        kernel, slots = self._node.kernel, self._node.operands
        assert kernel is not None
        operands = [values[slot] for slot in slots]
        given = [wide(values[slot]) if place in self._wrong else exact[slot] for place, slot in enumerate(slots)]
        self.last = here = np.asarray(flat(kernel(*given))[0])
        self.here[row] = taken(here, self._places)
        if self.weights is not None:
            shadows: list[Shadow | None] = [None] * len(operands)
            for place in self._wrong:
                energy = finite_energy_of(exact[slots[place]] - wide(operands[place]))
                shadows[place] = Shadow(exact[slots[place]], True, energy, 0, Blame()) if energy else None
            self.weights[row], _ = operand_weights(kernel, operands, shadows, 0, here, None)


def _decides(node: Node, wrong: Wrong) -> bool:
    is_number = node.kind is Kind.VALUE and not node.shape.element_type.is_inexact
    return is_number and node.kernel is not None and not wrong.slots.isdisjoint(node.operands)


def _decided(node: Node, values: Sequence[Array], exact: Sequence[Array]) -> tuple[int, int]:
    """How many elements would be others without rounding, and of how many: of none where no operand has an error."""
    assert node.kernel is not None
    pairs = [(values[slot], exact[slot]) for slot in node.operands]
    if not any(is_inexact(value) and np.any(wide(value) != number) for value, number in pairs):
        return 0, 0
    value = values[node.result]
    return int(np.count_nonzero(value != node.kernel(*[number for _, number in pairs]))), value.size
