"""What the instructions of a loop did to the digits in many iterations, and who is to blame for it.

What the instructions of a loop did to the digits in many iterations, computed of all of them at once.

The rules are those of single runs (`shadowing.places`), and the arrays hold the runs one after the other.

Who is to blame for what a loop carries after many iterations: shares of errors, handed on from one to the next.

In one iteration the shares of every value are sums of those of what is carried, and of new ones, with weights that do
not depend on the shares. So these weights are computed of all iterations at once, and the shares of what is carried
follow by one small matrix product for each. Elements that vanish are rare, and followed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hloexec.core.dtypes import smallest_normal, unit_roundoff
from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.tools.shadowing.computing.elements import SHARE, Sample
from hloexec.tools.shadowing.computing.widening import PREDS
from hloexec.tools.shadowing.looping.program import Kind, Node, Recording
from hloexec.tools.shadowing.places import (
    absorbed,
    add_shares,
    cancelled,
    is_finite,
    kept,
    largest,
    squares,
    underflown,
    vanished_before,
    zeros,
)
from hloexec.tools.shadowing.store import Amounts

Units = Amounts
"""By slot, the largest unit roundoff of the types that its error was made in."""


@define(eq=False)
class Runs:
    """What an instruction did in each of some iterations, as `shadowing.places.Losses` has it of one."""

    scale: Array
    added: Array
    inherited: Array
    energy: Array
    """Of the result's error; iterations without one do not count."""
    weights: list[Array | float]
    """For each operand."""
    kinds: dict[str, Array]
    counts: dict[str, Array]
    vanished: Array | None
    """None where nothing does."""
    passed: list[Array]
    """Of elements that vanished before, for each operand how many; empty where operands have no element for each of the
    result's."""
    passes: Array | None
    """Whether there are any; None where there are none."""


def accounts(
    recording: Recording, masks: Mapping[int, Array | None], units: Units
) -> tuple[dict[int, Runs], dict[int, Array]] | None:
    """By node what it did, and by slot where absorption has made the errors; None where there are infinities or NaN.

    Of what a loop carries, `masks` says where that was so at the start; `units` is completed.
    """
    program, wrong, rows = recording.program, recording.wrong, recording.rows
    samples: dict[int, Sample] = {}
    for number, node in enumerate(program.nodes):
        if node.is_accounted and node.result in wrong.slots:
            sample = samples[number] = _sampled(recording, number)
            if not (is_finite(sample.value) and is_finite(sample.exact) and _stands_for_all(recording, number, sample)):
                return None
            sample.absorbed = _absorbed(recording, node, sample)
    masks_by_slot = _absorbed_by_slot(recording, samples, masks)
    _complete(units, recording, samples)
    runs = {}
    for number, sample in samples.items():
        node = program.nodes[number]
        sample.absorbed_before = _before(node, masks_by_slot, rows, recording.wrong.places(node.shape))
        runs[number] = _runs(recording, number, sample, max(_inherited_unit(node, units), _unit(node)))
    return runs, masks_by_slot


def _complete(units: Units, recording: Recording, samples: Mapping[int, Sample]) -> None:
    """Find the units of all slots that may be wrong, from those of what is carried at the start."""
    program = recording.program
    own = {number: _unit(program.nodes[number]) for number, sample in samples.items() if sample.added.any()}
    for _ in range(2):
        # What comes from the iteration before is known after the first time.
        for number, node in enumerate(program.nodes):
            if node.result in recording.wrong.slots:
                units[node.result] = max(own.get(number, 0.0), _inherited_unit(node, units))
        for ours, theirs, result in program.carried:
            units[ours] = units[theirs] = max(units.get(ours, 0.0), units.get(result, 0.0))


def _unit(node: Node) -> float:
    return unit_roundoff(node.shape.element_type)


def _inherited_unit(node: Node, units: Units) -> float:
    return max((units.get(slot, 0.0) for slot in node.operands), default=0.0)


