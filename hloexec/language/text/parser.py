"""HLO text to IR: a recursive-descent parser.

`parse` reads whatever XLA's own parser reads. Where a dump comes from a newer XLA, what is merely unknown (opcodes,
attributes, header fields) is kept verbatim and warned about once; `strict=True` rejects it, as the XLA of today does.
The usual forms of a shape, an instruction's head and its operands are matched as a whole; anything else is read token
by token, and that is also where errors get their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from hloexec.core.arguments import require_flags, require_text
from hloexec.core.ir import FileLocation, Module, Shape, StackFrame, StackFrames, part_at
from hloexec.core.lifetimes import collection_paused
from hloexec.errors import ParseError, warn
from hloexec.language.text.attributes.annotations import INT32, AnnotationParser
from hloexec.language.text.attributes.values import AttributeParser
from hloexec.language.text.instructions import InstructionParser
from hloexec.language.text.lexer import END, NAME_PATTERN, NUMBER, Lexer
from hloexec.language.text.shapes import ARRAY_PATTERN, ShapeParser
from hloexec.language.text.state import ParserState, Scope

_DECLARATION = re.compile(rf"%?{NAME_PATTERN}: ({ARRAY_PATTERN})(?=[,)])")
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

    found = unwrapped(text)
    if found is None:
        return None
    lines = text.split("\n")
    width = max(map(len, lines))
    parser = _ModuleParser(found, filename, strict=False)
    try:
        try:
            module = parser.run()
        except ParseError as error:
            module = _parse_surrounded(found, parser, error, strict=False)
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
    module = _ModuleParser(reduced[0], error.filename, strict=False, warned=refused.warned).run()
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


class _ModuleParser:
    """Reads the header, the tables and the computations of a module."""

    def __init__(self, text: str, filename: str, *, strict: bool, warned: set[str] | None = None) -> None:
        self._lexer = Lexer(text, filename)
        self._state = ParserState(self._lexer, strict=strict, warned=warned)
        self._shapes = ShapeParser(self._lexer, strict=strict)
        self._attributes = AttributeParser(self._state, self._shapes)
        self._annotations = AnnotationParser(self._state, self._attributes)
        self._instructions = InstructionParser(self._state, self._shapes, self._attributes, self._annotations)

    @property
    def warned(self) -> set[str]:
        """What has been warned about."""
        return self._state.warned

    def run(self) -> Module:
        """text ::= module | computations | instruction"""
        lexer = self._lexer
        if lexer.kind == END:
            lexer.fail("expected a module, found an empty text")
        if lexer.at_word("HloModule"):
            lexer.advance()
            start = lexer.start
            name = lexer.name("the name of the module")
            header = self._header()
            header["stack_frames"] = self._stack_frames()
        elif lexer.at_word("ENTRY") or lexer.following() == "{" or self._at_signature():
            start, name, header = lexer.start, "", {}
        else:
            return self._single_instruction()
        entry_name = self._all_computations()
        module = Module(
            name=name or f"module_{entry_name}",
            computations=tuple(self._state.computations.values()),
            entry_name=entry_name,
            source=lexer.text,
            filename=lexer.filename,
            **header,
        )
        self._check_header(module, start)
        return module

    def _at_signature(self) -> bool:
        """Whether a computation with its signature comes first: XLA's parser demands a header before such a one."""
        return not self._state.strict and _COMPUTATION_LINE.match(self._lexer.text, self._lexer.start) is not None

    def _header(self) -> dict[str, Any]:
        """(',' name '=' value)*"""
        lexer = self._lexer
        attributes = self._attributes
        readers: dict[str, Callable[[str], Any]] = {
            "is_scheduled": lexer.boolean,
            "replica_count": lexer.integer,
            "num_partitions": lexer.integer,
            "input_output_alias": attributes.input_output_alias,
            "buffer_donor": attributes.buffer_donor,
            "alias_passthrough_params": lexer.boolean,
            "entry_computation_layout": attributes.entry_layout,
            "frontend_attributes": self._annotations.frontend_attributes,
            "allow_spmd_sharding_propagation_to_parameters": attributes.booleans,
            "allow_spmd_sharding_propagation_to_output": attributes.booleans,
            "origin_recovery_table": self._annotations.recovery_table,
        }
        fields: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        while lexer.take(","):
            start = lexer.start
            name = lexer.attribute_name("a module attribute")
            if name in fields or any(name == other for other, _ in unknown):
                lexer.fail(f"the module attribute '{name}' occurs twice", start)
            if name in readers:
                fields[name] = readers[name](f"the module attribute '{name}'")
            else:
                if name not in _WITHOUT_MEANING:
                    self._state.unknown(f"the module attribute '{name}'", start, readers)
                unknown.append((name, attributes.unknown_value()))
        fields["unknown_attributes"] = tuple(unknown)
        return fields

    def _check_header(self, module: Module, start: int) -> None:
        """What XLA's parser says of the header once the computations are known."""
        lexer = self._lexer
        for alias in module.input_output_alias:
            if part_at(module.entry.result_shape, alias.output_index) is None:
                lexer.fail(
                    f"input_output_alias names the output {set(alias.output_index) or '{}'}, which is not there", start
                )

    def _stack_frames(self) -> StackFrames | None:
        """['FileNames' (int string)* 'FunctionNames' (int string)* 'FileLocations' (int location)*
        'StackFrames' (int frame)*]"""
        lexer = self._lexer
        if not lexer.at_word("FileNames"):
            return None
        lexer.advance()
        file_names = self._numbered(lambda: lexer.string("a file name"))
        self._section("FunctionNames")
        function_names = self._numbered(lambda: lexer.string("a function name"))
        self._section("FileLocations")
        locations = self._numbered(lambda: self._record(FileLocation))
        self._section("StackFrames")
        frames = self._numbered(lambda: self._record(StackFrame))
        return StackFrames(file_names, function_names, locations, frames)

    def _section(self, word: str) -> None:
        lexer = self._lexer
        if not lexer.at_word(word):
            lexer.fail(f"expected '{word}', found {lexer.describe()}")
        lexer.advance()

    def _numbered(self, read: Callable[[], Any]) -> tuple[Any, ...]:
        found = []
        while self._lexer.kind == NUMBER:
            self._lexer.integer("a row number")
            found.append(read())
        return tuple(found)

    def _record(self, cls: type) -> Any:
        """'{' ([','] field '=' int)* '}' with every field of an attrs class of integers of 32 bits; unless strict,
        those with a default may be left out"""
        lexer = self._lexer
        names = [field.name for field in attrs.fields(cls)]
        start = lexer.start
        lexer.expect("{", "before a row of a table")
        fields: dict[str, int] = {}
        while not lexer.at("}"):
            lexer.take(",")
            position = lexer.start
            name = lexer.attribute_name("a field of the row")
            if name not in names or name in fields:
                lexer.fail(f"a row has the fields {', '.join(names)}, each once; found '{name}'", position)
            position = lexer.start
            fields[name] = lexer.integer(f"the field '{name}'")
            if fields[name] not in INT32:
                lexer.fail(f"the field '{name}' does not fit 32 bits", position)
        for field in attrs.fields(cls):
            if field.name not in fields and (self._state.strict or field.default is attrs.NOTHING):
                lexer.fail(f"the row lacks the field '{field.name}'", start)
        lexer.advance()
        return cls(**fields)

    def _single_instruction(self) -> Module:
        """instruction, with or without 'name ='; operands that are not defined become parameters"""
        lexer = self._lexer
        scope = Scope("_", makes_parameters=True)
        self._state.reserved.add("_")
        if self._shapes.at_shape():
            self._instructions.right_hand_side(scope, "_", lexer.start)
        else:
            self._instructions.instruction(scope)
        if lexer.kind != END:
            lexer.fail(f"expected the end of the text after a single instruction, found {lexer.describe()}")
        for instruction in scope.instructions:
            if scope.by_name[instruction.name] is not instruction:
                position = instruction.span.start if instruction.span else None
                lexer.fail(f"'{instruction.name}' is an operand of its own", position)
        self._state.finish(scope, "main", lexer.start, lexer.start)
        computations = tuple(self._state.computations.values())
        self._check_references({computation.name for computation in computations})
        return Module(
            name="_",
            computations=computations,
            entry_name="_",
            is_scheduled=True,
            source=lexer.text,
            filename=lexer.filename,
        )

    def _all_computations(self) -> str:
        """computation+; the entry is the one marked ENTRY, else the last"""
        lexer = self._lexer
        entry_name = None
        last = ""
        while lexer.kind != END or not last:
            start = lexer.start
            is_entry = lexer.at_word("ENTRY")
            if is_entry:
                lexer.advance()
            last = self._computation()
            if is_entry:
                if entry_name is not None:
                    lexer.fail(f"a module has one ENTRY, and '{entry_name}' is it already", start)
                entry_name = last
        self._check_references(self._state.computations)
        return entry_name or last

    def _check_references(self, known: Iterable[str]) -> None:
        for name, position in self._state.references:
            if name not in known:
                self._lexer.fail(f"the computation '{name}' does not exist", position)

    def _computation(self) -> str:
        """['ENTRY'] name ['(' [name shape (',' name shape)*] ')' '->' shape] body [',' 'execution_thread=' string]"""
        lexer = self._lexer
        start = lexer.start
        name = lexer.name("the name of a computation")
        if name in self._state.computations:
            lexer.fail(f"the computation '{name}' is defined twice", start)
        declared: Shape | None = None
        declared_at = lexer.start
        usual = _SIGNATURE.match(lexer.text, lexer.start)
        if usual is not None and all(map(self._shapes.known, _SHAPE_OF_PARAMETER.findall(usual[1]))):
            declared_at = usual.start(2)
            declared = self._shapes.known(usual[2])
        if usual is not None and declared is not None:
            lexer.move_to(usual.end())
        elif lexer.at("("):
            self._attributes.items("(", ")", "the parameters of a computation", self._parameter_declaration)
            lexer.expect("->", "before the result shape of a computation")
            declared_at = lexer.start
            declared = self._shapes.shape()
        scope = Scope(name)
        self._instructions.body(scope)
        thread = None
        while lexer.take(","):
            position = lexer.start
            attribute = lexer.attribute_name("an attribute of the computation")
            if attribute != "execution_thread" or thread is not None:
                lexer.fail(f"a computation has one attribute, execution_thread, found '{attribute}'", position)
            thread = lexer.string("the execution thread")
        computation = self._state.finish(scope, "main" if thread is None else thread, start, lexer.start)
        if declared is not None and not declared.compatible(computation.result_shape):
            lexer.fail(
                f"the computation '{name}' is declared to give {declared}, but its root "
                f"'{computation.root_name}' gives {computation.result_shape}",
                declared_at,
            )
        return name

    def _parameter_declaration(self) -> None:
        """name [':'] shape"""
        usual = _DECLARATION.match(self._lexer.text, self._lexer.start)
        if usual is not None and self._shapes.known(usual[1]) is not None:
            self._lexer.move_to(usual.end())
            return
        self._lexer.name("the name of a parameter")
        self._lexer.take(":")
        self._shapes.shape()
