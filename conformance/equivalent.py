"""Rewrites of HLO text that let XLA:CPU run what it would refuse: modules optimized for a GPU or a TPU.

Fusions become calls, asynchronous pairs become plain operations, gemm library calls become the dot they stand for,
attention the products and softmaxes, bitcasts become transposes and reshapes, and then layouts can go.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from conformance.attention import COMBINERS, attention, attention_gradient
from conformance.hlo_text import (
    Array,
    Computation,
    Instruction,
    Rule,
    array_of,
    elements,
    read_instruction,
    rewrite,
    split,
    without_layouts,
    zeros,
)


def _physical_steps(array: Array) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """From the logical array to the order in memory: (opcode, dimensions after it, permutation or high padding)."""
    dimensions = tuple(array.dimensions[axis] for axis in array.major_to_minor)
    yield "transpose", dimensions, array.major_to_minor
    for tile in array.tiles:
        lead = len(dimensions) - len(tile)
        if lead < 0:
            dimensions, lead = (1,) * -lead + dimensions, 0
            yield "reshape", dimensions, ()
        padding = (0,) * lead + tuple(-size % t for size, t in zip(dimensions[lead:], tile, strict=True))
        dimensions = tuple(size + high for size, high in zip(dimensions, padding, strict=True))
        yield "pad", dimensions, padding
        counts = tuple(size // t for size, t in zip(dimensions[lead:], tile, strict=True))
        split = dimensions[:lead] + tuple(size for pair in zip(counts, tile, strict=True) for size in pair)
        yield "reshape", split, ()
        rank = len(tile)
        order = (
            tuple(range(lead)) + tuple(lead + 2 * i for i in range(rank)) + tuple(lead + 2 * i + 1 for i in range(rank))
        )
        dimensions = tuple(split[axis] for axis in order)
        yield "transpose", dimensions, order


def _bitcast(instruction: Instruction, computation: Computation) -> None:
    """Reinterprets the order in memory: operand to memory order, reshape, and the result's steps backwards."""
    source = array_of(computation.read[instruction.operand_names[0]].shape)
    target = array_of(instruction.shape)
    source_steps, target_steps = list(_physical_steps(source)), list(_physical_steps(target))
    if math.prod(source_steps[-1][1]) != math.prod(target_steps[-1][1]):
        source, target = replace(source, tiles=()), replace(target, tiles=())
        source_steps, target_steps = list(_physical_steps(source)), list(_physical_steps(target))
    if math.prod(source_steps[-1][1]) != math.prod(target_steps[-1][1]):
        raise ValueError(f"%{instruction.name}: {source} and {target} differ in size")

    steps: list[tuple[str, tuple[int, ...], str, str]] = []
    for opcode, dimensions, parameters in source_steps:
        if opcode == "transpose":
            steps.append((opcode, dimensions, "", f", dimensions={{{_commas(parameters)}}}"))
        elif opcode == "pad":
            steps.append((opcode, dimensions, "zero", f", padding={'x'.join(f'0_{high}' for high in parameters)}"))
        else:
            steps.append((opcode, dimensions, "", ""))
    steps.append(("reshape", target_steps[-1][1], "", ""))
    before = [target.dimensions] + [dimensions for _, dimensions, _ in target_steps[:-1]]
    for (opcode, _, parameters), dimensions in zip(reversed(target_steps), reversed(before), strict=True):
        if opcode == "transpose":
            inverse = sorted(range(len(parameters)), key=parameters.__getitem__)
            steps.append((opcode, dimensions, "", f", dimensions={{{_commas(inverse)}}}"))
        elif opcode == "pad":
            bounds = ", ".join(f"[0:{size}]" for size in dimensions)
            steps.append(("slice", dimensions, "", f", slice={{{bounds}}}"))
        else:
            steps.append((opcode, dimensions, "", ""))

    value, current = instruction.operand_names[0], source.dimensions
    for number, (opcode, dimensions, extra, attributes) in enumerate(steps):
        identity_order = opcode == "transpose" and attributes == f", dimensions={{{_commas(range(len(current)))}}}"
        if dimensions == current and (identity_order or opcode != "transpose"):
            continue
        operands = f"%{value}"
        if extra:
            zero = Instruction(f"{instruction.name}.zero{number}", f"{source.element_type}[]", "constant", "0", "")
            operands += f", %{computation.emit(zero)}"
        shape = str(source.of(dimensions))
        value = computation.emit(Instruction(f"{instruction.name}.step{number}", shape, opcode, operands, attributes))
        current = dimensions
    last = "copy" if source.element_type == target.element_type else "bitcast-convert"
    computation.emit(replace(instruction, opcode=last, operands=f"%{value}", attributes=""))


