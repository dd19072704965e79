"""Modules of what JAX hands out: stages of a function, jaxprs, and exported functions, as objects and as files. JAX says
what they compute."""

import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import hloexec
from hloexec.errors import HloError, HloWarning, InputError, UnsupportedError
from hloexec.language.interop import load_bytes
from hloexec.language.interop.through_jaxlib import is_export, read_export
from tests.drawing import examples

jax = pytest.importorskip("jax")
export = pytest.importorskip("jax.export")
jnp = jax.numpy

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
Y = np.arange(8, dtype=np.float32).reshape(4, 2) - 3


def program(x: Any, y: Any) -> Any:
    return jnp.sin(x) @ y, x.sum(axis=0)


def flatbuffer(platforms: Sequence[str], bytecode: bytes, *, field_count: int = 18) -> bytes:
    """A table of that many fields, of which 9 is a vector of strings and 13 a vector of bytes (flatbuffers.dev,
    "Internals"): the vtable first, as JAX's writer has it."""
    size = 4 + 2 * field_count
    offsets = [0] * field_count
    offsets[9], offsets[13] = 4, 8
    table = 4 + size + size % 4
    head = struct.pack("<I", table) + struct.pack(f"<HH{field_count}H", size, 12, *offsets)
    body = bytearray(head.ljust(table, b"\0") + struct.pack("<iII", table - 4, 0, 0))

    def point(place: int) -> None:
        body.extend(bytes(-len(body) % 4))
        struct.pack_into("<I", body, place, len(body) - place)

    point(table + 4)
    body += struct.pack("<I", len(platforms))
    strings = len(body)
    body += bytes(4 * len(platforms))
    for index, name in enumerate(platforms):
        point(strings + 4 * index)
        body += struct.pack("<I", len(name)) + name.encode() + b"\0"
    point(table + 8)
    body += struct.pack("<I", len(bytecode)) + bytecode
    return bytes(body)


def file_of(exported: Any) -> bytes:
    return flatbuffer(exported.platforms, exported.mlir_module_serialized)


@pytest.fixture(scope="module")
def exported() -> Any:
    return export.export(jax.jit(program))(X, Y)


def assert_computes(module: hloexec.Module, expected: Any, *inputs: Any) -> None:
    result = hloexec.run(module, *inputs)
    comparison = hloexec.compare(result, jax.tree.map(np.asarray, expected), module=module, inputs=list(inputs))
    assert comparison.verdict in (hloexec.Verdict.EQUAL, hloexec.Verdict.ROUNDING), comparison


# Objects


STAGES: dict[str, Callable[[], Any]] = {
    "traced": lambda: jax.jit(program).trace(X, Y),
    "lowered": lambda: jax.jit(program).lower(X, Y),
    "compiled": lambda: jax.jit(program).lower(X, Y).compile(),
    "exported": lambda: export.export(jax.jit(program))(X, Y),
    "jaxpr": lambda: jax.make_jaxpr(program)(X, Y),
    "StableHLO": lambda: jax.jit(program).lower(X, Y).compiler_ir(),
    "HLO": lambda: jax.jit(program).lower(X, Y).compiler_ir("hlo"),
}


@pytest.mark.slow_cases("jaxpr", "compiled", "HLO")
@pytest.mark.parametrize("name", STAGES)
def test_from_jax_takes_every_stage(name: str) -> None:
    assert_computes(hloexec.from_jax(STAGES[name]()), program(X, Y), X, Y)


@pytest.mark.parametrize("name", ["traced", "StableHLO"])
def test_a_stage_has_its_arguments_already(name: str) -> None:
    with pytest.raises(InputError, match="has its arguments already"):
        hloexec.from_jax(STAGES[name](), X, Y)


@pytest.mark.slow_cases("jaxpr", "compiled", "HLO")
@pytest.mark.parametrize("name", STAGES)
def test_functions_that_take_modules_name_from_jax(name: str) -> None:
    stage = STAGES[name]()
    for function in (hloexec.load, hloexec.parse, hloexec.run, hloexec.format, hloexec.verify):
        with pytest.raises(InputError, match=r"was given; hloexec\.from_jax makes a module of it$"):
            function(stage)


