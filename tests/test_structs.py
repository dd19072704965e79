"""attrs classes with one `__repr__` for all of them."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hloexec.core import structs


def _shown(frozen: Callable[..., Any], define: Callable[..., Any]) -> list[str]:
    """Objects of classes that these decorators make."""

    @frozen
    class Pair:
        first: int
        _second: str = "b"

    @frozen(eq=False, slots=False)
    class Triple(Pair):
        third: float = attrs.field(default=0.5)
        hidden: int = attrs.field(default=3, repr=False)

    @define
    class Node:
        name: str
        next: Any = None

        @property
        def length(self) -> int:
            return 1

    @frozen
    class Named:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

    class Heir(Triple):
        pass

    node = Node("n")
    node.next = [node]
    return [repr(each) for each in (Pair(1), Triple(1, "c"), node, Named("x"), Heir(2), [Pair(2), Named("y")])]


def test_objects_are_shown_as_attrs_shows_them() -> None:
    shown = _shown(structs.frozen, structs.define)
    assert shown == _shown(attrs.frozen, attrs.define)
    assert shown[:2] == ["Pair(first=1, _second='b')", "Triple(first=1, _second='c', third=0.5)"]


def test_classes_are_those_of_attrs() -> None:
    @structs.frozen(cache_hash=True)
    class Point:
        x: int

    assert attrs.has(Point)
    assert attrs.evolve(Point(1), x=2) == Point(2)
    assert hash(Point(1)) == hash(Point(1))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]
