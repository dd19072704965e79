"""How much work shrinking is, counted in lines of Python: twice the module takes about twice as many."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import hloexec
from benchmarks.sharded_layers import sharded_layers
from hloexec.ops.relations import Equation, Product, Relations
from hloexec.tools.shrinking.grouping import Offsets
from hloexec.tools.shrinking.positions import tie_positions
from hloexec.tools.shrinking.simplifying import merged_roots, tie_splits

WHERE = ("main", "reshape")


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of hloexec run."""
    count = 0

    def count_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return count_line

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return count_line if "hloexec" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def parallel_chains(length: int) -> tuple[Relations, list[int], list[int]]:
    """Dimensions of two chains, each twice as large as the next; the first of both are the same."""
    relations = Relations()
    sizes = [2**exponent for exponent in range(length, 0, -1)]
    chains = list(relations.new(sizes)), list(relations.new(sizes))
    relations.tie(chains[0][0], chains[1][0])
    return relations, *chains


def splits_from_the_last(length: int) -> tuple[Callable[[], object], Callable[[], bool]]:
    relations, *chains = parallel_chains(length)
    for number in reversed(range(length - 1)):
        for chain in chains:
            (two,) = relations.new([2])
            relations.products.append(Product((chain[number],), (chain[number + 1], two), WHERE))
    first, second = chains
    return lambda: tie_splits(relations), lambda: relations.root(first[-1]) == relations.root(second[-1])


def products_of_products(length: int) -> tuple[Callable[[], object], Callable[[], bool]]:
    relations, chain, _ = parallel_chains(length)
    products = [
        Product((whole,), (chain[number], *relations.new([2])), WHERE) for number, whole in enumerate(chain[:-1], 1)
    ]
    return lambda: merged_roots(relations, [], products, set()), lambda: not products


def halves_of_halves(length: int) -> tuple[Callable[[], object], Callable[[], bool]]:
    relations = Relations()
    first, second = (relations.units.extend(length) for _ in range(2))
    relations.units.tie(first, second)
    for number in reversed(range(length - 1)):
        relations.derived += [(("divide", 2), start + number, start + number + 1) for start in (first, second)]
    root = relations.units.root
    return lambda: tie_positions(relations), lambda: root(first + length - 1) == root(second + length - 1)


def sums_that_stay(length: int) -> tuple[Callable[[], object], Callable[[], bool]]:
    relations = Relations()
    roots = relations.new([6, 4] * length)
    for first, second in zip(roots[::2], roots[1::2], strict=True):
        relations.equations.append(Equation(((first, 1), (second, 1)), 10, WHERE))
    offsets = Offsets(relations, relations.equations, [])
    return lambda: offsets.settle(roots), lambda: offsets.kept.keys() == {*roots}


@pytest.mark.parametrize("relate", [splits_from_the_last, products_of_products, halves_of_halves, sums_that_stay])
def test_what_follows_from_relations_takes_time_in_proportion_to_them(relate: Callable[[int], Any]) -> None:
    counts = []
    for length in (100, 200, 400):
        work, is_done = relate(length)
        counts.append(lines_of(work))
        assert is_done()
    assert counts[2] - counts[1] < 2.3 * (counts[1] - counts[0])


def test_layers_take_time_in_proportion_to_their_number() -> None:
    counts = []
    for layers in (2, 4, 8):
        module = hloexec.parse(sharded_layers(layers))
        counts.append(lines_of(lambda module=module: hloexec.shrink(module, dims={1024: 64})))
    assert counts[2] - counts[1] < 2.1 * (counts[1] - counts[0])
