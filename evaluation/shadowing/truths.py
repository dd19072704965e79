"""The truth: a program's jaxpr in f64, in which only the results of one of its equations are rounded to f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_SUMS = ("reduce_sum", "dot_general", "cumsum")


def errors_alone(function: Callable[..., Any], arguments: Sequence[Any]) -> dict[str, float]:
    """By primitive that rounds, the relative error of the output where one of its equations alone does: the root of the
    sum of the squares of all of them, none of which counts more than 1."""
    import jax

    with jax.enable_x64(True):
        wide = [np.asarray(each, np.float64) for each in arguments]
        jaxpr = jax.make_jaxpr(function)(*wide)
        rounding: dict[int, str] = {}
        exact = _evaluated(jaxpr.jaxpr, jaxpr.consts, wide, None, rounding)
        squares: dict[str, float] = dict.fromkeys(rounding.values(), 0.0)
        for equation, name in rounding.items():
            results = _evaluated(jaxpr.jaxpr, jaxpr.consts, wide, equation, {})
            pairs = [(np.asarray(ours), np.asarray(theirs)) for ours, theirs in zip(results, exact, strict=True)]
            error = sum(float(np.sum((ours - theirs) ** 2)) for ours, theirs in pairs)
            squares[name] += min(1.0, error / sum(float(np.sum(theirs**2)) for _, theirs in pairs))
        return {name: float(np.sqrt(square)) for name, square in squares.items()}


def _evaluated(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], only: int | None, rounding: dict[int, str]
) -> Any:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        results = _results(equation, [read(atom) for atom in equation.invars], only, rounding)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Any, given: list[Any], only: int | None, rounding: dict[int, str]) -> Sequence[Any]:
    parameters, name = equation.params, equation.primitive.name

    def inner(closed: Any, arguments: Sequence[Any]) -> list[Any]:
        return list(_evaluated(closed.jaxpr, closed.consts, arguments, only, rounding))

    if name == "scan":
        return _scanned(parameters, given, inner)
    if name == "while":
        first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
        state = given[first + second :]
        while inner(parameters["cond_jaxpr"], [*given[:first], *state])[0]:
            state = inner(parameters["body_jaxpr"], [*given[first : first + second], *state])
        return state
    if name == "cond":
        return inner(parameters["branches"][int(given[0])], given[1:])
    for key in ("jaxpr", "call_jaxpr"):
        if key in parameters:
            return inner(parameters[key], given)
    found = equation.primitive.bind(*given, **parameters)
    results = found if equation.primitive.multiple_results else [found]
    is_float = any(np.asarray(each).dtype == np.float64 for each in results)
    if id(equation) == only:
        return [_rounded(equation, given, each) for each in results]
    if is_float and only is None and _adds_error(equation, given):
        rounding[id(equation)] = name
    return list(results)


def _adds_error(equation: Any, given: Sequence[Any]) -> bool:
    """Whether it rounds at all in f32, of operands rounded to it: what moves elements does not."""
    if not any(np.asarray(each).dtype == np.float64 for each in given):
        return False
    ours, theirs = _in_f32(equation, given)
    return bool(np.any(ours != theirs))


def _in_f32(equation: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """What it gives in f32, and exactly of the same operands."""
    operands = [np.asarray(each) for each in given]
    narrow = [each.astype(np.float32) if each.dtype == np.float64 else each for each in operands]
    wide = [each.astype(np.float64) if each.dtype == np.float32 else each for each in narrow]
    parameters = dict(equation.params)
    found = [
        equation.primitive.bind(*narrow, **{**parameters, **_types(parameters, np.float32)}),
        equation.primitive.bind(*wide, **parameters),
    ]
    if equation.primitive.multiple_results:
        found = [each[0] for each in found]
    return np.asarray(found[0], np.float64), np.asarray(found[1])


def _rounded(equation: Any, given: Sequence[Any], result: Any) -> Any:
    """A result, rounded to f32; of a sum with what adding up in f32 does."""
    if equation.primitive.name in _SUMS:
        ours, theirs = _in_f32(equation, given)
        result = np.asarray(result) + (ours - theirs)
    return np.asarray(result, np.float32).astype(np.float64)


def _types(parameters: dict[str, Any], wanted: Any) -> dict[str, Any]:
    return {"preferred_element_type": np.dtype(wanted)} if parameters.get("preferred_element_type") else {}


def _scanned(parameters: Any, given: Sequence[Any], inner: Callable[..., list[Any]]) -> list[Any]:
    consts, carried = parameters["num_consts"], parameters["num_carry"]
    state, stacked = list(given[consts : consts + carried]), given[consts + carried :]
    rows: list[list[Any]] = []
    for k in range(parameters["length"]):
        found = inner(parameters["jaxpr"], [*given[:consts], *state, *(each[k] for each in stacked)])
        state, rows = found[:carried], [*rows, found[carried:]]
    return [*state, *(np.stack([np.asarray(row[number]) for row in rows]) for number in range(len(rows[0])))]