def _commas(numbers: Iterable[Any]) -> str:
    return ",".join(str(number) for number in numbers)


def _fusion(instruction: Instruction, computation: Computation) -> None:
    called = instruction.attribute("calls")
    computation.emit(replace(instruction, opcode="call", attributes=f", to_apply={called}"))


def _start(opcode: str, result: Callable[[str], str]) -> Rule:
    """An asynchronous start computes its result at once; `result` finds the result's shape in the start's."""

    def rule(instruction: Instruction, computation: Computation) -> None:
        shape = result(instruction.shape)
        attributes = instruction.without("backend_config", "async_execution_thread", "cross_program_prefetch_index")
        plain = replace(attributes, opcode=opcode, shape=shape, root=False)
        if opcode == "call":
            called = plain.attribute("calls") or plain.attribute("to_apply")
            plain = replace(plain, attributes=f", to_apply={called}")
        computation.read[instruction.name] = replace(instruction, shape=shape)
        if opcode == "reduce-scatter":
            _reduce_scatter(plain, computation)
        else:
            computation.emit(plain)

    return rule


def _done(instruction: Instruction, computation: Computation) -> None:
    (start,) = instruction.operand_names
    shape = computation.read[start].shape
    if not shape.startswith("("):
        computation.emit(replace(instruction, opcode="copy", attributes=""))
        return
    taken_elements = []
    for index, element in enumerate(elements(shape)):
        taken = Instruction(
            f"{instruction.name}.element{index}", element, "get-tuple-element", f"%{start}", f", index={index}"
        )
        taken_elements.append(f"%{computation.emit(taken)}")
    computation.emit(replace(instruction, opcode="tuple", operands=", ".join(taken_elements), attributes=""))


def _update(instruction: Instruction, computation: Computation) -> None:
    """The started operation, which has its result already."""
    (start,) = instruction.operand_names
    same = replace(instruction, shape=computation.read[start].shape)
    computation.read[instruction.name] = same
    _done(same, computation)


def _second(shape: str) -> str:
    return elements(shape)[1]


def _first(shape: str) -> str:
    return elements(shape)[0]


def _same(shape: str) -> str:
    return shape


_ACCUMULATION = {"bf16": "f32", "f16": "f32", "f32": "f32", "f64": "f64", "s8": "s32", "c64": "c64", "c128": "c128"}


