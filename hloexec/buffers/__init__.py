"""What memory a module takes: its values, when they live, what they share, and how that compares with XLA."""

from hloexec.buffers.comparison import MemoryComparison, compare_memory
from hloexec.buffers.files import load_buffer_assignment
from hloexec.buffers.usage import LiveValue, MemoryUsage, memory_usage

__all__ = [
    "LiveValue",
    "MemoryComparison",
    "MemoryUsage",
    "compare_memory",
    "load_buffer_assignment",
    "memory_usage",
]
