"""Arrays of other libraries: every function takes them, whatever they offer of `__array__` and `__dlpack__`, and results
compare with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.dtypes import element_type_of

SUBTRACT = """HloModule subtract
ENTRY e { x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  ROOT z = f32[4] subtract(x, y) }
"""
X, Y = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
MODULE = hloexec.parse(SUBTRACT)
NARROW = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float8_e3m4"),
    *("float8_e4m3", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)


class WithArray:
    """All that it has is `__array__`."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self._array


class WithDlpack:
    """All that it has is DLPack's protocol."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **_: object) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Tensor(WithDlpack):
    """What PyTorch's tensors do: they give no arrays while they are part of a graph, and none of bf16 ever."""

    requires_grad = True

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack__(self, **_: object) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return super().__dlpack__()

    def detach(self) -> Tensor:
        found = Tensor(self._array)
        found.requires_grad = False
        return found

    def cpu(self) -> Tensor:
        return self


def of_jax(array: Any) -> Any:
    from jax import numpy

    return numpy.asarray(array)


KINDS: dict[str, Callable[[Any], Any]] = {
    "__array__": WithArray,
    "__dlpack__": WithDlpack,
    "tensor": Tensor,
    "matrix": lambda array: np.ma.masked_array(array),
    "jax": of_jax,
}
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "run": lambda given, _: hloexec.run(MODULE, *given),
    "run_devices": lambda given, _: hloexec.run_devices(MODULE, given, replicas=2)[1],
    "trace": lambda given, folder: _traced(hloexec.trace(MODULE, given, folder / "trace")),
    "extract": lambda given, _: hloexec.extract(MODULE, given, "z").expected[0],
    "record_golden": lambda given, folder: _expected(hloexec.record_golden(MODULE, given, folder / "m.golden")),
    "shard_inputs": lambda given, _: hloexec.run(MODULE, *hloexec.shard_inputs(MODULE, given)[0]),
    "step": lambda given, _: _stepped(hloexec.step(MODULE, given)),
}
"""What functions give of X − Y."""


def _traced(trace: hloexec.Trace) -> Any:
    return trace.value(trace.find("z"))


def _expected(golden: hloexec.Golden) -> Any:
    return hloexec.literals.load(golden.folder / "expected.npz")


def _stepped(stepper: hloexec.Stepper) -> Any:
    with stepper:
        stepper.continue_()
        assert stepper.results is not None
        return stepper.results[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", CALLS)
def test_each_function_takes_each_kind_of_array(function: str, kind: str, tmp_path: Path) -> None:
    x, y = map(KINDS[kind], (X, Y))
    assert_array_equal(CALLS[function]([x, y], tmp_path), X - Y)
    assert isinstance(x, type(KINDS[kind](X)))


@pytest.mark.slow_cases("__array__", "tensor", "matrix")
@pytest.mark.parametrize("kind", KINDS)
def test_functions_that_judge_take_each_kind_of_array(kind: str, tmp_path: Path) -> None:
    make = KINDS[kind]
    inputs, result = [make(X), make(Y)], make(X - Y)
    wrong = make(X + Y)
    assert hloexec.compare(hloexec.run(MODULE, inputs), result, module=MODULE, inputs=inputs).agrees
    assert hloexec.compare(result, {"value": result}).agrees
    assert hloexec.diff(MODULE, MODULE, inputs).verdict == "agree"
    assert hloexec.find_nan(MODULE, inputs).finding is None
    assert hloexec.shadow(MODULE, inputs).outputs
    assert hloexec.explain(MODULE, inputs, expected=result).best.policy.name == "reference"
    assert hloexec.narrow(MODULE, [inputs], tolerance=1.0).outputs
    assert hloexec.minify(MODULE, inputs, expected=wrong).instruction_count <= MODULE.instruction_count
    golden = hloexec.record_golden(MODULE, inputs, tmp_path / "m.golden", expected=result)
    assert hloexec.check_golden(golden.folder).passed
    hloexec.literals.save(tmp_path / "x.npz", (result,))
    assert_array_equal(hloexec.literals.load(tmp_path / "x.npz")[0], X - Y)  # type: ignore[index]
    assert_array_equal(hloexec.unshard_outputs(MODULE, [result]), X - Y)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*NARROW, "int4", "uint2", "float4_e2m1fn", "bool", "complex64", "int16"])
