"""Mutants of HLO text: most are still modules, and wrong in one respect."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.registry import OPCODES

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|%?[A-Za-z_][\w.\-]*|\s+|.', re.DOTALL)
_ATTRIBUTE = re.compile(r", [a-z_]+=(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\"[^\"]*\"|[^,{}()\s]+)")
_SHAPE = re.compile(r"\b(?:" + "|".join(ELEMENT_TYPES) + r")\[[\d,]*\](?:\{[\d,]*\})?")
_NUMBERS = "0 1 2 3 -1 4 5 7 8 64 1000 65536 2147483647 -2147483648 4294967296 9223372036854775807 1e30".split()
_TYPES = ("f32", "s32", "pred", "bf16", "f64", "c64", "u8", "s4", "f8e4m3fn", "token", "u64", "f16")
_ATTRIBUTES = (
    ", metadata={op_name=\"a/b\" source_file=\"x.py\" source_line=3}", ", sharding={replicated}", ", dimensions={0}",
    ", dimensions={1,0}", ", to_apply=b", ", channel_id=1", ", replica_groups={{0,1}}", ", replica_groups={}",
    ", is_stable=true", ", direction=LT", ", index=0", ", slice={[0:1]}", ", window={size=2}", ", backend_config={\"a\":1}",
    ", control-predecessors={x}", ", custom_call_target=\"TopK\"", ", frontend_attributes={a=\"b\"}",
)  # fmt: skip


def mutant(text: str, rng: random.Random) -> str:
    """`text` with one to three changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(_MUTATIONS)(text, rng) or " "
    return text


def _replaced(text: str, span: tuple[int, int], by: str) -> str:
    return text[: span[0]] + by + text[span[1] :]


def _change(text: str, rng: random.Random, is_one: Callable[[str], bool], choose: Callable[[str], str]) -> str:
    """Another token in the place of one of a kind."""
    spans = [found.span() for found in _TOKEN.finditer(text) if is_one(found[0])]
    if not spans:
        return text
    span = rng.choice(spans)
    return _replaced(text, span, choose(text[slice(*span)]))


def _number(text: str, rng: random.Random) -> str:
    def other(token: str) -> str:
        near = (
            str(int(token) + rng.choice((-1, 1)))
            if token.lstrip("-").isascii() and token.lstrip("-").isdigit()
            else token
        )
        return rng.choice((near, near, rng.choice(_NUMBERS)))

    return _change(text, rng, lambda token: token.lstrip("-")[:1].isdigit(), other)


def _name(text: str, rng: random.Random) -> str:
    words = _words(text)
    return _change(text, rng, lambda token: token in words, lambda _: rng.choice(words))


def _words(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text) if token.lstrip("%")[:1].isalpha()]


def _opcode(text: str, rng: random.Random) -> str:
    pool: Sequence[str] = tuple(OPCODES)
    return _change(text, rng, lambda token: token in OPCODES, lambda _: rng.choice(pool))


def _element_type(text: str, rng: random.Random) -> str:
    return _change(text, rng, lambda token: token in ELEMENT_TYPES, lambda _: rng.choice(_TYPES))


def _everywhere(text: str, rng: random.Random) -> str:
    """A shape becomes another one wherever it stands."""
    shapes = _SHAPE.findall(text)
    if not shapes:
        return text
    shape = rng.choice(shapes)
    kind, _, rest = shape.partition("[")
    dimensions = rest.partition("]")[0].split(",") if rest[0] != "]" else []
    choice = rng.randrange(4)
    if choice == 0 or not dimensions:
        kind = rng.choice(_TYPES)
    elif choice == 1:
        dimensions[rng.randrange(len(dimensions))] = rng.choice(("0", "1", "2", "3", "16", "<=2"))
    elif choice == 2:
        dimensions.append(rng.choice(("1", "2")))
    else:
        dimensions.pop()
    return text.replace(shape, f"{kind}[{','.join(dimensions)}]")


def _shape(text: str, rng: random.Random) -> str:
    """One shape takes the place of another, or goes."""
    found = [match.span() for match in _SHAPE.finditer(text)]
    if not found:
        return text
    other = text[slice(*rng.choice(found))]
    return _replaced(text, rng.choice(found), rng.choice((other, other, f"({other}, {other})", "", "()")))


def _no_attribute(text: str, rng: random.Random) -> str:
    found = [match.span() for match in _ATTRIBUTE.finditer(text)]
    return _replaced(text, rng.choice(found), "") if found else text


def _attribute(text: str, rng: random.Random) -> str:
    """One more attribute: of another instruction, or of a list."""
    lines = [number for number, line in enumerate(text.splitlines()) if " = " in line]
    if not lines:
        return text
    found = [match[0] for match in _ATTRIBUTE.finditer(text)]
    split = text.splitlines()
    number = rng.choice(lines)
    comment = split[number].rstrip().removesuffix("}")
    ending = split[number][len(comment) :]
    split[number] = comment + rng.choice(found or _ATTRIBUTES if rng.random() < 0.5 else _ATTRIBUTES) + ending
    return "\n".join(split)


def _list(text: str, rng: random.Random) -> str:
    """A list in braces loses its elements or one of them, or has one twice."""
    found = [match.span() for match in re.finditer(r"\{[\w,\-%. ]*\}", text)]
    if not found:
        return text
    start, end = rng.choice(found)
    elements = text[start + 1 : end - 1].split(",")
    place = rng.randrange(len(elements))
    changed: Sequence[str] = rng.choice(((), elements[:place] + elements[place + 1 :], [*elements, elements[place]]))
    return _replaced(text, (start, end), f"{{{','.join(changed)}}}")


def _line(text: str, rng: random.Random) -> str:
    """A line goes, comes twice, or changes places with another."""
    lines = text.split("\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    choice = rng.randrange(3)
    if choice == 0:
        del lines[first]
    elif choice == 1:
        lines.insert(second, lines[first])
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def _operands(text: str, rng: random.Random) -> str:
    """One operand more or less."""
    found = [
        match.span() for match in re.finditer(r"(?<=[\w(])\((%?[A-Za-z_][\w.\-]*(?:, %?[A-Za-z_][\w.\-]*)*)\)", text)
    ]
    if not found:
        return text
    start, end = rng.choice(found)
    operands = text[start + 1 : end - 1].split(", ")
    if rng.random() < 0.5:
        del operands[rng.randrange(len(operands))]
    else:
        operands.insert(rng.randrange(len(operands) + 1), rng.choice(_words(text)))
    return _replaced(text, (start, end), f"({', '.join(operands)})")


def _bytes(text: str, rng: random.Random) -> str:
    """Some characters go, come twice, or become others."""
    start = rng.randrange(len(text))
    end = start + rng.choice((1, 1, 2, 5, 30))
    other = rng.choice(("", text[start:end] * 2, rng.choice('{}()[]=,"%:*/-#\0é \n'), "{...}", "(", "...", "/*"))
    return _replaced(text, (start, end), other)


_MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    *[_number] * 4,
    *[_name] * 3,
    *[_opcode] * 3,
    *[_everywhere] * 4,
    _element_type,
    _shape,
    _no_attribute,
    _attribute,
    _list,
    _line,
    _operands,
    _bytes,
)
