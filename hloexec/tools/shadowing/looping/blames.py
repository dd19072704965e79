"""Who is to blame for what a loop carries after many iterations: shares of errors, handed on from one to the next.

In one iteration the shares of every value are sums of those of what is carried, and of new ones, with weights that do
not depend on the shares. So these weights are computed of all iterations at once, and the shares of what is carried
follow by one small matrix product for each. Elements that vanish are rare, and followed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hloexec.core.values import Array
from hloexec.tools.shadowing.blame import add_shares, kept, largest
from hloexec.tools.shadowing.looping.accounts import Runs
from hloexec.tools.shadowing.looping.program import Node
from hloexec.tools.shadowing.looping.recording import Recording

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


def _made(node: Node, runs: Runs, found: Mapping[int, Array], width: int, column: int) -> Array:
    """What an instruction adds is its own, as is what it inherits and cancels."""
    own = np.minimum(runs.kinds.get("cancellation", np.zeros(len(runs.added))), runs.inherited)
    total = runs.added + runs.inherited
    result = np.zeros((len(total), width))
    for slot, weight in zip(node.operands, runs.weights, strict=True):
        if slot in found:
            result += ((runs.inherited - own) * weight)[:, None] * found[slot]
    result[:, column] += runs.added + own
    return _normal(result * (runs.energy > 0)[:, None])


def _moved(recording: Recording, node: Node, found: Mapping[int, Array], width: int) -> Array:
    known = [place for place, slot in enumerate(node.operands) if slot in found]
    if len(known) == 1:
        return found[node.operands[known[0]]]
    result = np.zeros((recording.rows, width))
    for place in known:
        slot = node.operands[place]
        energies = _chosen(recording, node, place) if node.is_choice else recording.energies[slot]
        result += energies[:, None] * found[slot]
    return _normal(result)


def _chosen(recording: Recording, node: Node, place: int) -> Array:
    """The squared errors of an operand where its elements are chosen."""
    kernel, places = node.kernel, recording.wrong.places(node.shape)
    size = node.shape.element_count if places is None else places.size
    assert kernel is not None
    given = []
    for number, slot in enumerate(node.operands):
        values = recording.values_of(slot, places)
        if values.dtype == np.float64:
            errors = recording.numbers_of(slot, places) - values if number == place else np.zeros((1, 1))
            values = np.where(np.isfinite(errors), errors, 0.0)
        given.append(np.broadcast_to(values, (recording.rows, size)).reshape(-1))
    chosen = np.asarray(kernel(*given)).reshape(recording.rows, size)
    return np.asarray(np.square(chosen).sum(axis=1))


def _normal(rows: Array) -> Array:
    """Rows that add up to 1, those of zeros aside."""
    totals = rows.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, totals, out=np.zeros(rows.shape), where=totals > 0))


def vanished_after(
    recording: Recording, runs: Mapping[int, Runs], before: Mapping[int, Shares]
) -> dict[int, dict[int, float]]:
    """By leaf of what a loop carries, how many elements each place has made zero, or taken a number from."""
    program = recording.program
    carried = list(zip(program.parameters, program.condition_parameters, program.results, strict=True))
    slots = [(result, {ours, theirs}) for ours, theirs, result in carried if ours in recording.wrong.slots]
    handed: dict[int, dict[int, float]] = {}
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
        known = handed.copy()
        for node, its, is_accounted in concerned:
            found = _counts(node, its, row, known) if is_accounted else _joined(node, known)
            if found:
                known[node.result] = largest(found)
        handed = {slot: known[result] for result, its_slots in slots if result in known for slot in its_slots}
    return {leaf: handed[ours] for leaf, (ours, _, _) in enumerate(carried) if ours in handed}


def _counts(node: Node, runs: Runs | None, row: int, known: Mapping[int, dict[int, float]]) -> dict[int, float]:
    if runs is None:
        return {}
    found = {node.number: float(runs.vanished[row])} if runs.vanished is not None and runs.vanished[row] else {}
    if runs.passes is not None and runs.passes[row]:
        for number, slot in enumerate(node.operands):
            counts = known.get(slot)
            if counts:
                weight = float(runs.passed[number][row]) if runs.passed else 1.0
                add_shares(found, counts, weight / sum(counts.values()))
    return found


def _joined(node: Node, known: Mapping[int, dict[int, float]]) -> dict[int, float]:
    """What elements that moved bring with them."""
    brought = [known[slot] for slot in node.operands if slot in known]
    if len(brought) == 1:
        return brought[0]
    found: dict[int, float] = {}
    for counts in brought:
        add_shares(found, counts, 1.0)
    return found
