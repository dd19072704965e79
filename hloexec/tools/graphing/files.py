"""Files of graphs: `save` writes one in the format that its name ends in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from hloexec.core.arguments import require_path
from hloexec.core.files import open_atomically, require_writable
from hloexec.errors import InputError, os_errors_named
from hloexec.tools.graphing.dot import dot
from hloexec.tools.graphing.graphs import Graph
from hloexec.tools.graphing.model_explorer import graph_collection, node_data
from hloexec.tools.graphing.svg import require_dot, require_few, svg

FORMATS = (".dot", ".svg", ".json")


def format_of(path: str | os.PathLike[str]) -> str:
    """How the name of a file ends; InputError where that is no format of graphs."""
    require_path("path", path)
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{os.fspath(path)!r} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return suffix


def require_savable(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Raise what `save` would raise for the graph and the file's name, before its colours take a long run."""
    suffix = format_of(path)
    require_writable(path)
    if suffix == ".svg":
        require_few(graph)
        require_dot()


def save(graph: Graph, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Write a graph, and beside a .json file with colours one that ends in .node-data.json; returns their names.

    Raises InputError where the name ends otherwise or the file cannot be written, and what `svg` raises.
    """
    suffix = format_of(path)
    texts = {os.fspath(path): ""}
    if suffix == ".json":
        texts[os.fspath(path)] = _json(graph_collection(graph))
        if graph.colours is not None:
            texts[os.fspath(Path(path).with_suffix(".node-data.json"))] = _json(node_data(graph))
    else:
        texts[os.fspath(path)] = dot(graph) if suffix == ".dot" else svg(graph)
    for name, text in texts.items():
        with os_errors_named(f"write {name!r}"), open_atomically(name) as file:
            file.write(text.encode(errors="replace"))
    return tuple(texts)


def _json(record: Mapping[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
