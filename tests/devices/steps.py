"""The steps that a drawn program is made of: one per collective, in each of the forms that HLO has for it."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.devices import collectives_model as model
from tests.devices.groups import draw_groups, draw_pairs
from tests.devices.program import (
    EXACT,
    LARGEST,
    TYPES,
    Array,
    Options,
    Program,
    Value,
    any_bits,
    shape_text,
    tuple_text,
)


def _collective(
    program: Program,
    options: Options,
    opcode: str,
    operands: Sequence[Value],
    attributes: str,
    results: Sequence[tuple[str, Sequence[Array]]],
    is_tuple: bool | None = None,
) -> None:
    """Writes the operation in a drawn form and keeps its results; one result is no tuple unless `is_tuple`."""
    form = options.pick([form for form in options.forms if form != "start" or opcode in _STARTS])
    is_tuple = len(results) > 1 if is_tuple is None else is_tuple
    texts = [shape_text(element, arrays[0].shape) for element, arrays in results]
    result = tuple_text(texts) if is_tuple else texts[0]
    names = ", ".join(value.name for value in operands)
    name = program.name(opcode)
    attributes = attributes.removeprefix(", ")
    if form == "sync":
        program.emit(f"{name} = {result} {opcode}({names}), {attributes}")
    elif form == "start":
        before = tuple_text([v.text for v in operands]) if len(operands) > 1 else operands[0].text
        state = {
            "all-gather": f"({before}, {result})",
            "all-reduce": result,
            "collective-permute": f"({before}, {result}, u32[], u32[])",
        }[opcode]
        program.emit(f"{name}.start = {state} {opcode}-start({names}), {attributes}")
        program.emit(f"{name} = {result} {opcode}-done({name}.start)")
    else:
        parameters = "".join(f"  a{n} = {value.text} parameter({n})\n" for n, value in enumerate(operands))
        inner = ", ".join(f"a{n}" for n in range(len(operands)))
        wrapped = f"wrapped.{name}"
        program.computations[wrapped] = (
            f"{wrapped} {{\n{parameters}  ROOT r = {result} {opcode}({inner}), {attributes}\n}}\n"
        )
        state = f"({tuple_text([value.text for value in operands])}, {result}, u32[])"
        program.emit(f"{name}.start = {state} async-start({names}), calls={wrapped}")
        last = f"{name}.start"
        if form == "update":
            program.emit(f"{name}.update = {state} async-update({last})")
            last = f"{name}.update"
        program.emit(f"{name} = {result} async-done({last})")
    for number, (element, arrays) in enumerate(results):
        taken = name
        if is_tuple:
            taken = f"{name}.{number}"
            program.emit(f"{taken} = {texts[number]} get-tuple-element({name}), index={number}")
        program.keep(taken, element, arrays)


_STARTS = ("all-gather", "all-reduce", "collective-permute")


def _operands(options: Options, values: Sequence[Value]) -> list[Value]:
    return [options.pick(values) for _ in range(options.draw(st.integers(1, options.most_operands)))]


def _all_gather(program: Program, options: Options) -> None:
    dimension = options.draw(st.integers(0, 2))
    operands = _operands(options, [v for v in program.values if len(v.shape) > dimension])
    if options.for_xla and dimension > 0 and any(value.element == "bf16" for value in operands):
        # Of several with one of bf16, XLA:CPU puts the elements in other places (docs/differences.md).
        operands = operands[:1]
    largest = max(prod(value.shape) for value in operands)
    groups, text = draw_groups(program, options, "global", lambda size: size * largest <= LARGEST)
    results = [(value.element, model.all_gather(groups, value.arrays, dimension)) for value in operands]
    _collective(program, options, "all-gather", operands, f"{text}, dimensions={{{dimension}}}", results)


REDUCERS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("{t}[] add(x, y)", lambda x, y: x + y),
    "subtract": ("{t}[] subtract(x, y)", lambda x, y: x - y),
    "multiply": ("{t}[] multiply(x, y)", lambda x, y: x * y),
    "minimum": ("{t}[] minimum(x, y)", min),
    "maximum": ("{t}[] maximum(x, y)", max),
    "and": ("{t}[] and(x, y)", lambda x, y: x & y),
    "or": ("{t}[] or(x, y)", lambda x, y: x | y),
    "xor": ("{t}[] xor(x, y)", lambda x, y: x ^ y),
    # Neither commutative nor associative: the order of the devices in their group counts.
    "first and not second": ("{t}[] and(x, z)", lambda x, y: x & ~y),
}


def _reducers(operands: Sequence[Value], devices: int) -> list[str]:
    """The reducers whose result the model knows bit for bit: floats must be small integers, −0 and NaN are out."""
    element = operands[0].element
    if element == "pred":
        return ["and", "or"]
    if element not in EXACT:
        return [name for name in REDUCERS if name != "first and not second" or element.startswith("s")]
    with np.errstate(invalid="ignore"):
        wide = [value.astype(np.complex128) for operand in operands for value in operand.arrays]
    parts = [part for array in wide for part in (array.real, array.imag)]
    if not all(np.isfinite(part).all() and (part == np.round(part)).all() for part in parts):
        return []
    if any(np.signbit(part[part == 0]).any() for part in parts):
        return []
    largest = max((float(np.abs(part).max()) for part in parts if part.size), default=0.0)
    exact = ["add", "subtract"] if largest * devices <= EXACT[element] else []
    if "subtract" in exact and element.startswith("c"):
        exact = ["add"]
    return exact + ([] if element.startswith("c") else ["minimum", "maximum"])


def _reducer(program: Program, options: Options, operands: Sequence[Value]) -> tuple[str, Any]:
    element = operands[0].element
    fitting = _reducers(operands, program.devices)
    if element != "pred":
        fitting = [name for name in fitting if name in options.reducers]
    name = options.pick(fitting)
    text, function = REDUCERS[name]
    computation = f"{name.replace(' ', '_')}_{element}"
    inverted = f"  z = {element}[] not(y)\n" if "z)" in text else ""
    program.computations[computation] = (
        f"{computation} {{\n  x = {element}[] parameter(0)\n  y = {element}[] parameter(1)\n{inverted}"
        f"  ROOT r = {text.format(t=element)}\n}}\n"
    )
    return computation, function


def _all_reduce(program: Program, options: Options) -> None:
    first = options.pick(program.values)
    operands = [first, *_operands(options, [v for v in program.values if v.element == first.element])[1:]]
    computation, function = _reducer(program, options, operands)
    groups, text = draw_groups(program, options, "global")
    reduced = model.all_reduce(groups, [value.arrays for value in operands], function)
    results = [(v.element, [device[n] for device in reduced]) for n, v in enumerate(operands)]
    _collective(program, options, "all-reduce", operands, f"{text}, to_apply={computation}", results)


def _reduce_scatter(program: Program, options: Options) -> None:
    dimension = options.draw(st.integers(0, 2))
    first = options.pick([v for v in program.values if len(v.shape) > dimension])
    same = [v for v in program.values if v.element == first.element and len(v.shape) > dimension]
    operands = [first, *_operands(options, same)[1 : 1 if options.for_xla else None]]
    computation, function = _reducer(program, options, operands)
    groups, text = draw_groups(
        program, options, "global", lambda size: all(v.shape[dimension] % size == 0 for v in operands)
    )
    reduced = model.reduce_scatter(groups, [value.arrays for value in operands], function, dimension)
    results = [(v.element, [device[n] for device in reduced]) for n, v in enumerate(operands)]
    attributes = f"{text}, dimensions={{{dimension}}}, to_apply={computation}"
    _collective(program, options, "reduce-scatter", operands, attributes, results)


def _all_to_all(program: Program, options: Options) -> None:
    dimension = options.draw(st.integers(0, 2))
    value = options.pick([v for v in program.values if len(v.shape) > dimension])
    groups, text = draw_groups(program, options, "replica", lambda size: value.shape[dimension] % size == 0)
    results = [(value.element, model.all_to_all(groups, value.arrays, dimension))]
    _collective(program, options, "all-to-all", [value], f"{text}, dimensions={{{dimension}}}", results)


def _all_to_all_tuple(program: Program, options: Options) -> None:
    first = options.pick(program.values)
    same = [v for v in program.values if (v.element, v.shape) == (first.element, first.shape)]
    groups, text = draw_groups(
        program, options, "replica", lambda size: options.for_xla < size <= LARGEST // max(prod(first.shape), 1)
    )
    operands = [first, *(options.pick(same) for _ in groups[0][1:])]
    moved = model.all_to_all_tuple(groups, [value.arrays for value in operands])
    results = [(first.element, [device[n] for device in moved]) for n in range(len(operands))]
    _collective(program, options, "all-to-all", operands, text, results, is_tuple=True)


def _ragged_all_to_all(program: Program, options: Options) -> None:
    """Every receiver's rows are shared out among its senders, so that no two write to the same row."""
    value = options.pick([v for v in program.values if v.shape])
    groups, text = draw_groups(program, options, "replica")
    size = len(groups[0])
    pieces = options.draw(st.integers(1, 2))
    element = options.pick(["s32", "s64"])
    rows, generator = value.shape[0], options.generator
    out_rows = options.draw(st.integers(0, 9))
    shape = (out_rows, *value.shape[1:])
    tables = [np.zeros((program.devices, size, pieces), TYPES[element]) for _ in range(4)]
    input_offsets, send_sizes, output_offsets, recv_sizes = tables
    for group in groups:
        for to, receiver in enumerate(group):
            borders = np.sort(generator.integers(0, out_rows + 1, size * pieces - 1)) if size * pieces > 1 else []
            starts = [0, *borders]
            ends = [*borders, out_rows]
            for number, (sender, piece) in enumerate((s, p) for s in range(size) for p in range(pieces)):
                room = min(int(ends[number] - starts[number]), rows)
                sent = int(generator.integers(0, room + 1))
                send_sizes[group[sender], to, piece] = sent
                recv_sizes[receiver, sender, piece] = sent
                output_offsets[group[sender], to, piece] = starts[number]
                input_offsets[group[sender], to, piece] = generator.integers(0, rows - sent + 1)
    offsets = (size, pieces) if pieces > 1 else (size,)
    filler = [any_bits(generator, value.element, shape) for _ in range(program.devices)]
    operands = [value, program.parameter(value.element, filler)]
    for table in (input_offsets, send_sizes, output_offsets, recv_sizes):
        operands.append(
            program.parameter(element, [table[device].reshape(offsets) for device in range(program.devices)])
        )
    results = [(value.element, model.ragged_all_to_all(groups, [operand.arrays for operand in operands]))]
    _collective(program, options, "ragged-all-to-all", operands, text, results)


