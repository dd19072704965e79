"""What stands for fused attention, cuDNN's and Transformer Engine's: products, a softmax, and their gradients.

Source: Dao et al., "FlashAttention" (2022), algorithms 1 and 4. Queries are [b, g, h, s, d], of h heads in each of g
groups, keys and values [b, g, t, d] of one; everything is computed in f32, or f64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from hloexec.core.dtypes import ElementType, element_type, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Dimensions
from hloexec.errors import UnsupportedError
from hloexec.ops.contraction.dot import dot_of
from hloexec.ops.equivalents.instructions import Rule, Values
from hloexec.ops.equivalents.products import config_of, times
from hloexec.ops.equivalents.writing import Writer, array_of, sizes_of
from hloexec.ops.library_calls.activations import Band
from hloexec.ops.library_calls.configs import result_shapes
from hloexec.ops.library_calls.cudnn import attention as cudnn
from hloexec.ops.library_calls.cudnn.attention_parts import KINDS, AttentionConfig, Placement, is_scratch
from hloexec.ops.library_calls.transformer_engine import attention as engine

_QUERIES_BY_KEYS = dot_of("bghqd,bgkd->bghqk")
_WEIGHTS_BY_VALUES = dot_of("bghqk,bgkd->bghqd")
_WEIGHTS_BY_QUERIES = dot_of("bghqk,bghqd->bgkd")


@frozen(eq=False)
class Attention:
    """Of queries, keys and values, all of the type that everything is computed in."""

    write: Writer
    queries: Instruction
    keys: Instruction
    values: Instruction
    scale: float
    band: Band
    bias: Instruction | None = None
    """As the scores."""
    bias_before_scale: bool = False
    mask: Instruction | None = None
    """What the scores are multiplied with, as they."""

    @property
    def element_type(self) -> ElementType:
        return array_of(self.queries).element_type

    def dot(self, lhs: Instruction, rhs: Instruction, numbers: object) -> Instruction:
        return self.write.dot(lhs, rhs, numbers, self.element_type)

    def for_each(self, value: Instruction, like: Instruction) -> Instruction:
        """A value without the last dimension, for each element of that."""
        return self.write.broadcast(value, sizes_of(like), tuple(range(len(sizes_of(value)))))

    def total(self, value: Instruction, opcode: str = "add", initial: float = 0) -> Instruction:
        """What is along the last dimension, put together."""
        return self.write.reduce(opcode, value, initial, (len(sizes_of(value)) - 1,))

    def where(self, value: Instruction, direction: str, number: float, instead: float) -> Instruction:
        """The value, and another number where it compares so with a number."""
        is_other = self.write.emit("compare", value, self.write.full(number, value), direction=direction)
        return self.write.emit("select", is_other, self.write.full(instead, value), value)

    def scores(self) -> Instruction:
        """−∞ where a query does not see a key."""
        scores = self.dot(self.queries, self.keys, _QUERIES_BY_KEYS)
        if self.bias is not None and self.bias_before_scale:
            scores = self.write.emit("add", scores, self.bias)
        scores = times(self.write, scores, self.scale)
        if self.bias is not None and not self.bias_before_scale:
            scores = self.write.emit("add", scores, self.bias)
        if self.mask is not None:
            scores = self.write.emit("multiply", scores, self.mask)
        return self._within_band(scores)

    def _within_band(self, scores: Instruction) -> Instruction:
        *_, queries, keys = sizes_of(scores)
        of = element_type("s32")
        query, key = (
            self.write.emit("iota", shape=ArrayShape(of, sizes_of(scores)), iota_dimension=axis) for axis in (3, 4)
        )
        distance = self.write.emit("subtract", key, query)
        shift = keys - queries if self.band.is_bottom_right else 0
        for limit, direction in (
            (None if self.band.left is None else shift - self.band.left, "LT"),
            (None if self.band.right is None else shift + self.band.right, "GT"),
        ):
            if limit is not None:
                is_hidden = self.write.emit("compare", distance, self.write.full(limit, distance), direction=direction)
                scores = self.write.emit("select", is_hidden, self.write.full(-inf, scores), scores)
        return scores

    def forward(self) -> tuple[Instruction, Instruction, Instruction]:
        """The output [b, g, h, s, e], the log-sum-exps of the scores [b, g, h, s], and the probabilities."""
        write, scores = self.write, self.scores()
        largest = self.where(self.total(scores, "maximum", -inf), "EQ", -inf, 0)
        weights = write.emit("exponential", write.emit("subtract", scores, self.for_each(largest, scores)))
        total = self.total(weights)
        sums = write.emit("add", largest, write.emit("log", total))
        weights = write.emit("divide", weights, self.for_each(self.where(total, "EQ", 0, 1), weights))
        return self.dot(weights, self.values, _WEIGHTS_BY_VALUES), sums, weights

    def gradients(self, sums: Instruction, output: Instruction, outer: Instruction) -> list[Instruction]:
        """Those of queries, keys, values and the bias, from log-sum-exps, output and its gradient."""
        write, scores = self.write, self.scores()
        chosen = write.emit("exponential", write.emit("subtract", scores, self.for_each(sums, scores)))
        is_hidden = write.emit("compare", scores, write.full(-inf, scores), direction="EQ")
        chosen = write.emit("select", is_hidden, write.full(0, scores), chosen)
        mean = self.total(write.emit("multiply", outer, output))
        delta = self.dot(outer, self.values, _QUERIES_BY_KEYS)
        delta = write.emit("multiply", chosen, write.emit("subtract", delta, self.for_each(mean, delta)))
        return [
            times(write, self.dot(delta, self.keys, _WEIGHTS_BY_VALUES), self.scale),
            times(write, self.dot(delta, self.queries, _WEIGHTS_BY_QUERIES), self.scale),
            self.dot(chosen, outer, _WEIGHTS_BY_QUERIES),
            times(write, delta, self.scale if self.bias_before_scale else 1),
        ]

    def summed(self, value: Instruction, sizes: Dimensions) -> Instruction:
        """A value like the scores, summed over the dimensions in which it is larger than [b, heads, s, t] `sizes`."""
        batch, groups, heads, *rest = sizes_of(value)
        value = self.write.reshape(value, (batch, groups * heads, *rest))
        axes = tuple(axis for axis, size in enumerate(sizes) if size == 1 != sizes_of(value)[axis])
        return self.write.reduce("add", value, 0, axes) if axes else value


def _wide(write: Writer, value: Instruction, of: ElementType) -> Instruction:
    """In the type that attention of an element type is computed in."""
    return write.convert(value, element_type_of(of.accumulate))


def _grouped(write: Writer, value: Instruction, groups: int) -> Instruction:
    """[b, heads, s, …] as [b, g, h, s, …]."""
    batch, heads, *rest = sizes_of(value)
    return write.reshape(value, (batch, groups, heads // groups, *rest))


def _like_scores(write: Writer, value: Instruction, scores: Dimensions) -> Instruction:
    """A bias or mask [b or 1, heads or 1, s or 1, t or 1] for each score [b, g, h, s, t]."""
    sizes = sizes_of(value)
    batch, groups, heads, queries, keys = scores
    full = (batch, groups * heads, queries, keys)
    kept = tuple(axis for axis, size in enumerate(sizes) if size == full[axis])
    value = write.broadcast(write.reshape(value, tuple(sizes[axis] for axis in kept)), full, kept)
    return write.reshape(value, scores)


def _finish(write: Writer, results: Sequence[Instruction], shape: Shape) -> Instruction:
    """The results in the places of what is no scratch memory, rounded, in the declared dimensions."""
    remaining = iter(results)
    leaves = [
        write.zeros(leaf)
        if is_scratch(leaf)
        else write.reshape(write.convert(next(remaining), leaf.element_type), leaf.dimensions)
        for leaf in result_shapes(shape, "the attention")
    ]
    return write.join(*leaves) if isinstance(shape, TupleShape) else leaves[0]


def _cudnn(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    config = config_of(instruction)
    assert isinstance(config, AttentionConfig)
    kind = config.kind
    if kind.is_8_bit or config.has_lengths or not kind.has_softmax or (kind.is_backward and not config.is_flash):
        raise UnsupportedError("it is of 8 bits, has lengths, no softmax, or a gradient from probabilities")
    named = dict(zip(cudnn.operand_names(config), operands, strict=True))
    of = array_of(operands[0]).element_type

    def canonical(role: str) -> Instruction:
        """[batch, heads, rows, columns]."""
        placement: Placement = config.placements[role]
        value = _wide(write, write.transpose(named[role], placement.order), of)
        sizes = sizes_of(value)
        return value if len(sizes) == 4 else write.reshape(value, (sizes[0], 1, *sizes[1:]))

    queries, keys, values = map(canonical, ("queries", "keys", "values"))
    groups = sizes_of(keys)[1]
    queries = _grouped(write, queries, groups)
    scores = (*sizes_of(queries)[:4], sizes_of(keys)[2])
    extra: dict[str, Any] = {}
    for role in ("bias", "mask"):
        if role in named:
            value = _wide(write, named[role], of)
            sizes = sizes_of(value)
            value = value if len(sizes) == 4 else write.reshape(value, (sizes[0], 1, *sizes[1:]))
            extra[role] = _like_scores(write, value, scores)
    attention = Attention(write, queries, keys, values, config.scale, config.band, **extra)
    if not kind.is_backward:
        output, sums, probabilities = attention.forward()
        return _finish(write, [output, sums if config.is_flash else probabilities], instruction.shape)
    output, outer = (_grouped(write, canonical(role), groups) for role in ("output", "output gradient"))
    sums = write.reshape(_wide(write, named["statistics"], of), scores[:4])
    *gradients, bias = attention.gradients(sums, output, outer)
    if "bias" in named:
        gradients.append(attention.summed(bias, sizes_of(named["bias"])))
    return _finish(write, gradients, instruction.shape)


def _engine(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """Queries [batch…, s, heads, d], keys and values [batch…, t, groups, d]."""
    config = config_of(instruction)
    assert isinstance(config, engine.AttentionConfig)
    if config.has_padding or config.is_ragged or config.packed > 1 or config.softmax != "vanilla":
        raise UnsupportedError("it has padding, packed sequences, packed operands or one more key")
    is_backward, count = "backward" in instruction.attributes.custom_call_target, 4 + config.has_softmax_offset
    of = array_of(operands[0]).element_type
    sizes = engine.attention_sizes([sizes_of(operand) for operand in operands[:3]], config)
    batch = prod(sizes.batch)
    scores = (batch, sizes.groups, sizes.heads // sizes.groups, sizes.queries, sizes.keys)

    def by_head(value: Instruction, *last: int) -> Instruction:
        """[b, heads, s, d]."""
        return write.transpose(write.reshape(_wide(write, value, of), (batch, *last)), (0, 2, 1, 3))

    def of_queries(value: Instruction) -> Instruction:
        depth = sizes_of(value)[-1]
        return _grouped(write, by_head(value, sizes.queries, sizes.heads, depth), sizes.groups)

    def by_row(value: Instruction) -> Instruction:
        """[b, g, h, s, d] or [b, g, t, d] with rows before heads."""
        *heads, rows, depth = sizes_of(value)[1:]
        return write.transpose(write.reshape(value, (batch, prod(heads), rows, depth)), (0, 2, 1, 3))

    keys, values = (by_head(operand, *sizes_of(operand)[-3:]) for operand in operands[1:3])
    bias = None
    if config.bias != "none":
        dimensions = sizes_of(operands[3])
        bias = write.reshape(_wide(write, operands[3], of), (prod(dimensions[:-3]), *dimensions[-3:]))
        bias = _like_scores(write, bias, scores)
    is_first = config.bias == "before the scale"
    attention = Attention(write, of_queries(operands[0]), keys, values, config.scale, config.band, bias, is_first)
    declared = result_shapes(instruction.shape, "the attention")
    left = array_of(operands[count]) if is_backward else declared[1]
    if engine.holds_probabilities(left.dimensions, sizes, config, left.element_type.name == "f32"):
        raise UnsupportedError("it leaves probabilities for the gradient")
    if not is_backward:
        output, sums, _ = attention.forward()
        return write.in_form(
            _forward_results(write, config, operands, [by_row(output), sums], declared), instruction.shape
        )
    sums = write.reshape(_wide(write, operands[count], of), scores[:4])
    *gradients, last = attention.gradients(sums, *map(of_queries, operands[count + 2 : count + 4]))
    results = [by_row(value) for value in gradients]
    if bias is not None:
        results.append(attention.summed(last, (prod(declared[3].dimensions[:-3]), *declared[3].dimensions[-3:])))
    results = [
        write.reshape(write.convert(value, leaf.element_type), leaf.dimensions)
        for value, leaf in zip(results, declared, strict=False)
    ]
    return write.in_form(results, instruction.shape)


def _forward_results(
    write: Writer,
    config: engine.AttentionConfig,
    operands: Values,
    results: Sequence[Instruction],
    declared: Sequence[ArrayShape],
) -> list[Instruction]:
    """Output, log-sum-exps, and the state of the random numbers: the seed, and 0."""
    rounded = [
        write.reshape(write.convert(value, leaf.element_type), leaf.dimensions)
        for value, leaf in zip(results, declared, strict=False)
    ]
    rounded += [write.zeros(declared[2])] * config.has_largest
    seed = operands[engine.seed_number(list(map(array_of, operands)), config)]
    state = declared[2 + config.has_largest]
    flat = write.reshape(seed, (prod(sizes_of(seed)),))
    flat = write.pad(write.slice(flat, (0, min(2, *sizes_of(flat), state.element_count))), (state.element_count,))
    return [*rounded, write.reshape(write.convert(flat, state.element_type), state.dimensions)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(KINDS, _cudnn),
    **dict.fromkeys(("te_fused_attn_forward_ffi", "te_fused_attn_backward_ffi"), _engine),
}