class _Gemm:
    """`__cublas$gemm` and `__cublas$lt$matmul`: epilogue(alpha * dot(lhs, rhs) + beta * c + bias), rounded once."""

    def __init__(self, instruction: Instruction, computation: Computation) -> None:
        config = _json_attribute(instruction.attribute("backend_config"))
        self.config = config.get("gemm_backend_config", config)
        self.instruction, self.computation = instruction, computation
        tuple_result = instruction.shape.startswith("(")
        self.outputs = elements(instruction.shape) if tuple_result else [instruction.shape]
        self.result = array_of(self.outputs[0])
        self.count = 0

    def emit(self, element_type: str, opcode: str, operands: str, attributes: str = "", scalar: bool = False) -> str:
        dimensions = () if scalar else self.result.dimensions
        shape = str(replace(self.result, element_type=element_type).of(dimensions))
        self.count += 1
        name = f"{self.instruction.name}.gemm{self.count}"
        return "%" + self.computation.emit(Instruction(name, shape, opcode, operands, attributes))

    def constant(self, element_type: str, value: Any) -> str:
        scalar = self.emit(element_type, "constant", str(value), scalar=True)
        return self.emit(element_type, "broadcast", scalar, ", dimensions={}")

    def write(self) -> None:
        config, element_type = self.config, self.result.element_type
        operands = ["%" + name for name in self.instruction.operand_names]
        numbers = config["dot_dimension_numbers"]
        attributes = "".join(
            f", {short}={{{_commas(numbers.get(long, []))}}}"
            for short, long in (
                ("lhs_batch_dims", "lhs_batch_dimensions"),
                ("lhs_contracting_dims", "lhs_contracting_dimensions"),
                ("rhs_batch_dims", "rhs_batch_dimensions"),
                ("rhs_contracting_dims", "rhs_contracting_dimensions"),
            )
            if numbers.get(long)
        )
        alpha, beta = float(config.get("alpha_real", 1)), float(config.get("beta", 0))
        epilogue = config.get("epilogue", "DEFAULT")
        if float(config.get("alpha_imag", 0)) or config.get("damax_output"):
            raise ValueError(f"%{self.instruction.name}: complex alpha and damax_output are not handled")
        plain = alpha == 1 and beta == 0 and epilogue == "DEFAULT"
        wide = element_type if plain else _ACCUMULATION[element_type]
        value = self.emit(wide, "dot", f"{operands[0]}, {operands[1]}", attributes)
        rest = operands[2:]
        if alpha != 1:
            value = self.emit(wide, "multiply", f"{value}, {self.constant(wide, alpha)}")
        if beta != 0:
            c = self.emit(wide, "convert", rest.pop(0))
            if beta != 1:
                c = self.emit(wide, "multiply", f"{c}, {self.constant(wide, beta)}")
            value = self.emit(wide, "add", f"{value}, {c}")
        value = self.apply_epilogue(epilogue, value, wide, rest)
        if rest:
            raise ValueError(f"%{self.instruction.name}: operands {', '.join(rest)} have no known role")
        self.finish(value if wide == element_type else self.emit(element_type, "convert", value))

    def apply_epilogue(self, epilogue: str, value: str, wide: str, rest: list[str]) -> str:
        bias, _, activation = epilogue.rpartition("_") if epilogue not in ("DEFAULT", "BIAS") else (epilogue, "", "")
        if bias not in ("", "DEFAULT", "BIAS") or activation not in ("", "RELU", "GELU", "SILU"):
            raise ValueError(f"%{self.instruction.name}: epilogue {epilogue} is not handled")
        if bias == "BIAS":
            last = len(self.result.dimensions) - 1
            vector = self.emit(self.result.element_type, "broadcast", rest.pop(0), f", dimensions={{{last}}}")
            value = self.emit(wide, "add", f"{value}, {self.emit(wide, 'convert', vector)}")
        if activation == "RELU":
            value = self.emit(wide, "maximum", f"{value}, {self.constant(wide, 0)}")
        if activation == "SILU":
            value = self.emit(wide, "multiply", f"{value}, {self.emit(wide, 'logistic', value)}")
        if activation == "GELU":
            value = self.gelu(value, wide)
        return value

    def gelu(self, x: str, wide: str) -> str:
        """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2, the form cuBLASLt computes."""

        def times(left: str, right: str) -> str:
            return self.emit(wide, "multiply", f"{left}, {right}")

        cubic = times(self.constant(wide, 0.044715), times(x, times(x, x)))
        inner = times(self.constant(wide, math.sqrt(2 / math.pi)), self.emit(wide, "add", f"{x}, {cubic}"))
        outer = self.emit(wide, "add", f"{self.constant(wide, 1)}, {self.emit(wide, 'tanh', inner)}")
        return times(times(self.constant(wide, 0.5), x), outer)

    def finish(self, value: str) -> None:
        """Puts the workspace that the library call returns beside its result, as zeros."""
        if not self.instruction.shape.startswith("("):
            self.computation.emit(replace(self.instruction, opcode="copy", operands=value, attributes=""))
            return
        workspace = [zeros(self.instruction, shape, self.computation) for shape in self.outputs[1:]]
        operands = ", ".join([value, *workspace])
        self.computation.emit(replace(self.instruction, opcode="tuple", operands=operands, attributes=""))


def _gemm(instruction: Instruction, computation: Computation) -> None:
    _Gemm(instruction, computation).write()


_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(instruction: Instruction, computation: Computation) -> None:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): keys k0, k1 and counters x0, x1, all u32 arrays."""
    shape = elements(instruction.shape)[0]
    count = 0

    def emit(opcode: str, *operands: str, attributes: str = "", of: str = shape) -> str:
        nonlocal count
        count += 1
        name = f"{instruction.name}.threefry{count}"
        return "%" + computation.emit(Instruction(name, of, opcode, ", ".join(operands), attributes))

    def constant(value: int) -> str:
        return emit("broadcast", emit("constant", str(value), of="u32[]"), attributes=", dimensions={}")

    k0, k1, x0, x1 = (f"%{name}" for name in instruction.operand_names)
    keys = (k0, k1, emit("xor", emit("xor", k0, k1), constant(0x1BD11BDA)))
    x0, x1 = emit("add", x0, keys[0]), emit("add", x1, keys[1])
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x0 = emit("add", x0, x1)
            left = emit("shift-left", x1, constant(rotation))
            right = emit("shift-right-logical", x1, constant(32 - rotation))
            x1 = emit("xor", emit("or", left, right), x0)
        x0 = emit("add", x0, keys[(group + 1) % 3])
        x1 = emit("add", emit("add", x1, keys[(group + 2) % 3]), constant(group + 1))
    computation.emit(replace(instruction, opcode="tuple", operands=f"{x0}, {x1}", attributes=""))


def _async_collective_start(instruction: Instruction, computation: Computation) -> None:
    """The TPU's (collective's operand, collective's result, synchronization flags...)."""
    (collective,) = instruction.operand_names
    (source,) = computation.read[collective].operand_names
    flags = [zeros(instruction, shape, computation) for shape in elements(instruction.shape)[2:]]
    operands = ", ".join([f"%{source}", f"%{collective}", *flags])
    computation.emit(replace(instruction, opcode="tuple", operands=operands, attributes=""))


