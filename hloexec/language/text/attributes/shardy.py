"""Shardy's attributes, as its round trip through HLO keeps them in frontend attributes.

`xla.sdy.meshes` names the meshes of a module; `xla.sdy.in_shardings`, `xla.sdy.out_shardings` and `xla.sdy.sharding`
say which of a mesh's axes divide the dimensions of arrays; `xla.sdy.manual_axes` which axes a manual region is about.
Source: Shardy, sdy dialect (mesh, sharding, sharding_per_value, manual_axes) and its printed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hloexec.core.ir import AxisRef, DimensionSharding, Mesh, Module, NamedSharding
from hloexec.language.text.lexer import BAD, NAME, PUNCTUATION, STRING, Lexer

_Item = TypeVar("_Item")


def meshes_of(module: Module) -> dict[str, Mesh]:
    """The meshes that a module's attributes define, by name; raises ParseError."""
    text = dict(module.frontend_attributes or ()).get("xla.sdy.meshes")
    return {} if text is None else parse_meshes(text)


def parse_meshes(text: str) -> dict[str, Mesh]:
    """meshes ::= '{' [name '=' '#sdy.mesh' '<' mesh '>' (',' …)*] '}'; raises ParseError."""
    reader = _Reader(text, "<xla.sdy.meshes>")
    found = dict(reader.items("{", "}", reader.named_mesh))
    reader.end_of("the attribute")
    return found


def parse_shardings(text: str, meshes: Mapping[str, Mesh]) -> tuple[NamedSharding, ...]:
    """shardings ::= '#sdy.sharding_per_value' '<' '[' [sharding (',' sharding)*] ']' '>' | '#sdy.sharding' sharding

    `meshes` are those that a sharding may refer to by name. Raises ParseError.
    """
    reader = _Reader(text, "<sdy sharding>", meshes)
    found: tuple[NamedSharding, ...]
    if reader.attribute("sharding_per_value", "sharding") == "sharding":
        found = (reader.sharding(),)
    else:
        reader.expect_mark("<")
        found = reader.items("[", "]", reader.sharding)
        reader.expect_mark(">")
    reader.end_of("the attribute")
    return found


def parse_manual_axes(text: str) -> tuple[str, ...]:
    """axes ::= '#sdy' '<' 'manual_axes' '{' [string (',' string)*] '}' '>'; raises ParseError."""
    reader = _Reader(text, "<xla.sdy.manual_axes>")
    reader.attribute("")
    reader.expect_mark("<")
    reader.expect_word("manual_axes")
    found = reader.items("{", "}", reader.axis_name)
    reader.expect_mark(">")
    reader.end_of("the attribute")
    return found


