"""Indices are compared by the values that they select, in modules as JAX lowers them."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec import Verdict
from hloexec.analysis.numerics.selections import selections_of

jax = pytest.importorskip("jax")
jnp = jax.numpy

ROWS = np.array([[0.0, 5.0, 1.0, 5.0 + 2**-21], [7.0, 2.0, 7.0 + 2**-21, 1.0]], np.float32)
"""Two near ties: 1 and 3 in the first row, 0 and 2 in the second."""


def _doubled(x: Any) -> Any:
    return x * 1.5 + 0.25


FUNCTIONS = {
    "argmax": lambda x: jnp.argmax(_doubled(x), axis=1),
    "argmax of columns, turned": lambda x: jnp.argmax(_doubled(x).T, axis=0)[:, None],
    "argmin": lambda x: jnp.argmin(-_doubled(x), axis=1),
    "argsort": lambda x: jnp.argsort(_doubled(x), axis=1),
    "argsort, turned": lambda x: jnp.argsort(_doubled(x), axis=1).T.reshape(4, 2, 1),
    "top-k": lambda x: jax.lax.top_k(_doubled(x), 2)[1],
    "sort with payload": lambda x: jax.lax.sort((_doubled(x), jax.lax.broadcasted_iota(jnp.int32, (2, 4), 1)))[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_near_ties_may_be_resolved_either_way(name: str) -> None:
    module = hloexec.from_jax(FUNCTIONS[name], ROWS)
    expected = hloexec.run(module, ROWS)
    swapped = ROWS.copy()
    swapped[:, :] = ROWS[:, [2, 3, 0, 1]]
    # Indices of the same elements where each near tie goes the other way.
    other = {0: 2, 1: 3, 2: 0, 3: 1}
    ties = {0: {1, 3}, 1: {0, 2}}
    flat = np.array(expected)
    rows = np.indices(flat.shape)[1 if name == "argsort, turned" else 0]
    actual = (
        np.array(
            [other[int(i)] if int(i) in ties[int(row)] else int(i) for i, row in zip(flat.flat, rows.flat, strict=True)]
        )
        .reshape(flat.shape)
        .astype(flat.dtype)
    )
    assert (actual != flat).any()
    comparison = hloexec.compare(actual, expected, module=module, inputs=(ROWS,))
    assert comparison.verdict is Verdict.ROUNDING, str(comparison)
    assert "select values that agree" in comparison.leaves[0].note
    wrong = np.array(expected)
    wrong.flat[0] = (int(wrong.flat[0]) + 1) % 4
    assert hloexec.compare(wrong, expected, module=module, inputs=(ROWS,)).verdict is Verdict.DIFFERENT
    out_of_range = np.array(expected)
    out_of_range.flat[0] = 4
    assert hloexec.compare(out_of_range, expected, module=module, inputs=(ROWS,)).verdict is Verdict.DIFFERENT


def test_a_permutation_must_not_name_an_element_twice() -> None:
    module = hloexec.from_jax(lambda x: jnp.argsort(x), np.zeros(4, np.float32))
    x = np.array([1, 1, 2, 3], np.float32)
    expected = np.array([0, 1, 2, 3], np.int32)
    swapped, twice = np.array([1, 0, 2, 3], np.int32), np.array([0, 0, 2, 3], np.int32)
    assert hloexec.compare(swapped, expected, module=module, inputs=(x,)).verdict is Verdict.ROUNDING
    assert hloexec.compare(twice, expected, module=module, inputs=(x,)).verdict is Verdict.DIFFERENT


def test_the_values_beside_the_indices_will_do_without_inputs() -> None:
    module = hloexec.from_jax(lambda x: jax.lax.top_k(x, 3), ROWS)
    values, indices = (np.array(part) for part in hloexec.run(module, ROWS))
    swapped = indices[:, [1, 0, 2]]
    comparison = hloexec.compare((values, swapped), (values, indices), module=module)
    assert comparison.verdict is Verdict.DIFFERENT  # nothing rounds on the way to them, so the tie is none
    tied = np.array([[5.0, 5.0, 1.0], [7.0, 7.0, 2.0]], np.float32)
    assert hloexec.compare((tied, swapped), (tied, indices), module=module).verdict is Verdict.ROUNDING
    unknown = np.where(indices == indices[0, 0], 0, indices)
    assert hloexec.compare((tied, unknown), (tied, indices), module=module).verdict is Verdict.DIFFERENT


def test_without_values_the_note_asks_for_inputs() -> None:
    module = hloexec.from_jax(FUNCTIONS["argmax"], ROWS)
    leaf = hloexec.compare(np.array([1, 2], np.int32), np.array([3, 2], np.int32), module=module).leaves[0]
    assert leaf.verdict is Verdict.DIFFERENT and "the module's inputs would tell" in leaf.note


def test_the_caller_may_say_what_indices_select_from() -> None:
    actual, expected = np.array([1, 0], np.int32), np.array([3, 2], np.int32)
    comparison = hloexec.compare(actual, expected, selects={"value": ROWS})
    assert comparison.verdict is Verdict.ROUNDING
    turned = hloexec.compare(actual, expected, selects={"value": (np.ascontiguousarray(ROWS.T), 0)})
    assert turned.verdict is Verdict.ROUNDING
    assert hloexec.compare(actual, np.array([0, 2]), selects={"value": ROWS}).verdict is Verdict.DIFFERENT
    with pytest.raises(hloexec.InputError, match="cannot select along dimension 1"):
        hloexec.compare(actual, expected, selects={"value": ROWS[:1]})


def test_other_integers_are_no_indices() -> None:
    functions = [
        lambda x: jnp.floor(x).astype(jnp.int32),
        lambda x: jnp.sum(jax.lax.broadcasted_iota(jnp.int32, (2, 4), 1), axis=1) + x[:, 0].astype(jnp.int32),
        lambda x: jax.lax.sort((x, jax.lax.broadcasted_iota(jnp.int32, (2, 4), 0)))[1],
        lambda x: jnp.argmax(x, axis=1) + 1,
    ]
    for function in functions:
        assert selections_of(hloexec.from_jax(function, ROWS)) == {}
