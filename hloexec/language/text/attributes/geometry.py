"""Windows, padding, slices and dimension labels, each with its own grammar."""

from __future__ import annotations

import re
from typing import Any

from hloexec.core.ir import ConvolutionDimensionNumbers, PaddingDimension, SliceDimension, Window, WindowDimension
from hloexec.language.text.attributes.values import AttributeParser

_SIZES = re.compile(r"(?:-?[0-9]{1,19}(?!x)|[0-9]{1,19}(?:x[0-9]{1,19})+)(?![A-Za-z0-9_.])")
"""As in XLA, a size of one dimension may be negative, but not one of several."""
_AMOUNTS = r"-?[0-9]{1,19}_-?[0-9]{1,19}(?:_[0-9]{1,19})?"
_PADDING = re.compile(rf"{_AMOUNTS}(?:x{_AMOUNTS})*(?![A-Za-z0-9_.])")
_DIMENSION_LABELS = re.compile(r"([0-9bf?]{2,})_([0-9io?]{2,})->([0-9bf?]{2,})(?![A-Za-z0-9_.])")
_WINDOW_FIELDS = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")


class GeometryParser(AttributeParser):
    """Reads geometry."""

    __slots__ = ()

    def window(self, what: str) -> Window:
        """'{' (field '=' sizes)* '}', field ::= size | stride | pad | lhs_dilate | rhs_dilate | rhs_reversal"""
        self.expect("{", "before a window")
        start = self.start
        fields: dict[str, list[Any]] = {}
        while not self.at("}"):
            position = self.start
            name = self.attribute_name(f"a field of a window ({', '.join(_WINDOW_FIELDS)})")
            if name not in _WINDOW_FIELDS:
                self.fail(f"a window has the fields {', '.join(_WINDOW_FIELDS)}, found '{name}'", position)
            if name in fields:
                self.fail(f"the window field '{name}' occurs twice", position)
            fields[name] = self._paddings() if name == "pad" else self._sizes(name)
        self.advance()
        rank = len(fields.get("size", ()))
        for name, values in fields.items():
            if len(values) != rank:
                self.fail(f"the window has {rank} sizes, but '{name}' has {len(values)} entries", start)
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
        entries = self._entries(_SIZES, f"sizes such as 3x3 after '{name}='")
        return [size for (size,) in entries]

    def _paddings(self) -> list[tuple[int, int]]:
        """low '_' high ('x' low '_' high)*"""
        start = self.start
        entries = self._entries(_PADDING, "padding such as 0_1x2_2 after 'pad='")
        if any(len(entry) != 2 for entry in entries):
            self.fail("the padding of a window is low_high per dimension, without interior padding", start)
        return [(entry[0], entry[1]) for entry in entries]

    def padding(self, what: str) -> tuple[PaddingDimension, ...]:
        """low '_' high ['_' interior] ('x' low '_' high ['_' interior])*"""
        return tuple(PaddingDimension(*entry) for entry in self._entries(_PADDING, "padding such as 0_0_0x3_3_1"))

    def _entries(self, pattern: re.Pattern[str], what: str) -> list[list[int]]:
        """entry ('x' entry)*, entry ::= int ('_' int)*; integers of 64 bits."""
        start = self.start
        match = self.pattern(pattern, what)
        entries = [list(map(int, entry.split("_"))) for entry in match[0].split("x")]
        if any(not -(1 << 63) <= number < 1 << 63 for entry in entries for number in entry):
            self.fail(f"expected {what}, found a number that does not fit 64 bits", start)
        return entries

    def slice(self, what: str) -> tuple[SliceDimension, ...]:
        """'{' ['[' start ':' limit [':' stride] ']' (',' …)*] '}'"""
        return self.braced(what, self._range)

    def _range(self) -> SliceDimension:
        start = self.start
        self.expect("[", "before the range of a slice")
        bounds = [self.integer("the start of a slice")]
        while self.take(":"):
            bounds.append(self.integer("a bound of a slice"))
        if not 2 <= len(bounds) <= 3:
            self.fail(
                f"the range of a slice is [start:limit] or [start:limit:stride], found {len(bounds)} numbers", start
            )
        self.expect("]", "after the range of a slice")
        return SliceDimension(*bounds)

    def convolution_dimensions(self, what: str) -> ConvolutionDimensionNumbers:
        """labels '_' labels '->' labels, e.g. b01f_01io->b01f"""
        start = self.start
        match = self.pattern(_DIMENSION_LABELS, "dimension labels such as b01f_01io->b01f")
        roles = (("bf", "input"), ("io", "kernel"), ("bf", "output"))
        sides = [self._labels(match[i + 1], letters, side, start) for i, (letters, side) in enumerate(roles)]
        (batch, feature, spatial), (kernel_in, kernel_out, kernel), (out_batch, out_feature, out_spatial) = sides
        if not len(spatial) == len(kernel) == len(out_spatial):
            self.fail(
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
            self.fail(f"the {side} dimension labels '{labels}' name a dimension twice", start)
        digits = sorted(label for label in used if label.isdigit())
        if digits != [str(i) for i in range(len(digits))]:
            self.fail(f"the {side} dimension labels '{labels}' do not number their dimensions from 0", start)
        first, second = (max(labels.find(letter), 0) for letter in letters)
        return first, second, tuple(labels.index(digit) for digit in digits)
