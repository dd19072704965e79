"""Conditions on values: `any nan`, `max > 1e4`, `[0, 3] <= 0 and not all finite`.

    condition   = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | "(" condition ")" | test
    test        = [ "any" | "all" ] elements | statistic comparison | "[" index { "," index } "]" comparison
    elements    = "nan" | "inf" | "finite" | "zero" | "negative" | "denormal" | comparison
    statistic   = "max" | "min" | "absmax" | "mean" | "std" | "size"
    comparison  = ( "<" | "<=" | ">" | ">=" | "==" | "!=" ) number

Where neither `any` nor `all` is said, it is any. A tuple meets `all` if each of its arrays does, any other test if one
of them does. Numbers are compared exactly, for `==` and `!=` rounded to the element type. NaN meet no comparison but
`!=`. `max`, `min` and `absmax` leave NaN out, `mean` and `std` infinities, too; where nothing is left, no comparison
holds. Of complex numbers, `<`, `>` and statistics compare absolute values.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.precision import smallest_normal
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, arrays_of
from hloexec.errors import InputError
from hloexec.ops.common import narrow, wide, widen

_TOKEN = re.compile(
    r"\s*(?:([<>=!]=|[<>()\[\],])|([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf\b))|(\w+)|(\S))"
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_Test: TypeAlias = Callable[[Sequence[Array]], bool]


@frozen(eq=False)
class Condition:
    """A condition; `str` is its text."""

    text: str
    _test: _Test

    def holds(self, value: Value) -> bool:
        """Whether a value meets it; tokens count for nothing."""
        with np.errstate(all="ignore"):
            return self._test(arrays_of(value))

    def __str__(self) -> str:
        return self.text


def condition(text: str) -> Condition:
    """The condition that a text says; InputError where it says none."""
    return Condition(" ".join(text.split()), _Parser(text).whole())


class _Parser:
    """Reads one condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            (found[found.lastindex or 0], found.start(found.lastindex or 0)) for found in _TOKEN.finditer(text)
        ]
        self._position = 0

    def whole(self) -> _Test:
        found = self._either()
        if self._next:
            self._expected("`and`, `or` or the end")
        return found

    @property
    def _next(self) -> str:
        return self._tokens[self._position][0] if self._position < len(self._tokens) else ""

    def _take(self, *choices: str) -> str:
        """The next token, if it is one of these; else an empty text."""
        token = self._next
        if token not in choices or not token:
            return ""
        self._position += 1
        return token

    def _expected(self, what: str) -> NoReturn:
        place = (
            f"not {self._next!r} at column {self._tokens[self._position][1] + 1}" if self._next else "but it ends there"
        )
        raise InputError(f"the condition {self._text.strip()!r} is none: {what} is expected, {place}")

    def _either(self) -> _Test:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda arrays: any(part(arrays) for part in parts)

    def _both(self) -> _Test:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else lambda arrays: all(part(arrays) for part in parts)

    def _negation(self) -> _Test:
        if self._take("not"):
            negated = self._negation()
            return lambda arrays: not negated(arrays)
        if self._take("("):
            found = self._either()
            if not self._take(")"):
                self._expected("`)`")
            return found
        return self._test()

    def _test(self) -> _Test:
        if self._take("["):
            index = self._index()
            compare = self._comparison()
            return lambda arrays: any(_at(array, index, compare) for array in arrays)
        statistic = _STATISTICS.get(self._next)
        if statistic is not None:
            self._position += 1
            compare = self._comparison()
            return lambda arrays: any(
                (found := statistic(array)) is not None and bool(compare(found)) for array in arrays
            )
        quantifier = self._take("any", "all")
        elements = _ELEMENTS.get(self._next)
        if elements is not None:
            self._position += 1
        elif self._next in _COMPARISONS:
            elements = self._comparison()
        else:
            tests = ", ".join((*_ELEMENTS, *(() if quantifier else _STATISTICS)))
            self._expected(f"a comparison or one of {tests}")
        if quantifier == "all":
            return lambda arrays: all(bool(np.all(elements(array))) for array in arrays)
        return lambda arrays: any(bool(np.any(elements(array))) for array in arrays)

    def _index(self) -> tuple[int, ...]:
        found: list[int] = []
        while not self._take("]"):
            if found and not self._take(","):
                self._expected("`,` or `]`")
            try:
                found.append(int(self._next))
            except ValueError:
                self._expected("an index")
            self._position += 1
        return tuple(found)

    def _comparison(self) -> Callable[[Any], Any]:
        """What compares elements or a statistic with a number."""
        if self._next not in _COMPARISONS:
            self._expected(f"one of {' '.join(_COMPARISONS)}")
        name = self._take(*_COMPARISONS)
        number = self._number()
        compare = _COMPARISONS[name]

        def comparison(found: Any) -> Any:
            if not isinstance(found, np.ndarray):
                return compare(found, number)
            if name in ("==", "!="):
                its_type = element_type_of(found.dtype)
                is_rounded = its_type.is_floating
                return compare(
                    widen(found), widen(narrow(np.asarray(number, np.float64), its_type)) if is_rounded else number
                )
            numbers = wide(found)
            return compare(np.abs(numbers) if numbers.dtype.kind == "c" else numbers, number)

        return comparison

    def _number(self) -> int | float:
        text = self._next
        try:
            number: int | float = int(text) if text.lstrip("+-").isdecimal() else float(text)
        except ValueError:
            self._expected("a number")
        self._position += 1
        return number


