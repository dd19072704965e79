"""The elements of literals: whole arrays of plain numbers at once, and numbers as elements of a type.

An array that is written the way XLA prints it has full rows, which string methods split and NumPy converts.
"""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np

from hloexec.core.dtypes import DType, ElementType, Kind
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array, Ints
from hloexec.language.text.lexer import end_of_braces

BOOLEANS = {"true": 1, "false": 0}
"""The words for truth values."""

_BRACE = re.compile(r"[^{}/]*+([{}]|/\*)")
_COMMENT = re.compile(r"/\*(?:[^*\0]|\*(?!/))*+\*/")
_ROW = re.compile(
    r"\{[ \t\n\r]*+((?:(?:-?[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|-?inf|true|false)[, \t\n\r]*+)*+)\}"
)
_ROW_OF_INTEGERS = re.compile(r"\{([-0-9, \t\n\r]*+)\}")
"""Finds what `_ROW` finds where `int` takes every word, in a tenth of the time."""
_NOT_A_BRACE = re.compile(r"[^{}]+")
_INTEGER_BEYOND_64_BITS = re.compile(r"[0-9]{19}")
"""Where there may be one."""
_CONVERTED_AT_ONCE = 1 << 14
"""As words, numbers take ten times the memory."""


def regular_array(text: str, start: int, shape: ArrayShape, *, strict: bool) -> tuple[Array, int] | None:
    """The array whose literal begins at `start`, and the offset behind it; None where it is not regular.

    It is where it consists of full rows of plain numbers, properly nested. Integers of more than 64 bits are left to
    the reading of tokens where `strict` or truth values ask for an error there.
    """
    end = end_of_braces(text, start, _BRACE, _COMMENT)
    if end is None or shape.element_count == 0:
        return None
    body = text[start:end]
    is_checked = strict or shape.element_type.kind is Kind.PRED
    if is_checked and _INTEGER_BEYOND_64_BITS.search(body):
        return None
    if "/" in body:
        body = _COMMENT.sub("", body)
    array = _rows(body, shape)
    # Only rows that matched were counted, so equal skeletons mean that nothing but rows is there.
    if array is None or _NOT_A_BRACE.sub("", body) != _skeleton(shape.dimensions):
        return None
    return array.reshape(shape.dimensions), end


def _rows(body: str, shape: ArrayShape) -> Array | None:
    """The numbers of all rows, one after the other; None where a row has more or less of them, or there are others."""
    row_size = shape.dimensions[-1]
    parts: list[Array] = []
    words: list[str] = []
    count = 0
    is_integral = shape.element_type.is_integral
    for row in (_ROW_OF_INTEGERS if is_integral else _ROW).finditer(body):
        found = row[1].replace(",", " ").split()
        if len(found) != row_size:
            return None
        words += found
        count += row_size
        if len(words) >= _CONVERTED_AT_ONCE:
            part = _convert(words, shape.element_type)
            if part is None:
                return None
            parts.append(part)
            words = []
    if count != shape.element_count:
        return None
    if words:
        part = _convert(words, shape.element_type)
        if part is None:
            return None
        parts.append(part)
    return np.concatenate(parts)


def _skeleton(dimensions: Ints) -> str:
    """The braces of a literal of these dimensions."""
    braces = "{}"
    for size in reversed(dimensions[:-1]):
        braces = "{" + braces * size + "}"
    return braces


def _convert(words: list[str], element_type: ElementType) -> Array | None:
    """Plain numbers as an array of the element type; None where a word is no plain number or out of range."""
    try:
        if element_type.kind is Kind.PRED:
            return np.array([bool(BOOLEANS[word] if word in BOOLEANS else int(word)) for word in words])
        if element_type.is_integral:
            return integers(list(map(int, words)), element_type)
        values = np.fromiter(map(float, words), np.float64, len(words))
    except (ValueError, OverflowError):
        return None
    if np.count_nonzero(np.isinf(values)) != sum(word.endswith("inf") for word in words):
        return None  # a number too large for a double
    return floats(values, element_type.storage)


def integers(values: list[int], element_type: ElementType) -> Array | None:
    """Integers as an array of the storage type, [n]; None where one is out of range. 64-bit types wrap, as in XLA."""
    low, high = element_type.integer_range
    if element_type.bits == 64:
        if min(values) < -(1 << 63) or max(values) >= 1 << 64:
            return None
        if max(values) < 1 << 63:
            return np.array(values, np.int64).view(element_type.storage)
        return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64).view(element_type.storage)
    if min(values) < low or max(values) > high:
        return None
    return np.array(values, element_type.compute).astype(element_type.storage)


def floats(values: Array, dtype: DType) -> Array | None:
    """Doubles rounded to a float type, None where a finite one overflows.

    As in XLA, types of fewer than 32 bits are reached through f32.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype.itemsize <= 2 and dtype != np.float16:
            rounded = values.astype(np.float32).astype(dtype)
        else:
            rounded = values.astype(dtype)
        overflowed = np.isfinite(values) & ~np.isfinite(rounded.astype(np.float64))
    return None if overflowed.any() else rounded


def nan_bits(dtype: DType, negative: bool, payload: int | None) -> Any:
    """A NaN of a float type with a sign and a payload; None where the type has no such NaN.

    The payload includes the quiet bit; without one it is the quiet bit alone. Types with a single NaN take no payload.
    """
    info = ml_dtypes.finfo(dtype)
    bits = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")
    quiet = np.array(math.nan).astype(dtype)
    if not np.isnan(quiet.astype(np.float64)):
        return None
    exponent_mask = ((1 << (bits - 1)) - 1) & ~((1 << int(info.nmant)) - 1)
    has_payload = bool(np.isinf(np.array(exponent_mask, unsigned).view(dtype).astype(np.float64)))
    if not has_payload:
        signed = quiet.view(unsigned) | unsigned.type(int(negative) << (bits - 1))
        return np.asarray(signed, unsigned).view(dtype) if payload is None else None
    if payload is None:
        payload = 1 << (int(info.nmant) - 1)
    if not 0 < payload < 1 << int(info.nmant):
        return None
    return np.array((int(negative) << (bits - 1)) | exponent_mask | payload, unsigned).view(dtype)
