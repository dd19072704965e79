"""Time grows with the parameters and the leaves of a module, not with their square."""

import time
from collections.abc import Callable

import pytest

import hloexec


def _parameters(count: int) -> str:
    lines = [f"  p{number} = f32[] parameter({number})" for number in range(count)]
    names = ", ".join(f"p{number}" for number in range(count))
    return "\n".join(["HloModule m", "ENTRY e {", *lines, f"  ROOT t = ({_leaves(count)}) tuple({names})", "}"])


def _one_tuple(count: int) -> str:
    lines = [f"  g{number} = f32[] get-tuple-element(p), index={number}" for number in range(count)]
    names = ", ".join(f"g{number}" for number in range(count))
    first = f"  p = ({_leaves(count)}) parameter(0)"
    return "\n".join(["HloModule m", "ENTRY e {", first, *lines, f"  ROOT t = ({_leaves(count)}) tuple({names})", "}"])


def _leaves(count: int) -> str:
    return ", ".join(["f32[]"] * count)


def _seconds(text: str) -> float:
    start = time.process_time()
    module = hloexec.parse(text)
    hloexec.verify(module)
    inputs = hloexec.random_inputs(module)
    hloexec.run(module, *inputs)
    hloexec.memory_usage(module)
    hloexec.find_nan(module, inputs)
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("text", [_parameters, _one_tuple])
def test_time_grows_with_what_there_is(text: Callable[[int], str]) -> None:
    _seconds(text(100))
    few = min(_seconds(text(1000)) for _ in range(3))
    # Squared, 64 times as long; as it is, some 8 times.
    assert min(_seconds(text(8000)) for _ in range(2)) < 24 * few
