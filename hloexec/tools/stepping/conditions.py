"""What people type for values, and conditions on these: `dot.3`, `any nan`, `max > 1e4`.

Conditions on values: `any nan`, `max > 1e4`, `[0, 3] <= 0 and not all finite`.

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

What people type for values: `dot.3`, `tuple.2{0}[1:3, :]`, and values as literals or files.

    expression = name [ "{" index { "," index } "}" ] [ "[" slice { "," slice } "]" ]
    slice      = index | [ start ] ":" [ stop ] [ ":" step ]

Braces choose an element of a (nested) tuple, as in XLA's shape indices, and brackets elements of an array, as in NumPy.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from hloexec.core.dtypes import element_type_of, smallest_normal
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, arrays_of
from hloexec.core.wording import braced
from hloexec.errors import InputError, ParseError
from hloexec.language import literals
from hloexec.ops.common import narrow, wide, widen
from hloexec.ops.traits import Index

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
            (match[match.lastindex or 0], match.start(match.lastindex or 0)) for match in _TOKEN.finditer(text)
        ]
        self._position = 0

    def whole(self) -> _Test:
        test = self._either()
        if self._next:
            self._expected("`and`, `or` or the end")
        return test

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

    def _expected(self, subject: str) -> NoReturn:
        place = (
            f"not {self._next!r} at column {self._tokens[self._position][1] + 1}" if self._next else "but it ends there"
        )
        raise InputError(f"the condition {self._text.strip()!r} is none: {subject} is expected, {place}")

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
            test = self._either()
            if not self._take(")"):
                self._expected("`)`")
            return test
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
                (number := statistic(array)) is not None and bool(compare(number)) for array in arrays
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
        index: list[int] = []
        while not self._take("]"):
            if index and not self._take(","):
                self._expected("`,` or `]`")
            try:
                index.append(int(self._next))
            except ValueError:
                self._expected("an index")
            self._position += 1
        return tuple(index)

    def _comparison(self) -> Callable[[Any], Any]:
        """What compares elements or a statistic with a number."""
        if self._next not in _COMPARISONS:
            self._expected(f"one of {' '.join(_COMPARISONS)}")
        name = self._take(*_COMPARISONS)
        number = self._number()
        compare = _COMPARISONS[name]

        def comparison(member: Any) -> Any:
            if not isinstance(member, np.ndarray):
                return compare(member, number)
            if name in ("==", "!="):
                its_type = element_type_of(member.dtype)
                is_rounded = its_type.is_floating
                return compare(
                    widen(member), widen(narrow(np.asarray(number, np.float64), its_type)) if is_rounded else number
                )
            numbers = wide(member)
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


def _at(array: Array, index: Index, compare: Callable[[Any], Any]) -> bool:
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
    numbers = widen(array).reshape(-1)
    if numbers.dtype.kind == "c":
        numbers = np.abs(numbers)
    if numbers.dtype.kind == "b":
        numbers = numbers.view(np.uint8)
    return numbers[~np.isnan(numbers)]


def _extreme(choose: str, *, is_magnitude: bool = False) -> Callable[[Array], float | int | None]:
    def statistic(array: Array) -> float | int | None:
        numbers = _numbers(array)
        if is_magnitude and numbers.dtype.kind != "u":
            numbers = np.abs(numbers.astype(np.float64) if numbers.dtype.kind == "i" else numbers)
        number: float | int | None = getattr(numbers, choose)().item() if numbers.size else None
        return number

    return statistic


def _moment(choose: str) -> Callable[[Array], float | None]:
    def statistic(array: Array) -> float | None:
        numbers = _numbers(array).astype(np.float64)
        numbers = numbers[np.isfinite(numbers)]
        number: float | None = getattr(numbers, choose)().item() if numbers.size else None
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


_EXPRESSION = re.compile(r"\s*%?([^\s{}\[\]%]+)\s*(?:\{([^{}]*)\})?\s*(?:\[([^\[\]]*)\])?\s*")


@frozen
class Expression:
    """A value, or a part of it."""

    name: str
    index: Index
    """Where in a nested tuple."""
    slices: tuple[int | slice, ...] | None

    def of(self, value: Value) -> Value:
        """The part of what the instruction gives; InputError where it has none such."""
        for position in self.index:
            if not isinstance(value, tuple) or not 0 <= position < len(value):
                description = f"a tuple of {len(value)}" if isinstance(value, tuple) else "no tuple"
                raise InputError(f"%{self.name} has no element {braced(self.index)}: it is {description} there")
            value = value[position]
        if self.slices is None:
            return value
        if not isinstance(value, np.ndarray):
            raise InputError(
                f"%{self.name} is no array; choose an element of a tuple with braces, as in {self.name}{{0}}"
            )
        return np.asarray(value[self.within(value)])

    def within(self, array: Array) -> tuple[int | slice, ...]:
        """The slices, which fit an array; InputError where they don't."""
        slices = self.slices or ()
        if len(slices) > array.ndim:
            raise InputError(f"%{self.name} has {array.ndim} dimensions, but {len(slices)} are indexed")
        for dimension, (part, size) in enumerate(zip(slices, array.shape, strict=False)):
            if isinstance(part, int) and not -size <= part < size:
                raise InputError(
                    f"index {part} is out of bounds for dimension {dimension} of %{self.name}, of size {size}"
                )
        return slices


