"""HLO text to IR: a recursive-descent parser.

`parse` reads whatever XLA's own parser reads. Where a dump comes from a newer XLA, what is merely unknown (opcodes,
attributes, header fields) is kept verbatim and warned about once; `strict=True` rejects it, as the XLA of today does.
The usual forms of a shape, an instruction's head and its operands are matched as a whole; anything else is read token
by token, and that is also where errors get their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import attrs

from hloexec.core.arguments import require_flags, require_text
from hloexec.core.ir import FileLocation, Module, Shape, StackFrame, StackFrames, part_at
from hloexec.core.process import collection_paused
from hloexec.errors import ParseError, warn
from hloexec.language.text.attributes.annotations import INT32
from hloexec.language.text.instructions import InstructionParser
from hloexec.language.text.lexer import END, NAME_PATTERN, NUMBER, STACK_FRAME_TABLES
from hloexec.language.text.shapes import ARRAY_PATTERN
from hloexec.language.text.state import Scope

_SIGNATURE = re.compile(
    rf"\((%?{NAME_PATTERN}: {ARRAY_PATTERN}(?:, %?{NAME_PATTERN}: {ARRAY_PATTERN})*+)\) -> ({ARRAY_PATTERN}) (?=\{{)"
)
"""Parameters and result of a computation where all are arrays."""
_SHAPE_OF_PARAMETER = re.compile(rf": ({ARRAY_PATTERN})")

_COMPUTATION_LINE = re.compile(rf"%?{NAME_PATTERN} ?\([^\n]*\) -> [^\n]*\{{[ \t\r]*\n")

_WITHOUT_MEANING = ("backend_config", "debug_attributes")
"""Module attributes of XLA since jaxlib 0.12 that are kept verbatim: what a module computes does not depend on them."""


def parse(text: str, *, filename: str = "<string>", strict: bool = False) -> Module:
    """Read a module from HLO text.

    The text may be a whole module, computations without the `HloModule` line, or a single instruction, whose operands
    then become parameters. `filename` is used only in messages. Raises ParseError; warns HloWarning about unknown
    attributes and opcodes, and, where the text is copied from a log or a page, about what stands around the module and
    is ignored (not where `strict`).
    """
    require_text("text", text, "HLO text, a str", "hloexec.load(path) reads a file")
    require_text("filename", filename)
    require_flags(strict=strict)
    if _is_path(text):
        message = "expected HLO text, found what looks like a path; hloexec.load(path) reads a file"
        raise ParseError(message, line=1, column=1, source_line=text, filename=filename)
    with collection_paused():
        parser = _ModuleParser(text, filename, strict=strict)
        try:
            return parser.run()
        except ParseError as error:
            refusal = error
        try:
            return _parse_surrounded(text, parser, refusal, strict=strict)
        except ParseError as error:
            unwrapped = None if strict else _parse_unwrapped(text, filename, error.line)
            if unwrapped is None:
                raise
            return unwrapped


def _parse_unwrapped(text: str, filename: str, line: int) -> Module | None:
    """Read a text with the lines joined that a terminal has broken; None where that makes no module. It raises what is
    wrong then where that is further down than on `line`, which is broken."""
    from hloexec.language.text.surroundings import unwrapped

    joined = unwrapped(text)
    if joined is None:
        return None
    lines = text.split("\n")
    width = max(map(len, lines))
    parser = _ModuleParser(joined, filename)
    try:
        try:
            module = parser.run()
        except ParseError as error:
            module = _parse_surrounded(joined, parser, error, strict=False)
    except ParseError as error:
        if error.line > line and len(lines[line - 1]) == width:
            raise
        return None
    warn(f"{filename}: lines that are broken at column {width}, as by a terminal, are joined")
    return module


def _parse_surrounded(text: str, refused: _ModuleParser, error: ParseError, *, strict: bool) -> Module:
    """Read a text that was refused without what stands around its module; raises `error` where nothing does."""
    from hloexec.language.text.surroundings import advice, without_surroundings

    hint = advice(text)
    reduced = None if strict or hint is not None else without_surroundings(text)
    if reduced is None:
        if hint is None and _is_cut_off(text, error):
            hint = "this is the last line of the text, which may have been cut off"
        if hint is None:
            raise error
        place = {name: getattr(error, name) for name in ("line", "column", "source_line", "filename")}
        raise ParseError(f"{error.message}; {hint}", **place) from None
    parser = _ModuleParser(reduced[0], error.filename)
    parser.warned = refused.warned
    module = parser.run()
    for removed in reduced[1]:
        warn(f"{error.filename}: {removed}")
    return module


def _is_cut_off(text: str, error: ParseError) -> bool:
    """Whether an error that does not say so is in the last line of a text whose braces stay open, or without entry."""
    is_last = text.rstrip().count("\n") == error.line - 1
    is_open = text.count("{") > text.count("}") or (text.lstrip().startswith("HloModule") and "ENTRY" not in text)
    return is_last and is_open and "cut off" not in error.message


def _is_path(text: str) -> bool:
    """Whether it is one word, as no HLO is, with what paths have in them."""
    return len(text) < 4096 and len(text.split()) == 1 and not {*"{}()="} & {*text} and bool({*"/\\."} & {*text})


class _ModuleParser(InstructionParser):
    """Reads the header, the tables and the computations of a module."""

    __slots__ = ()

    def run(self) -> Module:
        """text ::= module | computations | instruction"""
        if self.kind == END:
            self.fail("expected a module, found an empty text")
        if self.at_word("HloModule"):
            self.advance()
            start = self.start
            name = self.name("the name of the module")
            header = self._header()
            header["stack_frames"] = self._stack_frames()
        elif self.at_word("ENTRY") or self.following() == "{" or self._at_signature():
            start, name, header = self.start, "", {}
        else:
            return self._single_instruction()
        entry_name = self._all_computations()
        computations = tuple(self.computations.values())
        if "ConcatBitcast" in self.text:
            from hloexec.ops.library_calls.compiler import slices_in_place

            computations = slices_in_place(computations)
        module = Module(
            name=name or f"module_{entry_name}",
            computations=computations,
            entry_name=entry_name,
            source=self.text,
            filename=self.filename,
            **header,
        )
        self._check_header(module, start)
        return module

    def _at_signature(self) -> bool:
        """Whether a computation with its signature comes first: XLA's parser demands a header before such a one."""
        return not self.strict and _COMPUTATION_LINE.match(self.text, self.start) is not None

    def _header(self) -> dict[str, Any]:
        """(',' name '=' value)*"""
        readers: dict[str, Callable[[str], Any]] = {
            "is_scheduled": self.boolean,
            "replica_count": self.integer,
            "num_partitions": self.integer,
            "input_output_alias": self.input_output_alias,
            "buffer_donor": self.buffer_donor,
            "alias_passthrough_params": self.boolean,
            "entry_computation_layout": self.entry_layout,
            "frontend_attributes": self.frontend_attributes,
            "allow_spmd_sharding_propagation_to_parameters": self.booleans,
            "allow_spmd_sharding_propagation_to_output": self.booleans,
            "origin_recovery_table": self.recovery_table,
        }
        fields: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        while self.take(","):
            start = self.start
            name = self.attribute_name("a module attribute")
            if name in fields or any(name == other for other, _ in unknown):
                self.fail(f"the module attribute '{name}' occurs twice", start)
            if name in readers:
                fields[name] = readers[name](f"the module attribute '{name}'")
            else:
                if name not in _WITHOUT_MEANING:
                    self.unknown(f"the module attribute '{name}'", start, readers)
                unknown.append((name, self.unknown_value()))
        fields["unknown_attributes"] = tuple(unknown)
        return fields

    def _check_header(self, module: Module, start: int) -> None:
        """What XLA's parser says of the header once the computations are known."""
        for alias in module.input_output_alias:
            if part_at(module.entry.result_shape, alias.output_index) is None:
                self.fail(
                    f"input_output_alias names the output {set(alias.output_index) or '{}'}, which is not there", start
                )

    def _stack_frames(self) -> StackFrames | None:
        """['FileNames' (int string)* 'FunctionNames' (int string)* 'FileLocations' (int location)*
        'StackFrames' (int frame)*]"""
        if not self.at_word(STACK_FRAME_TABLES[0]):
            return None
        tables: list[tuple[Any, ...]] = []
        names = (partial(self.string, what) for what in ("a file name", "a function name"))
        records = (partial(self._record, cls) for cls in (FileLocation, StackFrame))
        for word, read in zip(STACK_FRAME_TABLES, (*names, *records), strict=True):
            if not self.at_word(word):
                self.fail(f"expected '{word}', found {self.describe()}")
            self.advance()
            rows = []
            while self.kind == NUMBER:
                self.integer("a row number")
                rows.append(read())
            tables.append(tuple(rows))
        return StackFrames(*tables)

    def _record(self, cls: type) -> Any:
        """'{' ([','] field '=' int)* '}' with every field of an attrs class of integers of 32 bits; unless strict,
        those with a default may be left out"""
        names = [field.name for field in attrs.fields(cls)]
        start = self.start
        self.expect("{", "before a row of a table")
        fields: dict[str, int] = {}
        while not self.at("}"):
            self.take(",")
            position = self.start
            name = self.attribute_name("a field of the row")
            if name not in names or name in fields:
                self.fail(f"a row has the fields {', '.join(names)}, each once; found '{name}'", position)
            position = self.start
            fields[name] = self.integer(f"the field '{name}'")
            if fields[name] not in INT32:
                self.fail(f"the field '{name}' does not fit 32 bits", position)
        for field in attrs.fields(cls):
            if field.name not in fields and (self.strict or field.default is attrs.NOTHING):
                self.fail(f"the row lacks the field '{field.name}'", start)
        self.advance()
        return cls(**fields)

    def _single_instruction(self) -> Module:
        """instruction, with or without 'name ='; operands that are not defined become parameters"""
        scope = Scope("_", makes_parameters=True)
        self.reserved.add("_")
        if self.at_shape():
            self.right_hand_side(scope, "_", self.start)
        else:
            self.instruction(scope)
        if self.kind != END:
            self.fail(f"expected the end of the text after a single instruction, found {self.describe()}")
        for instruction in scope.instructions:
            if scope.by_name[instruction.name] is not instruction:
                position = instruction.span.start if instruction.span else None
                self.fail(f"'{instruction.name}' is an operand of its own", position)
        self.finish(scope, "main", self.start, self.start)
        computations = tuple(self.computations.values())
        self._check_references({computation.name for computation in computations})
        return Module(
            name="_",
            computations=computations,
            entry_name="_",
            is_scheduled=True,
            source=self.text,
            filename=self.filename,
        )

    def _all_computations(self) -> str:
        """computation+; the entry is the one marked ENTRY, else the last"""
        entry_name = None
        last = ""
        while self.kind != END or not last:
            start = self.start
            is_entry = self.at_word("ENTRY")
            if is_entry:
                self.advance()
            last = self._computation()
            if is_entry:
                if entry_name is not None:
                    self.fail(f"a module has one ENTRY, and '{entry_name}' is it already", start)
                entry_name = last
        self._check_references(self.computations)
        return entry_name or last

    def _check_references(self, names: Iterable[str]) -> None:
        for name, position in self.references:
            if name not in names:
                self.fail(f"the computation '{name}' does not exist", position)

    def _computation(self) -> str:
        """['ENTRY'] name ['(' [name shape (',' name shape)*] ')' '->' shape] body [',' 'execution_thread=' string]"""
        start = self.start
        name = self.name("the name of a computation")
        if name in self.computations:
            self.fail(f"the computation '{name}' is defined twice", start)
        declared: Shape | None = None
        declared_at = self.start
        usual = _SIGNATURE.match(self.text, self.start)
        if usual is not None and all(map(self.known, _SHAPE_OF_PARAMETER.findall(usual[1]))):
            declared_at = usual.start(2)
            declared = self.known(usual[2])
        if usual is not None and declared is not None:
            self.move_to(usual.end())
        elif self.at("("):
            self.items("(", ")", "the parameters of a computation", self._parameter_declaration)
            self.expect("->", "before the result shape of a computation")
            declared_at = self.start
            declared = self.shape()
        scope = Scope(name)
        self.body(scope)
        thread = None
        while self.take(","):
            position = self.start
            attribute = self.attribute_name("an attribute of the computation")
            if attribute != "execution_thread" or thread is not None:
                self.fail(f"a computation has one attribute, execution_thread, found '{attribute}'", position)
            thread = self.string("the execution thread")
        computation = self.finish(scope, "main" if thread is None else thread, start, self.start)
        if declared is not None and not declared.compatible(computation.result_shape):
            self.fail(
                f"the computation '{name}' is declared to give {declared}, but its root "
                f"'{computation.root_name}' gives {computation.result_shape}",
                declared_at,
            )
        return name

    def _parameter_declaration(self) -> None:
        """name [':'] shape"""
        self.name("the name of a parameter")
        self.take(":")
        self.shape()
