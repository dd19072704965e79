"""The text of attributes: one method per grammar.

Each method of `AttributeParser` opens with the grammar it accepts. `PARSERS` maps the grammars that opcodes declare
(`ops.attributes.Grammar`) to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from hloexec.ir import (
    Alias,
    ConvolutionDimensionNumbers,
    EntryLayout,
    Metadata,
    OriginalValue,
    PaddingDimension,
    ResultAccuracy,
    Shape,
    SliceDimension,
    Statistics,
    Window,
    WindowDimension,
)
from hloexec.ops.attributes import OperandAlias
from hloexec.text.lexer import END, NAME, NUMBER, STRING
from hloexec.text.shapes import ShapeParser
from hloexec.text.state import ParserState

__all__ = ["AttributeParser"]

_T = TypeVar("_T")

_INTEGERS = re.compile(r"\{[ ]*(-?[0-9]{1,18}(?:,[ ]*-?[0-9]{1,18})*)?[ ]*\}")
_SIZES = re.compile(r"-?[0-9]+(?:x-?[0-9]+)*(?![A-Za-z0-9_.])")
_PADDING = re.compile(r"-?[0-9]+_-?[0-9]+(?:_[0-9]+)?(?:x-?[0-9]+_-?[0-9]+(?:_[0-9]+)?)*(?![A-Za-z0-9_.])")
_DIMENSION_LABELS = re.compile(r"([0-9bf?]{2,})_([0-9io?]{2,})->([0-9bf?]{2,})(?![A-Za-z0-9_.])")
_METADATA_FIELD = re.compile(r'([a-z_]+)=(?:"([^"\\]*)"|([0-9]{1,9}))')
_PLAIN_METADATA = re.compile(r'((?:[, ]*+[a-z_]++=(?:"[^"\\]*+"|[0-9]{1,9}+))*+)\}')
_PROFILE_TYPES = range(4)
_INT32 = range(-(1 << 31), 1 << 31)

_WINDOW_FIELDS = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
_METADATA_STRINGS = ("op_type", "op_name", "source_file", "deduplicated_name", "scheduling_name", "metadata_payload")
_METADATA_INTEGERS = ("source_line", "source_end_line", "source_column", "source_end_column", "stack_frame_id")


class AttributeParser:
    """Reads values of attributes from a lexer."""

    __slots__ = ("_known_metadata", "_lexer", "_shapes", "_state")

    def __init__(self, state: ParserState, shapes: ShapeParser) -> None:
        self._state = state
        self._lexer = state.lexer
        self._shapes = shapes
        self._known_metadata: dict[str, Metadata] = {}

    def items(self, opening: str, closing: str, what: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """opening [item (',' item)*] closing"""
        lexer = self._lexer
        lexer.expect(opening, f"before {what}")
        found: list[_T] = []
        if not lexer.at(closing):
            found.append(item())
            while lexer.take(","):
                found.append(item())
        lexer.expect(closing, f"after {what}")
        return tuple(found)

    def integers(self, what: str) -> tuple[int, ...]:
        """'{' [int (',' int)*] '}'"""
        lexer = self._lexer
        match = _INTEGERS.match(lexer.text, lexer.start)
        if match:
            lexer.move_to(match.end())
            return tuple(map(int, match[1].split(","))) if match[1] else ()
        return self.items("{", "}", what, lambda: lexer.integer(what))

    def single_integer(self, what: str) -> int:
        """'{' int '}'"""
        start = self._lexer.start
        values = self.integers(what)
        if len(values) != 1:
            self._lexer.fail(f"{what} takes exactly one integer, found {len(values)}", start)
        return values[0]

    def integer_lists(self, what: str) -> tuple[tuple[int, ...], ...]:
        """'{' [integers (',' integers)*] '}'"""
        return self.items("{", "}", what, lambda: self.integers(what))

    def integer_pairs(self, what: str) -> tuple[tuple[int, int], ...]:
        """'{' ['{' int ',' int '}' (',' …)*] '}'"""
        return self.items("{", "}", what, lambda: self._pair(what))

    def _pair(self, what: str) -> tuple[int, int]:
        start = self._lexer.start
        values = self.integers(what)
        if len(values) != 2:
            self._lexer.fail(f"{what} is a list of pairs, found {len(values)} integers", start)
        return values[0], values[1]

    def enumeration(self, what: str, choices: tuple[str, ...] | None) -> str:
        """A word out of `choices`; one that a newer XLA may know is kept unless strict."""
        lexer = self._lexer
        start = lexer.start
        value = lexer.word(f"{what} ({', '.join(choices or ())})")
        if choices is not None and value not in choices:
            lexer.fail(f"{what} is one of {', '.join(choices)}, found '{value}'", start)
        return value

    def enumerations(self, what: str, choices: tuple[str, ...] | None) -> tuple[str, ...]:
        """'{' [word (',' word)*] '}'"""
        return self.items("{", "}", what, lambda: self.enumeration(what, choices))

    def booleans(self, what: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}' | bool"""
        if not self._lexer.at("{"):
            return (self._lexer.boolean(what),)
        return self.items("{", "}", what, lambda: self._lexer.boolean(what))

    def shape_index(self, what: str) -> tuple[int, ...]:
        """'{' [int (',' int)* [',']] '}'"""
        return self.integers(what)

    # Geometry

    def window(self, what: str) -> Window:
        """'{' (field '=' sizes)* '}', field ::= size | stride | pad | lhs_dilate | rhs_dilate | rhs_reversal"""
        lexer = self._lexer
        lexer.expect("{", "before a window")
        start = lexer.start
        fields: dict[str, list[Any]] = {}
        while not lexer.at("}"):
            position = lexer.start
            name = lexer.attribute_name(f"a field of a window ({', '.join(_WINDOW_FIELDS)})")
            if name not in _WINDOW_FIELDS:
                lexer.fail(f"a window has the fields {', '.join(_WINDOW_FIELDS)}, found '{name}'", position)
            if name in fields:
                lexer.fail(f"the window field '{name}' occurs twice", position)
            fields[name] = self._paddings() if name == "pad" else self._sizes(name)
        lexer.advance()
        rank = len(fields.get("size", ()))
        for name, values in fields.items():
            if len(values) != rank:
                lexer.fail(f"the window has {rank} sizes, but '{name}' has {len(values)} entries", start)
        size = fields.get("size", [])
        ones = [1] * rank
        stride, base, dilation = (fields.get(name, ones) for name in ("stride", "lhs_dilate", "rhs_dilate"))
        padding = fields.get("pad", [(0, 0)] * rank)
        reversal = fields.get("rhs_reversal", [0] * rank)
        return Window(
            tuple(
                WindowDimension(
                    size[i], stride[i], padding[i][0], padding[i][1], base[i], dilation[i], reversal[i] == 1
                )
                for i in range(rank)
            )
        )

    def _sizes(self, name: str) -> list[int]:
        """int ('x' int)*"""
        match = self._lexer.pattern(_SIZES, f"sizes such as 3x3 after '{name}='")
        return [int(size) for size in match[0].split("x")]

    def _paddings(self) -> list[tuple[int, int]]:
        """low '_' high ('x' low '_' high)*"""
        start = self._lexer.start
        match = self._lexer.pattern(_PADDING, "padding such as 0_1x2_2 after 'pad='")
        entries = [tuple(map(int, entry.split("_"))) for entry in match[0].split("x")]
        if any(len(entry) != 2 for entry in entries):
            self._lexer.fail("the padding of a window is low_high per dimension, without interior padding", start)
        return [(entry[0], entry[1]) for entry in entries]

    def padding(self, what: str) -> tuple[PaddingDimension, ...]:
        """low '_' high ['_' interior] ('x' low '_' high ['_' interior])*"""
        match = self._lexer.pattern(_PADDING, "padding such as 0_0_0x3_3_1")
        return tuple(PaddingDimension(*map(int, entry.split("_"))) for entry in match[0].split("x"))

    def slice(self, what: str) -> tuple[SliceDimension, ...]:
        """'{' ['[' start ':' limit [':' stride] ']' (',' …)*] '}'"""
        return self.items("{", "}", what, self._range)

    def _range(self) -> SliceDimension:
        lexer = self._lexer
        start = lexer.start
        lexer.expect("[", "before the range of a slice")
        bounds = [lexer.integer("the start of a slice")]
        while lexer.take(":"):
            bounds.append(lexer.integer("a bound of a slice"))
        if not 2 <= len(bounds) <= 3:
            lexer.fail(
                f"the range of a slice is [start:limit] or [start:limit:stride], found {len(bounds)} numbers", start
            )
        lexer.expect("]", "after the range of a slice")
        return SliceDimension(*bounds)

    def convolution_dimensions(self, what: str) -> ConvolutionDimensionNumbers:
        """labels '_' labels '->' labels, e.g. b01f_01io->b01f"""
        lexer = self._lexer
        start = lexer.start
        match = lexer.pattern(_DIMENSION_LABELS, "dimension labels such as b01f_01io->b01f")
        roles = (("bf", "input"), ("io", "kernel"), ("bf", "output"))
        sides = [self._labels(match[i + 1], letters, side, start) for i, (letters, side) in enumerate(roles)]
        (batch, feature, spatial), (kernel_in, kernel_out, kernel), (out_batch, out_feature, out_spatial) = sides
        if not len(spatial) == len(kernel) == len(out_spatial):
            lexer.fail(
                "input, kernel and output have the same number of spatial dimensions, "
                f"found {len(spatial)}, {len(kernel)} and {len(out_spatial)}",
                start,
            )
        return ConvolutionDimensionNumbers(
            batch,
            feature,
            spatial,
            kernel_in,
            kernel_out,
            kernel,
            out_batch,
            out_feature,
            out_spatial,
            *(len(match[group]) for group in (1, 2, 3)),
        )

    def _labels(self, labels: str, letters: str, side: str, start: int) -> tuple[int, int, tuple[int, ...]]:
        """The places of the two letters (0 where absent, as in XLA) and of the spatial digits of one side."""
        used = labels.replace("?", "")
        if len(set(used)) != len(used):
            self._lexer.fail(f"the {side} dimension labels '{labels}' name a dimension twice", start)
        digits = sorted(label for label in used if label.isdigit())
        if digits != [str(i) for i in range(len(digits))]:
            self._lexer.fail(f"the {side} dimension labels '{labels}' do not number their dimensions from 0", start)
        first, second = (max(labels.find(letter), 0) for letter in letters)
        return first, second, tuple(labels.index(digit) for digit in digits)

    # Aliasing and layouts of whole programs

    def operand_aliases(self, what: str) -> tuple[OperandAlias, ...]:
        """'{' [index ':' '(' int ',' index ')' (',' …)*] '}'"""
        return self.items("{", "}", what, lambda: OperandAlias(*self._alias(what)))

    def _alias(self, what: str) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        lexer = self._lexer
        output = self.shape_index(what)
        lexer.expect(":", f"after an output index in {what}")
        lexer.expect("(", f"before the aliased value in {what}")
        number = lexer.integer(f"a number in {what}")
        lexer.expect(",", f"before an index in {what}")
        index = self.shape_index(what)
        lexer.expect(")", f"after the aliased value in {what}")
        return output, number, index

    def input_output_alias(self, what: str) -> tuple[Alias, ...]:
        """'{' [index ':' '(' int ',' index [',' kind] ')' (',' …)*] '}', kind ::= may-alias | must-alias"""
        return self.items("{", "}", what, lambda: self._output_alias(what))

    def _output_alias(self, what: str) -> Alias:
        lexer = self._lexer
        output = self.shape_index(what)
        lexer.expect(":", f"after an output index in {what}")
        lexer.expect("(", f"before the parameter in {what}")
        number = lexer.integer(f"the parameter number in {what}")
        lexer.expect(",", f"before an index in {what}")
        index = self.shape_index(what)
        kind = self.enumeration("the kind of alias", ("may-alias", "must-alias")) if lexer.take(",") else "may-alias"
        lexer.expect(")", f"after the parameter in {what}")
        return Alias(output, number, index, kind)

    def buffer_donor(self, what: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """'{' ['(' int ',' index ')' (',' …)*] '}'"""
        return self.items("{", "}", what, lambda: self._donor(what))

    def _donor(self, what: str) -> tuple[int, tuple[int, ...]]:
        lexer = self._lexer
        lexer.expect("(", f"before a parameter in {what}")
        number = lexer.integer(f"the parameter number in {what}")
        lexer.expect(",", f"before an index in {what}")
        index = self.shape_index(what)
        lexer.expect(")", f"after a parameter in {what}")
        return number, index

    def entry_layout(self, what: str) -> EntryLayout:
        """'{' '(' [shape (',' shape)*] ')' '->' shape '}'"""
        lexer = self._lexer
        lexer.expect("{", f"before {what}")
        parameters = self.items("(", ")", "the shapes of the parameters", self._shapes.shape)
        lexer.expect("->", "before the shape of the result")
        result = self._shapes.shape()
        lexer.expect("}", f"after {what}")
        return EntryLayout(parameters, result)

    def shapes(self, what: str) -> tuple[Shape, ...]:
        """'{' [shape (',' shape)*] '}'"""
        return self.items("{", "}", what, self._shapes.shape)

    # What any instruction may carry

    def frontend_attributes(self, what: str) -> tuple[tuple[str, str], ...]:
        """'{' [name '=' (string | dictionary) (',' …)*] '}'"""
        pairs = self.items("{", "}", what, lambda: self._frontend_attribute(what))
        return tuple(sorted(dict(pairs).items()))

    def _frontend_attribute(self, what: str) -> tuple[str, str]:
        name = self._lexer.attribute_name(f"one of {what}")
        return name, self._lexer.string_or_dictionary(f"the value of '{name}'")

    def statistics(self, what: str) -> Statistics:
        """'{' '}' | '{' 'visualizing_index=' int (',' name '=' number)* '}'"""
        lexer = self._lexer
        lexer.expect("{", "before statistics")
        if lexer.take("}"):
            return Statistics()
        lexer.attribute_name("the visualizing index")
        index = lexer.integer("the visualizing index")
        values: list[tuple[str, float]] = []
        while lexer.take(","):
            name = lexer.attribute_name("a statistic")
            values.append((name, lexer.number(f"the statistic '{name}'")))
        lexer.expect("}", "after statistics")
        return Statistics(index, tuple(values))

    def result_accuracy(self, what: str) -> ResultAccuracy:
        """'{' 'mode=' word '}' | '{' 'tolerance={' [(atol | rtol | ulps) '=' number (',' …)*] '}' '}'"""
        lexer = self._lexer
        lexer.expect("{", "before a result accuracy")
        start = lexer.start
        name = lexer.attribute_name("a result accuracy (mode or tolerance)")
        if name == "mode":
            mode = self.enumeration("the mode of a result accuracy", ("default", "highest"))
            found = ResultAccuracy(mode=mode)
        elif name == "tolerance":
            pairs = dict(self.items("{", "}", "a tolerance", self._tolerance))
            found = ResultAccuracy(ulps=pairs.get("ulps"), rtol=pairs.get("rtol"), atol=pairs.get("atol"))
        else:
            lexer.fail(f"a result accuracy is a mode or a tolerance, found '{name}'", start)
        lexer.expect("}", "after a result accuracy")
        return found

    def _tolerance(self) -> tuple[str, float]:
        start = self._lexer.start
        name = self._lexer.attribute_name("a tolerance")
        if name not in ("atol", "rtol", "ulps"):
            self._lexer.fail(f"a tolerance is atol, rtol or ulps, found '{name}'", start)
        return name, self._lexer.number(f"the tolerance '{name}'")

    def original_value(self, what: str) -> OriginalValue:
        """'{' … '}', kept verbatim: '[synthetic_call]', or a tree of '{"name" [index]}' in parentheses"""
        lexer = self._lexer
        start = lexer.start
        lexer.expect("{", f"before {what}")
        if lexer.take("["):
            if lexer.name("'synthetic_call'") != "synthetic_call":
                lexer.fail("expected 'synthetic_call' between brackets", start)
            lexer.expect("]", "after 'synthetic_call'")
        depth = 0
        while not lexer.at("}"):
            if lexer.take("("):
                depth += 1
            elif depth and lexer.take(")"):
                depth -= 1
            elif depth and lexer.take(","):
                continue
            elif lexer.at("{"):
                self._original_array(what)
            else:
                lexer.fail(f"expected the origin of a leaf, or '}}' after {what}, found {lexer.describe()}")
        end = lexer.end
        lexer.advance()
        return OriginalValue(lexer.text[start:end])

    def _original_array(self, what: str) -> None:
        """'{' [string [index]] '}'"""
        lexer = self._lexer
        lexer.expect("{", f"before a leaf of {what}")
        if lexer.kind == STRING:
            lexer.string("the name of an original instruction")
            if lexer.at("{"):
                self.shape_index("the index of an original value")
        lexer.expect("}", f"after a leaf of {what}")

    def recovery_table(self, what: str) -> str:
        """'{' (leaf ':' leaf [',' string])* '}', kept verbatim"""
        lexer = self._lexer
        start = lexer.start
        lexer.expect("{", f"before {what}")
        while not lexer.at("}"):
            self._original_array(what)
            lexer.expect(":", f"between the values of {what}")
            self._original_array(what)
            if lexer.take(","):
                lexer.string("a recovery module")
        end = lexer.end
        lexer.advance()
        return lexer.text[start:end]

    def metadata(self, what: str = "metadata") -> Metadata:
        """'{' ([','] field)* '}'"""
        lexer = self._lexer
        if not lexer.at("{"):
            lexer.fail(f"expected '{{' before {what}, found {lexer.describe()}")
        found = self._plain_metadata()
        return found if found is not None else self._metadata_by_parts()

    def _plain_metadata(self) -> Metadata | None:
        """Metadata of strings without escapes and of integers, as nearly all is; remembered by its text."""
        lexer = self._lexer
        match = _PLAIN_METADATA.match(lexer.text, lexer.end)
        if match is None:
            return None
        body = match[1]
        known = self._known_metadata.get(body)
        if known is None:
            found = _METADATA_FIELD.findall(body)
            fields: dict[str, Any] = {}
            for name, string, integer in found:
                if integer and name in _METADATA_INTEGERS:
                    fields[name] = int(integer)
                elif not integer and name in _METADATA_STRINGS:
                    fields[name] = string
            if len(fields) != len(found):
                return None  # a field that is unknown, of another kind, or there twice
            known = self._known_metadata[body] = Metadata(**fields)
        lexer.move_to(match.end())
        return known

    def _metadata_by_parts(self) -> Metadata:
        lexer = self._lexer
        lexer.expect("{", "before metadata")
        fields: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        while not lexer.at("}"):
            lexer.take(",")
            start = lexer.start
            name = lexer.attribute_name("a field of metadata")
            if name in fields:
                lexer.fail(f"the metadata field '{name}' occurs twice", start)
            if name in _METADATA_STRINGS:
                fields[name] = lexer.string(f"the metadata field '{name}'")
            elif name in _METADATA_INTEGERS:
                position = lexer.start
                fields[name] = lexer.integer(f"the metadata field '{name}'")
                if fields[name] not in _INT32:
                    lexer.fail(f"the metadata field '{name}' does not fit 32 bits", position)
            elif name == "profile_type":
                position = lexer.start
                fields[name] = self.integers("profile types")
                if not all(value in _PROFILE_TYPES for value in fields[name]):
                    self._state.unknown(
                        f"one of the profile types {list(fields[name])}", position, map(str, _PROFILE_TYPES)
                    )
            else:
                known = (*_METADATA_STRINGS, *_METADATA_INTEGERS, "profile_type")
                self._state.unknown(f"the metadata field '{name}'", start, known)
                unknown.append((name, self._unknown_field()))
        lexer.advance()
        return Metadata(**fields, unknown=tuple(unknown))

    def _unknown_field(self) -> str:
        """The verbatim text of a metadata field's value: one token, or one pair of brackets and what they hold."""
        lexer = self._lexer
        if lexer.value in ("{", "(", "["):
            return self.unknown_value()
        value = lexer.value
        if lexer.kind not in (NAME, NUMBER, STRING):
            lexer.fail(f"expected a value, found {lexer.describe()}")
        lexer.advance()
        return value

    def metadata_list(self, what: str) -> tuple[Metadata, ...]:
        """metadata | '{' [metadata (',' metadata)*] '}'"""
        lexer = self._lexer
        if lexer.at("{") and lexer.following() == "{":
            return self.items("{", "}", what, self.metadata)
        return (self.metadata(what),)

    def unknown_value(self) -> str:
        """The verbatim text of a value whose grammar is not known: up to the next ',' or closing bracket outside
        brackets and strings, or to the end of the line where no bracket is open."""
        lexer = self._lexer
        start = end = lexer.start
        expected: list[str] = []
        closing = {"{": "}", "(": ")", "[": "]"}
        while lexer.kind != END:
            value = lexer.value
            ends_here = value in (",", "}", ")", "]") or (end > start and "\n" in lexer.text[end : lexer.start])
            if ends_here and not expected:
                break
            if value in closing:
                expected.append(closing[value])
            elif expected and value == expected[-1]:
                expected.pop()
            elif value in ("}", ")", "]"):
                lexer.fail(f"expected '{expected[-1]}', found '{value}'")
            elif lexer.kind not in (NAME, NUMBER, STRING) and value == "\0":
                lexer.fail(f"expected a value, found {lexer.describe()}")
            end = lexer.end
            lexer.advance()
        if expected:
            lexer.fail(f"expected '{expected[-1]}', found {lexer.describe()}")
        if end == start:
            lexer.fail(f"expected a value, found {lexer.describe()}")
        return lexer.text[start:end]
