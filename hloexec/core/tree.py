"""Trees: values, shapes, literals and whatever else nests as tuples do.

`branches` says of a node what it holds, and None of a leaf; without it, tuples are what holds something. All go depth
first, and without recursion, as tuples may nest deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Nested: TypeAlias = T | tuple["Nested[T]", ...]
"""A leaf of some type, or a (nested) tuple of such leaves."""

Branches: TypeAlias = Callable[[Any], Sequence[Any] | None]


def of_tuple(node: object) -> tuple[Any, ...] | None:
    """The elements of a tuple."""
    return node if isinstance(node, tuple) else None


def of_sequence(node: object) -> Sequence[Any] | None:
    """The elements of a tuple or a list."""
    return node if isinstance(node, (tuple, list)) else None


def walk(root: Any, branches: Branches = of_tuple) -> Iterator[tuple[tuple[int, ...], Any, Sequence[Any] | None]]:
    """All nodes, each with its index path in front of it and what it holds behind it, and before that."""
    stack: list[tuple[tuple[int, ...], Any]] = [((), root)]
    while stack:
        index, node = stack.pop()
        parts = branches(node)
        yield index, node, parts
        if parts:
            stack.extend(((*index, number), parts[number]) for number in range(len(parts) - 1, -1, -1))


def leaves(root: Any, branches: Branches = of_tuple) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The leaves with their index paths; an array is its own only leaf, at `()`."""
    return ((index, node) for index, node, parts in walk(root, branches) if parts is None)


def flat(root: Any, branches: Branches = of_tuple, *, is_counted: bool = False) -> list[Any]:
    """The leaves; where they are counted, with how many nodes each other node holds in front of those."""
    flat_leaves: list[Any] = []
    stack = [root]
    while stack:
        node = stack.pop()
        parts = branches(node)
        if parts is None:
            flat_leaves.append(node)
            continue
        if is_counted:
            flat_leaves.append(len(parts))
        stack.extend(reversed(parts))
    return flat_leaves


def fold(root: Any, branches: Branches, leaf: Callable[[Any], T], join: Callable[[Any, list[T]], T]) -> T:
    """What `join` makes of each node and of what has been made of what it holds, beginning with `leaf` of leaves."""
    parts = branches(root)
    if parts is None:
        return leaf(root)
    frames: list[tuple[Any, Iterator[Any], list[T]]] = [(root, iter(parts), [])]
    while True:
        node, pending, done = frames[-1]
        for part in pending:
            parts = branches(part)
            if parts is not None:
                frames.append((part, iter(parts), []))
                break
            done.append(leaf(part))
        else:
            frames.pop()
            if not frames:
                return join(node, done)
            frames[-1][2].append(join(node, done))


def parenthesized(_: object, texts: Sequence[str]) -> str:
    """The text of a tuple, where a tree is written."""
    return f"({', '.join(texts)})"


def rebuilt(root: Any, branches: Branches, leaf: Callable[[Any], T]) -> Nested[T]:
    """Nested tuples with `leaf` of each leaf in its place."""
    return fold(root, branches, leaf, lambda _, parts: tuple(parts))  # type: ignore[arg-type,return-value]


def mapped(value: object, leaf: Callable[[Any], T]) -> Nested[T]:
    """A value with `leaf` of each of its leaves in its place."""
    return rebuilt(value, of_tuple, leaf)