def expression(text: str) -> Expression:
    """What a text means; InputError where it is no expression."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text.strip()!r} is not of the form NAME, NAME{{INDEX}}, NAME[SLICES] or NAME{{INDEX}}[SLICES]"
        )
    name, index, slices = match.groups()
    try:
        path = () if not index else tuple(int(part) for part in index.split(","))
        parts = None if slices is None else tuple(_slice(part) for part in slices.split(",") if slices.strip())
    except ValueError:
        raise InputError(f"{text.strip()!r} has an index that is no integer, as in NAME{{0}}[1:3, 2]") from None
    return Expression(name, path, parts)


def _slice(text: str) -> int | slice:
    parts = [int(part) if part.strip() else None for part in text.split(":")]
    if len(parts) == 1:
        if parts[0] is None:
            raise ValueError
        return parts[0]
    if len(parts) > 3 or parts[2:] == [0]:
        raise ValueError
    return slice(*parts)


def value_of_text(text: str, shape: Shape, subject: str) -> Value:
    """The value in a file (`.npy`, `.npz`, XLA's literals), or the one of a literal; a number alone fills an array.

    InputError, which calls it `subject`, where it is not of the shape.
    """
    text = text.strip()
    suffix = os.path.splitext(text)[1].lower()
    if suffix in (".npy", ".npz") or (suffix[1:].isalpha() and os.path.isfile(text)):
        return literals.load_value(text, shape, subject)
    if isinstance(shape, ArrayShape) and shape.is_array and shape.rank and not text.startswith("{"):
        element = _literal(text, ArrayShape(shape.element_type, ()), subject, shape)
        assert isinstance(element, np.ndarray)
        return np.broadcast_to(element, shape.dimensions)
    return _literal(text, shape, subject, shape)


def _literal(text: str, shape: Shape, subject: str, whole: Shape) -> Value:
    # Imported late: reading text needs every grammar.
    from hloexec.language.text.lexer import END
    from hloexec.language.text.literals import LiteralParser

    parser = LiteralParser(text, subject)
    try:
        found = parser.of_shape(shape)
        if parser.kind != END:
            parser.fail("expected the end of the value")
    except ParseError as error:
        advice = "give a literal, a number that fills it, or a file (.npy, .npz)"
        raise InputError(f"{subject}, which is {whole}, cannot be {text!r}: {error.message}; {advice}") from error
    if found.is_elided:
        raise InputError(f"{subject} must have all of its elements")
    return found.mapped(lambda leaf: leaf.value)
