"""Shardings and replica groups in text."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

from hloexec.core.ir import (
    AxisRef,
    DimensionSharding,
    IotaTiles,
    Mesh,
    MeshReplicaGroups,
    Metadata,
    NamedSharding,
    ReplicaGroups,
    Sharding,
    ShardingType,
    TileSharding,
    TupleSharding,
)
from hloexec.language.text.attributes.annotations import AnnotationParser
from hloexec.language.text.attributes.values import AttributeParser
from hloexec.language.text.lexer import END, NAME, STRING, Lexer
from hloexec.language.text.shapes import ShapeParser
from hloexec.language.text.state import ParserState

_KINDS = {
    "replicated": ShardingType.REPLICATED,
    "maximal": ShardingType.MAXIMAL,
    "manual": ShardingType.MANUAL,
    "unknown": ShardingType.UNKNOWN,
    "unreduced": ShardingType.UNREDUCED,
}
"""Where a text names several of them, the first decides, as in XLA."""
_ONE_DEVICE = ("maximal_mesh", "single_device")
"""A mesh of one device, as XLA writes it before jaxlib 0.12 and since."""
_AXES_KINDS = ("replicated", "unreduced", "manual")
_SUBGROUP_KINDS = ("maximal", "replicated", "manual", "unreduced")


def parse_sharding(text: str) -> Sharding:
    """A sharding by itself, `{devices=[2,4]<=[8]}` or `{{replicated}, {manual}}`; raises ParseError."""
    state = ParserState(Lexer(text, "<sharding>"), strict=False)
    attributes = AttributeParser(state, ShapeParser(state.lexer))
    found = ShardingParser(state.lexer, attributes, AnnotationParser(state, attributes), strict=False).sharding()
    if state.lexer.kind != END:
        state.lexer.fail(f"expected the end of the sharding, found {state.lexer.describe()}")
    return found


class ShardingParser:
    """Reads shardings and replica groups from a lexer."""

    __slots__ = ("_annotations", "_attributes", "_lexer", "_strict")

    def __init__(
        self, lexer: Lexer, attributes: AttributeParser, annotations: AnnotationParser, *, strict: bool
    ) -> None:
        self._annotations = annotations
        self._lexer = lexer
        self._attributes = attributes
        self._strict = strict

    def sharding(self) -> Sharding:
        """sharding ::= single | '{' [single (',' single)*] '}'"""
        lexer = self._lexer
        if not lexer.at("{"):
            lexer.fail(f"expected '{{' before a sharding, found {lexer.describe()}")
        if lexer.following() in ("{", "}"):
            return TupleSharding(self._attributes.items("{", "}", "a tuple of shardings", self._single))
        return self._single()

    def _single(self) -> TileSharding | NamedSharding:
        """single ::= '{' (tile form | mesh form) '}'"""
        lexer = self._lexer
        lexer.expect("{", "before a sharding")
        if any(map(lexer.at_word, ("mesh", *_ONE_DEVICE))):
            return self._named()
        return self._tiled()

    def _tiled(self) -> TileSharding:
        """(kind | 'device=' int | 'devices=' tiles | 'last_tile_dims={' kinds '}' | 'last_tile_dim_replicate' |
        'shard_as' int | 'shard_like' int | 'metadata=' metadata)* '}'"""
        lexer = self._lexer
        start = lexer.start
        kinds: set[str] = set()
        fields: dict[str, Any] = {}
        while not lexer.at("}"):
            position = lexer.start
            if lexer.kind != NAME:
                lexer.fail(f"expected a part of a sharding, found {lexer.describe()}")
            word = lexer.value
            if lexer.text.startswith("=", lexer.end):
                self._field(lexer.attribute_name("a part of a sharding"), fields, position)
            elif word in _KINDS:
                kinds.add(word)
                lexer.advance()
            elif word == "last_tile_dim_replicate":
                fields[word] = True
                lexer.advance()
            elif word in ("shard_as", "shard_like"):
                lexer.advance()
                fields[word] = lexer.integer("the shard group")
            else:
                lexer.fail(f"expected a part of a sharding, found '{word}'")
        lexer.advance()
        kind = next((kind for word, kind in _KINDS.items() if word in kinds), ShardingType.TILED)
        self._check(kind, fields, start)
        return TileSharding(kind, **fields)

    def _field(self, name: str, fields: dict[str, object], position: int) -> None:
        lexer = self._lexer
        if name == "device":
            fields["device"] = lexer.integer("a device")
        elif name == "devices":
            dimensions = self._bracketed("the tile dimensions")
            fields["tile_dimensions"] = dimensions
            if lexer.take("<="):
                fields["iota"] = self._iota(dimensions)
            else:
                devices = [lexer.integer("a device")]
                while lexer.take(","):
                    devices.append(lexer.integer("a device"))
                fields["devices"] = tuple(devices)
        elif name == "metadata":
            fields["metadata"] = self._annotations.metadata_list("the metadata of a sharding")
        elif name == "last_tile_dims":
            fields["last_tile_dims"] = self._attributes.items("{", "}", "last_tile_dims", self._subgroup_kind)
        else:
            known = "device, devices, metadata, last_tile_dims"
            lexer.fail(f"a sharding has the parts {known}; found '{name}'", position)

    def _subgroup_kind(self) -> ShardingType:
        start = self._lexer.start
        word = self._lexer.word(f"last_tile_dims ({', '.join(_SUBGROUP_KINDS)})")
        if word not in _SUBGROUP_KINDS:
            self._lexer.fail(f"last_tile_dims is one of {', '.join(_SUBGROUP_KINDS)}, found '{word}'", start)
        return _KINDS[word]

    def _check(self, kind: ShardingType, fields: dict[str, Any], start: int) -> None:
        lexer = self._lexer
        devices = fields.get("devices", ())
        if kind is ShardingType.MAXIMAL:
            if "device" not in fields and len(devices) != 1:
                lexer.fail("a maximal sharding names exactly one device", start)
        elif kind is not ShardingType.TILED:
            if devices or "device" in fields:
                lexer.fail(f"a {kind.value} sharding names no devices", start)
        elif "tile_dimensions" not in fields:
            lexer.fail("a sharding that is of no simple kind needs devices=[…]", start)
        elif "iota" not in fields:
            count = math.prod(fields["tile_dimensions"])
            if len(devices) <= 1:
                lexer.fail("a tiled sharding names more than one device", start)
            if len(devices) != count:
                lexer.fail(f"the tile dimensions ask for {count} devices, found {len(devices)}", start)

    def _bracketed(self, what: str) -> tuple[int, ...]:
        """'[' int (',' int)* ']'"""
        lexer = self._lexer
        lexer.expect("[", f"before {what}")
        values = [lexer.integer(what)]
        while lexer.take(","):
            values.append(lexer.integer(what))
        lexer.expect("]", f"after {what}")
        return tuple(values)

    def _iota(self, dimensions: tuple[int, ...]) -> IotaTiles:
        """'[' int (',' int)* ']' ['T(' int (',' int)* ')'], the T part where there are several dimensions"""
        lexer = self._lexer
        start = lexer.start
        reshape = self._bracketed("the dimensions that an iota is reshaped to")
        permutation: tuple[int, ...] = (0,)
        if len(reshape) > 1:
            if not lexer.at_word("T"):
                lexer.fail(f"expected 'T(' before the permutation of an iota, found {lexer.describe()}")
            lexer.advance()
            position = lexer.start
            permutation = self._attributes.items(
                "(", ")", "the permutation of an iota", lambda: lexer.integer("a dimension")
            )
            if sorted(permutation) != list(range(len(reshape))):
                lexer.fail(f"the permutation of an iota of {len(reshape)} dimensions names each once", position)
        count, wanted = math.prod(reshape), math.prod(dimensions)
        if count != wanted:
            lexer.fail(f"the tile dimensions ask for {wanted} devices, the iota has {count}", start)
        return IotaTiles(dimensions, reshape, permutation)

    def replica_groups(self) -> ReplicaGroups:
        """'{' [integers (',' integers)*] '}' | '[' int ',' int ']' '<=' iota | mesh axes"""
        lexer = self._lexer
        if lexer.at_word("mesh"):
            mesh = self._mesh()
            lexer.take(",")
            start = lexer.start
            axes = self._axes("the axes of replica groups", mesh)
            self._require_fitting(mesh, axes, start)
            return ReplicaGroups(mesh=MeshReplicaGroups(mesh, axes))
        if lexer.at("["):
            start = lexer.start
            dimensions = self._bracketed("the number of groups and their size")
            if len(dimensions) != 2:
                lexer.fail("an iota of replica groups has two dimensions, groups and size", start)
            lexer.expect("<=", "after the dimensions of replica groups")
            return ReplicaGroups(iota=self._iota(dimensions))
        return ReplicaGroups(groups=self._attributes.integer_lists("replica groups"))

    def _mesh(self) -> Mesh:
        """('maximal_mesh' | 'single_device') '[device_id=' int ']' | 'mesh[' [axis '=' int (',' …)*] ']' [order]
        order ::= ',' 'device_ids=(' … ')'
        """
        lexer = self._lexer
        word = lexer.word("'mesh' or 'maximal_mesh'")
        lexer.expect("[", f"after '{word}'")
        if word in _ONE_DEVICE:
            start = lexer.start
            if lexer.attribute_name("the device of a maximal mesh") != "device_id":
                lexer.fail("a maximal mesh has the field device_id", start)
            device = lexer.integer("the device of a maximal mesh")
            lexer.expect("]", "after a maximal mesh")
            return Mesh(maximal_device=device)
        axes: list[tuple[str, int]] = []
        while not lexer.at("]"):
            start = lexer.start
            name = self._axis_name()
            if name in dict(axes):
                lexer.fail(f"the mesh has two axes {name!r}", start)
            lexer.expect("=", "after the name of a mesh axis")
            axes.append((name, lexer.integer("the size of a mesh axis")))
            if not lexer.take(","):
                break
        lexer.expect("]", "after the axes of a mesh")
        position = lexer.start
        if lexer.at(",") and lexer.following() == "device_ids":
            lexer.advance()
            lexer.attribute_name("the device order")
            lexer.expect("(", "before the device order of a mesh")
            sizes = tuple(size for _, size in axes)
            if lexer.at("["):
                iota = self._iota(sizes)
                lexer.expect(")", "after the device order of a mesh")
                return Mesh(tuple(axes), iota=iota)
            devices: list[int] = []
            while not lexer.at(")"):
                devices.append(lexer.integer("a device"))
                if not lexer.take(","):
                    break
            lexer.expect(")", "after the device order of a mesh")
            count = math.prod(sizes)
            if len(devices) != count:
                lexer.fail(f"the mesh has {count} devices, its device order names {len(devices)}", position)
            return Mesh(tuple(axes), device_ids=tuple(devices))
        return Mesh(tuple(axes))

    def _axis_name(self) -> str:
        """A quoted name; XLA wrote it without quotes for a while."""
        lexer = self._lexer
        if lexer.kind == STRING or self._strict:
            return lexer.string("the name of a mesh axis")
        return lexer.name("the name of a mesh axis")

    def _axes(self, what: str, mesh: Mesh) -> tuple[AxisRef, ...]:
        return self._attributes.items("{", "}", what, partial(self._axis, mesh))

    def _axis(self, mesh: Mesh) -> AxisRef:
        """name [':(' int ')' int]; a number that is not a name is the position of an axis."""
        lexer = self._lexer
        start = lexer.start
        name = self._axis_name()
        if name not in dict(mesh.axes):
            by_number = {str(number): name for number, (name, _) in enumerate(mesh.axes)}
            if name not in by_number:
                lexer.fail(f"the mesh has no axis '{name}'", start)
            name = by_number[name]
        if not lexer.take(":") and not lexer.at("("):  # a name without quotes has taken its colon along
            return AxisRef(name)
        lexer.expect("(", "before the size above a sub-axis")
        above = lexer.integer("the size above a sub-axis")
        lexer.expect(")", "after the size above a sub-axis")
        return AxisRef(name, (above, lexer.integer("the size of a sub-axis")))

    def _dimension(self, mesh: Mesh) -> DimensionSharding:
        """'{' [axis (',' axis)*] [',' '?'] '}'"""
        lexer = self._lexer
        lexer.expect("{", "before the axes of a dimension")
        axes: list[AxisRef] = []
        is_closed = True
        while not lexer.at("}"):
            if lexer.take("?"):
                is_closed = False
            elif not is_closed:
                lexer.fail("'?' is the last of a dimension's axes")
            else:
                axes.append(self._axis(mesh))
            if not lexer.take(","):
                break
        lexer.expect("}", "after the axes of a dimension")
        return DimensionSharding(tuple(axes), is_closed)

    def _named(self) -> NamedSharding:
        """mesh [','] (kind | '[' dimensions ']' (',' (replicated | unreduced | manual) '={' axes '}')*)
        [',' 'metadata=' metadata] '}'"""
        lexer = self._lexer
        mesh = self._mesh()
        start = lexer.start
        fields: dict[str, Any] = {}
        if mesh.maximal_device is None:
            lexer.take(",")
            if lexer.kind == NAME and lexer.value in _AXES_KINDS:
                fields["kind"] = _KINDS[lexer.word("a kind")]
            else:
                fields["dimensions"] = self._attributes.items(
                    "[", "]", "the dimensions of a sharding", partial(self._dimension, mesh)
                )
        while lexer.take(","):
            part_start = lexer.start
            name = lexer.attribute_name("a part of a sharding")
            if name in fields:
                lexer.fail(f"the part '{name}' of a sharding occurs twice", part_start)
            elif name == "metadata":
                metadata: tuple[Metadata, ...] = self._annotations.metadata_list("the metadata of a sharding")
                fields["metadata"] = metadata
            elif name in _AXES_KINDS and "kind" not in fields:
                fields[name] = self._axes(f"the {name} axes", mesh)
            else:
                lexer.fail(
                    f"a mesh sharding has the parts replicated, unreduced, manual, metadata; found '{name}'", part_start
                )
        lexer.expect("}", "after a sharding")
        sharding = NamedSharding(mesh, **fields)
        used = [dimension.axes for dimension in sharding.dimensions]
        used += [getattr(sharding, kind) for kind in _AXES_KINDS]
        self._require_fitting(mesh, tuple(itertools.chain.from_iterable(used)), start)
        return sharding

    def _require_fitting(self, mesh: Mesh, axes: tuple[AxisRef, ...], start: int) -> None:
        if fault := mesh.fault_of(axes):
            self._lexer.fail(fault, start)
