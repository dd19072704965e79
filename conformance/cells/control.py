"""Control flow, tuples, constants, and what passes its operand on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.cell import Example, text_of
from conformance.cells.generator import Generator
from conformance.values import numbers, random_shape


def _of_one_operand(instruction: str, computations: str = "", *, before: tuple[str, ...] = ()) -> Generator:
    """`T` in the texts stands for the operand's shape."""

    def generate(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
        for _ in range(count):
            shape = random_shape(generator)
            text = text_of(name, shape)
            yield Example(
                opcode, name, text, instruction.replace("T[]", text), (numbers(name, generator, shape),),
                before=tuple(line.replace("T[]", text) for line in before),
                computations=computations.replace("T[]", text),
            )  # fmt: skip

    return generate


_COPY = "@c {\n  p = T[] parameter(0)\n  ROOT r = T[] copy(p)\n}\n"


def _tuple(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        shapes = [random_shape(generator, 0, 3) for _ in range(generator.integers(0, 4))]
        operands = tuple(numbers(name, generator, shape) for shape in shapes)
        names = ", ".join(f"${number}" for number in range(len(operands)))
        result = f"({', '.join(text_of(name, shape) for shape in shapes)})"
        yield Example(opcode, name, result, f"tuple({names})", operands)


def _get_tuple_element(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        shapes = [random_shape(generator, 0, 3) for _ in range(3)]
        operands = tuple(numbers(name, generator, shape) for shape in shapes)
        before = (f"@t = ({', '.join(text_of(name, shape) for shape in shapes)}) tuple($0, $1, $2)",)
        index = int(generator.integers(0, 3))
        text = text_of(name, shapes[index])
        yield Example(opcode, name, text, f"get-tuple-element(@t), index={index}", operands, before=before)


def _parameter(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """The operand itself: a copy keeps it apart from the others' parameters."""
    yield from _of_one_operand("copy($0)")(opcode, name, generator, count)


def _constant(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        values = numbers(name, generator, random_shape(generator, 0, 3))
        yield Example(opcode, name, text_of(name, values.shape), f"constant({_literal(values.tolist())})")


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"{{{', '.join(map(_literal, value))}}}"
    if isinstance(value, complex):
        return f"({value.real!r}, {value.imag!r})"
    return str(value).lower()


def _while(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        shape = random_shape(generator)
        text = text_of(name, shape)
        pair = f"(s32[], {text})"
        computations = (
            f"@cond {{\n  p = {pair} parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  n = s32[] constant(3)\n"
            "  ROOT r = pred[] compare(i, n), direction=LT\n}\n"
            f"@body {{\n  p = {pair} parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n"
            f"  x = {text} get-tuple-element(p), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n"
            f"  turned = {text} reverse(x), dimensions={{{','.join(map(str, range(len(shape))))}}}\n"
            f"  ROOT r = {pair} tuple(j, turned)\n}}\n"
        )
        before = ("@zero = s32[] constant(0)", f"@t = {pair} tuple(@zero, $0)")
        yield Example(
            opcode, name, pair, "while(@t), condition=@cond, body=@body", (numbers(name, generator, shape),),
            before=before, computations=computations,
        )  # fmt: skip


def _conditional(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """By a predicate, and by an index, which chooses the last branch where it is out of range."""
    for turn in range(max(count, 3)):
        shape = random_shape(generator)
        text = text_of(name, shape)
        operand = numbers(name, generator, shape)
        turned = ",".join(map(str, range(len(shape))))
        computations = (
            f"@a {{\n  p = {text} parameter(0)\n  ROOT r = {text} copy(p)\n}}\n"
            f"@b {{\n  p = {text} parameter(0)\n  ROOT r = {text} reverse(p), dimensions={{{turned}}}\n}}\n"
        )
        if turn % 2:
            chooser = np.array(generator.integers(0, 2), np.bool_)
            branches = "true_computation=@a, false_computation=@b"
        else:
            chooser = np.array(generator.integers(-2, 4), np.int32)
            branches = "branch_computations={@a, @b}"
        yield Example(
            opcode, name, text, f"conditional($1, $0, $0), {branches}", (operand, chooser), computations=computations
        )


def _fusion(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    generate = _of_one_operand("fusion($0), kind=kLoop, calls=@c", _COPY)
    yield from generate(opcode, name, generator, count)


def _custom_call(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """A library's target is parsed, verified and printed; that libraries run is for their own tests."""
    operand = numbers(name, generator, (2, 3))
    text = text_of(name, (2, 3))
    yield Example(
        opcode, name, text, 'custom-call($0), custom_call_target="target", backend_config="{}"', (operand,), runs=False
    )


def _after_all(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        shape = random_shape(generator)
        text = text_of(name, shape)
        yield Example(
            opcode, name, "token[]", "after-all()", (numbers(name, generator, shape),),
            after=(f"@result = {text} add-dependency($0, @r)",), final=text,
        )  # fmt: skip


GENERATORS: dict[str, Generator] = {
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "parameter": _parameter,
    "constant": _constant,
    "while": _while,
    "conditional": _conditional,
    "call": _of_one_operand("call($0), to_apply=@c", _COPY),
    "fusion": _fusion,
    "custom-call": _custom_call,
    "opt-barrier": _of_one_operand("opt-barrier($0)"),
    "add-dependency": _of_one_operand("add-dependency($0, @t)", before=("@t = token[] after-all()",)),
    "after-all": _after_all,
    "domain": _of_one_operand('domain($0), domain={kind="sharding", entry={replicated}, exit={maximal device=0}}'),
}
