"""`python -m benchmarks.growth [MB…]`: how parsing, verifying and planning grow with the module.

A module is made of as many layers as its size asks for. A layer has what real dumps have: fusions with computations of
their own, a loop, contractions, reductions, constants, metadata; its weights are elements of one long tuple, and the
layers' results are the elements of another. Each size runs in a process of its own, which has a peak of memory of its
own.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

SIZES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Megabytes of text."""

_SHARED = """\
%add_f32 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

"""

_LAYER_COMPUTATIONS = """\
%fused_norm.@ (param_0.@: f32[16,64], param_1.@: f32[64]) -> f32[16,64] {
  %param_0.@ = f32[16,64]{1,0} parameter(0)
  %square.@ = f32[16,64]{1,0} multiply(%param_0.@, %param_0.@) !norm/square:12
  %zero.@ = f32[] constant(0)
  %squares.@ = f32[16]{0} reduce(%square.@, %zero.@), dimensions={1}, to_apply=%add_f32 !norm/reduce_sum:13
  %share.@ = f32[] constant(0.015625)
  %shares.@ = f32[16]{0} broadcast(%share.@), dimensions={}
  %mean.@ = f32[16]{0} multiply(%squares.@, %shares.@) !norm/div:13
  %scale.@ = f32[16]{0} rsqrt(%mean.@) !norm/rsqrt:14
  %scales.@ = f32[16,64]{1,0} broadcast(%scale.@), dimensions={0}
  %normal.@ = f32[16,64]{1,0} multiply(%param_0.@, %scales.@) !norm/mul:15
  %param_1.@ = f32[64]{0} parameter(1)
  %gain.@ = f32[16,64]{1,0} broadcast(%param_1.@), dimensions={1}
  ROOT %normed.@ = f32[16,64]{1,0} multiply(%normal.@, %gain.@) !norm/mul:16
}

%fused_gate.@ (param_0.@: f32[16,128]) -> f32[16,64] {
  %param_0.@ = f32[16,128]{1,0} parameter(0)
  %left.@ = f32[16,64]{1,0} slice(%param_0.@), slice={[0:16], [0:64]} !mlp/slice:31
  %right.@ = f32[16,64]{1,0} slice(%param_0.@), slice={[0:16], [64:128]} !mlp/slice:31
  %gate.@ = f32[16,64]{1,0} logistic(%left.@) !mlp/logistic:32
  ROOT %gated.@ = f32[16,64]{1,0} multiply(%gate.@, %right.@) !mlp/mul:33
}

%body.@ (carry.@: (s32[], f32[16,64])) -> (s32[], f32[16,64]) {
  %carry.@ = (s32[], f32[16,64]{1,0}) parameter(0)
  %turn.@ = s32[] get-tuple-element(%carry.@), index=0
  %one.@ = s32[] constant(1)
  %next.@ = s32[] add(%turn.@, %one.@) !while/body/add:41
  %state.@ = f32[16,64]{1,0} get-tuple-element(%carry.@), index=1
  %step.@ = f32[16,64]{1,0} tanh(%state.@) !while/body/tanh:42
  ROOT %carried.@ = (s32[], f32[16,64]{1,0}) tuple(%next.@, %step.@)
}

%condition.@ (carry.@: (s32[], f32[16,64])) -> pred[] {
  %carry.@ = (s32[], f32[16,64]{1,0}) parameter(0)
  %turn.@ = s32[] get-tuple-element(%carry.@), index=0
  %turns.@ = s32[] constant(4)
  ROOT %goes_on.@ = pred[] compare(%turn.@, %turns.@), direction=LT !while/cond/lt:43
}

"""

_LAYER = """\
  %gain.@ = f32[64]{0} get-tuple-element(%weights), index=@0
  %weight.@ = f32[64,128]{1,0} get-tuple-element(%weights), index=@1
  %norm.@ = f32[16,64]{1,0} fusion(%out.@-, %gain.@), kind=kLoop, calls=%fused_norm.@ !norm/mul:16
  %product.@ = f32[16,128]{1,0} dot(%norm.@, %weight.@), lhs_contracting_dims={1}, rhs_contracting_dims={0} !mlp/dot:30
  %gated.@ = f32[16,64]{1,0} fusion(%product.@), kind=kLoop, calls=%fused_gate.@, backend_config={"queue":"0"}
  %start.@ = s32[] constant(0)
  %carry.@ = (s32[], f32[16,64]{1,0}) tuple(%start.@, %gated.@)
  %loop.@ = (s32[], f32[16,64]{1,0}) while(%carry.@), condition=%condition.@, body=%body.@ !while:44
  %looped.@ = f32[16,64]{1,0} get-tuple-element(%loop.@), index=1
  %out.@ = f32[16,64]{1,0} add(%out.@-, %looped.@) !add:50
"""


