"""Checks what observers saw of a run against the text alone: no plan, pass or executor has a part in it.

What was seen must be what the text executes (values that nobody needs may be left out), with the value that each
opcode's definition gives for the operands that were seen; a call hands over its arguments and its root's value, a loop goes round as long as its
condition says, a conditional takes the branch that its operand selects, collectives move what the devices hold.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import in_type
from hloexec.ops.policies.backends import Flushing, flushes
from hloexec.ops.policies.policy import numerics_policy
from hloexec.ops.registry import CUSTOM_CALLS, OPCODES, Role

_FORWARDED = {
    "async-done": 1, "all-gather-done": 1, "collective-permute-done": 1, "copy-done": 0,
    "all-reduce-done": None, "async-update": None,
}  # fmt: skip
"""Which part of a started operation's value an instruction hands on; None for all of it."""


@attrs.frozen
class _Callee:
    """A called computation, evaluated element by element where it is one of scalars."""

    module: Module
    computation: Computation
    numerics: str

    def __call__(self, *arguments: Any) -> Any:
        if any(isinstance(p.shape, ArrayShape) and p.shape.rank for p in self.computation.parameters):
            return evaluate(self.module, self.computation, arguments, self.numerics)
        arrays = np.broadcast_arrays(*map(np.asarray, arguments))
        results = [
            evaluate(self.module, self.computation, [array[index] for array in arrays], self.numerics)
            for index in np.ndindex(arrays[0].shape)
        ]
        if isinstance(self.computation.root.shape, ArrayShape):
            return np.stack(results).reshape(arrays[0].shape)
        return tuple(np.stack(leaf).reshape(arrays[0].shape) for leaf in zip(*results, strict=True))


def evaluate(module: Module, computation: Computation, arguments: Sequence[Any], numerics: str) -> Any:
    """The result of a computation on one device, instruction by instruction."""
    values: dict[str, Any] = {}
    for instruction in computation:
        operands = [values[name] for name in instruction.operands]
        values[instruction.name] = _value(module, computation, instruction, operands, arguments, numerics)
    return values[computation.root_name]


def _value(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    operands: list[Any],
    arguments: Any,
    numerics: str,
) -> Any:
    role = OPCODES[instruction.opcode].role
    called = [module.by_name[name] for name in computation_names(instruction.attributes)]
    if role is Role.PARAMETER:
        argument = arguments[instruction.attributes.number]
        return np.asarray(argument) if isinstance(argument, np.generic) else argument
    if role is Role.CALL:
        return evaluate(module, called[0], operands, numerics)
    if role is Role.WHILE:
        condition, body = _loop(module, instruction)
        (state,) = operands
        while evaluate(module, condition, [state], numerics):
            state = evaluate(module, body, [state], numerics)
        return state
    if role is Role.CONDITIONAL:
        branch, operand = _branch(module, instruction, operands)
        return evaluate(module, branch, [operand], numerics)
    return simple_value(module, computation, instruction, operands, numerics)


def simple_value(
    module: Module, computation: Computation, instruction: Instruction, operands: list[Any], numerics: str
) -> Any:
    """What an instruction that calls nothing, or has a kernel, gives for its operands."""
    entry: Any = OPCODES[instruction.opcode]
    if entry.role is Role.CONSTANT:
        return instruction.attributes.literal.value
    if entry.role is Role.TUPLE:
        return tuple(operands)
    if entry.role is Role.GET_TUPLE_ELEMENT:
        return operands[0][instruction.attributes.index]
    if entry.role is Role.FORWARD:
        return operands[0]
    given: dict[str, Any] = {}
    if entry.role is Role.CUSTOM_CALL:
        entry = CUSTOM_CALLS[instruction.attributes.custom_call_target]
        given = {"config": entry.config(instruction) if entry.config else None}
        given["backend_config"] = instruction.backend_config
    assert entry.evaluate is not None, instruction.opcode
    given |= {
        "attributes": instruction.attributes,
        "shape": instruction.shape,
        "operand_shapes": tuple(operand.shape for operand in computation.operands_of(instruction)),
        "computations": tuple(
            _Callee(module, module.by_name[name], numerics) for name in computation_names(instruction.attributes)
        ),
        "numerics": numerics_policy(numerics),
    }
    kernel = partial(entry.evaluate, **{need: given[need] for need in entry.evaluate.needs})
    shapes = (*given["operand_shapes"], instruction.shape)
    types = frozenset(shape.element_type for shape in shapes if isinstance(shape, ArrayShape))
    is_flushed = numerics_policy(numerics).flushes_denormals and flushes(entry.traits, types)
    return (Flushing(kernel) if is_flushed else kernel)(*operands)


