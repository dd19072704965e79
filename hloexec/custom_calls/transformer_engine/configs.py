"""Transformer Engine: what its calls have in common, and those whose configs do not say what to compute.

Its calls say what to compute in typed attributes whose names, and the operands that go with them, change between
versions; an attribute that hloexec does not know refuses the call, since it may change values. Source: NVIDIA
TransformerEngine, transformer_engine/jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from hloexec.custom_calls.ffi import AttributeValue, ffi_attributes
from hloexec.errors import UnsupportedError

__all__ = ["Attributes"]

_T = TypeVar("_T")


class Attributes:
    """The attributes of a call, each asked for once by name; leaving the context refuses those nobody asked for."""

    def __init__(self, backend_config: str | None) -> None:
        self._found = dict(ffi_attributes(backend_config))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedError(f"its attribute {name} must be a whole number, but is {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._take(name, default)
        if isinstance(value, (bool, str)):
            raise UnsupportedError(f"its attribute {name} must be a number, but is {value!r}")
        return float(value)

    def truth(self, name: str, default: bool | None = None) -> bool:
        value = self._take(name, default)
        if value not in (True, False) or isinstance(value, float):
            raise UnsupportedError(f"its attribute {name} must be true or false, but is {value!r}")
        return bool(value)

    def choice(self, name: str, choices: Mapping[int, _T], default: int | None = None) -> _T:
        """What an enumeration's number stands for."""
        value = self.integer(name, default)
        if value not in choices:
            known = ", ".join(f"{number} ({meaning})" for number, meaning in choices.items())
            raise UnsupportedError(f"its attribute {name} is {value}, and hloexec has {known}")
        return choices[value]

    def ignore(self, *names: str) -> None:
        """Pass over attributes that cannot change values, or repeat what the operands' shapes say."""
        for name in names:
            self._found.pop(name, None)

    def __enter__(self) -> Attributes:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for name in self._found if error is None else ():
            raise UnsupportedError(f"its backend_config has the attribute {name}, which hloexec does not know")

    def _take(self, name: str, default: AttributeValue | None) -> AttributeValue:
        value = self._found.pop(name, default)
        if value is None:
            raise UnsupportedError(f"its backend_config lacks the attribute {name}")
        return value