def _collective_permute(program: Program, options: Options) -> None:
    operands = _operands(options, program.values)[: 1 if options.for_xla else None]
    pairs, text = draw_pairs(program, options)
    results = [(value.element, model.collective_permute(pairs, value.arrays)) for value in operands]
    _collective(program, options, "collective-permute", operands, text, results)


def _collective_permute_in_place(program: Program, options: Options) -> None:
    """A slice of one value into another of the same type and rank; starts differ from device to device."""
    value = options.pick([v for v in program.values if v.shape and 0 not in v.shape])
    rank = len(value.shape)
    same = [v for v in program.values if v.element == value.element and len(v.shape) == rank and 0 not in v.shape]
    output = options.pick(same)
    pairs, text = draw_pairs(program, options)
    sizes = [options.draw(st.integers(1, min(a, b))) for a, b in zip(value.shape, output.shape, strict=True)]
    starts = []
    for target in (value, output):
        drawn = [
            [
                int(options.generator.integers(0, extent - size + 1))
                for extent, size in zip(target.shape, sizes, strict=True)
            ]
            for _ in range(program.devices)
        ]
        parameters = [
            program.parameter("s32", [np.array(device[axis], np.int32) for device in drawn]) for axis in range(rank)
        ]
        name = program.name("starts")
        program.emit(f"{name} = {tuple_text(['s32[]'] * rank)} tuple({', '.join(p.name for p in parameters)})")
        starts.append((name, drawn))
    moved = model.collective_permute_in_place(pairs, value.arrays, output.arrays, starts[0][1], starts[1][1], sizes)
    name = program.name("collective-permute")
    names = ", ".join([value.name, output.name, starts[0][0], starts[1][0]])
    attributes = f"{text}, slice_sizes={{{{{','.join(map(str, sizes))}}}}}".removeprefix(", ")
    program.emit(f"{name} = {output.text} collective-permute({names}), {attributes}")
    program.keep(name, value.element, moved)