class _Reader(Lexer):
    """The rules that make up the attributes."""

    def __init__(self, text: str, what: str, meshes: Mapping[str, Mesh] | None = None) -> None:
        super().__init__(text, what)
        self._meshes = meshes or {}

    def at_mark(self, mark: str) -> bool:
        # Angle brackets and at signs are no tokens of HLO.
        return self.value == mark and self.kind in (PUNCTUATION, BAD)

    def take_mark(self, mark: str) -> bool:
        if self.at_mark(mark):
            self.advance()
            return True
        return False

    def expect_mark(self, mark: str) -> None:
        if not self.take_mark(mark):
            self.fail(f"expected '{mark}', found {self.describe()}")

    def expect_word(self, word: str) -> None:
        if not self.at_word(word):
            self.fail(f"expected '{word}', found {self.describe()}")
        self.advance()

    def items(self, opening: str, closing: str, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """opening [item (',' item)*] closing"""
        self.expect_mark(opening)
        found: list[_Item] = []
        while not self.at_mark(closing):
            found.append(item())
            if not self.take_mark(","):
                break
        self.expect_mark(closing)
        return tuple(found)

    def attribute(self, *kinds: str) -> str:
        """'#sdy' ['.' kind]"""
        self.expect_mark("#")
        names = {f"sdy.{kind}" if kind else "sdy": kind for kind in kinds}
        if self.kind != NAME or self.value not in names:
            wanted = " or ".join(f"'#{name}'" for name in names)
            self.fail(f"expected {wanted}, found {self.describe()}")
        kind = names[self.value]
        self.advance()
        return kind

    def named_mesh(self) -> tuple[str, Mesh]:
        """name '=' '#sdy.mesh' '<' mesh '>'"""
        name = self._name("the name of a mesh")
        self.expect_mark("=")
        self.attribute("mesh")
        return name, self.mesh()

    def mesh(self) -> Mesh:
        """'<' '[' [string '=' int (',' …)*] ']' [',' 'device_ids' '=' '[' int (',' int)* ']'] '>'"""
        self.expect_mark("<")
        axes = self.items("[", "]", self._sized_axis)
        device_ids: tuple[int, ...] | None = None
        if self.take_mark(","):
            start = self.start
            self.expect_word("device_ids")
            self.expect_mark("=")
            device_ids = self.items("[", "]", lambda: self.integer("a device"))
            if not axes and len(device_ids) == 1:
                self.expect_mark(">")
                return Mesh(maximal_device=device_ids[0])
            count = math.prod(size for _, size in axes)
            if len(device_ids) != count or sorted(device_ids) != list(range(count)):
                self.fail(f"the mesh has {count} devices, and its device order must name each of them once", start)
        self.expect_mark(">")
        return Mesh(axes, device_ids)

    def _sized_axis(self) -> tuple[str, int]:
        name = self.axis_name()
        self.expect_mark("=")
        start = self.start
        size = self.integer("the size of a mesh axis")
        if size < 1:
            self.fail("the size of a mesh axis must be at least 1", start)
        return name, size

    def sharding(self) -> NamedSharding:
        """'<' mesh-or-ref ',' '[' dimensions ']' (',' ('replicated' | 'unreduced') '=' '{' axes '}')* '>'"""
        self.expect_mark("<")
        if self.take_mark("@"):
            start = self.start
            name = self._name("the name of a mesh")
            if name not in self._meshes:
                self.fail(f"the module has no mesh '{name}'", start)
            mesh = self._meshes[name]
        else:
            self.expect_word("mesh")
            mesh = self.mesh()
        self.expect_mark(",")
        fields: dict[str, Any] = {}
        dimensions = self.items("[", "]", self._dimension)
        while self.take_mark(","):
            if self.kind != NAME or self.value not in ("replicated", "unreduced"):
                self.fail(f"expected 'replicated' or 'unreduced', found {self.describe()}")
            part = self.word("a part of a sharding")
            self.expect_mark("=")
            fields[part] = self.items("{", "}", self._axis)
        self.expect_mark(">")
        return NamedSharding(mesh, dimensions=dimensions, **fields)

    def _dimension(self) -> DimensionSharding:
        """'{' [axis (',' axis)*] [[','] '?'] '}' ['p' int]; the priority concerns propagation only."""
        axes: list[AxisRef] = []
        is_closed = True

        def part() -> None:
            nonlocal is_closed
            if not is_closed:
                self.fail("'?' is the last of a dimension's axes")
            if self.take_mark("?"):
                is_closed = False
            else:
                axes.append(self._axis())

        self.items("{", "}", part)
        if self.kind == NAME and self.value[0] == "p" and self.value[1:].isdecimal():
            self.advance()
        return DimensionSharding(tuple(axes), is_closed)

    def _axis(self) -> AxisRef:
        """string [':' '(' int ')' int]"""
        name = self.axis_name()
        if not self.take_mark(":"):
            return AxisRef(name)
        self.expect_mark("(")
        above = self.integer("the size above a sub-axis")
        self.expect_mark(")")
        return AxisRef(name, (above, self.integer("the size of a sub-axis")))

    def axis_name(self) -> str:
        return self.string("the name of a mesh axis")

    def _name(self, what: str) -> str:
        return self.string(what) if self.kind == STRING else self.word(what)
