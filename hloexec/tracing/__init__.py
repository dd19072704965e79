"""Traces: what every instruction of a run gave, on disk.

A trace is a folder of plain files. `trace.json` says what ran. `events.jsonl` has one line of JSON per instruction that
ran, in order: its name and path, opcode, computation, loop iteration, devices, source line, and the shape and
statistics of each array it gave. `values.npy` holds the arrays themselves, one `.npy` record after the other; a line of
the index says at which offset an array begins, so that

    file = open("values.npy", "rb"); file.seek(offset); numpy.load(file)

reads it. What NumPy has no type for is stored as in `hloexec.literals`: bf16 as its bits in uint16, and so on, which
the array's shape in the index tells. Arrays of equal bytes that follow one another closely are stored once.
"""

from hloexec.tracing.reading import ArrayRecord, Trace, TraceEvent, read_trace
from hloexec.tracing.running import trace
from hloexec.tracing.selection import Selection

__all__ = ["ArrayRecord", "Selection", "Trace", "TraceEvent", "read_trace", "trace"]
