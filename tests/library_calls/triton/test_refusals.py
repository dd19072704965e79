"""What is not run is refused before the run, in a sentence with the name of the kernel."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import ResourceError
from tests.library_calls.triton.kernels import CASES, call, shaped
from tests.library_calls.triton.lowering import lowered, require_pallas
from tests.library_calls.triton.texts import elementwise, function, module_of, run

X = np.arange(8, dtype=np.float32)


@pytest.fixture(autouse=True)
def _triton() -> None:
    require_pallas()


def refused(message: str) -> Any:
    return pytest.raises(hloexec.HloError, match=message)


def test_instructions_of_a_gpu_are_refused() -> None:
    from jax.experimental.pallas import triton as plgpu

    def kernel(x: Any, out: Any) -> None:
        out[...] = plgpu.approx_tanh(x[...])

    module = lowered(call(kernel, shaped(8), False), X)
    with refused(r"kernel 'kernel' has tt.elementwise_inline_asm at .*: it has instructions of a GPU in the text"):
        hloexec.run(module, X)


def test_a_timeout_ends_a_loop_of_a_kernel() -> None:
    """In seconds, as a machine may be busy."""
    import jax
    import jax.numpy as jnp

    def kernel(x: Any, out: Any) -> None:
        out[...] = jax.lax.while_loop(lambda value: jnp.min(value) >= 0, lambda value: value + 1, x[...])

    module = lowered(call(kernel, shaped(8), False), X)
    assert np.array_equal(hloexec.run(module, -1 - X), -1 - X)  # its kernel has been read then
    started = time.monotonic()
    with pytest.raises(ResourceError, match=r"timeout=0\.2 ends the run, which has taken longer"):
        hloexec.run(module, X, timeout=0.2)
    assert time.monotonic() - started < 10


def test_operations_that_are_not_known_are_refused_by_name() -> None:
    body = '%r = "later.op"(%0) : (tensor<8xf32>) -> tensor<8xf32>'
    with refused(r"kernel 'kernel' has operations that hloexec does not run: later.op"):
        elementwise(body, [X], X, "f32", "f32")
    with refused(r"it runs kernel 'kernel', but .* version that jaxlib does not know .*tt.later"):
        body = body.replace("later.op", "tt.later")
        elementwise(body, [X], X, "f32", "f32")


def test_functions_that_are_not_known_are_refused_by_name() -> None:
    body = (
        '%r = tt.extern_elementwise %0 {libname = "", libpath = "", pure = true, symbol = "__nv_j0f"} : '
        "(tensor<8xf32>) -> tensor<8xf32>"
    )
    with refused(r"kernel 'kernel' has tt.extern_elementwise.*: it calls '__nv_j0f'"):
        elementwise(body, [X], X, "f32", "f32")


@pytest.mark.parametrize("keep", [0, 3, 40, 400])
def test_damaged_bytecode_is_refused_with_the_name_of_the_kernel(keep: int) -> None:
    case = CASES["softmax"]()
    text = hloexec.format(lowered(case.build(False), *case.arguments))
    start = text.index('ir = "') + 6
    end = text.index('"', start)
    cut = "".join(re.findall(r"\\..|.", text[start:end])[:keep])
    module = hloexec.parse(text[:start] + cut + text[end:])
    with refused(
        r"it runs kernel 'kernel', but (the bytecode of its kernel cannot be read|its kernel has 0 functions)"
    ):
        hloexec.run(module, *case.arguments)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grid_y = 1 : i32, ", "", "lacks the attribute grid_y"),
        ("grid_y = 1", "grid_y = -1", r"kernel 'kernel' runs in a grid of \[1, -1, 1\]"),
        ("grid_y = 1 : i32", "grid_y = true", "its attribute grid_y must be a whole number"),
        ("debug = false", "later = 3", "the attribute later, which hloexec does not know"),
        ('name = "kernel"', "name = 3", "its attribute name must be a string"),
    ],
)
def test_a_config_that_is_not_as_it_has_to_be_is_refused(old: str, new: str, message: str) -> None:
    text = hloexec.format(module_of(function("", "f32", "f32"), [X], [X]))
    assert old in text
    with refused(message):
        hloexec.run(hloexec.parse(text.replace(old, new)), X)


def test_operands_have_to_fit_the_pointers() -> None:
    with refused("kernel 'kernel' takes 1 pointers, but has 1 operands and 1 results"):
        run(function("", "f32"), [X], [X])
    with refused(r"operand 0 of kernel 'kernel' is f32\[8\], but it takes !tt.ptr<f16>"):
        run(function("", "f16", "f32"), [X], [X])
    with refused(r"result 0 of kernel 'kernel' is f32\[8\], but it takes !tt.ptr<f64>"):
        run(function("", "f32", "f64"), [X], [X])


def test_memory_is_not_seen_as_elements_of_another_width() -> None:
    body = """
    %p = tt.bitcast %a0 : !tt.ptr<f32> -> !tt.ptr<i8>
    %x = tt.load %p : !tt.ptr<i8>
    %q = tt.bitcast %a1 : !tt.ptr<i32> -> !tt.ptr<i8>
    tt.store %q, %x : !tt.ptr<i8>
    """
    with refused("kernel 'kernel': tt.load.* sees input 0, of float32, as s8"):
        run(function(body, "f32", "i32"), [X], [X.astype(np.int32)])


def test_addresses_of_no_operand_are_named() -> None:
    body = """
    %address = arith.constant 64 : i64
    %p = tt.int_to_ptr %address : i64 -> !tt.ptr<f32>
    %x = tt.load %p : !tt.ptr<f32>
    tt.store %a0, %x : !tt.ptr<f32>
    """
    with pytest.warns(hloexec.HloWarning, match="accesses addresses that are of no operand"):
        run(function(body, "f32"), [], [X[:1]])