def _collective_broadcast(program: Program, options: Options) -> None:
    """Groups may leave devices out here: those get zeros."""
    value = options.pick(program.values)
    groups, text = draw_groups(program, options, "replica", may_miss_devices=True)
    results = [(value.element, model.collective_broadcast(groups, value.arrays))]
    _collective(program, options, "collective-broadcast", [value], text, results)


def _ids(program: Program, options: Options) -> None:
    opcode = options.pick(["partition-id", "replica-id"])
    number = getattr(model, opcode.replace("-", "_"))
    name = program.name(opcode)
    program.emit(f"{name} = u32[] {opcode}()")
    numbers = [np.uint32(number(device, program.partitions)) for device in range(program.devices)]
    spread = program.name("spread")
    program.emit(f"{spread} = u32[4] broadcast({name}), dimensions={{}}")
    program.keep(spread, "u32", [np.full(4, n, np.uint32) for n in numbers])


def _local(program: Program, options: Options) -> None:
    """Integers only: a sum that joins the devices' classes of both operands."""
    integers = [v for v in program.values if v.element in "u8 s16 s32 u32 s64 u64".split()]
    first = options.pick(integers)
    second = options.pick([v for v in integers if (v.element, v.shape) == (first.element, first.shape)])
    name = program.name("sum")
    program.emit(f"{name} = {first.text} add({first.name}, {second.name})")
    with np.errstate(over="ignore"):
        program.keep(name, first.element, [a + b for a, b in zip(first.arrays, second.arrays, strict=True)])


STEPS: dict[str, Callable[[Program, Options], None]] = {
    "all-gather": _all_gather,
    "all-reduce": _all_reduce,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "all-to-all of a tuple": _all_to_all_tuple,
    "ragged-all-to-all": _ragged_all_to_all,
    "collective-permute": _collective_permute,
    "collective-permute in place": _collective_permute_in_place,
    "collective-broadcast": _collective_broadcast,
    "ids": _ids,
    "local": _local,
}