def _sampled(recording: Recording, number: int) -> Sample:
    """What is recorded of all runs of a node."""
    node = recording.program.nodes[number]
    places = recording.wrong.places(node.shape)
    value, exact = recording.values_of(node.result, places), recording.numbers_of(node.result, places)
    assert node.kernel is not None
    if node.kind is Kind.WHOLE:
        here = recording.here.get(number, exact)
        ours, theirs, its = value.reshape(-1), exact.reshape(-1), here.reshape(-1)
        return Sample(ours, theirs, its, ours - its, its - theirs)
    size = value.shape[1]
    operands = [_spread(recording.values_of(slot, places), recording.rows, size) for slot in node.operands]
    operand_errors = [
        _spread(recording.numbers_of(slot, places), recording.rows, size) if slot in recording.wrong.slots else None
        for slot in node.operands
    ]
    return Sample.of_elements(node.kernel, operands, operand_errors, value.reshape(-1))


def _stands_for_all(recording: Recording, number: int, sample: Sample) -> bool:
    """Whether all elements are finite, and those that are looked at show errors in all iterations that have some, and
    their share of the error in the mean of the iterations."""
    if number not in recording.zeros:
        return True
    energies = _added_up(squares(np.subtract(sample.exact, sample.value)), recording.rows)
    expected = _energies(recording, number, sample)
    if not np.isfinite(expected).all() or ((energies == 0) & (expected > 0)).any():
        return False
    shares = np.divide(energies, expected, out=np.ones(recording.rows), where=expected > 0)
    return float(np.minimum(shares, 1.0).mean()) >= SHARE


def _spread(array: Array, rows: int, size: int) -> Array:
    """The elements for all rows, one after the other; a single one for all."""
    return array.reshape(-1) if array.size in (1, rows * size) else np.broadcast_to(array, (rows, size)).reshape(-1)


def _inherits(recording: Recording, node: Node) -> bool:
    return not recording.wrong.slots.isdisjoint(node.operands)


def _absorbed(recording: Recording, node: Node, sample: Sample) -> Array | None:
    if node.kind is Kind.WHOLE and node.shown_operands:
        operand = recording.values_of(node.operands[0], recording.wrong.places(node.shape)).reshape(-1)
        return absorbed(sample.value, [operand], sample.added, node.shape.element_type, is_sum=False)
    absorbing, source = node.evaluation.absorbing, node.evaluation.source
    combined, is_sum = node, absorbing.is_sum
    if not absorbing.combines:
        if source is None or not source.absorbing.is_rounded:
            return None
        made = (maker for maker in recording.program.nodes if maker.result == node.operands[0])
        combined, is_sum = next(made, node), source.absorbing.is_sum
        if combined.evaluation is not source:
            return None
    size = sample.value.size // recording.rows
    operands = (
        sample.operands
        if combined is node
        else [
            _spread(recording.values_of(slot, recording.wrong.places(combined.shape)), recording.rows, size)
            for slot in combined.operands
        ]
    )
    return absorbed(sample.value, operands, sample.added, node.shape.element_type, is_sum=is_sum)


def _absorbed_by_slot(
    recording: Recording, samples: Mapping[int, Sample], masks: Mapping[int, Array | None]
) -> dict[int, Array]:
    """Where the errors of slots come from absorption alone: [rows, elements]."""
    program, rows = recording.program, recording.rows
    masks_by_slot = {
        program.nodes[number].result: sample.absorbed.reshape(rows, -1)
        for number, sample in samples.items()
        if sample.absorbed is not None and number not in recording.zeros
    }
    for _ in range(2):
        # What comes from the iteration before is known after the first time.
        for leaf, (ours, theirs, result) in enumerate(program.carried):
            first, after = masks.get(leaf), masks_by_slot.get(result) if ours != result else None
            if first is None and after is None:
                continue
            size = recording.state[leaf].size
            mask = np.zeros((rows, size), np.bool_)
            if first is not None:
                mask[: 1 if ours != result else rows] = first.reshape(-1)
            if after is not None:
                mask[1:] = after[:-1]
            masks_by_slot[ours] = masks_by_slot[theirs] = mask
        for number, node in enumerate(program.nodes):
            _pass_on(recording, node, samples.get(number), masks_by_slot)
    return masks_by_slot