@pytest.mark.parametrize("function", [program, jax.jit(program)])
def test_functions_that_take_modules_say_that_a_function_needs_arguments(function: Any) -> None:
    for taker in (hloexec.load, hloexec.parse, hloexec.run):
        with pytest.raises(InputError, match=r"hloexec\.from_jax\(function, \*arguments\) makes a module of it$"):
            taker(function)


def test_arrays_of_jax_are_no_functions() -> None:
    with pytest.raises(InputError) as caught:
        hloexec.run(jnp.ones(3))
    assert "from_jax" not in str(caught.value)


# Exported functions


def test_a_file_of_an_exported_function_is_its_module(exported: Any) -> None:
    module = load_bytes(file_of(exported))
    assert module == hloexec.from_jax(exported)
    assert_computes(module, program(X, Y), X, Y)


def test_what_jax_serializes_is_read(exported: Any, tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    path = tmp_path / "exported.bin"
    path.write_bytes(exported.serialize(vjp_order=1))
    assert hloexec.load(path) == hloexec.from_jax(exported)


def test_a_function_for_several_platforms_is_what_it_is_on_the_cpu() -> None:
    def on_each(x: Any, y: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda a: a + 1, default=lambda a: a * 2) @ y

    for platforms, add in ((["cuda", "cpu"], 1), (["tpu", "cuda"], 0)):
        exported = export.export(jax.jit(on_each), platforms=platforms)(X, Y)
        for read in (lambda it=exported: load_bytes(file_of(it)), lambda it=exported: hloexec.from_jax(it)):
            with pytest.warns(HloWarning, match=f"exported for {platforms[0]}, {platforms[1]}; it is read as"):
                module = read()
            assert [str(shape) for shape in module.entry.parameter_shapes] == ["f32[3,4]", "f32[4,2]"]
            assert hloexec.parse(hloexec.format(module)) == module
            assert_allclose(hloexec.run(module, X, Y), (X + 1 if add else X * 2) @ Y, rtol=1e-6)


def test_an_exported_function_with_symbolic_sizes_runs_on_any() -> None:
    (rows,) = export.symbolic_shape("rows")
    shapes = jax.ShapeDtypeStruct((rows, 4), np.float32), jax.ShapeDtypeStruct((4, 2), np.float32)
    exported = export.export(jax.jit(program))(*shapes)
    assert_computes(hloexec.from_jax(exported, X, Y), program(X, Y), X, Y)
    module = load_bytes(file_of(exported))
    for x in (X, X[:2]):
        for ours, theirs in zip(hloexec.run(module, x, Y), program(x, Y), strict=True):
            assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(InputError, match=r"f32\[\?,4\], whose size is not known; give its value"):
        hloexec.random_inputs(module)


def test_an_exported_function_for_another_platform_takes_arguments() -> None:
    exported = export.export(jax.jit(program), platforms=["cuda"])(X, Y)
    assert_computes(hloexec.from_jax(exported, X, Y), program(X, Y), X, Y)


def test_without_jaxlib_the_file_of_an_exported_function_names_what_to_install(
    exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = file_of(exported)
    for name in ("jax", "jaxlib", "jaxlib._hlo", "jaxlib._jax"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match=r"f\.bin \(a function that jax\.export .* install hloexec\[jax\]"):
        load_bytes(data, "f.bin")


@pytest.mark.parametrize("cut", [60, 90, 140, 1000, -1])
def test_a_file_that_is_cut_off_says_so(exported: Any, cut: int) -> None:
    with pytest.raises(InputError, match=r"jax\.export has serialized, but is damaged or cut off"):
        load_bytes(file_of(exported)[:cut], "f.bin")


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_nothing_else(data: Any) -> None:
    damaged = bytearray(flatbuffer(["cpu", "tpu"], b"MLIR"))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if is_export(bytes(damaged)):
        try:
            read_export(bytes(damaged), "f.bin")
        except HloError as error:
            assert error.message
