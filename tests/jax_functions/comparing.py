"""Runs a case on hloexec and on XLA:CPU, and compares.

The bound. A case is also run in f64, by XLA, on the same arguments: `R`. Let `u` be the unit roundoff of the case's type.
Moving every argument by the factor 1 + u or 1 - u, at random, and the weights whose sum's gradient is taken, changes an
element of R by `s` (twice the root mean square of some draws): how sensitive it is there, its condition. A computation in
which `k` roundings follow one another behaves like one on arguments that are off by k units, with a result that is rounded
k times. So hloexec must be within

    k * (s + u |R|)

of R, element by element, with the case's `roundings` as k. XLA's own result must be, too: otherwise the bound follows from
a wrong premise, and the row is wrong.

Decompositions are compared by products of their factors. Orthogonal transformations mix a matrix's elements, so that
their errors are bounded by its norm alone (Higham, "Accuracy and stability of numerical algorithms", chapter 19): 4 u times
the largest element of its own matrix is added.
"""

import re
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import element_type_of
from tests.jax_functions.cases import Case

xla: Any = pytest.importorskip("conformance.xla")
jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

_TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
_DRAWS = 8
_COMPILED_SOONEST = dict(xla.COMPILED_SOONEST)
"""For what runs a few times: it need not be fast."""
_ROUNDING_EVERY_RESULT = {"xla_allow_excess_precision": False, **_COMPILED_SOONEST}
_SMALLEST_NORMAL = 2.0**-126


def assert_runs_as_on_xla(case: Case, type_name: str) -> None:
    """Lower a case once, run it on both sides, and compare every leaf of the result."""
    arguments = _arguments(case, _TYPES[type_name])
    lowered = _lowered(case, type_name)
    expected = _leaves(lowered.compile(_ROUNDING_EVERY_RESULT)(*arguments))
    actual = _run(hloexec.from_jax(lowered), arguments)
    assert [(leaf.dtype, leaf.shape) for leaf in actual] == [(leaf.dtype, leaf.shape) for leaf in expected]
    if case.invariants is not None:
        plain = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
        actual, expected = (_leaves(case.invariants(leaves, plain)) for leaves in (actual, expected))
    if case.exact or not any(_is_inexact(leaf) for leaf in expected):
        for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            _assert_same_bits(ours, theirs, f"leaf {index} of {case.name}")
        return
    references, sensitivities = _reference(case, arguments, _TYPES[type_name])
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        where = f"leaf {index} of {case.name}"
        if not _is_inexact(theirs):
            _assert_same_bits(ours, theirs, where)
            continue
        roundoff = _roundoff(theirs.dtype)
        magnitude = np.abs(references[index])
        bound = case.roundings * (sensitivities[index] + roundoff * magnitude)
        if case.invariants is not None:
            bound += 4 * roundoff * magnitude.max(tuple(range(magnitude.ndim))[-2:], keepdims=True, initial=0)
        bound += _SMALLEST_NORMAL
        _assert_within(theirs, references[index], bound, f"XLA's {where}")
        _assert_within(ours, references[index], bound, f"hloexec's {where}")


def assert_text_round_trips(case: Case, type_name: str) -> None:
    """What hloexec prints of the module is the module again, to hloexec and to XLA."""
    lowered = _lowered(case, type_name)
    module = hloexec.from_jax(lowered)
    text = hloexec.format(module)
    assert hloexec.parse(text, strict=True) == module
    # XLA's parser takes the "-0" that its printer writes for an integer, and drops the sign.
    original = re.sub(r"-0(?=[,})])", "-0.0", xla.canonical_text(lowered.compiler_ir("hlo").get_hlo_module()))
    options = {"print_metadata": False}
    assert xla.canonical_text(text, **options) == xla.canonical_text(original, **options)


@lru_cache(4)
def _lowered(case: Case, type_name: str) -> Any:
    function = _with_gradients(case.function) if case.gradient else case.function
    return jax.jit(function, keep_unused=True).lower(*_arguments(case, _TYPES[type_name]))


def _arguments(case: Case, dtype: Any) -> tuple[Any, ...]:
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if _is_float(leaf) else leaf, case.arguments)


def _with_gradients(function: Any) -> Any:
    """The function's result, and the gradient of a weighted sum of it with respect to its floating-point arguments.

    `factors`, of the result's leaves, are what weights are multiplied by."""

    def both(*arguments: Any, factors: Any = None) -> Any:
        numbers = [number for number, argument in enumerate(arguments) if _all_inexact(argument)]

        def loss(*inexact: Any) -> Any:
            given = list(arguments)
            for number, argument in zip(numbers, inexact, strict=True):
                given[number] = argument
            result = function(*given)
            leaves = jax.tree.leaves(result)
            return sum(map(_weighted_sum, leaves, factors or [1.0] * len(leaves))), result

        differentiated = jax.value_and_grad(loss, argnums=tuple(range(len(numbers))), has_aux=True)
        (_, result), gradients = differentiated(*(arguments[number] for number in numbers))
        return result, gradients

    return both