def _pass_on(recording: Recording, node: Node, sample: Sample | None, found: dict[int, Array]) -> None:
    """Hand on masks to what only moves elements, or converts them without an error of its own."""
    mask = found.get(node.operands[0]) if node.operands else None
    if mask is None or node.result not in recording.wrong.slots:
        return
    if sample is not None and sample.absorbed is None and node.evaluation.traits.converts:
        is_exact = ~sample.added.reshape(recording.rows, -1).any(axis=1, keepdims=True)
        found[node.result] = mask & is_exact
    elif node.kind is Kind.MOVED and len(node.operands) == 1:
        kernel = node.evaluation.kernel(PREDS)
        shape = recording.program.array_shape(node.operands[0])
        if kernel is not None:
            rows = [kernel(row.reshape(shape.dimensions)) for row in mask]
            found[node.result] = np.stack(rows).reshape(recording.rows, -1)


def _before(node: Node, masks: Mapping[int, Array], rows: int, places: Array | None) -> Array | None:
    """Where the error of an operand comes from absorption."""
    slots = [slot for slot in node.operands if slot in masks]
    if node.kind is not Kind.ELEMENTWISE or not slots:
        return None
    size = node.shape.element_count
    mask = np.logical_or.reduce([np.broadcast_to(masks[slot], (rows, size)) for slot in slots])
    if places is not None:
        mask = mask[:, places]
    return np.asarray(mask.reshape(-1))


def _runs(recording: Recording, number: int, sample: Sample, unit: float) -> Runs:
    node = recording.program.nodes[number]
    rows, entry, traits = recording.rows, node.shape.element_type, node.evaluation.traits
    is_inheriting = _inherits(recording, node)
    added, inherited = squares(sample.added), squares(sample.inherited)
    masks: dict[str, Array | None] = {"absorption": sample.absorbed}
    if is_inheriting and traits.cancels and len(sample.operands) == 2:
        masks["cancellation"] = cancelled(sample, unit, inherited)
    sizes = np.abs(sample.value)
    least = sizes.min(initial=np.inf)
    if least < smallest_normal(entry):
        masks["underflow"] = underflown(sample, sizes, entry)
    counts = {kind: _counted(mask, rows) for kind, mask in masks.items() if mask is not None}
    kinds = {
        kind: _added_up(np.where(mask, inherited if kind == "cancellation" else added, 0.0), rows)
        for kind, mask in masks.items()
        if mask is not None
    }
    totals = _added_up(added, rows), _added_up(inherited, rows)
    energy = _energies(recording, number, sample)
    named = sum((amount for kind, amount in kinds.items() if kind != "cancellation"), np.zeros(rows))
    kinds["rounding"] = np.maximum(0.0, totals[0] - named)
    ruling = None if sample.absorbed is None else sample.absorbed & (added >= inherited)
    vanished = None if ruling is None else _counted(ruling, rows)
    passed: list[Array] = []
    passes: Array | None = None
    if number in recording.zeros:
        vanished, passed, passes = _vanished_in_all(recording, number, vanished)
    elif not least > 0:
        new, before = zeros(sample, traits)
        vanished = _counted(new if ruling is None else new | ruling, rows)
        if before.any():
            passed = [_counted(each, rows) for each in vanished_before(sample, before)]
            passes = _counted(before, rows) > 0
    # What a run inherited and added are as large as its error.
    factor = _ratio(energy, totals[0] + totals[1])
    factor = np.where(factor > 0, factor, 1.0)
    return Runs(
        scale=_sums(recording, number, sample.exact, recording.scales) * (1.0 if number in recording.zeros else factor),
        added=totals[0] * factor,
        inherited=totals[1] * factor,
        energy=energy,
        weights=_weights(recording, number, sample) if is_inheriting else [0.0] * len(node.operands),
        kinds={kind: amount * factor for kind, amount in kinds.items()},
        counts=counts,
        vanished=vanished if vanished is not None and vanished.any() else None,
        passed=passed,
        passes=passes,
    )


def _energies(recording: Recording, number: int, sample: Sample) -> Array:
    """The sums of the squared errors in each iteration, of so many elements as are looked at."""
    return _sums(recording, number, np.subtract(sample.exact, sample.value), recording.energies)


