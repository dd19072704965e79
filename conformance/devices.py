"""Rewrites that let XLA:CPU's client run many partitions, and say how large a bounded-dynamic result is.

XLA:CPU refuses a partitioned module unless its partitioner runs, and the partitioner refuses `partition-id`. Replicas
have neither problem, so device (replica r, partition p) of R by P devices becomes replica r·P + p of R·P, and every
group of devices is spelled out in those numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from conformance.hlo_text import (
    Computation,
    Instruction,
    Rule,
    elements,
    read_instruction,
    rewrite,
    without_header_fields,
)

Groups = list[list[int]]


def device_counts(text: str) -> tuple[int, int]:
    """(replica_count, num_partitions) of the header, 1 where it says nothing."""
    header = text[text.find("HloModule") :].partition("\n")[0]
    counts = (re.search(rf"\b{name}=(\d+)", header) for name in ("replica_count", "num_partitions"))
    replicas, partitions = (int(match[1]) if match else 1 for match in counts)
    return replicas, partitions


def _read_groups(text: str) -> Groups:
    """`{{0,1},{2,3}}`, or an iota of device numbers, reshaped, transposed, reshaped: `[2,4]<=[4,2]T(1,0)`."""
    iota = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota is None:
        return [[int(n) for n in group.split(",") if n.strip()] for group in re.findall(r"\{([\d,\s]*)\}", text)]
    shape, reshape, permutation = ([int(n) for n in (part or "").split(",") if n] for part in iota.groups())
    numbers = np.arange(int(np.prod(reshape))).reshape(reshape)
    return [[int(n) for n in row] for row in numbers.transpose(permutation or None).reshape(shape)]


def _flattened_groups(instruction: Instruction, replicas: int, partitions: int) -> Groups:
    """A collective's groups as device numbers r·P + p (XLA: CollectiveOpGroupMode)."""
    groups = [group for group in _read_groups(instruction.attribute("replica_groups") or "{}") if group]
    has_channel = bool(instruction.attribute("channel_id"))
    across_partitions = instruction.opcode in ("all-to-all", "collective-broadcast", "ragged-all-to-all")
    if instruction.attribute("use_global_device_ids") == "true":
        return groups or [list(range(replicas * partitions))]
    if has_channel and across_partitions:
        groups = groups or [list(range(partitions))]
        return [[r * partitions + p for p in group] for r in range(replicas) for group in groups]
    groups = groups or [list(range(replicas))]
    if has_channel:
        return [[r * partitions + p for r in group for p in range(partitions)] for group in groups]
    return [[r * partitions + p for r in group] for p in range(partitions) for group in groups]


def _flattened_pairs(instruction: Instruction, replicas: int, partitions: int) -> Groups:
    pairs = _read_groups(instruction.attribute("source_target_pairs"))
    if instruction.attribute("channel_id"):
        return [[r * partitions + p for p in pair] for r in range(replicas) for pair in pairs]
    return [[r * partitions + p for r in pair] for p in range(partitions) for pair in pairs]


def _written(groups: Groups) -> str:
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def as_replicas(printed: str) -> str:
    """The same module for `replica_count * num_partitions` replicas and one partition."""
    replicas, partitions = device_counts(printed)

    def collective(instruction: Instruction, computation: Computation) -> None:
        name = "source_target_pairs" if "collective-permute" in instruction.opcode else "replica_groups"
        flatten = _flattened_pairs if name == "source_target_pairs" else _flattened_groups
        groups = _written(flatten(instruction, replicas, partitions))
        plain = instruction.without(name, "channel_id", "use_global_device_ids")
        computation.emit(replace(plain, attributes=f"{plain.attributes}, {name}={groups}"))

    def device_number(opcode: str) -> Rule:
        """replica-id is the device number divided by the number of partitions, partition-id the remainder."""

        def rule(instruction: Instruction, computation: Computation) -> None:
            device, divisor = f"{instruction.name}.device", f"{instruction.name}.partitions"
            computation.emit(Instruction(device, "u32[]", "replica-id", "", ""))
            computation.emit(Instruction(divisor, "u32[]", "constant", str(partitions), ""))
            operands = f"%{device}, %{divisor}"
            computation.emit(replace(instruction, opcode=opcode, operands=operands, attributes=""))

        return rule

    names = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")
    rules: dict[str, Rule] = {name + suffix: collective for name in names for suffix in ("", "-start")}
    rules |= {"replica-id": device_number("divide"), "partition-id": device_number("remainder")}
    lines = []
    for line in rewrite(printed, rules).splitlines():
        instruction = read_instruction(line)
        if instruction is not None:
            line = str(instruction.without("sharding"))
        elif line.startswith("HloModule "):
            kept = without_header_fields(line, "replica_count", "num_partitions")
            line = f"{kept}, replica_count={replicas * partitions}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def with_result_extents(printed: str) -> str:
    """Appends the run-time size of every dynamic dimension of the result, as s32[] leaves, in order."""
    before, entry, body = printed.partition("\nENTRY ")
    header, *lines = before.split("\n") if entry else [printed]
    output, result = [], ""
    for line in body.split("\n"):
        instruction = read_instruction(line)
        if instruction is None or not instruction.root:
            output.append(line)
            continue
        computation = Computation()
        computation.emit(replace(instruction, root=False))
        leaves: list[tuple[str, str]] = []
        sizes = []
        _collect_leaves(instruction.name, instruction.shape, computation, leaves)
        for leaf, shape in leaves:
            dimensions = re.match(r"\w+\[([^\]]*)\]", shape)
            for axis, size in enumerate(dimensions[1].split(",") if dimensions else []):
                if size.startswith("<="):
                    name = f"{leaf}.extent{axis}"
                    attributes = f", dimensions={{{axis}}}"
                    sizes.append(
                        computation.emit(Instruction(name, "s32[]", "get-dimension-size", f"%{leaf}", attributes))
                    )
        result = f"({', '.join([instruction.shape] + ['s32[]'] * len(sizes))})"
        operands = ", ".join(f"%{name}" for name in [instruction.name, *sizes])
        computation.emit(Instruction(f"{instruction.name}.sized", result, "tuple", operands, "", root=True))
        output += computation.lines
    # Without the layout attribute and the signature XLA's parser takes both from the body.
    header = without_header_fields(header, "entry_computation_layout")
    output[0] = re.sub(r"^(%?[\w.\-]+) .*\{$", r"\1 {", output[0])
    return "\n".join([header, *lines]) + "\nENTRY " + "\n".join(output)


def _collect_leaves(name: str, shape: str, computation: Computation, leaves: list[tuple[str, str]]) -> None:
    if not shape.startswith("("):
        leaves.append((name, shape))
        return
    for index, element in enumerate(elements(shape)):
        taken = Instruction(f"{name}.{index}", element, "get-tuple-element", f"%{name}", f", index={index}")
        _collect_leaves(computation.emit(taken), element, computation, leaves)
