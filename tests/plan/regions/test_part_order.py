"""The order in which a region's parts run: each after what it needs, and few values at a time."""

from random import Random

import attrs
import pytest

from hloexec.engine.plan.regions.block_program import in_order_of_use


@attrs.frozen
class _Step:
    result: int
    operands: tuple[int, ...]


def _most_alive(steps: list[_Step], order: list[int], outputs: set[int]) -> int:
    """How many values there are at most at a time, inputs aside."""
    readers = {step.result: sum(step.result in other.operands for other in steps) for step in steps}
    alive: set[int] = set()
    most = 0
    for number in order:
        step = steps[number]
        alive.add(step.result)
        most = max(most, len(alive))
        for slot in set(step.operands) & readers.keys():
            readers[slot] -= 1
            if not readers[slot] and slot not in outputs:
                alive.discard(slot)
    return most


def test_what_is_needed_last_is_computed_last() -> None:
    # x is 0; 1 to 9 are made of it; 11 = 1 + 2, 12 = 11 + 3, …
    steps = [_Step(number, (0,)) for number in range(1, 10)]
    steps += [_Step(11, (1, 2)), *(_Step(12 + k, (11 + k, 3 + k)) for k in range(7))]
    order = in_order_of_use(steps, [18], dict.fromkeys(range(20), 4))  # type: ignore[arg-type]
    assert sorted(order) == list(range(len(steps)))
    assert _most_alive(steps, list(range(len(steps))), {18}) == 10
    assert _most_alive(steps, order, {18}) == 3


def test_the_operand_that_takes_more_room_comes_first() -> None:
    # 3 is small, made of a large 2, made of 1; the result needs 4, which is large, and 3.
    steps = [_Step(4, (0,)), _Step(1, (0,)), _Step(2, (1,)), _Step(3, (2,)), _Step(5, (4, 3))]
    sizes = {1: 100, 2: 100, 3: 1, 4: 100, 5: 1}
    order = in_order_of_use(steps, [5], sizes)  # type: ignore[arg-type]
    assert [steps[number].result for number in order] == [1, 2, 3, 4, 5]


def test_what_frees_as_much_as_it_makes_does_not_wait() -> None:
    # Rounds of threefry on two words: each is the sum of both, and the second, rotated in three steps, xor the sum.
    steps, (first, second) = [_Step(1, (0,)), _Step(2, (0,))], (1, 2)
    for slot in range(10, 60, 10):
        left, right, rotated, total = range(slot, slot + 4)
        steps += [_Step(left, (second,)), _Step(right, (second,)), _Step(rotated, (left, right))]
        steps += [_Step(total, (first, second)), _Step(slot + 4, (rotated, total))]
        first, second = total, slot + 4
    steps.append(_Step(60, (first, second)))
    order = [steps[number].result for number in in_order_of_use(steps, [60], dict.fromkeys(range(61), 4))]  # type: ignore[arg-type]
    # The shift that comes last is the last use of the second word, and writes to its memory.
    for slot in range(20, 60, 10):
        assert order.index(slot + 3) < max(order.index(slot), order.index(slot + 1))


@pytest.mark.parametrize("seed", range(30))
def test_steps_come_after_those_that_they_need(seed: int) -> None:
    random = Random(seed)
    steps = [
        _Step(10 + number, tuple(random.choices([0, 1, *range(10, 10 + number)], k=random.randint(1, 3))))
        for number in range(60)
    ]
    outputs = {step.result for step in random.sample(steps, 4)}
    sizes = {step.result: random.choice([1, 4, 512]) for step in steps}
    order = in_order_of_use(steps, outputs, sizes)  # type: ignore[arg-type]
    assert sorted(order) == list(range(60))
    place = {steps[number].result: at for at, number in enumerate(order)}
    for step in steps:
        assert all(place[slot] < place[step.result] for slot in step.operands if slot in place)
