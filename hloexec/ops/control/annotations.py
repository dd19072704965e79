"""Custom calls that only annotate their operand, which is their value.

They can occur wherever values do, including reducers, so code that recognizes the function of a computation ignores
them.
"""

from __future__ import annotations

from hloexec.core.ir import Instruction

ANNOTATIONS = (
    "Sharding",
    "InspectSharding",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
    "LayoutConstraint",
    "annotate_device_placement",
    "MoveToHost",
    "MoveToDevice",
    "PinToDevice",
    "PinToDeviceSram",
    "SetBound",
    "AwsNeuronTransferWithStaticRing",
    "AwsNeuronLNCShardingConstraint",
)
"""Targets: how a value is partitioned, laid out, which memory holds it, or how large it gets (SetBound)."""


def is_annotation(instruction: Instruction) -> bool:
    """Whether an instruction is a custom call whose value is its operand."""
    return (
        instruction.opcode == "custom-call"
        and instruction.attributes.custom_call_target in ANNOTATIONS
        and len(instruction.operands) == 1
    )
