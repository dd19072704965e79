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
from hloexec.language.text.lexer import BAD, END, NAME, PUNCTUATION, STRING, Lexer

_Item = TypeVar("_Item")


def meshes_of(module: Module) -> dict[str, Mesh]:
    """The meshes that a module's attributes define, by name; raises ParseError."""
    text = dict(module.frontend_attributes or ()).get("xla.sdy.meshes")
    return {} if text is None else parse_meshes(text)


def parse_meshes(text: str) -> dict[str, Mesh]:
    """meshes ::= '{' [name '=' '#sdy.mesh' '<' mesh '>' (',' …)*] '}'; raises ParseError."""
    reader = _Reader(text, "<xla.sdy.meshes>")
    found = dict(reader.items("{", "}", reader.named_mesh))
    reader.end()
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
        reader.expect("<")
        found = reader.items("[", "]", reader.sharding)
        reader.expect(">")
    reader.end()
    return found


def parse_manual_axes(text: str) -> tuple[str, ...]:
    """axes ::= '#sdy' '<' 'manual_axes' '{' [string (',' string)*] '}' '>'; raises ParseError."""
    reader = _Reader(text, "<xla.sdy.manual_axes>")
    reader.attribute("")
    reader.expect("<")
    reader.word("manual_axes")
    found = reader.items("{", "}", reader.axis_name)
    reader.expect(">")
    reader.end()
    return found


class _Reader:
    """The rules that make up the attributes."""

    def __init__(self, text: str, what: str, meshes: Mapping[str, Mesh] | None = None) -> None:
        self._lexer = Lexer(text, what)
        self._meshes = meshes or {}

    def end(self) -> None:
        if self._lexer.kind != END:
            self._lexer.fail(f"expected the end of the attribute, found {self._lexer.describe()}")

    def at(self, mark: str) -> bool:
        # Angle brackets and at signs are no tokens of HLO.
        return self._lexer.value == mark and self._lexer.kind in (PUNCTUATION, BAD)

    def take(self, mark: str) -> bool:
        if self.at(mark):
            self._lexer.advance()
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            self._lexer.fail(f"expected '{mark}', found {self._lexer.describe()}")

    def word(self, word: str) -> None:
        if not self._lexer.at_word(word):
            self._lexer.fail(f"expected '{word}', found {self._lexer.describe()}")
        self._lexer.advance()

    def items(self, opening: str, closing: str, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """opening [item (',' item)*] closing"""
        self.expect(opening)
        found: list[_Item] = []
        while not self.at(closing):
            found.append(item())
            if not self.take(","):
                break
        self.expect(closing)
        return tuple(found)

    def attribute(self, *kinds: str) -> str:
        """'#sdy' ['.' kind]"""
        self.expect("#")
        lexer = self._lexer
        names = {f"sdy.{kind}" if kind else "sdy": kind for kind in kinds}
        if lexer.kind != NAME or lexer.value not in names:
            wanted = " or ".join(f"'#{name}'" for name in names)
            lexer.fail(f"expected {wanted}, found {lexer.describe()}")
        kind = names[lexer.value]
        lexer.advance()
        return kind

    def named_mesh(self) -> tuple[str, Mesh]:
        """name '=' '#sdy.mesh' '<' mesh '>'"""
        name = self._name("the name of a mesh")
        self.expect("=")
        self.attribute("mesh")
        return name, self.mesh()

    def mesh(self) -> Mesh:
        """'<' '[' [string '=' int (',' …)*] ']' [',' 'device_ids' '=' '[' int (',' int)* ']'] '>'"""
        lexer = self._lexer
        self.expect("<")
        axes = self.items("[", "]", self._sized_axis)
        device_ids: tuple[int, ...] | None = None
        if self.take(","):
            start = lexer.start
            self.word("device_ids")
            self.expect("=")
            device_ids = self.items("[", "]", lambda: lexer.integer("a device"))
            if not axes and len(device_ids) == 1:
                self.expect(">")
                return Mesh(maximal_device=device_ids[0])
            count = math.prod(size for _, size in axes)
            if len(device_ids) != count or sorted(device_ids) != list(range(count)):
                lexer.fail(f"the mesh has {count} devices, and its device order must name each of them once", start)
        self.expect(">")
        return Mesh(axes, device_ids)

    def _sized_axis(self) -> tuple[str, int]:
        name = self.axis_name()
        self.expect("=")
        start = self._lexer.start
        size = self._lexer.integer("the size of a mesh axis")
        if size < 1:
            self._lexer.fail("the size of a mesh axis must be at least 1", start)
        return name, size

    def sharding(self) -> NamedSharding:
        """'<' mesh-or-ref ',' '[' dimensions ']' (',' ('replicated' | 'unreduced') '=' '{' axes '}')* '>'"""
        lexer = self._lexer
        self.expect("<")
        if self.take("@"):
            start = lexer.start
            name = self._name("the name of a mesh")
            if name not in self._meshes:
                lexer.fail(f"the module has no mesh '{name}'", start)
            mesh = self._meshes[name]
        else:
            self.word("mesh")
            mesh = self.mesh()
        self.expect(",")
        fields: dict[str, Any] = {}
        dimensions = self.items("[", "]", self._dimension)
        while self.take(","):
            if lexer.kind != NAME or lexer.value not in ("replicated", "unreduced"):
                lexer.fail(f"expected 'replicated' or 'unreduced', found {lexer.describe()}")
            part = lexer.word("a part of a sharding")
            self.expect("=")
            fields[part] = self.items("{", "}", self._axis)
        self.expect(">")
        return NamedSharding(mesh, dimensions=dimensions, **fields)

    def _dimension(self) -> DimensionSharding:
        """'{' [axis (',' axis)*] [[','] '?'] '}' ['p' int]; the priority concerns propagation only."""
        axes: list[AxisRef] = []
        is_closed = True

        def part() -> None:
            nonlocal is_closed
            if not is_closed:
                self._lexer.fail("'?' is the last of a dimension's axes")
            if self.take("?"):
                is_closed = False
            else:
                axes.append(self._axis())

        self.items("{", "}", part)
        lexer = self._lexer
        if lexer.kind == NAME and lexer.value[0] == "p" and lexer.value[1:].isdecimal():
            lexer.advance()
        return DimensionSharding(tuple(axes), is_closed)

    def _axis(self) -> AxisRef:
        """string [':' '(' int ')' int]"""
        lexer = self._lexer
        name = self.axis_name()
        if not self.take(":"):
            return AxisRef(name)
        self.expect("(")
        above = lexer.integer("the size above a sub-axis")
        self.expect(")")
        return AxisRef(name, (above, lexer.integer("the size of a sub-axis")))

    def axis_name(self) -> str:
        return self._lexer.string("the name of a mesh axis")

    def _name(self, what: str) -> str:
        return self._lexer.string(what) if self._lexer.kind == STRING else self._lexer.word(what)
