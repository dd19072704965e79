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
from hloexec.core.values import Ints
from hloexec.language.text.attributes.annotations import AnnotationParser
from hloexec.language.text.lexer import NAME, STRING

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
    parser = ShardingParser(text, "<sharding>")
    found = parser.sharding()
    parser.end_of("the sharding")
    return found


class ShardingParser(AnnotationParser):
    """Reads shardings and replica groups."""

    __slots__ = ()

    def sharding(self) -> Sharding:
        """sharding ::= single | '{' [single (',' single)*] '}'"""
        if not self.at("{"):
            self.fail(f"expected '{{' before a sharding, found {self.describe()}")
        if self.following() in ("{", "}"):
            return TupleSharding(self.braced("a tuple of shardings", self._single))
        return self._single()

    def _single(self) -> TileSharding | NamedSharding:
        """single ::= '{' (tile form | mesh form) '}'"""
        self.expect("{", "before a sharding")
        if any(map(self.at_word, ("mesh", *_ONE_DEVICE))):
            return self._named()
        return self._tiled()

    def _tiled(self) -> TileSharding:
        """(kind | 'device=' int | 'devices=' tiles | 'last_tile_dims={' kinds '}' | 'last_tile_dim_replicate' |
        'shard_as' int | 'shard_like' int | 'metadata=' metadata)* '}'"""
        start = self.start
        kinds: set[str] = set()
        fields: dict[str, Any] = {}
        while not self.at("}"):
            position = self.start
            if self.kind != NAME:
                self.fail(f"expected a part of a sharding, found {self.describe()}")
            word = self.value
            if self.text.startswith("=", self.end):
                self._sharding_field(self.attribute_name("a part of a sharding"), fields, position)
            elif word in _KINDS:
                kinds.add(word)
                self.advance()
            elif word == "last_tile_dim_replicate":
                fields[word] = True
                self.advance()
            elif word in ("shard_as", "shard_like"):
                self.advance()
                fields[word] = self.integer("the shard group")
            else:
                self.fail(f"expected a part of a sharding, found '{word}'")
        self.advance()
        kind = next((kind for word, kind in _KINDS.items() if word in kinds), ShardingType.TILED)
        self._check(kind, fields, start)
        return TileSharding(kind, **fields)

    def _sharding_field(self, name: str, fields: dict[str, object], position: int) -> None:
        if name == "device":
            fields["device"] = self.integer("a device")
        elif name == "devices":
            dimensions = self._bracketed("the tile dimensions")
            fields["tile_dimensions"] = dimensions
            if self.take("<="):
                fields["iota"] = self._iota(dimensions)
            else:
                devices = [self.integer("a device")]
                while self.take(","):
                    devices.append(self.integer("a device"))
                fields["devices"] = tuple(devices)
        elif name == "metadata":
            fields["metadata"] = self.metadata_list("the metadata of a sharding")
        elif name == "last_tile_dims":
            fields["last_tile_dims"] = self.braced("last_tile_dims", self._subgroup_kind)
        else:
            known = "device, devices, metadata, last_tile_dims"
            self.fail(f"a sharding has the parts {known}; found '{name}'", position)

    def _subgroup_kind(self) -> ShardingType:
        start = self.start
        word = self.word(f"last_tile_dims ({', '.join(_SUBGROUP_KINDS)})")
        if word not in _SUBGROUP_KINDS:
            self.fail(f"last_tile_dims is one of {', '.join(_SUBGROUP_KINDS)}, found '{word}'", start)
        return _KINDS[word]

    def _check(self, kind: ShardingType, fields: dict[str, Any], start: int) -> None:
        devices = fields.get("devices", ())
        if kind is ShardingType.MAXIMAL:
            if "device" not in fields and len(devices) != 1:
                self.fail("a maximal sharding names exactly one device", start)
        elif kind is not ShardingType.TILED:
            if devices or "device" in fields:
                self.fail(f"a {kind.value} sharding names no devices", start)
        elif "tile_dimensions" not in fields:
            self.fail("a sharding that is of no simple kind needs devices=[…]", start)
        elif "iota" not in fields:
            count = math.prod(fields["tile_dimensions"])
            if len(devices) <= 1:
                self.fail("a tiled sharding names more than one device", start)
            if len(devices) != count:
                self.fail(f"the tile dimensions ask for {count} devices, found {len(devices)}", start)

    def _bracketed(self, subject: str) -> Ints:
        """'[' int (',' int)* ']'"""
        self.expect("[", f"before {subject}")
        values = [self.integer(subject)]
        while self.take(","):
            values.append(self.integer(subject))
        self.expect("]", f"after {subject}")
        return tuple(values)

    def _iota(self, dimensions: Ints) -> IotaTiles:
        """'[' int (',' int)* ']' ['T(' int (',' int)* ')'], the T part where there are several dimensions"""
        start = self.start
        reshape = self._bracketed("the dimensions that an iota is reshaped to")
        permutation: Ints = (0,)
        if len(reshape) > 1:
            if not self.at_word("T"):
                self.fail(f"expected 'T(' before the permutation of an iota, found {self.describe()}")
            self.advance()
            position = self.start
            permutation = self.items("(", ")", "the permutation of an iota", lambda: self.integer("a dimension"))
            if sorted(permutation) != list(range(len(reshape))):
                self.fail(f"the permutation of an iota of {len(reshape)} dimensions names each once", position)
        count, wanted = math.prod(reshape), math.prod(dimensions)
        if count != wanted:
            self.fail(f"the tile dimensions ask for {wanted} devices, the iota has {count}", start)
        return IotaTiles(dimensions, reshape, permutation)

    def replica_groups(self) -> ReplicaGroups:
        """'{' [integers (',' integers)*] '}' | '[' int ',' int ']' '<=' iota | mesh axes"""
        if self.at_word("mesh"):
            mesh = self._mesh()
            self.take(",")
            start = self.start
            axes = self._axes("the axes of replica groups", mesh)
            self._require_fitting(mesh, axes, start)
            return ReplicaGroups(mesh=MeshReplicaGroups(mesh, axes))
        if self.at("["):
            start = self.start
            dimensions = self._bracketed("the number of groups and their size")
            if len(dimensions) != 2:
                self.fail("an iota of replica groups has two dimensions, groups and size", start)
            self.expect("<=", "after the dimensions of replica groups")
            return ReplicaGroups(iota=self._iota(dimensions))
        return ReplicaGroups(groups=self.integer_lists("replica groups"))

    def _mesh(self) -> Mesh:
        """('maximal_mesh' | 'single_device') '[device_id=' int ']' | 'mesh[' [axis '=' int (',' …)*] ']' [order]
        order ::= ',' 'device_ids=(' … ')'
        """
        word = self.word("'mesh' or 'maximal_mesh'")
        self.expect("[", f"after '{word}'")
        if word in _ONE_DEVICE:
            start = self.start
            if self.attribute_name("the device of a maximal mesh") != "device_id":
                self.fail("a maximal mesh has the field device_id", start)
            device = self.integer("the device of a maximal mesh")
            self.expect("]", "after a maximal mesh")
            return Mesh(maximal_device=device)
        axes: list[tuple[str, int]] = []
        while not self.at("]"):
            start = self.start
            name = self._axis_name()
            if name in dict(axes):
                self.fail(f"the mesh has two axes {name!r}", start)
            self.expect("=", "after the name of a mesh axis")
            axes.append((name, self.integer("the size of a mesh axis")))
            if not self.take(","):
                break
        self.expect("]", "after the axes of a mesh")
        position = self.start
        if self.at(",") and self.following() == "device_ids":
            self.advance()
            self.attribute_name("the device order")
            self.expect("(", "before the device order of a mesh")
            sizes = tuple(size for _, size in axes)
            if self.at("["):
                iota = self._iota(sizes)
                self.expect(")", "after the device order of a mesh")
                return Mesh(tuple(axes), iota=iota)
            devices = self.rest(lambda: self.integer("a device"), "the device order of a mesh")
            count = math.prod(sizes)
            if len(devices) != count:
                self.fail(f"the mesh has {count} devices, its device order names {len(devices)}", position)
            return Mesh(tuple(axes), device_ids=devices)
        return Mesh(tuple(axes))

    def _axis_name(self) -> str:
        """A quoted name; XLA wrote it without quotes for a while."""
        if self.kind == STRING or self.strict:
            return self.string("the name of a mesh axis")
        return self.name("the name of a mesh axis")

    def _axes(self, subject: str, mesh: Mesh) -> tuple[AxisRef, ...]:
        return self.braced(subject, partial(self._axis, mesh))

    def _axis(self, mesh: Mesh) -> AxisRef:
        """name [':(' int ')' int]; a number that is not a name is the position of an axis."""
        start = self.start
        name = self._axis_name()
        if name not in dict(mesh.axes):
            by_number = {str(number): name for number, (name, _) in enumerate(mesh.axes)}
            if name not in by_number:
                self.fail(f"the mesh has no axis '{name}'", start)
            name = by_number[name]
        if not self.take(":") and not self.at("("):  # a name without quotes has taken its colon along
            return AxisRef(name)
        self.expect("(", "before the size above a sub-axis")
        above = self.integer("the size above a sub-axis")
        self.expect(")", "after the size above a sub-axis")
        return AxisRef(name, (above, self.integer("the size of a sub-axis")))

    def _dimension(self, mesh: Mesh) -> DimensionSharding:
        """'{' [axis (',' axis)*] [',' '?'] '}'"""
        self.expect("{", "before the axes of a dimension")
        axes: list[AxisRef] = []
        is_closed = True
        while not self.at("}"):
            if self.take("?"):
                is_closed = False
            elif not is_closed:
                self.fail("'?' is the last of a dimension's axes")
            else:
                axes.append(self._axis(mesh))
            if not self.take(","):
                break
        self.expect("}", "after the axes of a dimension")
        return DimensionSharding(tuple(axes), is_closed)

    def _named(self) -> NamedSharding:
        """mesh [','] (kind | '[' dimensions ']' (',' (replicated | unreduced | manual) '={' axes '}')*)
        [',' 'metadata=' metadata] '}'"""
        mesh = self._mesh()
        start = self.start
        fields: dict[str, Any] = {}
        if mesh.maximal_device is None:
            self.take(",")
            if self.kind == NAME and self.value in _AXES_KINDS:
                fields["kind"] = _KINDS[self.word("a kind")]
            else:
                fields["dimensions"] = self.items(
                    "[", "]", "the dimensions of a sharding", partial(self._dimension, mesh)
                )
        while self.take(","):
            part_start = self.start
            name = self.attribute_name("a part of a sharding")
            if name in fields:
                self.fail(f"the part '{name}' of a sharding occurs twice", part_start)
            elif name == "metadata":
                metadata: tuple[Metadata, ...] = self.metadata_list("the metadata of a sharding")
                fields["metadata"] = metadata
            elif name in _AXES_KINDS and "kind" not in fields:
                fields[name] = self._axes(f"the {name} axes", mesh)
            else:
                self.fail(
                    f"a mesh sharding has the parts replicated, unreduced, manual, metadata; found '{name}'", part_start
                )
        self.expect("}", "after a sharding")
        sharding = NamedSharding(mesh, **fields)
        used = [dimension.axes for dimension in sharding.dimensions]
        used += [getattr(sharding, kind) for kind in _AXES_KINDS]
        self._require_fitting(mesh, tuple(itertools.chain.from_iterable(used)), start)
        return sharding

    def _require_fitting(self, mesh: Mesh, axes: tuple[AxisRef, ...], start: int) -> None:
        if fault := mesh.fault_of(axes):
            self.fail(fault, start)