def _sums(recording: Recording, number: int, values: Array, known: Mapping[int, Array]) -> Array:
    """The sums of squared values in each iteration; where not all elements are looked at, their part of what is known
    of all."""
    if number not in recording.zeros:
        return _added_up(squares(values), recording.rows)
    node = recording.program.nodes[number]
    return known[node.result] * (values.size / recording.rows / node.shape.element_count)


def _vanished_in_all(
    recording: Recording, number: int, absorbed: Array | None
) -> tuple[Array | None, list[Array], Array | None]:
    """`Runs.vanished`, `passed` and `passes` of a node of which all zeros are looked at, but of other elements some, of
    which some have absorbed a number."""
    rows, traits = recording.rows, recording.program.nodes[number].evaluation.traits
    vanished = np.zeros(rows, np.int64) if absorbed is None else absorbed
    passed: list[Array] = []
    passes = np.zeros(rows, np.bool_)
    for row, sample in recording.zeros[number]:
        new, before = zeros(sample, traits)
        vanished[row] += np.count_nonzero(new)
        passes[row] = before.any()
        if passes[row] and sample.operands:
            passed = passed or [np.zeros(rows, np.int64) for _ in sample.operands]
            for counts, each in zip(passed, vanished_before(sample, before), strict=True):
                counts[row] = np.count_nonzero(each)
    return vanished, passed, passes if passes.any() else None


def _added_up(array: Array, rows: int) -> Array:
    return np.asarray(array.reshape(rows, -1).sum(axis=1))


def _counted(mask: Array, rows: int) -> Array:
    return np.asarray(np.count_nonzero(mask.reshape(rows, -1), axis=1))


def _ratio(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)


def _weights(recording: Recording, number: int, sample: Sample) -> list[Array | float]:
    """Of what each run inherits, how much comes from each operand."""
    node = recording.program.nodes[number]
    wrong = [place for place, slot in enumerate(node.operands) if slot in recording.wrong.slots]
    if len(wrong) == 1:
        return [float(place in wrong) for place in range(len(node.operands))]
    if node.kind is Kind.WHOLE:
        parts = [*recording.weights[number].T]
    else:
        parts = [
            np.zeros(recording.rows) if part is None else _added_up(squares(part), recording.rows)
            for part in sample.parts
        ]
    total = sum(parts, np.zeros(recording.rows))
    return [_ratio(part, total) for part in parts]


Shares = Mapping[int, float]
"""By the number of a place."""


def shares_after(recording: Recording, runs: Mapping[int, Runs], before: Mapping[int, Shares]) -> dict[int, Shares]:
    """The shares of what a loop carries, by the number of the leaf."""
    program, wrong = recording.program, recording.wrong
    leaves = [number for number, slot in enumerate(program.parameters) if slot in wrong.slots]
    places = sorted({place for shares in before.values() for place in shares} | {program.nodes[k].number for k in runs})
    columns = {place: len(leaves) + number for number, place in enumerate(places)}
    width = len(leaves) + len(places)
    found: dict[int, Array] = {}
    for column, leaf in enumerate(leaves):
        one = np.zeros((1, width))
        one[0, column] = 1.0
        found[program.parameters[leaf]] = found[program.condition_parameters[leaf]] = one
    for number, node in enumerate(program.nodes):
        if node.result in wrong.slots:
            its = runs.get(number)
            if its is None:
                found[node.result] = _moved(recording, node, found, width)
            else:
                found[node.result] = _made(node, its, found, width, columns[node.number])
    shares = np.zeros((len(leaves), len(places)))
    for row, leaf in enumerate(leaves):
        for place, share in before.get(leaf, {}).items():
            shares[row, columns[place] - len(leaves)] = share
    if not leaves:
        return {}
    none = np.zeros((1, width))
    results = [found.get(program.results[leaf], none) for leaf in leaves]
    after = np.stack([np.broadcast_to(each, (recording.rows, width)) for each in results], 1)
    for old, new in zip(after[:, :, : len(leaves)], after[:, :, len(leaves) :], strict=True):
        shares = old @ shares + new
    return {
        leaf: kept({place: float(share) for place, share in zip(places, row, strict=True) if share})
        for leaf, row in zip(leaves, shares, strict=True)
    }