def _weighted_sum(leaf: Any, factors: Any) -> Any:
    """Weights that every type holds exactly, but for their factors."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return 0.0
    weights = (np.arange(leaf.size) * 7 % 5 - 1.5).reshape(leaf.shape) * factors
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return (leaf.real * weights.astype(leaf.real.dtype)).sum() + (leaf.imag * weights.astype(leaf.real.dtype)).sum()
    return (leaf * weights.astype(leaf.dtype)).sum()


def _all_inexact(argument: Any) -> bool:
    return all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(argument))


def _run(module: Any, arguments: tuple[Any, ...]) -> list[Any]:
    result = hloexec.run(module, *(np.asarray(leaf) for leaf in jax.tree.leaves(arguments)))
    return _leaves(result)


def _leaves(result: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]


def _reference(case: Case, arguments: tuple[Any, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """The result in f64, and how far it moves when arguments and weights move by a unit of the last place of `dtype`."""
    with jax.enable_x64(True):
        exact = jax.tree.map(_in_double, arguments)
        compiled, named = _in_f64(case)

        def run(given: Any, named: Any) -> list[Any]:
            results = _leaves(compiled(*given, **named))
            if case.invariants is not None:
                plain = [np.asarray(leaf) for leaf in jax.tree.leaves(given)]
                results = _leaves(case.invariants(results, plain))
            return results

        references = run(exact, named)
        squares = [np.zeros(leaf.shape) for leaf in references]
        generator = np.random.default_rng(0)
        for _ in range(_DRAWS):
            moved = jax.tree.map(lambda leaf: _moved(leaf, _roundoff(dtype), generator), (exact, named))
            for square, there, here in zip(squares, run(*moved), references, strict=True):
                if _is_inexact(here):
                    with np.errstate(invalid="ignore"):
                        square += np.nan_to_num(np.abs(there - here)) ** 2
    return references, [2 * np.sqrt(square / _DRAWS) for square in squares]


@lru_cache(4)
def _in_f64(case: Case) -> tuple[Any, dict[str, Any]]:
    """The function in f64, the same for all types that a case is run in, and the factors of its weights."""
    exact = jax.tree.map(_in_double, case.arguments)
    named = {}
    if case.gradient:
        named["factors"] = [np.ones(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(case.function, *exact))]
    function = _with_gradients(case.function) if case.gradient else case.function
    lowered = jax.jit(function, keep_unused=True).lower(*exact, **named)
    return lowered.compile(_COMPILED_SOONEST), named


def _in_double(leaf: Any) -> Any:
    if _is_float(leaf):
        return np.asarray(leaf).astype(np.float64)
    return leaf.astype(np.complex128) if leaf.dtype == np.complex64 else leaf


def _moved(leaf: Any, unit: float, generator: np.random.Generator) -> Any:
    if not _is_inexact(leaf):
        return leaf
    return leaf * (1 + unit * generator.choice([-1.0, 1.0], leaf.shape))


def _is_float(leaf: Any) -> bool:
    return np.dtype(leaf.dtype) in map(np.dtype, (*_TYPES.values(), np.float64))


def _is_inexact(leaf: Any) -> bool:
    return element_type_of(leaf.dtype).is_floating or element_type_of(leaf.dtype).is_complex


def _roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps if np.dtype(dtype).kind == "c" else ml_dtypes.finfo(dtype).eps) / 2


def _wide(values: Any) -> Any:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _assert_within(values: Any, reference: Any, bound: Any, what: str) -> None:
    """Infinities need only be infinite on both sides, or beyond the type's largest number on one."""
    wide = _wide(values)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(reference), err_msg=f"{what}: NaNs")
    largest = float(ml_dtypes.finfo(values.real.dtype).max)
    with np.errstate(invalid="ignore"):
        excess = np.where(np.abs(reference) <= largest, np.abs(wide - reference) / bound, 0)
    if not np.all(excess <= 1):
        worst = np.unravel_index(int(excess.argmax()), excess.shape)
        raise AssertionError(
            f"{what} is off by {excess[worst]:.2f} times the bound {bound[worst]:.3g} at {worst}: "
            f"{values[worst]}, {reference[worst]} in f64"
        )


def _assert_same_bits(values: Any, expected: Any, what: str) -> None:
    """NaNs need only be NaNs: XLA does not keep their payloads either."""
    ours, theirs = (np.frombuffer(side.tobytes(), np.uint8).reshape(side.size, -1) for side in (values, expected))
    equal = (ours == theirs).all(axis=1).reshape(expected.shape)
    if _is_inexact(expected):
        equal = equal | (np.isnan(values) & np.isnan(expected))
    assert np.all(equal), f"{what} differs:\n{values}\nXLA:\n{expected}"
