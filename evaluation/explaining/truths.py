"""Truths: modules that spell out in HLO what a backend with other numerics does, for XLA:CPU to run.

XLA:CPU honours few of the numerics that are explained: of dot algorithms none but f16 (jaxlib 0.10 computes `BF16_BF16_F32`
and its x3 and x6 in f32, and refuses TF32). So operands are rounded by reduce-precision, and split into parts by
subtraction; functions are written out; results that stay in f32 are computed there. What XLA:CPU does by itself (its
flushed denormals, sums of bf16 rounded at each step, its excess precision) is taken as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from unittest.mock import patch

import attrs
import numpy as np

from evaluation.faults.editing import Draft, array
from evaluation.faults.refusing import code
from hloexec.core.ir import ArrayShape, Instruction, Module
from hloexec.core.values import Array, Value, arrays_of
from hloexec.tools.counterparts.specs import counterpart

_ARITHMETIC = frozenset(
    "add subtract multiply divide maximum minimum negate abs exponential tanh logistic log sqrt rsqrt power "
    "exponential-minus-one log-plus-one sign floor ceil erf sine cosine tan cbrt".split()
)


def by_xla(module: Module, inputs: Sequence[Value], *, excess_precision: bool = False) -> list[Array]:
    """The arrays of what XLA:CPU makes of a module."""
    # Without this flag in sight, XLA is told to round as the text says.
    with patch.dict(os.environ, XLA_FLAGS="--xla_allow_excess_precision=true" if excess_precision else ""):
        return arrays_of(counterpart("xla-cpu").run(module, inputs).value())


def contractions(draft: Draft, *opcodes: str) -> list[str]:
    """The f32 contractions of default precision that run by themselves."""
    return [
        each.name
        for home in code(draft)
        for each in draft.computations[home].values()
        if each.opcode in opcodes
        and _type(each) == "f32"
        and all(_type(draft.operand(each, n)) == "f32" for n in range(2))
        and all(word == "default" for word in each.attributes.operand_precision)
    ]


def _type(instruction: Instruction) -> str:
    return instruction.shape.element_type.name if isinstance(instruction.shape, ArrayShape) else ""


def _plain(shape: object) -> ArrayShape:
    assert isinstance(shape, ArrayShape)
    return array(shape.element_type.name, *shape.dimensions)


def _cut(draft: Draft, name: str, bits: int) -> str:
    return draft.add(name, "reduce-precision", [name], _plain(draft[name].shape), exponent_bits=8, mantissa_bits=bits)


def rounded_operands(draft: Draft, name: str, bits: int) -> None:
    """A contraction whose operands keep so many bits."""
    draft.change(name, operands=tuple(_cut(draft, operand, bits) for operand in draft[name].operands))


def of_passes(draft: Draft, name: str, bits: int, passes: int) -> None:
    """A contraction in 3 or 6 passes: high parts with middle ones, and with low ones."""
    terms = {3: 2, 6: 3}[passes]
    parts = []
    for operand in draft[name].operands:
        rest, found = operand, []
        for number in range(terms):
            found.append(_cut(draft, rest, bits))
            if number < terms - 1:
                rest = draft.add(operand, "subtract", [rest, found[-1]], _plain(draft[operand].shape))
        parts.append(found)
    pairs = [(i, j) for i in range(terms) for j in range(terms) if i + j < terms]
    pairs.sort(key=lambda pair: -sum(pair))
    kept, total = draft[name], ""
    for i, j in pairs:
        product = draft.put(
            draft.home(name), attrs.evolve(kept, name=draft.fresh("dot"), operands=(parts[0][i], parts[1][j]))
        )
        total = product if not total else draft.add(name, "add", [total, product], _plain(kept.shape))
    draft.insert_after(name, total)


def fast(draft: Draft) -> None:
    """Functions of f32 by powers and logarithms to base 2, and by reciprocals."""
    names = [e.name for home in code(draft) for e in draft.computations[home].values() if e.opcode in _FAST]
    for name in names:
        if _type(draft[name]) == "f32" and all(_type(draft[operand]) == "f32" for operand in draft[name].operands):
            draft.insert_after(name, _FAST[draft[name].opcode](_Writer(draft, name), *draft[name].operands))


@attrs.frozen(eq=False)
class _Writer:
    """Writes instructions of f32 beside another."""

    draft: Draft
    near: str

    @property
    def shape(self) -> ArrayShape:
        return _plain(self.draft[self.near].shape)

    def __call__(self, opcode: str, *operands: str | float) -> str:
        names = [name if isinstance(name, str) else self.draft.filled(self.near, name, self.shape) for name in operands]
        return self.draft.add(self.near, opcode, names, self.shape)

    def _double(self, opcode: str, *operands: str | float) -> str:
        """The same computed in f64, and rounded to f32."""
        shape = array("f64", *self.shape.dimensions)
        names = [
            self.draft.add(self.near, "convert", [name], shape)
            if isinstance(name, str)
            else self.draft.filled(self.near, name, shape)
            for name in operands
        ]
        return self.draft.add(self.near, "convert", [self.draft.add(self.near, opcode, names, shape)], self.shape)

    def ex2(self, operand: str) -> str:
        return self._double("power", 2.0, operand)

    def lg2(self, operand: str) -> str:
        shape = array("f64", *self.shape.dimensions)
        log = self.draft.add(self.near, "log", [self.draft.add(self.near, "convert", [operand], shape)], shape)
        scale = self.draft.filled(self.near, float(np.log(2.0)), shape)
        return self.draft.add(
            self.near, "convert", [self.draft.add(self.near, "divide", [log, scale], shape)], self.shape
        )

    def reciprocal(self, operand: str) -> str:
        """Behind a barrier: XLA makes a quotient of a product with it."""
        return self.draft.add(self.near, "opt-barrier", [self("divide", 1.0, operand)], self.shape)

    def exponential(self, operand: str) -> str:
        return self.ex2(self("multiply", operand, 1.4426950408889634))

    def log(self, operand: str) -> str:
        return self("multiply", self.lg2(operand), 0.6931471805599453)

    def quotient(self, lhs: str, rhs: str) -> str:
        return self("multiply", lhs, self.reciprocal(rhs))

    def tanh(self, operand: str) -> str:
        power = self.exponential(self("add", operand, operand))
        return self("subtract", 1.0, self("multiply", 2.0, self.reciprocal(self("add", power, 1.0))))

    def root(self, operand: str) -> str:
        inverse = self._double("rsqrt", operand)
        product = self("multiply", operand, inverse)
        zero = self.draft.add(
            self.near,
            "compare",
            [operand, self.draft.filled(self.near, 0.0, self.shape)],
            array("pred", *self.shape.dimensions),
            direction="EQ",
        )
        return self.draft.add(self.near, "select", [zero, operand, product], self.shape)

    def power(self, base: str, exponent: str) -> str:
        positive = self.draft.add(
            self.near,
            "compare",
            [base, self.draft.filled(self.near, 0.0, self.shape)],
            array("pred", *self.shape.dimensions),
            direction="GT",
        )
        fast = self.ex2(self("multiply", exponent, self.lg2(base)))
        return self.draft.add(self.near, "select", [positive, fast, self("power", base, exponent)], self.shape)


_FAST: dict[str, Callable[..., str]] = {
    "divide": _Writer.quotient,
    "exponential": _Writer.exponential,
    "exponential-minus-one": lambda w, x: w("subtract", w.exponential(x), 1.0),
    "log": _Writer.log,
    "log-plus-one": lambda w, x: w.log(w("add", x, 1.0)),
    "logistic": lambda w, x: w("divide", 1.0, w("add", w.exponential(w("negate", x)), 1.0)),
    "power": _Writer.power,
    "sqrt": _Writer.root,
    "tanh": _Writer.tanh,
}


def excess(draft: Draft) -> bool:
    """Elementwise instructions that read bf16 results of others, and of dots, before they are rounded; whether there
    are such."""
    wide: dict[str, str] = {}
    is_used = False
    for home in code(draft):
        for instruction in list(draft.computations[home].values()):
            name = instruction.name
            if _type(instruction) == "f32" and instruction.opcode == "convert" and instruction.operands[0] in wide:
                draft.insert_after(name, wide[instruction.operands[0]])
                is_used = True
            if _type(instruction) != "bf16" or instruction.opcode not in (*_ARITHMETIC, "dot"):
                continue
            shape = array("f32", *_plain(instruction.shape).dimensions)
            if instruction.opcode == "dot":
                copy = attrs.evolve(instruction, name=draft.fresh("dot"), shape=shape)
                wide[name] = draft.put(home, copy)
            else:
                operands = []
                for operand in instruction.operands:
                    is_used |= operand in wide
                    operands.append(
                        wide.get(operand)
                        or draft.add(name, "convert", [operand], array("f32", *_plain(draft[operand].shape).dimensions))
                    )
                wide[name] = draft.add(name, instruction.opcode, operands, shape)
                narrow = draft.add(name, "convert", [wide[name]], _plain(instruction.shape))
                users = [user.name for user in draft.users(name)]
                draft.rewire(name, narrow, users=users, altered=False)
                if draft.is_root(name):
                    draft.roots[home] = narrow
                wide[narrow] = wide[name]
    return is_used