def _loop(module: Module, instruction: Instruction) -> tuple[Computation, Computation]:
    attributes = instruction.attributes
    return module.by_name[attributes.condition], module.by_name[attributes.body]


def _branch(module: Module, instruction: Instruction, operands: list[Any]) -> tuple[Computation, Any]:
    names = list(computation_names(instruction.attributes))
    selector = operands[0]
    if selector.dtype == np.bool_:
        number = 0 if selector else 1
    else:
        number = int(selector) if 0 <= selector < len(names) else len(names) - 1
    return module.by_name[names[number]], operands[1 + number]


class Audit:
    """What was seen of a run, by name and device, compared with a module's text."""

    def __init__(self, module: Module, numerics: str, seen: dict[tuple[str, int], Any], devices: int) -> None:
        self.module = module
        self.numerics = numerics
        self.seen = seen
        self.devices = devices
        self.met: set[tuple[str, int]] = set()
        self.faults: list[str] = []

    def run(self, inputs: Sequence[Sequence[Any]]) -> list[str]:
        """What is wrong, if anything."""
        for device in range(self.devices):
            self._computation("", self.module.entry, inputs[device], device)
        self.faults += [
            f"{name} on {device} was seen, but is not executed" for name, device in self.seen.keys() - self.met
        ]
        return self.faults

    def _computation(self, prefix: str, computation: Computation, arguments: Sequence[Any], device: int) -> Any:
        """Check a computation's instructions; its root's value, as it was seen."""
        for instruction in computation:
            key = prefix + instruction.name, device
            if key not in self.seen:
                continue
            self.met.add(key)
            found = self.seen[key]
            missing = [name for name in instruction.operands if (prefix + name, device) not in self.seen]
            if missing:
                self.faults.append(f"{key[0]} on {device} was seen, its operands {missing} were not")
                continue
            operands = [self.seen[prefix + name, device] for name in instruction.operands]
            expected = self._expected(prefix, computation, instruction, operands, arguments, device)
            if not _fits(found, instruction.shape):
                self.faults.append(f"{key[0]} on {device} is no {instruction.shape}")
            elif (
                not _agrees(found, expected)
                and not self._sums_agree(computation, instruction, operands, found, expected)
                and not self._is_multiply_add(prefix, computation, instruction, found, device)
            ):
                self.faults.append(f"{key[0]} on {device} is wrong")
        root = prefix + computation.root_name, device
        if root not in self.seen:
            self.faults.append(f"{root[0]} on {device} was not seen")
        return self.seen.get(root)

    def _expected(
        self,
        prefix: str,
        computation: Computation,
        instruction: Instruction,
        operands: list[Any],
        arguments: Sequence[Any],
        device: int,
    ) -> Any:
        role, here = OPCODES[instruction.opcode].role, prefix + instruction.name
        if role is Role.PARAMETER:
            return arguments[instruction.attributes.number]
        if role is Role.CALL:
            (called,) = [self.module.by_name[name] for name in computation_names(instruction.attributes)]
            return self._computation(f"{here}/", called, operands, device)
        if role is Role.WHILE:
            return self._while(here, instruction, operands[0], device)
        if role is Role.CONDITIONAL:
            branch, operand = _branch(self.module, instruction, operands)
            return self._computation(f"{here}:{branch.name}/", branch, [operand], device)
        if role is Role.ASYNC_START:
            (called,) = [self.module.by_name[name] for name in computation_names(instruction.attributes)]
            result = self._computation(f"{here}/", called, operands, device)
            return (tuple(operands), result, *self.seen[here, device][2:])
        if role is Role.COPY_START:
            return (operands[0], operands[0], *self.seen[here, device][2:])
        if role is Role.TOKEN:
            return self.seen[here, device]
        if role in (Role.MACHINE, Role.PART, Role.PARTITION_ID, Role.REPLICA_ID):
            return self._exchanged(prefix, instruction, operands, device)
        if not OPCODES[instruction.opcode].is_pure:
            return self.seen[here, device]
        return simple_value(self.module, computation, instruction, operands, self.numerics)

    def _sums_agree(
        self, computation: Computation, instruction: Instruction, operands: list[Any], found: Any, expected: Any
    ) -> bool:
        """Whether results are sums that are the same but for their order, since operands lie otherwise in memory here.

        Adding n terms in any order is off by n units of roundoff of the sum of their magnitudes at most, and rounding
        the result by one of the result.
        """
        opcode = OPCODES[instruction.opcode]
        if opcode.role is not Role.KERNEL or not opcode.is_order_sensitive or not isinstance(expected, np.ndarray):
            return False
        entry = element_type_of(expected.dtype)
        if not (entry.is_floating or entry.is_complex):
            return False
        called = [self.module.by_name[name].root.opcode for name in computation_names(instruction.attributes)]
        if called == ["multiply"]:
            # Thousands of factors overflow or vanish in one order, and do not in another.
            return True
        with np.errstate(all="ignore"):
            sizes = [np.abs(operand) if operand.dtype.kind != "i" else operand for operand in operands]
            sizes = [size.astype(operand.dtype) for size, operand in zip(sizes, operands, strict=True)]
            magnitudes = simple_value(self.module, computation, instruction, sizes, self.numerics)
            dtype = np.complex128 if entry.is_complex else np.float64
            first, second = found.astype(dtype), expected.astype(dtype)
            terms = max(operand.size for operand in operands) / max(1, expected.size) ** 0.5
            part = element_type_of(np.zeros(1, entry.storage).real.dtype) if entry.is_complex else entry
            unit = 2.0**-24 if part.bits <= 32 else 2.0**-53
            magnitudes = np.abs(magnitudes.astype(dtype))
            allowed = 2 * terms * unit * magnitudes + np.abs(second) * 2.0**-part.mantissa_bits
            # Where magnitudes overflow, infinities of both signs may meet in one order, and not in another.
            overflows = ~(np.isfinite(second) & np.isfinite(magnitudes))
            return bool(((np.abs(first - second) <= allowed) | overflows).all())

    def _is_multiply_add(
        self, prefix: str, computation: Computation, instruction: Instruction, found: Any, device: int
    ) -> bool:
        """Whether a result is the sum of a product that was rounded once, under a policy that contracts them.

        Products of f32 numbers are exact in f64; denormal numbers are zeros under these policies.
        """
        if not numerics_policy(self.numerics).fuses_multiply_add or instruction.opcode not in ("add", "subtract"):
            return False
        operands = [self.seen[prefix + name, device] for name in instruction.operands]
        if found.dtype != np.float32:
            return False
        for place, product in enumerate(computation.operands_of(instruction)):
            if product.opcode != "multiply":
                continue
            terms = [_flushed(operand).astype(np.float64) for operand in operands]
            factors = [_flushed(self.seen[prefix + name, device]).astype(np.float64) for name in product.operands]
            with np.errstate(all="ignore"):
                terms[place] = factors[0] * factors[1]
                total = terms[0] - terms[1] if instruction.opcode == "subtract" else terms[0] + terms[1]
                if _agrees(found, _flushed(total.astype(np.float32))):
                    return True
        return False

    def _total(self, instruction: Instruction, held: list[Any], found: Any) -> Any:
        """The sum of what the devices hold, or the largest: `found`, if that is a sum in any order, rounded in between
        or not.
        """
        reducer = self.module.by_name[instruction.attributes.to_apply]
        if reducer.root.opcode != "add" or not element_type_of(held[0].dtype).is_floating:
            return reduce(lambda a, b: evaluate(self.module, reducer, [a, b], self.numerics), held)
        with np.errstate(all="ignore"):
            wide = [value.astype(np.float64) for value in held]
            unit = 2.0**-53 if held[0].dtype == np.float64 else 2.0**-24
            allowed = (
                len(held) * unit * sum(map(np.abs, wide))
                + np.abs(sum(wide)) * 2.0 ** -element_type_of(found.dtype).mantissa_bits
            )
            is_near = (np.abs(found.astype(np.float64) - sum(wide)) <= allowed) | ~np.isfinite(sum(wide))
        return found if is_near.all() else sum(wide)

    def _while(self, here: str, instruction: Instruction, state: Any, device: int) -> Any:
        condition, body = _loop(self.module, instruction)
        iteration = 0
        while True:
            again = self._computation(f"{here}[{iteration}]:{condition.name}/", condition, [state], device)
            if again is None or not again:
                return state
            state = self._computation(f"{here}[{iteration}]:{body.name}/", body, [state], device)
            if state is None:
                return None
            iteration += 1

    def _exchanged(self, prefix: str, instruction: Instruction, operands: list[Any], device: int) -> Any:
        opcode = instruction.opcode
        if opcode == "partition-id":
            return np.uint32(device)
        if opcode in _FORWARDED:
            part = _FORWARDED[opcode]
            return operands[0] if part is None else operands[0][part]
        if opcode.startswith("collective-permute"):
            (source,) = [pair[0] for pair in instruction.attributes.source_target_pairs if pair[1] == device]
            (sent,) = self._held(prefix, instruction, [source])
            if opcode == "collective-permute":
                return sent
            return (operands[0], sent, *self.seen[prefix + instruction.name, device][2:])
        return self._collected(prefix, instruction, operands, device)

    def _held(self, prefix: str, instruction: Instruction, devices: Sequence[int]) -> list[Any]:
        return [self.seen[prefix + instruction.operands[0], number] for number in devices]

    def _collected(self, prefix: str, instruction: Instruction, operands: list[Any], device: int) -> Any:
        """What a device of a group gets of what the group holds. Groups list devices: there is one replica."""
        attributes, opcode = instruction.attributes, instruction.opcode
        (group,) = [group for group in attributes.replica_groups.expand() if device in group]
        held, place = self._held(prefix, instruction, group), group.index(device)
        if opcode == "collective-broadcast":
            return held[0]
        if opcode in ("all-reduce", "all-reduce-start"):
            return self._total(instruction, held, self.seen[prefix + instruction.name, device])
        axis = attributes.dimension
        if opcode in ("all-gather", "all-gather-start"):
            whole = np.concatenate(held, axis)
            return whole if opcode == "all-gather" else (operands[0], whole)
        parts = [np.split(value, len(group), axis)[place] for value in held]
        if opcode == "all-to-all":
            return np.concatenate(parts, axis)
        assert opcode == "reduce-scatter", opcode
        return self._total(instruction, parts, self.seen[prefix + instruction.name, device])


def _fits(found: Any, shape: Shape) -> bool:
    if isinstance(shape, TupleShape):
        return len(found) == len(shape.elements) and all(map(_fits, found, shape.elements))
    if not isinstance(found, np.ndarray):
        return not shape.is_array
    sizes = zip(found.shape, shape.dimensions, strict=False)
    is_dynamic = shape.dynamic_dimensions or (False,) * found.ndim
    return (
        found.dtype == shape.element_type.storage
        and found.ndim == len(shape.dimensions)
        and all(
            size <= bound if dynamic else size == bound
            for (size, bound), dynamic in zip(sizes, is_dynamic, strict=True)
        )
    )


def _flushed(values: Any) -> Any:
    """f32 numbers with zeros for those that are denormal."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def _agrees(found: Any, expected: Any) -> bool:
    """Whether two values have the same bits, once both are of the type that was declared."""
    if isinstance(expected, tuple):
        return all(_agrees(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    if expected is None or not isinstance(found, np.ndarray):
        return True
    expected = np.asarray(expected)
    if found.dtype != expected.dtype:
        expected = in_type(expected, element_type_of(found.dtype))
    return np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()
