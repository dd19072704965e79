"""Instructions that run again alone, and what a diff measures no more than once."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.engine.devices.topology import Topology
from hloexec.engine.options import Options
from hloexec.tools.diffing.limits import Work
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.running import GraphRecorder

MODULE = """HloModule m
sum { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
body { s = (s32[], f32[3,4]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 x = f32[3,4] get-tuple-element(s), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 t = f32[4,3] transpose(x), dimensions={1,0}
 d = f32[3,3] dot(x, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 y = f32[3,4] dot(d, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 h = f32[3,4] tanh(y)
 ROOT r = (s32[], f32[3,4]) tuple(j, h) }
goes { s = (s32[], f32[3,4]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 n = s32[] constant(3)
 ROOT p = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[3,4] parameter(0)
 zero = s32[] constant(0)
 nil = f32[] constant(0)
 s = (s32[], f32[3,4]) tuple(zero, x)
 w = (s32[], f32[3,4]) while(s), condition=goes, body=body
 y = f32[3,4] get-tuple-element(w), index=1
 v = f32[12] reshape(y)
 c = bf16[12] convert(v)
 k = f32[3] reduce(y, nil), dimensions={1}, to_apply=sum
 ROOT r = (f32[3], bf16[12]) tuple(k, c) }
"""


def test_instructions_that_run_alone_give_the_bits_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluator, "_run_of", lambda *_: pytest.fail("a module of one instruction has been planned"))
    module = hloexec.parse(MODULE)
    inputs = hloexec.random_inputs(module)
    recorder = GraphRecorder(module)
    graph = recorder.finish(hloexec.run_devices(module, inputs, observers=[recorder]))
    evaluator = Evaluator(module, Topology(1, 1), Options(verify=False), Work())
    values = {node.number: node.value for node in graph.nodes}
    opcodes = set()
    for instance in graph.instances:
        found = evaluator.results(instance, values)
        if instance.is_source:
            continue
        assert found is not None
        opcodes.add(instance.opcode)
        for node, array in zip(instance.results, found, strict=True):
            assert array.dtype == node.dtype
            assert array.tobytes() == node.value.tobytes()
            assert not any(np.may_share_memory(array, value) for value in values.values())
    assert opcodes >= {"add", "compare", "dot", "tanh", "transpose", "reduce", "convert", "reshape"}


@pytest.mark.parametrize("shape", [(2, 4), (3, 4)])
def test_instructions_run_on_values_of_other_dimensions_as_their_modules_do(shape: tuple[int, ...]) -> None:
    module = hloexec.parse(MODULE)
    recorder = GraphRecorder(module)
    graph = recorder.finish(hloexec.run_devices(module, hloexec.random_inputs(module), observers=[recorder]))
    evaluator = Evaluator(module, Topology(1, 1), Options(verify=False), Work())
    tanh = next(each for each in graph.instances if each.opcode == "tanh")
    found = evaluator.results(tanh, {tanh.inputs[0].number: np.ones(shape, np.float32)})
    assert (found is None) == (shape != (3, 4))


SCATTERED = """HloModule m
last { a = f32[] parameter(0)
 ROOT b = f32[] parameter(1) }
ENTRY e { x = f32[8] parameter(0)
 i = s32[4,1] parameter(1)
 u = f32[4] parameter(2)
 s = f32[8] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
   index_vector_dim=1, to_apply=last
 ROOT y = f32[8] exponential(s) }
"""


def test_rounding_is_measured_once_where_something_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any, **__: Any) -> Iterator[Any]:
        yield pytest.fail("what rounding does has been measured")

    monkeypatch.setattr("hloexec.analysis.numerics.comparing._sampled", measured)
    before = hloexec.parse(SCATTERED)
    after = hloexec.parse(SCATTERED.replace("exponential", "tanh"))
    inputs = [np.linspace(0.1, 0.8, 8, dtype=np.float32), np.int32([[0], [1], [2], [3]]), np.ones(4, np.float32)]
    found = hloexec.diff(before, after, inputs)
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction == "y"
