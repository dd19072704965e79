"""Short descriptions of sets of element types."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType

__all__ = ["in_words"]

_KINDS: tuple[tuple[str, Callable[[ElementType], bool]], ...] = (
    ("pred", lambda each: each.name == "pred"),
    ("signed integers", lambda each: each.is_integral and each.name.startswith("s")),
    ("unsigned integers", lambda each: each.is_integral and each.name.startswith("u")),
    ("floats", lambda each: each.is_floating),
    ("complex numbers", lambda each: each.is_complex),
)


def in_words(types: Iterable[ElementType] | None) -> str:
    """`all`, or kinds of types; an incomplete kind lists its types, or those that it lacks."""
    every = [each for each in ELEMENT_TYPES.values() if each.is_array]
    given = every if types is None else list(types)
    if len(given) == len(every):
        return "all"
    parts = []
    for kind, belongs in _KINDS:
        there = [each.name for each in given if belongs(each)]
        absent = [each.name for each in every if belongs(each) and each not in given]
        if not there:
            continue
        if not absent:
            parts.append(f"`{kind}`" if kind == "pred" else kind)
        elif len(absent) < len(there):
            parts.append(f"{kind} without {_listed(absent)}")
        else:
            parts.append(_listed(there))
    return ", ".join(parts).replace("signed integers, unsigned integers", "integers")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
