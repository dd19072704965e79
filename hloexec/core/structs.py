"""attrs classes, of which making one takes half as long.

attrs generates and compiles the methods of each class when it is imported. Half of that time goes into `__repr__`,
which is one function for all classes here: with some hundred classes, a short process ends 6 % sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

__all__ = ["UNTOLD", "define", "frozen", "told"]

UNTOLD = {"is_told": False}
"""`metadata` of an attribute that records leave out, since another one says the same in JSON (`report.json`)."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def told(read: _Function) -> _Function:
    """Below `property`: records have it beside the attributes of its class (`report.json`)."""
    read.is_told = True  # type: ignore[attr-defined]
    return read


if TYPE_CHECKING:
    # Type checkers know these by name.
    from attrs import define, frozen
else:
    _Class = TypeVar("_Class", bound=type)

    def frozen(cls: _Class | None = None, **options: Any) -> _Class | Callable[[_Class], _Class]:
        """`attrs.frozen`."""
        return _made(attrs.frozen, cls, options)

    def define(cls: _Class | None = None, **options: Any) -> _Class | Callable[[_Class], _Class]:
        """`attrs.define`."""
        return _made(attrs.define, cls, options)

    def _made(make: Callable[..., Any], cls: Any, options: dict[str, Any]) -> Any:
        if cls is None:
            return lambda cls: _made(make, cls, options)
        made = make(cls, **{"repr": False, **options})
        if made.__repr__ is object.__repr__ and options.get("repr") is not False:
            made.__repr__ = _shown
        return made

    @recursive_repr()
    def _shown(self: Any) -> str:
        """The class and its attributes, as attrs has them."""
        fields = [field for field in attrs.fields(type(self)) if field.repr]
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields)
        return f"{type(self).__qualname__.rpartition('>.')[2]}({', '.join(shown)})"
