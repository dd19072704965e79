"""Runs a program by `jax.jit` on the CPU and by `hx.jit`, and compares results and effects.

Structures, types and shapes of the results have to be the same, and integers, booleans, keys and the results of programs
that move data equal to the bit. For floats, hloexec measures on the very module and inputs how far rounding moves each
element (`hloexec.compare`, `numerics.sampling.spread`), and XLA's have to be as near as that.
"""

from typing import Any

import attrs
import pytest

import hloexec
import hloexec.jax as hx
from hloexec.core.ir import Module
from hloexec.core.values import Array, Value
from hloexec.ops.common import is_inexact
from tests.jax.programs import PROGRAMS, Call

xla: Any = pytest.importorskip("conformance.xla")
jax: Any = pytest.importorskip("jax")

NUMERICS = "ftz"
"""XLA:CPU takes denormals for zero."""
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
_ROUNDING_EVERY_RESULT = {"xla_allow_excess_precision": False, **xla.COMPILED_SOONEST}


@attrs.frozen(eq=False)
class Seen:
    """What one side gave: what was returned, what callbacks saw, and what was printed."""

    result: Any
    events: list[Any]
    printed: list[str]

    @classmethod
    def of(cls, function: Any, call: Call, events: list[Any], capture: Any) -> "Seen":
        events.clear()
        capture.readouterr()
        with _enable_x64(call.is_wide):
            result = jax.block_until_ready(function(*call.arguments, **call.keywords))
        jax.effects_barrier()
        printed = capture.readouterr().out.splitlines()
        return cls(result, *((events[:], printed) if call.is_ordered else (sorted(events), sorted(printed))))


def assert_runs_as_on_xla(name: str, capture: Any) -> None:
    """Run a program on both sides, and compare what it returns, prints and hands to callbacks; `capture` is `capsys`.

    XLA comes second, as it takes the memory of what is donated.
    """
    events: list[Any] = []
    call = PROGRAMS[name](events)
    fast = hx.jit(call.function, numerics=NUMERICS, **call.options)
    actual = Seen.of(fast, call, events, capture)
    last = fast._last_call()
    program, inputs = last.program, last.inputs
    jitted = jax.jit(call.function, compiler_options=_ROUNDING_EVERY_RESULT, **call.options)
    expected = Seen.of(jitted, call, events, capture)
    assert jax.tree.structure(actual.result) == jax.tree.structure(expected.result)
    types = [[_type(leaf) for leaf in jax.tree.leaves(side.result)] for side in (actual, expected)]
    assert types[0] == types[1]
    assert (actual.events, actual.printed) == (expected.events, expected.printed)
    ours, theirs = map(program.arrays, (actual.result, expected.result))
    if call.is_exact or not any(map(is_inexact, theirs)):
        _assert_same_bits(ours, theirs)
    else:
        _assert_as_near_as_rounding(ours, theirs, program.module, inputs)


def _type(leaf: Any) -> tuple[Any, ...]:
    is_weak = isinstance(leaf, jax.Array) and getattr(leaf.aval, "weak_type", False)
    return isinstance(leaf, jax.Array), leaf.dtype, leaf.shape, is_weak


def _assert_same_bits(ours: list[Array], theirs: list[Array]) -> None:
    comparison = hloexec.compare(tuple(ours), tuple(theirs), ulp=0)
    assert comparison.verdict is hloexec.Verdict.EQUAL, f"{comparison}"


def _assert_as_near_as_rounding(
    ours: list[Array], theirs: list[Array], module: Module, inputs: tuple[Value, ...]
) -> None:
    comparison = hloexec.compare(tuple(ours), tuple(theirs), module=module, inputs=inputs, numerics=NUMERICS)
    assert comparison.verdict.agrees, f"{comparison}"
    of_integers = [index for index, array in enumerate(theirs) if not is_inexact(array)]
    _assert_same_bits([ours[index] for index in of_integers], [theirs[index] for index in of_integers])
