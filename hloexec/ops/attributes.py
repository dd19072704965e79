"""Declaring attributes: a typed field and the grammar of its text.

An opcode's attributes are an attrs class whose fields are made by `attribute(...)`. The grammar is data: the parser and
the printer each have one table from grammar to code, so neither knows opcodes, and no opcode knows text.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import attrs

from hloexec.core.structs import frozen


class Grammar(enum.Enum):
    """The forms an attribute's text can take; the comment shows the text and the Python type it becomes."""

    BOOL = enum.auto()  # true | false: bool
    INT = enum.auto()  # 3: int
    INT32 = enum.auto()  # 3, of 32 bits: int
    FLOAT = enum.auto()  # 0.001, in the range of f32: float
    STRING = enum.auto()  # "text": str
    ENUM = enum.auto()  # a word out of `choices`: str
    INT_LIST = enum.auto()  # {1,2}: tuple[int, ...]
    INT_IN_LIST = enum.auto()  # {1}, exactly one: int
    INT_LIST_LIST = enum.auto()  # {{1,2},{3}}: tuple[tuple[int, ...], ...]
    INT_PAIRS = enum.auto()  # {{0,1},{1,2}}, pairs only: tuple[tuple[int, int], ...]
    ENUM_LIST = enum.auto()  # {default,high}: tuple[str, ...]
    COMPUTATION = enum.auto()  # %name, or { instructions }: str
    COMPUTATION_LIST = enum.auto()  # {%a, %b}: tuple[str, ...]
    WINDOW = enum.auto()  # {size=3x3 stride=2x2 pad=0_1x0_1 …}: Window
    CONVOLUTION_DIMENSIONS = enum.auto()  # b01f_01io->b01f: ConvolutionDimensionNumbers
    PADDING = enum.auto()  # 0_0_0x3_3_1: tuple[PaddingDimension, ...]
    SLICE = enum.auto()  # {[0:4], [1:9:2]}: tuple[SliceDimension, ...]
    SHAPE = enum.auto()  # f32[2]{0}: Shape
    SHAPE_LIST = enum.auto()  # {f32[2]{0}, s32[]}: tuple[Shape, ...]
    LITERAL = enum.auto()  # f32[2] {1, 2}: Literal
    ALIASING = enum.auto()  # {{0}: (1, {})}: tuple[OperandAlias, ...]
    REPLICA_GROUPS = enum.auto()  # {{0,1},{2,3}} | [2,2]<=[4] | mesh form: ReplicaGroups
    SHARDING = enum.auto()  # {devices=[2]0,1}: Sharding
    DOMAIN = enum.auto()  # {kind="sharding", entry={…}, exit={…}}: tuple[Sharding, Sharding] (entry, exit)
    RESULT_ACCURACY = enum.auto()  # {mode=highest} | {tolerance={atol=…}}: ResultAccuracy
    VERBATIM = enum.auto()  # anything with balanced brackets, kept as it stands: str


REQUIRED: Any = attrs.NOTHING
"""The default of an attribute that the text must give."""


@frozen
class OperandAlias:
    """One entry of `output_to_operand_aliasing`: an output leaf that shares an operand leaf's buffer."""

    output_index: tuple[int, ...]
    operand_number: int
    operand_index: tuple[int, ...]


@frozen
class AttributeField:
    """What parser and printer need to know of one attribute."""

    name: str
    """The name in the text, e.g. `dimensions`."""
    field: str
    """The name of the Python field, e.g. `dimension`."""
    grammar: Grammar
    default: Any
    choices: tuple[str, ...] | None
    any_case: bool
    """Whether a choice may be written in upper and lower case alike; it is kept as `choices` has it."""
    is_open: bool
    """Whether an instruction with a word of another XLA runs: no value depends on it."""
    formerly: tuple[str, ...]
    """The names that the text of older XLA, or its canonical text, has for it."""
    lately: Mapping[str, Mapping[str, object]]
    """The names that the text of newer XLA has for it, each with what its words are called here."""
    always_printed: bool
    """Whether the text states it even where it is the default, as XLA's does."""

    @property
    def is_required(self) -> bool:
        return self.default is attrs.NOTHING


_GRAMMARS = {
    "bool": Grammar.BOOL,
    "int": Grammar.INT,
    "int | None": Grammar.INT,
    "Dimensions": Grammar.INT_LIST,
    "Dimensions | None": Grammar.INT_LIST,
    "Window": Grammar.WINDOW,
}
"""What the type of a field says of its text, unless the field says it."""