_METADATA = re.compile(r" !([a-z_/]+):([0-9]+)")
"""What the templates write in place of metadata: the operation and the line of its source."""


def layered_module(megabytes: float) -> str:
    """The text of a module of about that size."""
    layer_size = len(_numbered(_LAYER_COMPUTATIONS + _LAYER, 10000)) + len(", f32[64]{0}, f32[64,128]{1,0}, %out.10000")
    return "".join(_pieces(max(1, round(megabytes * 1e6 / layer_size))))


def _pieces(layers: int) -> Iterator[str]:
    yield "HloModule layered, is_scheduled=true\n\n"
    yield _SHARED
    for number in range(1, layers + 1):
        yield _numbered(_LAYER_COMPUTATIONS, number)
    yield "ENTRY %main {\n  %out.0 = f32[16,64]{1,0} parameter(0)\n"
    yield f"  %weights = ({', '.join(['f32[64]{0}, f32[64,128]{1,0}'] * layers)}) parameter(1)\n"
    for number in range(1, layers + 1):
        yield _numbered(_LAYER, number)
    yield f"  ROOT %result = ({', '.join(['f32[16,64]{1,0}'] * layers)}) "
    yield f"tuple({', '.join(f'%out.{number}' for number in range(1, layers + 1))})\n}}\n"


def _numbered(template: str, number: int) -> str:
    """The template with the layer's number for `@`, the one before for `@-`, its weights' indices, and metadata."""
    weights = 2 * (number - 1)
    metadata = r', metadata={op_name="jit(model)/jit(main)/layers_@/\1" source_file="/model/layers.py" source_line=\2}'
    return (
        _METADATA.sub(metadata, template)
        .replace("index=@0", f"index={weights}")
        .replace("index=@1", f"index={weights + 1}")
        .replace("@-", str(number - 1))
        .replace("@", str(number))
    )


def rows(sizes: Iterable[float] = SIZES) -> Iterator[dict[str, object]]:
    """One row per size: milliseconds and peak memory per megabyte of text."""
    for size in sizes:
        found = measured_apart("benchmarks.growth", size)
        megabytes = found["megabytes"]
        yield {
            "MB": f"{megabytes:.1f}",
            "instructions": found["instructions"],
            **{f"{step} ms/MB": f"{found[step] * 1e3 / megabytes:.0f}" for step in ("parse", "verify", "plan")},
            "peak MB/MB": f"{found['peak'] / 1e6 / megabytes:.1f}",
        }


def _measure(size: float) -> dict[str, float]:
    import hloexec
    from hloexec.engine.exec.running import plan_of

    text = layered_module(size)
    hloexec.verify(hloexec.parse(layered_module(0.01)))  # imports
    plan_of(hloexec.parse(layered_module(0.01)))
    return measured_stages(text, {"verify": hloexec.verify, "plan": partial(plan_of, verify=False)})


def measured_apart(benchmark: str, size: float) -> dict[str, Any]:
    """What a benchmark measures of one size in a process of its own."""
    command = [sys.executable, "-m", benchmark, "--one", str(size)]
    measures: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return measures


def measured_stages(text: str, stages: Mapping[str, Callable[[Any], object]]) -> dict[str, float]:
    """The seconds of processors that parsing a text and each stage of what is done with the module take, and the peak
    of memory beyond what there was, in bytes."""
    import hloexec

    before, times = status_bytes("VmRSS"), [time.process_time()]
    module = hloexec.parse(text)
    times.append(time.process_time())
    for stage in stages.values():
        stage(module)
        times.append(time.process_time())
    return {
        "megabytes": len(text) / 1e6,
        "instructions": module.instruction_count,
        **{name: end - start for name, (start, end) in zip(("parse", *stages), pairwise(times), strict=True)},
        "peak": status_bytes("VmHWM") - before,
    }


def status_bytes(field: str) -> float:
    """What Linux says of this program's memory; getrusage gives that of the program that started it, where larger. NaN
    where there is no Linux to say it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.nan
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def main(
    rows_of: Callable[[Iterable[float]], Iterable[Mapping[str, object]]],
    measure: Callable[[float], Mapping[str, float]],
    sizes: Iterable[float],
) -> None:
    """Print a table of the sizes that the command line names, or of these; or what one process measures of one size."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(float(sys.argv[2]))))
        return
    for row in rows_of(map(float, sys.argv[1:]) if sys.argv[1:] else sizes):
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main(rows, _measure, SIZES)
