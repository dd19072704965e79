"""Transformer Engine's fused attention in operations that XLA:CPU has: two products and a softmax, and their gradients.

Written from the formulas of Dao et al., "FlashAttention" (2022), algorithms 1 and 4. Queries [b, s, g, r, d] are of r
heads in each of g groups, keys and values [b, t, g, d] of one. Everything is computed in f32 and rounded once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from conformance.hlo_text import Computation, Instruction, array_of, elements, zeros

_SUPPORTED = {
    "bias_type": (0,),
    "bottom_right_diagonal": (0,),
    "dropout_probability": (0,),
    "mask_type": (0, 2),
    "qkv_layout": (9,),
    "return_max_logit": (0,),
    "softmax_type": (0,),
    "window_size_left": (-1,),
    "window_size_right": (-1,),
}
"""No bias, dropout, sliding window or extra key; queries, keys and values in arrays of their own; at most causal."""
_CAUSAL = 2
_BY_GROUP = "lhs_batch_dims={0,2}, lhs_contracting_dims={4}, rhs_batch_dims={0,2}, rhs_contracting_dims={3}"
_OVER_KEYS = "lhs_batch_dims={0,1}, lhs_contracting_dims={4}, rhs_batch_dims={0,2}, rhs_contracting_dims={1}"
_OVER_QUERIES = "lhs_batch_dims={0,1}, lhs_contracting_dims={2,3}, rhs_batch_dims={0,2}, rhs_contracting_dims={1,3}"

_COMBINER = """%attention.{opcode} {{
  %attention.{opcode}.x = f32[] parameter(0)
  %attention.{opcode}.y = f32[] parameter(1)
  ROOT %attention.{opcode}.z = f32[] {opcode}(%attention.{opcode}.x, %attention.{opcode}.y)
}}
"""
COMBINERS = "".join(_COMBINER.format(opcode=opcode) for opcode in ("add", "maximum"))
"""The computations that the reductions call."""


class _Attention:
    """The operands of a call in f32, and the scores [b, g, s, r, t]."""

    def __init__(self, instruction: Instruction, computation: Computation) -> None:
        self.instruction, self.computation, self.count = instruction, computation, 0
        config = dict(re.findall(r"\b(\w+) = ([\w.+\-]+)", instruction.attribute("backend_config")))
        for name, supported in _SUPPORTED.items():
            value = config.get(name, "false").replace("false", str(supported[0])).replace("true", "1")
            if float(value) not in supported:
                raise ValueError(f"%{instruction.name}: {name} = {value} is not handled")
        self.is_causal, self.scale = float(config["mask_type"]) == _CAUSAL, config["scaling_factor"]
        q, _, v = (array_of(computation.read[name].shape).dimensions for name in instruction.operand_names[:3])
        self.batch, self.groups, self.each = math.prod(q[:-3]), v[-2], q[-2] // v[-2]
        self.queries, self.keys = q[-3], v[-3]
        self.scores_shape = (self.batch, self.groups, self.queries, self.each, self.keys)
        self.q, self.k, self.v = (
            self.by_group(0),
            self.wide(1, self.batch, *v[-3:-1], q[-1]),
            self.wide(2, self.batch, *v[-3:]),
        )

    def emit(
        self, opcode: str, operands: Sequence[str], shape: Sequence[int], attributes: str = "", of: str = "f32"
    ) -> str:
        self.count += 1
        written = f"{of}[{','.join(map(str, shape))}]"
        name = f"{self.instruction.name}.attention{self.count}"
        extra = f", {attributes}" if attributes else ""
        return "%" + self.computation.emit(Instruction(name, written, opcode, ", ".join(operands), extra))

    def wide(self, number: int, *shape: int) -> str:
        """An operand in f32 and another shape."""
        name = self.instruction.operand_names[number]
        dimensions = array_of(self.computation.read[name].shape).dimensions
        return self.emit("reshape", [self.emit("convert", [f"%{name}"], dimensions)], shape)

    def by_group(self, number: int) -> str:
        """An operand [b, s, g, r, d]."""
        depth = array_of(self.computation.read[self.instruction.operand_names[number]].shape).dimensions[-1]
        return self.wide(number, self.batch, self.queries, self.groups, self.each, depth)

    def full(self, number: str) -> str:
        """A number as an array like the scores."""
        return self.emit("broadcast", [self.emit("constant", [number], ())], self.scores_shape, "dimensions={}")

    def repeated(self, value: str) -> str:
        """[b, g, s, r] for each key."""
        return self.emit("broadcast", [value], self.scores_shape, "dimensions={0,1,2,3}")

    def reduced(self, opcode: str, start: str, value: str, shape: Sequence[int]) -> str:
        """Along the last of five dimensions."""
        initial = self.emit("constant", [start], ())
        return self.emit("reduce", [value, initial], shape[:-1], f"dimensions={{4}}, to_apply=%attention.{opcode}")

    def scaled(self, value: str, shape: Sequence[int]) -> str:
        scale = self.emit("broadcast", [self.emit("constant", [self.scale], ())], shape, "dimensions={}")
        return self.emit("multiply", [value, scale], shape)

    def transposed(self, value: str, shape: Sequence[int], order: Sequence[int]) -> tuple[str, list[int]]:
        turned = [shape[axis] for axis in order]
        return self.emit("transpose", [value], turned, f"dimensions={{{','.join(map(str, order))}}}"), turned

    def scores(self) -> str:
        """scale · q · kᵀ, −∞ where the key is hidden."""
        shape = self.scores_shape
        scores = self.scaled(self.emit("dot", [self.q, self.k], shape, _BY_GROUP), shape)
        if not self.is_causal:
            return scores
        query, key = (self.emit("iota", [], shape, f"iota_dimension={axis}", "s32") for axis in (2, 4))
        is_seen = self.emit("compare", [key, query], shape, "direction=LE", "pred")
        return self.emit("select", [is_seen, scores, self.full("-inf")], shape)

    def finish(self, results: Sequence[tuple[str, Sequence[int]]], more: Sequence[str] = ()) -> None:
        """Results in the declared types and shapes, then `more`, then zeros for what carries no value."""
        declared = elements(self.instruction.shape)
        written = []
        for (value, shape), text in zip(results, declared, strict=False):
            array = array_of(text)
            narrow = self.emit("convert", [value], shape, of=array.element_type)
            written.append(self.emit("reshape", [narrow], array.dimensions, of=array.element_type))
        written += more
        written += [zeros(self.instruction, text, self.computation) for text in declared[len(written) :]]
        call = replace(self.instruction, opcode="tuple", operands=", ".join(written), attributes="")
        self.computation.emit(call)


def attention(instruction: Instruction, computation: Computation) -> None:
    """softmax(scores) · v; the log-sum-exps of the scores; the seed and 0 as the state of the random numbers."""
    call = _Attention(instruction, computation)
    shape = call.scores_shape
    scores = call.scores()
    largest = call.reduced("maximum", "-inf", scores, shape)
    weights = call.emit("exponential", [call.emit("subtract", [scores, call.repeated(largest)], shape)], shape)
    total = call.reduced("add", "0", weights, shape)
    logarithm = call.emit("log", [total], shape[:-1])
    sums = call.emit("add", [largest, logarithm], shape[:-1])
    weights = call.emit("divide", [weights, call.repeated(total)], shape)
    depth = array_of(computation.read[instruction.operand_names[2]].shape).dimensions[-1]
    output_shape = (*shape[:-1], depth)
    output = call.emit("dot", [weights, call.v], output_shape, _OVER_KEYS)
    results = [
        call.transposed(output, output_shape, (0, 2, 1, 3, 4)),
        call.transposed(sums, shape[:-1], (0, 1, 3, 2)),
    ]
    call.finish(results, [_state(call, instruction, computation)])


def _state(call: _Attention, instruction: Instruction, computation: Computation) -> str:
    """The seed u32[2], then zeros."""
    seed = instruction.operand_names[4]
    state = array_of(elements(instruction.shape)[2])
    if array_of(computation.read[seed].shape).dimensions != (2,):
        raise ValueError(f"%{instruction.name}: a seed of another shape than [2] is not handled")
    size, of = math.prod(state.dimensions), state.element_type
    zero = call.emit("constant", ["0"], (), of=of)
    padded = call.emit("pad", [f"%{seed}", zero], (size,), f"padding=0_{size - 2}", of)
    return call.emit("reshape", [padded], state.dimensions, of=of)


def attention_gradient(instruction: Instruction, computation: Computation) -> None:
    """scale · dS · K, scale · dSᵀ · Q and Pᵀ · dO, P = exp(scores − log-sum-exps), dS = P ∘ (dO · Vᵀ − Σ dO ∘ O)."""
    call = _Attention(instruction, computation)
    shape = call.scores_shape
    batch, groups, queries, each, keys = shape
    by_head = (batch, groups, each, queries)
    sums, _ = call.transposed(call.wide(4, *by_head), by_head, (0, 1, 3, 2))
    output, gradient = call.by_group(6), call.by_group(7)
    depths = [array_of(computation.read[name].shape).dimensions[-1] for name in instruction.operand_names[:3]]
    weights = call.emit("exponential", [call.emit("subtract", [call.scores(), call.repeated(sums)], shape)], shape)
    change = call.emit("dot", [gradient, call.v], shape, _BY_GROUP)
    value_shape = (batch, queries, groups, each, depths[2])
    product = call.emit("multiply", [gradient, output], value_shape)
    mean, _ = call.transposed(call.reduced("add", "0", product, value_shape), value_shape[:-1], (0, 2, 1, 3))
    change = call.emit("subtract", [change, call.repeated(mean)], shape)
    change = call.emit("multiply", [weights, change], shape)
    query_shape = (*shape[:-1], depths[0])
    key_shape, values_shape = ((batch, groups, keys, depth) for depth in depths[1:])
    q = call.scaled(call.emit("dot", [change, call.k], query_shape, _OVER_KEYS), query_shape)
    k = call.scaled(call.emit("dot", [change, call.q], key_shape, _OVER_QUERIES), key_shape)
    v = call.emit("dot", [weights, gradient], values_shape, _OVER_QUERIES)
    call.finish(
        [
            call.transposed(q, query_shape, (0, 2, 1, 3, 4)),
            call.transposed(k, key_shape, (0, 2, 1, 3)),
            call.transposed(v, values_shape, (0, 2, 1, 3)),
        ]
    )