def _made(node: Node, runs: Runs, shares: Mapping[int, Array], width: int, column: int) -> Array:
    """What an instruction adds is its own, as is what it inherits and cancels."""
    own = np.minimum(runs.kinds.get("cancellation", np.zeros(len(runs.added))), runs.inherited)
    total = runs.added + runs.inherited
    result = np.zeros((len(total), width))
    for slot, weight in zip(node.operands, runs.weights, strict=True):
        if slot in shares:
            result += ((runs.inherited - own) * weight)[:, None] * shares[slot]
    result[:, column] += runs.added + own
    return _normal(result * (runs.energy > 0)[:, None])


def _moved(recording: Recording, node: Node, shares: Mapping[int, Array], width: int) -> Array:
    places = [place for place, slot in enumerate(node.operands) if slot in shares]
    if len(places) == 1:
        return shares[node.operands[places[0]]]
    result = np.zeros((recording.rows, width))
    for place in places:
        slot = node.operands[place]
        energies = _chosen(recording, node, place) if node.is_choice else recording.energies[slot]
        result += energies[:, None] * shares[slot]
    return _normal(result)


def _chosen(recording: Recording, node: Node, place: int) -> Array:
    """The squared errors of an operand where its elements are chosen."""
    kernel, places = node.kernel, recording.wrong.places(node.shape)
    size = node.shape.element_count if places is None else places.size
    assert kernel is not None
    operands = []
    for number, slot in enumerate(node.operands):
        values = recording.values_of(slot, places)
        if values.dtype == np.float64:
            errors = recording.numbers_of(slot, places) - values if number == place else np.zeros((1, 1))
            values = np.where(np.isfinite(errors), errors, 0.0)
        operands.append(np.broadcast_to(values, (recording.rows, size)).reshape(-1))
    chosen = np.asarray(kernel(*operands)).reshape(recording.rows, size)
    return np.asarray(np.square(chosen).sum(axis=1))


def _normal(rows: Array) -> Array:
    """Rows that add up to 1, those of zeros aside."""
    totals = rows.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, totals, out=np.zeros(rows.shape), where=totals > 0))


def vanished_after(recording: Recording, runs: Mapping[int, Runs], before: Mapping[int, Shares]) -> dict[int, Amounts]:
    """By leaf of what a loop carries, how many elements each place has made zero, or taken a number from."""
    program = recording.program
    carried = program.carried
    slots = [(result, {ours, theirs}) for ours, theirs, result in carried if ours in recording.wrong.slots]
    handed: dict[int, Amounts] = {}
    for leaf, shares in before.items():
        if shares:
            handed[carried[leaf][0]] = handed[carried[leaf][1]] = dict(shares)
    making = {number: its for number, its in runs.items() if its.vanished is not None or its.passes is not None}
    if not handed and not making:
        return {}
    concerned = [
        (node, making.get(number), number in runs)
        for number, node in enumerate(program.nodes)
        if node.result in recording.wrong.slots and (number in making or number not in runs)
    ]
    for row in range(recording.rows):
        elements = handed.copy()
        for node, its, is_accounted in concerned:
            counts = _counts(node, its, row, elements) if is_accounted else _joined(node, elements)
            if counts:
                elements[node.result] = largest(counts)
        handed = {slot: elements[result] for result, its_slots in slots if result in elements for slot in its_slots}
    return {leaf: handed[ours] for leaf, (ours, _, _) in enumerate(carried) if ours in handed}


def _counts(node: Node, runs: Runs | None, row: int, known: Mapping[int, Amounts]) -> Amounts:
    if runs is None:
        return {}
    shares = {node.number: float(runs.vanished[row])} if runs.vanished is not None and runs.vanished[row] else {}
    if runs.passes is not None and runs.passes[row]:
        for number, slot in enumerate(node.operands):
            counts = known.get(slot)
            if counts:
                weight = float(runs.passed[number][row]) if runs.passed else 1.0
                add_shares(shares, counts, weight / sum(counts.values()))
    return shares


def _joined(node: Node, known: Mapping[int, Amounts]) -> Amounts:
    """What elements that moved bring with them."""
    brought = [known[slot] for slot in node.operands if slot in known]
    if len(brought) == 1:
        return brought[0]
    found: Amounts = {}
    for counts in brought:
        add_shares(found, counts, 1.0)
    return found