def _at(array: Array, index: tuple[int, ...], compare: Callable[[Any], Any]) -> bool:
    """Whether an element compares; an array without such an element has none that does."""
    inside = len(index) == array.ndim and all(-size <= i < size for i, size in zip(index, array.shape, strict=True))
    return inside and bool(np.all(compare(array[index].reshape(()))))


def _is_denormal(array: Array) -> Array:
    its_type = element_type_of(array.dtype)
    if not its_type.is_floating:
        return np.zeros(array.shape, np.bool_)
    numbers = wide(array)
    return np.asarray((numbers != 0) & (np.abs(numbers) < smallest_normal(its_type)))


_ELEMENTS: dict[str, Callable[[Array], Any]] = {
    "nan": lambda array: np.isnan(widen(array)),
    "inf": lambda array: np.isinf(widen(array)),
    "finite": lambda array: np.isfinite(widen(array)),
    "zero": lambda array: widen(array) == 0,
    "negative": lambda array: widen(array).real < 0,
    "denormal": _is_denormal,
}


def _numbers(array: Array) -> Array:
    """The elements of an array that are numbers, of complex ones the absolute values."""
    found = widen(array).reshape(-1)
    if found.dtype.kind == "c":
        found = np.abs(found)
    if found.dtype.kind == "b":
        found = found.view(np.uint8)
    return found[~np.isnan(found)]


def _extreme(choose: str, *, is_magnitude: bool = False) -> Callable[[Array], float | int | None]:
    def statistic(array: Array) -> float | int | None:
        found = _numbers(array)
        if is_magnitude and found.dtype.kind != "u":
            found = np.abs(found.astype(np.float64) if found.dtype.kind == "i" else found)
        number: float | int | None = getattr(found, choose)().item() if found.size else None
        return number

    return statistic


def _moment(choose: str) -> Callable[[Array], float | None]:
    def statistic(array: Array) -> float | None:
        found = _numbers(array).astype(np.float64)
        found = found[np.isfinite(found)]
        number: float | None = getattr(found, choose)().item() if found.size else None
        return number

    return statistic


_STATISTICS: dict[str, Callable[[Array], Any]] = {
    "max": _extreme("max"),
    "min": _extreme("min"),
    "absmax": _extreme("max", is_magnitude=True),
    "mean": _moment("mean"),
    "std": _moment("std"),
    "size": lambda array: array.size,
}