def _async_collective_done(instruction: Instruction, computation: Computation) -> None:
    """The collective's result is the second thing that the start handed over."""
    result = f"%{instruction.operand_names[1]}"
    computation.emit(replace(instruction, opcode="copy", operands=result, attributes=""))


def _reduce_scatter(instruction: Instruction, computation: Computation) -> None:
    """StableHLO's has one operand, so each of several is scattered by itself."""
    if not instruction.shape.startswith("("):
        computation.emit(instruction)
        return
    parts = []
    for number, (name, shape) in enumerate(zip(instruction.operand_names, elements(instruction.shape), strict=True)):
        part = replace(
            instruction, name=f"{instruction.name}.part{number}", shape=shape, operands=f"%{name}", root=False
        )
        parts.append(f"%{computation.emit(part)}")
    computation.emit(replace(instruction, opcode="tuple", operands=", ".join(parts), attributes=""))


def _json_attribute(text: str) -> dict[str, Any]:
    """A backend_config is printed as bare JSON, or as a string that holds JSON."""
    value = json.loads(text or "{}")
    parsed = json.loads(value) if isinstance(value, str) else value
    return dict(parsed)


_LIBRARY: dict[str, Rule] = {
    "__cublas$gemm": _gemm,
    "__cublas$lt$matmul": _gemm,
    "cuda_threefry2x32": _threefry,
    "AsyncCollectiveStart": _async_collective_start,
    "AsyncCollectiveDone": _async_collective_done,
    "te_fused_attn_forward_ffi": attention,
    "te_fused_attn_backward_ffi": attention_gradient,
}


def _custom_call(instruction: Instruction, computation: Computation) -> None:
    rule = _LIBRARY.get(instruction.attribute("custom_call_target").strip('"'))
    if rule is None:
        computation.emit(instruction)
    else:
        rule(instruction, computation)


_ASYNC_OPCODES = ("all-to-all", "reduce-scatter", "collective-broadcast", "ragged-all-to-all", "custom-call", "fusion")

_EQUIVALENT: dict[str, Rule] = {
    "bitcast": _bitcast,
    "fusion": _fusion,
    "custom-call": _custom_call,
    "reduce-scatter": _reduce_scatter,
    "copy-start": _start("copy", _first),
    "all-reduce-start": _start("all-reduce", _same),
    "all-gather-start": _start("all-gather", _second),
    "collective-permute-start": _start("collective-permute", _second),
    "call-start": _start("call", _second),
    "async-start": _start("call", _second),
    "fusion-start": _start("call", _second),
    "async-update": _update,
} | {f"{opcode}-start": _start(opcode, _second) for opcode in _ASYNC_OPCODES if opcode != "fusion"}
_EQUIVALENT |= {opcode.removesuffix("-start") + "-done": _done for opcode in _EQUIVALENT if opcode.endswith("-start")}


_HEADER = ("entry_computation_layout", "replica_count", "num_partitions")
_DROPPED = ("backend_config", "control-predecessors", "output_to_operand_aliasing", "sharding", "frontend_attributes")


def equivalent(printed: str) -> str:
    """The module that means the same in operations XLA:CPU has; `printed` has operands without shapes.

    Raises ValueError for a library call's option or a layout that it cannot express.
    """
    lines: list[str] = []
    for line in rewrite(printed, _EQUIVALENT).splitlines():
        instruction = read_instruction(line)
        if instruction is not None:
            line = str(instruction.without(*_DROPPED))
        elif line.startswith("HloModule "):
            name, *attributes = split(line)
            line = ", ".join([name, *(item for item in attributes if item.partition("=")[0] in _HEADER)])
        lines.append(line)
    if any("to_apply=%attention." in line for line in lines):
        lines.insert(1, COMBINERS)
    return without_layouts("\n".join(lines) + "\n")
