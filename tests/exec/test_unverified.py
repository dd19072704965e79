"""`verify=False`: what cannot be run all the same says what is wrong with the module."""

import numpy as np
import pytest

import hloexec

HEAD = "HloModule m\n"
ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n"
BROKEN = {
    "parameter 1 without a parameter 0": "ENTRY e {\n  ROOT a = f32[2] parameter(1)\n}\n",
    "a transpose of another rank": "ENTRY e {\n  a = f32[2,3] parameter(0)\n"
    "  ROOT r = f32[3,2,1] transpose(a), dimensions={2,0}\n}\n",
    "a function of predicates": "ENTRY e {\n  a = pred[2] parameter(0)\n  ROOT r = pred[2] negate(a)\n}\n",
    "a sum of tokens": "ENTRY e {\n  a = token[] parameter(0)\n  ROOT r = token[] add(a, a)\n}\n",
    "a condition that gives a whole array": "c {\n  x = f32[3] parameter(0)\n  ROOT p = pred[3] compare(x, x), direction=EQ\n}\n"
    "b {\n  ROOT x = f32[3] parameter(0)\n}\nENTRY e {\n  x = f32[3] parameter(0)\n"
    "  ROOT w = f32[3] while(x), condition=c, body=b\n}\n",
    "a condition without parameters": "c {\n  ROOT k = pred[] constant(false)\n}\nb {\n  ROOT x = s32[] parameter(0)\n}\n"
    "ENTRY e {\n  x = s32[] parameter(0)\n  ROOT w = s32[] while(x), condition=c, body=b\n}\n",
    "a collective that gives one array of two": ADD + "ENTRY e {\n  a = f32[2] parameter(0)\n"
    "  ROOT r = (f32[2], f32[2]) all-reduce(a), to_apply=add\n}\n",
    "more leaves than the root has": "ENTRY e {\n  a = f32[2] parameter(0)\n  t = (f32[2]) tuple(a)\n"
    "  ROOT r = (f32[2], f32[2]) copy(t)\n}\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_module_that_cannot_be_run_is_refused_with_what_is_wrong(name: str) -> None:
    module = hloexec.parse(HEAD + BROKEN[name])
    with pytest.raises(hloexec.VerificationError) as verified:
        hloexec.verify(module)
    with pytest.raises((hloexec.VerificationError, hloexec.EvaluationError)) as caught:
        hloexec.run_devices(module, None, verify=False)
    if isinstance(caught.value, hloexec.VerificationError):
        assert str(caught.value) == str(verified.value)


def test_a_module_that_goes_well_all_the_same_is_run() -> None:
    module = hloexec.parse(HEAD + "ENTRY e {\n  a = f32[2] parameter(0)\n  ROOT r = f32[3] negate(a)\n}\n")
    result = hloexec.run(module, np.ones(2, np.float32), verify=False)
    np.testing.assert_array_equal(np.asarray(result), [-1, -1])


def test_random_inputs_beyond_memory_are_a_resource_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("hloexec.engine.inputs.random_array", full)
    module = hloexec.parse(HEAD + "ENTRY e {\n  ROOT a = f32[2] parameter(0)\n}\n")
    with pytest.raises(hloexec.ResourceError, match="do not fit into memory"):
        hloexec.random_inputs(module)