def test_element_types_of_jax_stay_as_they_are(name: str) -> None:
    array = of_jax(np.arange(6) % 2).astype(name).reshape(2, 3)
    element_type = element_type_of(np.asarray(array).dtype)
    module = hloexec.parse(f"HloModule m\nENTRY e {{ ROOT x = {element_type}[2,3] parameter(0) }}\n")
    result = hloexec.run(module, array)
    assert isinstance(result, np.ndarray)
    assert (result.dtype, result.tobytes()) == (np.asarray(array).dtype, np.asarray(array).tobytes())
    assert hloexec.compare(result, array).verdict.value == "equal"
    if name in NARROW:  # NumPy reads no DLPack of these
        assert hloexec.run(module, WithDlpack(array)).tobytes() == result.tobytes()  # type: ignore[union-attr]
        assert hloexec.run(module, Tensor(array)).tobytes() == result.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3, 4)])
def test_dlpack_is_read_whatever_the_strides(shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    for view in (array, array.T, array[::-1] if shape else array, array[..., ::2] if shape else array):
        assert hloexec.compare(WithDlpack(view), view).verdict.value == "equal"  # type: ignore[arg-type]


def test_one_array_for_all_devices_stays_one() -> None:
    x, y = of_jax(X), of_jax(Y)
    first, second = hloexec.run_devices(MODULE, [[x, y], [x, y]], replicas=2)
    assert first is second


def _unreadable() -> dict[str, tuple[Any, str]]:
    import jax

    deleted = of_jax(X) + 1
    deleted.delete()
    return {
        "key": (jax.random.key(0), r"must be f32\[4\], .* but u32\[2\] was given"),
        "deleted": (deleted, "cannot be read as an array: Array has been deleted"),
        "masked": (np.ma.masked_array(X, X > 1), r"masked elements; .filled\(…\) fills them"),
        "int4": (WithDlpack(of_jax(X).astype("int4")), "cannot be read as an array: .*no DLPack equivalent"),
        "type": (of_jax(X).astype("bfloat16"), r"must be f32\[4\], .* but bf16\[4\] was given"),
        "shape": (of_jax(X)[:3], r"must be f32\[4\], .* but f32\[3\] was given"),
        "objects": (WithArray(np.array([None] * 4)), "which is not an HLO element type"),
    }


@pytest.mark.parametrize("case", "key deleted masked int4 type shape objects".split())
def test_what_cannot_be_read_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    value, message = _unreadable()[case]
    for call in (
        lambda: hloexec.run(MODULE, value, Y),
        lambda: hloexec.diff(MODULE, MODULE, [value, Y]),
        lambda: hloexec.record_golden(MODULE, [value, Y], tmp_path / "m.golden"),
    ):
        with pytest.raises(hloexec.InputError, match=message):
            call()
    assert not list(tmp_path.iterdir())


def test_library_calls_and_constants_take_them_too() -> None:
    text = 'HloModule m\nENTRY e { x = f32[2] parameter(0)\n  ROOT y = f32[2] custom-call(x), custom_call_target="mine" }\n'
    hloexec.register_custom_call("mine", lambda x: of_jax(x) + 1)
    try:
        assert_array_equal(hloexec.run(hloexec.parse(text), of_jax(X)[:2]), [1, 2])
    finally:
        hloexec.unregister_custom_call("mine")
    text = "HloModule m\nENTRY e { c = bf16[12] constant({...})\n  ROOT y = bf16[12] negate(c) }\n"
    given = of_jax(np.arange(12)).astype("bfloat16")
    result = hloexec.run(hloexec.parse(text), elided={"c": given})
    assert isinstance(result, np.ndarray) and result.dtype == ml_dtypes.bfloat16
    assert result.tolist() == [-float(number) for number in range(12)]
