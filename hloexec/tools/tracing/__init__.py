"""Traces: the result of every instruction of a run, on disk.

A trace is a folder of plain files. `trace.json` describes the run. `events.jsonl` has one line of JSON for each
instruction that ran, in order: its name and path, opcode, computation, loop iteration, devices, source line, and the
shape and statistics of each array of its result. `values.npy` contains the arrays, one `.npy` record after the other;
the index states the offset of each array, so that

    file = open("values.npy", "rb"); file.seek(offset); numpy.load(file)

reads it. Types that NumPy lacks are stored as in `hloexec.literals` (bf16 as its bits in uint16, and so on); the shape
in the index states the element type. Identical arrays that follow each other closely are stored once.
"""

from hloexec.tools.tracing.recording import Selection
from hloexec.tools.tracing.running import ArrayRecord, Trace, TraceEvent, read_trace, trace

__all__ = ["ArrayRecord", "Selection", "Trace", "TraceEvent", "read_trace", "trace"]
