"""Memory usage of a module: its values, their live ranges, sharing of buffers, and comparison with XLA."""

from hloexec.analysis.buffers.comparison import AllocationUse, Difference, MemoryComparison, compare_memory
from hloexec.analysis.buffers.files import load_buffer_assignment
from hloexec.analysis.buffers.sizes import Target
from hloexec.analysis.buffers.usage import LiveValue, MemoryUsage, Peak, memory_usage
from hloexec.core.ir.buffer_assignment import (
    Allocation,
    AssignedValue,
    BreakdownNode,
    BufferAssignment,
    EntryParameter,
    LiveRange,
    LiveRanges,
    MemorySpace,
    PeakValue,
    Position,
    Slot,
    SlotTable,
    Use,
    UsedValue,
    ValueLabel,
)

__all__ = [
    "Allocation",
    "AllocationUse",
    "AssignedValue",
    "BreakdownNode",
    "BufferAssignment",
    "Difference",
    "EntryParameter",
    "LiveRange",
    "LiveRanges",
    "LiveValue",
    "MemoryComparison",
    "MemorySpace",
    "MemoryUsage",
    "Peak",
    "PeakValue",
    "Position",
    "Slot",
    "SlotTable",
    "Target",
    "Use",
    "UsedValue",
    "ValueLabel",
    "compare_memory",
    "load_buffer_assignment",
    "memory_usage",
]
