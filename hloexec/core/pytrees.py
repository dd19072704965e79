"""Nested containers, as JAX's functions take and return them (pytrees): dicts, lists, tuples and what JAX knows.

The leaves stand in JAX's order: those of a dict by its sorted keys; None holds none.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from hloexec.core.arrays import is_foreign
from hloexec.core.values import Token
from hloexec.errors import InputError

_DEEPEST = 1000
_LEAVES = (np.generic, Token, bool, int, float, complex, str, bytes)


def branches(node: object) -> list[tuple[str, Any]] | None:
    """What a container holds, behind the keys that JAX writes in paths (`['w']`, `[0]`, `.w`); None for a leaf."""
    kind = type(node)
    if kind is np.ndarray or isinstance(node, _LEAVES):
        return None
    if node is None:
        return []
    if kind not in (dict, list, tuple) and not isinstance(node, OrderedDict) and not hasattr(kind, "_fields"):
        found = None if is_foreign(node) else _registered(node)
        if found is not None:
            return found
    if isinstance(node, Mapping):
        return [(f"[{key!r}]", node[key]) for key in _keys(node)]
    if not isinstance(node, (tuple, list)):
        return None
    fields = getattr(kind, "_fields", None)
    if fields is not None:
        return [(f".{name}", value) for name, value in zip(fields, node, strict=True)]
    return [(f"[{number}]", value) for number, value in enumerate(node)]


def is_branch(node: object) -> bool:
    """Whether it is a container or None."""
    return branches(node) is not None


def tree_leaves(root: object) -> list[tuple[str, Any]]:
    """The leaves behind their paths, such as `['layers'][0].w`; InputError for what has no order or no end."""
    found: list[tuple[str, Any]] = []
    stack: list[tuple[tuple[str, ...], Any]] = [((), root)]
    while stack:
        path, node = stack.pop()
        parts = branches(node)
        if parts is None:
            found.append(("".join(path), node))
            continue
        if len(path) > _DEEPEST:
            raise InputError(f"a container nests more than {_DEEPEST} deep, or holds itself")
        stack.extend(((*path, key), part) for key, part in reversed(parts))
    return found


def _keys(node: Mapping[Any, Any]) -> list[Any]:
    if isinstance(node, OrderedDict):
        return list(node)
    try:
        return sorted(node)
    except TypeError:
        kinds = " and ".join(sorted({type(key).__name__ for key in node}))
        raise InputError(f"a dict has keys of type {kinds}, which cannot be sorted as JAX does") from None


def _registered(node: object) -> list[tuple[str, Any]] | None:
    """What JAX says that a node of its registry holds; None where JAX is not in use, or takes it for a leaf."""
    library = sys.modules.get("jax.tree_util")
    flatten, path_text = getattr(library, "tree_flatten_with_path", None), getattr(library, "keystr", None)
    if flatten is None or path_text is None:
        return None
    try:
        found, _ = flatten(node, is_leaf=lambda each: each is not node)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"JAX cannot flatten a {type(node).__qualname__}: {reason}") from error
    if len(found) == 1 and found[0][1] is node:
        return None
    return [(path_text(path), part) for path, part in found]
