"""Where instructions come from, and what parameters are named after.

What parameters are named after: paths of leaves among the arguments of a function. JAX names a parameter after a path
such as `params['w']`: so in the metadata, `params__w__.1` in the text. Others write the same path as `params/w` or
`params.w`, or without the argument, which is `params`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hloexec.core.structs import frozen
from hloexec.core.values import Pairs
from hloexec.core.wording import suggestion

if TYPE_CHECKING:
    from hloexec.core.ir import Instruction


@frozen
class Metadata:
    """`metadata={…}` of an instruction."""

    op_type: str | None = None
    op_name: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    source_end_line: int | None = None
    source_column: int | None = None
    source_end_column: int | None = None
    stack_frame_id: int | None = None
    profile_type: tuple[int, ...] | None = None
    deduplicated_name: str | None = None
    scheduling_name: str | None = None
    metadata_payload: str | None = None
    unknown: Pairs = ()
    """Fields of a newer XLA, verbatim."""


@frozen
class FileLocation:
    """A row of the FileLocations table; ids count from 1, as in the text. A position that is not known is 0."""

    file_name_id: int
    function_name_id: int
    line: int
    end_line: int = 0
    column: int = 0
    end_column: int = 0


@frozen
class StackFrame:
    """A row of the StackFrames table; a parent of its own id or 0 ends the chain."""

    file_location_id: int
    parent_frame_id: int


@frozen
class StackFrames:
    """The tables that `stack_frame_id` points into."""

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[FileLocation, ...] = ()
    stack_frames: tuple[StackFrame, ...] = ()


@frozen
class Statistics:
    """`statistics={visualizing_index=…, name=value, …}`; `visualizing_index` None for `{}`."""

    visualizing_index: int | None = None
    values: tuple[tuple[str, float], ...] = ()


@frozen
class ResultAccuracy:
    """`result_accuracy={mode=…}` or `={tolerance={ulps=…,rtol=…,atol=…}}`."""

    mode: str | None = None
    ulps: float | None = None
    rtol: float | None = None
    atol: float | None = None


@frozen
class OriginalValue:
    """`origin={…}`: the values of the module before optimization that this one corresponds to, verbatim."""

    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """The instructions of that module that gave these values."""
        return tuple(re.findall(r'\{"([^"]+)"', self.text))


_PATH = re.compile(r"[A-Za-z_]\w*([\[.].*)?")
_ARGUMENT = re.compile(r"args\[\d+\]|kwargs\['\w+'\]|\w+")
_FIRST_BRACKET = re.compile(r"__+")
_NUMBER = re.compile(r"\[(?P<bracketed>\d+)\](?=.)|(?P<plain>\d+)[/.](?=.)")
"""The number of an argument at the beginning of a path, as in `[0]['w']`."""
_WORD = re.compile(r"[^\W_]+")
_ONLY_DIGITS = re.compile(r"[\W\d_]*")


def mangled(path: str) -> str:
    """A path as JAX writes it where a name may hold letters, digits and `_` only."""
    return re.sub(r"\W", "_", path)


def path_of(parameter: Instruction) -> str | None:
    """The path that the metadata of a parameter holds, if any."""
    path = None if parameter.metadata is None else parameter.metadata.op_name
    return path if path and _PATH.fullmatch(path) else None


def stem_of(parameter: Instruction) -> str:
    """The name of a parameter without the number that JAX appends."""
    return parameter.name.partition(".")[0]


@frozen
class Within:
    """A parameter for a path that lacks the argument: its number, and what names the argument."""

    number: int
    argument: str
    position: int | None
    """The argument's number, where the path begins with it."""


class ParameterNames:
    """Finds the parameters that a path may mean. A path as JAX writes it counts before one that is the same but for
    what separates its words."""

    def __init__(self, parameters: Sequence[Instruction]) -> None:
        self._parameters = parameters
        self._whole: dict[tuple[int, str], set[int]] = {}
        self._within: dict[tuple[int, str], set[tuple[int, str]]] = {}
        for number, parameter in enumerate(parameters):
            path, stem = path_of(parameter), stem_of(parameter)
            for text in (stem,) if path is None else (path, stem):
                for form in _forms(text):
                    self._whole.setdefault(form, set()).add(number)
            for argument, form in _ends(stem) if path is None else _ends_of_path(path):
                self._within.setdefault(form, set()).add((number, argument))

    def whole(self, path: str) -> list[int]:
        """The numbers of the parameters that a path with the argument's name may mean."""
        numbers = (self._whole[form] for form in _forms(path) if form in self._whole)
        return sorted(next(numbers, ()))

    def within(self, path: str) -> list[Within]:
        """The parameters that a path without the argument's name may mean."""
        parameters = [Within(number, argument, None) for number, argument in self._ending(path)]
        numbered = _NUMBER.match(path)
        if numbered is not None:
            position = int(numbered["bracketed"] or numbered["plain"])
            parameters += [
                Within(number, argument, position) for number, argument in self._ending(path[numbered.end() :])
            ]
        return parameters

    def _ending(self, path: str) -> list[tuple[int, str]]:
        if _ONLY_DIGITS.fullmatch(path):
            return []  # which may be the number of an argument
        endings = (self._within[form] for form in _forms(path) if form in self._within)
        return sorted(next(endings, ()))

    def near(self, path: str) -> str:
        """The end of a sentence about a path that means none: a name that it may be meant for."""
        words = _words(path)
        names: dict[str, str] = {}
        for parameter in self._parameters:
            for text in (stem_of(parameter), path_of(parameter)):
                if text is not None:
                    names.setdefault(_words(text), parameter.name)
        ends = [name for text, name in names.items() if words and text.endswith("_" + words)]
        if len(ends) == 1:
            return f"; did you mean {ends[0]}?"
        parameter_names = [parameter.name for parameter in self._parameters]
        return suggestion(path, parameter_names) or suggestion(words, names, text=lambda text: names[text])

    def listed(self, numbers: Sequence[int]) -> str:
        """Parameters that a path may mean, in words."""
        return "parameter " + " or ".join(f"{number} ({self._parameters[number].name})" for number in numbers)


def _words(path: str) -> str:
    return "_".join(_WORD.findall(path))


def _forms(path: str) -> list[tuple[int, str]]:
    """What a path equals another one in, the closest first."""
    forms = enumerate((path, mangled(path), _words(path)))
    return [(place, form) for place, form in forms if form]


def _ends_of_path(path: str) -> Iterator[tuple[str, tuple[int, str]]]:
    """What names the argument, and what follows."""
    argument = _ARGUMENT.match(path)
    if argument is not None and argument.end() < len(path):
        for form in _forms(path[argument.end() :]):
            yield argument[0], form


def _ends(stem: str) -> Iterator[tuple[str, tuple[int, str]]]:
    """The same of a name, in which `_` may be a part of a word, and `__` begins with a bracket or ends with one."""
    bracket = _FIRST_BRACKET.search(stem, 1)
    end = len(stem) if bracket is None else bracket.end() - 1
    for place in range(1, end):
        if stem[place] == "_":
            yield stem[:place], (1, stem[place:])
    if bracket is not None and (words := _words(stem[bracket.end() :])):
        yield stem[: bracket.start()], (2, words)