def attribute(
    grammar: Grammar | None = None,
    *,
    default: object = REQUIRED,
    name: str | None = None,
    choices: Iterable[str] | None = None,
    any_case: bool = False,
    is_open: bool = False,
    formerly: tuple[str, ...] = (),
    lately: Mapping[str, Mapping[str, object]] | None = None,
    always_printed: bool = False,
) -> Any:
    """Declare an attribute of an opcode, whose type says its grammar where none is given.

    `default` is the value where the text says nothing (the printer then says nothing either); without it the attribute
    is required. `name` is the name in the text where it differs from the field's. `choices` are the words of an
    enumeration, `any_case` says that their case does not matter, and `is_open` that instructions with words of another
    XLA run, since no value depends on them; with others, they are read and printed.
    `formerly` are names that older XLA or its canonical text has; they are read, and printed as `name`.
    `lately` are names that newer XLA writes, each with the values that its words stand for; they are printed as `name`,
    too, which both read.
    `always_printed`: the printer states it even where it is the default.
    """
    words = None if choices is None else tuple(choices)

    def declared(field: attrs.Attribute[Any]) -> AttributeField:
        said = grammar or _GRAMMARS[str(field.type)]
        last = words, any_case, is_open, formerly, lately or {}, always_printed
        return AttributeField(name or field.name, field.name, said, default, *last)

    return attrs.field(default=default, metadata={_DECLARED: declared}, kw_only=True)


_DECLARED = "hloexec attribute"
"""In the metadata of a field, the function from it to what it is declared as."""


PRECISIONS = ("default", "high", "highest", "packed_nibble")
"""How precisely an operand of a contraction is multiplied, in the order of their numbers in protocol buffers."""


def operand_precision() -> Any:
    """The attribute that says how precisely each operand of a contraction is multiplied."""
    return attribute(Grammar.ENUM_LIST, default=(), choices=PRECISIONS, any_case=True)


_fields_by_class: dict[type, dict[str, AttributeField]] = {}


def attribute_fields(cls: type | None) -> dict[str, AttributeField]:
    """The declared attributes of an attributes class by their names in the text, in the order of declaration."""
    if cls is None:
        return {}
    fields_by_name = _fields_by_class.get(cls)
    if fields_by_name is None:
        fields = attrs.fields(cls)
        declared = [field.metadata[_DECLARED](field) for field in fields if _DECLARED in field.metadata]
        fields_by_name = _fields_by_class[cls] = {entry.name: entry for entry in declared}
    return fields_by_name


_calling_by_class: dict[type, tuple[AttributeField, ...]] = {type(None): ()}
"""The fields of an attributes class that name computations."""


def _calling_fields(cls: type) -> tuple[AttributeField, ...]:
    fields = attribute_fields(cls).values()
    grammars = Grammar.COMPUTATION, Grammar.COMPUTATION_LIST
    calling_fields = _calling_by_class[cls] = tuple(entry for entry in fields if entry.grammar in grammars)
    return calling_fields


@cache
def has_numbers(cls: type) -> bool:
    """Whether attributes may hold floats or literals: those that compare equal may still differ, as 0 and −0 do."""
    fields = {} if cls is type(None) else attribute_fields(cls)
    return any(field.grammar in (Grammar.FLOAT, Grammar.LITERAL) for field in fields.values())


_words_by_class: dict[type, tuple[AttributeField, ...]] = {type(None): ()}
"""The fields of an attributes class that hold words which values depend on."""


def has_words(cls: type | None) -> bool:
    """Whether attributes hold words that values depend on, so that they may hold unknown ones."""
    return bool(cls and any(field.choices and not field.is_open for field in attribute_fields(cls).values()))


def unknown_words(attributes: object) -> Iterator[tuple[AttributeField, str]]:
    """The words of another XLA that an instruction's attributes hold where values depend on them."""
    cls = type(attributes)
    if cls not in _words_by_class:
        fields = attribute_fields(cls).values()
        _words_by_class[cls] = tuple(field for field in fields if field.choices and not field.is_open)
    for field in _words_by_class[cls]:
        value = getattr(attributes, field.field)
        if value != field.default:
            words = value if isinstance(value, tuple) else (value,)
            yield from ((field, word) for word in words if word not in (field.choices or ()))


@cache
def without_computations(cls: type) -> Callable[[Any], tuple[object, ...]]:
    """From an object of an attributes class, all that it says but the names of computations."""
    named = {entry.field for entry in _calling_fields(cls)}
    fields = [field.name for field in attrs.fields(cls) if field.name not in named]
    return lambda attributes: tuple([getattr(attributes, field) for field in fields])


def computation_names(attributes: object) -> tuple[str, ...]:
    """The names of the computations that an instruction's attributes call, in the order of declaration."""
    calling = _calling_by_class.get(type(attributes))
    if calling is None:
        calling = _calling_fields(type(attributes))
    if not calling:
        return ()
    names: list[str] = []
    for entry in calling:
        value = getattr(attributes, entry.field)
        if value is not None:
            names += (value,) if entry.grammar is Grammar.COMPUTATION else value
    return tuple(names)


def rename_computations(attributes: Any, names: Mapping[str, str]) -> Any:
    """The same attributes, with computations of other names where `names` has some."""
    changes: dict[str, Any] = {}
    for entry in _calling_fields(type(attributes)) if computation_names(attributes) else ():
        value = getattr(attributes, entry.field)
        if isinstance(value, tuple):
            changes[entry.field] = tuple(names.get(name, name) for name in value)
        elif value is not None:
            changes[entry.field] = names.get(value, value)
    return attrs.evolve(attributes, **changes) if changes else attributes
