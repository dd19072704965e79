"""Modules in other formats than HLO text. XLA itself makes the files and says what they mean."""

import bz2
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.values import TOKEN
from hloexec.errors import HloError, InputError, UnsupportedError
from hloexec.language.interop import load_bytes, load_recorded
from hloexec.language.interop.shape_protos import literal_value
from hloexec.language.interop.through_jaxlib import from_jax
from hloexec.language.interop.wire import read
from tests.drawing import examples

xla = pytest.importorskip("conformance.xla")
jax = pytest.importorskip("jax")
jnp = jax.numpy

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def program(x: Any, scale: Any) -> Any:
    """Something of everything: a loop, a called computation, special constants, metadata, several results."""
    special = jnp.array([-0.0, jnp.inf, 1e-45], jnp.float32)
    total, rows = jax.lax.scan(lambda carry, row: (carry + row, row * scale), special * 0, x)
    with jax.named_scope("the end"):
        return total, rows, jnp.copysign(1.0, special), jnp.argmax(x)


@pytest.fixture(scope="module")
def lowered() -> Any:
    return jax.jit(program).lower(MATRIX, np.float32(3))


@pytest.fixture(scope="module")
def proto(lowered: Any) -> bytes:
    """A serialized HloModuleProto."""
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def canonical(module: Any) -> str:
    """XLA's text of our module or its own, read once more: XLA's parser leaves out what is not used.

    It also reads the "-0" that XLA's printer writes as an integer, and loses the sign.
    """
    if isinstance(module, hloexec.ir.Module):
        text = hloexec.format(module)
    else:
        text = re.sub(r"-0(?=[,})])", "-0.0", xla.canonical_text(module))
    return xla.canonical_text(text, print_metadata=False)


def of_proto(proto: bytes) -> str:
    from jaxlib import _hlo

    return canonical(_hlo.HloModule.from_serialized_hlo_module_proto(proto))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, payload: bytes | int) -> bytes:
    """One field of a message, as the protocol buffer encoding defines it."""
    if isinstance(payload, int):
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


# Modules


def test_a_module_proto_is_the_module_xla_sees(proto: bytes) -> None:
    assert canonical(load_bytes(proto)) == of_proto(proto)


def test_an_hlo_proto_is_unwrapped(proto: bytes) -> None:
    wrapped = field(1, proto) + field(3, b"")
    assert load_bytes(wrapped) == load_bytes(proto)


def test_a_proto_runs_as_xla_runs_it(lowered: Any, proto: bytes) -> None:
    expected = lowered.compile()(MATRIX, np.float32(3))
    actual = hloexec.run(load_bytes(proto), MATRIX, np.float32(3))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_constants_of_a_proto_keep_every_bit(dtype: Any) -> None:
    """NaN payloads, negative zeros and denormals among them: random bits, and every sign with every exponent's edge."""
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = np.random.default_rng(0).integers(0, np.iinfo(word).max, 500, dtype=word, endpoint=True)
    bits[:4] = [0, 1, np.iinfo(word).max, 1 << (8 * word.itemsize - 1)]
    with jax.enable_x64(True):
        constant = jax.jit(lambda: jnp.asarray(bits.view(dtype))).lower().compiler_ir("hlo")
    result = hloexec.run(load_bytes(constant.as_serialized_hlo_module_proto()))
    assert result.view(word).tolist() == bits.tolist()


def test_the_device_assignment_of_a_proto_gives_the_device_counts(proto: bytes) -> None:
    """XLA's own reader of protos drops it; a text dump of the same module shows it."""
    devices = b"".join(field(3, field(1, varint(2 * partition) + varint(2 * partition + 1))) for partition in range(3))
    assignment = field(15, field(1, 2) + field(2, 3) + devices)
    module = load_bytes(proto + assignment)
    assert (module.replica_count, module.num_partitions) == (2, 3)


@pytest.mark.slow_cases("bytecode", "artifact")
@pytest.mark.parametrize("form", "text bytecode artifact generic".split())
def test_stablehlo_is_the_module_xla_makes_of_it(lowered: Any, proto: bytes, form: str) -> None:
    from jaxlib import _jax

    module = lowered.compiler_ir("stablehlo")
    if form == "text":
        data = lowered.as_text().encode()
    elif form == "bytecode":
        file = io.BytesIO()
        module.operation.write_bytecode(file)
        data = file.getvalue()
    elif form == "artifact":
        data = _jax.mlir.serialize_portable_artifact(module, "1.0.0")
    else:
        data = module.operation.get_asm(print_generic_op_form=True).encode()
    loaded = load_bytes(data)
    assert [i.opcode for i in loaded.entry] == [i.opcode for i in load_bytes(proto).entry]
    for ours, theirs in zip(
        hloexec.run(loaded, MATRIX, np.float32(3)), lowered.compile()(MATRIX, np.float32(3)), strict=True
    ):
        assert_array_equal(ours, np.asarray(theirs))


def test_mhlo_is_read() -> None:
    text = """
    // A comment first.
    module @jit_double {
      func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
        %0 = mhlo.add %arg0, %arg0 : tensor<4xf32>
        return %0 : tensor<4xf32>
      }
    }
    """
    x = np.arange(4, dtype=np.float32)
    assert_array_equal(hloexec.run(load_bytes(text.encode()), x), x + x)


def test_hlo_text_needs_no_first_line_and_may_name_a_computation_module() -> None:
    text = (
        b"module {\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}\nENTRY main {\n  x = f32[] parameter(0)\n"
        + (b"  ROOT y = f32[] call(x), to_apply=module\n}\n")
    )
    assert {computation.name for computation in load_bytes(text)} == {"module", "main"}


def test_gzip_of_anything_is_unpacked(lowered: Any, proto: bytes) -> None:
    for data in (hloexec.format(load_bytes(proto)).encode(), proto, field(1, proto), lowered.as_text().encode()):
        assert load_bytes(gzip.compress(gzip.compress(data), mtime=0)) == load_bytes(data)


def test_load_goes_by_content_not_by_name(tmp_path: Path, proto: bytes) -> None:
    path = tmp_path / "module.txt"
    path.write_bytes(gzip.compress(proto, mtime=0))
    assert hloexec.load(path) == load_bytes(proto)


def test_strict_holds_for_every_format() -> None:
    with pytest.raises(hloexec.ParseError, match="novel"):
        load_bytes(b"HloModule m, novel=1\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n", strict=True)


# Snapshots


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What XLA dumps of one execution: the kinds of snapshot, of which the last has its arguments behind the message."""
    # XLA reads its flags once, when it is first used: in the copy of the process that has imported JAX.
    source = """
import os, sys, jax, jax.numpy as jnp, numpy as np
def snapped(x, i, z, n):
    return x @ x.T, (x.T, i + 1), z * 2, jnp.array([1, -2, 3], jnp.int4), n, x.sum() > 0
def moved(x, step):
    return x - step
for flags in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["XLA_FLAGS"] = flags
        if "donated" in flags:
            jax.jit(moved, donate_argnums=0)(jnp.ones(3), jnp.float32(2))
            os._exit(0)
        jax.jit(snapped)(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), jnp.array([-3, 2**31 - 1, -2**31]),
                         jnp.array([1 + 2j, -3j], jnp.complex64), jnp.array([-8, 7], jnp.int4))
        os._exit(0)
    assert os.wait()[1] == 0
"""
    options = {
        "optimized": "snapshots",
        "unoptimized": "unoptimized_snapshots",
        "large": "unoptimized_snapshots --xla_dump_hlo_as_proto",
        "donated": "snapshots",
    }
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in options}
    flags = [f'--xla_dump_to="{folders[kind]}" --xla_dump_hlo_{option}' for kind, option in options.items()]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", source, *flags], env=environment, check=True, timeout=120)
    found = {}
    for kind, folder in folders.items():
        name = "moved" if kind == "donated" else "snapped"
        (path,) = folder.glob(f"**/*{name}*snapshot*.pb")
        found[kind] = path.read_bytes()
    return found


@pytest.mark.slow_cases("optimized")
@pytest.mark.parametrize("kind", ["optimized", "unoptimized", "large"])
def test_a_snapshot_holds_the_inputs_of_the_execution(snapshots: dict[str, bytes], kind: str) -> None:
    snapshot = load_recorded(snapshots[kind])
    x, i, z, n = snapshot.inputs
    assert len(snapshot.inputs_per_device) == 1
    assert x.dtype == ml_dtypes.bfloat16
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert i.dtype == np.int32
    assert i.tolist() == [-3, 2**31 - 1, -(2**31)]
    assert z.dtype == np.complex64
    assert z.tolist() == [1 + 2j, -3j]
    assert n.dtype == ml_dtypes.int4
    assert n.astype(np.int8).tolist() == [-8, 7]


def test_a_snapshot_holds_the_result_of_the_execution(snapshots: dict[str, bytes]) -> None:
    product, transposed, i, z, constant, n, positive = load_recorded(snapshots["optimized"]).result
    assert product.astype(np.float32).tolist() == [[5, 14], [14, 50]]
    assert transposed.astype(np.float32).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert i.tolist() == [-2, -(2**31), -(2**31) + 1]
    assert z.tolist() == [2 + 4j, -6j]
    assert constant.astype(np.int8).tolist() == [1, -2, 3]
    assert n.astype(np.int8).tolist() == [-8, 7]
    assert positive.tolist() is True


def test_a_snapshot_without_a_result_says_so(snapshots: dict[str, bytes]) -> None:
    assert load_recorded(snapshots["unoptimized"]).result is None


def test_a_snapshot_of_donated_arguments_has_no_result(snapshots: dict[str, bytes]) -> None:
    with pytest.warns(hloexec.HloWarning, match="holds no result: XLA stores none where arguments are donated"):
        found = load_recorded(snapshots["donated"])
    assert found.result is None and [value.tolist() for value in found.inputs] == [[1, 1, 1], 2]


def test_running_a_snapshot_gives_its_result(snapshots: dict[str, bytes]) -> None:
    """The products are small integers, exact in bf16."""
    snapshot = load_recorded(snapshots["optimized"])
    module = load_bytes(snapshots["unoptimized"])
    for ours, theirs in zip(hloexec.run(module, *snapshot.inputs), snapshot.result, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.astype(theirs.dtype if theirs.dtype.kind != "V" else np.float32).tolist() == theirs.tolist()


def test_load_reads_the_module_of_a_snapshot(snapshots: dict[str, bytes]) -> None:
    assert load_bytes(snapshots["optimized"]) == load_recorded(snapshots["optimized"]).module


@pytest.mark.parametrize("cut", [1, 40])
def test_a_snapshot_whose_arguments_are_cut_off_says_so(snapshots: dict[str, bytes], cut: int) -> None:
    with pytest.raises(
        InputError, match=rf"^f\.pb, argument {3 if cut < 2 else 2}: (?:a literal|the shape of a literal) "
    ):
        load_recorded(snapshots["large"][:-cut], "f.pb")
    assert load_bytes(snapshots["large"][:-cut]) == load_bytes(snapshots["unoptimized"])


def test_a_module_alone_has_no_values(proto: bytes) -> None:
    found = load_recorded(proto)
    assert found.inputs_per_device == ()
    assert found.result is None


def shape(primitive_type: int, dimensions: list[int], minor_to_major: list[int] | None = None) -> bytes:
    layout = b"" if minor_to_major is None else field(5, field(1, b"".join(map(varint, minor_to_major))))
    return field(2, primitive_type) + field(3, b"".join(map(varint, dimensions))) + layout


@pytest.mark.parametrize(
    ("primitive_type", "number", "payload", "expected"),
    [
        (1, 2, b"\x01\x00", np.array([True, False])),
        (2, 15, b"\xff\x7f", np.array([-1, 127], np.int8)),
        (6, 3, b"\xff\x7f", np.array([255, 127], np.uint8)),
        (3, 17, b"\xfe\xff\x01\x02", np.array([-2, 513], np.int16)),
        (4, 4, varint(-5) + varint(7), np.array([-5, 7], np.int32)),
        (5, 5, varint(-(2**63)) + varint(2**40), np.array([-(2**63), 2**40], np.int64)),
        (9, 7, varint(2**64 - 1) + varint(0), np.array([2**64 - 1, 0], np.uint64)),
        (10, 11, b"\x00\x3c\x00\x80", np.array([1, -0.0], np.float16)),
        (11, 8, b"\x00\x00\x80\x3f\x01\x00\x80\x7f", np.array([0x3F800000, 0x7F800001], np.uint32).view(np.float32)),
        (18, 18, np.array([1, 2, 3, 4.0]).tobytes(), np.array([1 + 2j, 3 + 4j])),
        (21, 21, b"\x0f\x07", np.array([-1, 7], ml_dtypes.int4)),
        (31, 31, b"\x01\x00", np.array([1, 0], ml_dtypes.uint1)),
        (20, 20, b"\x7e\x80", np.array([448, -0.0], ml_dtypes.float8_e4m3fn)),
    ],
)
def test_literals_of_every_encoding(primitive_type: int, number: int, payload: bytes, expected: Any) -> None:
    """Built by hand from the definition of LiteralProto; bits, not values, are compared."""
    value = literal_value(field(1, shape(primitive_type, [2])) + field(number, payload))
    assert value.dtype == expected.dtype
    assert value.tobytes() == expected.tobytes()


def test_unpacked_numbers_are_read_as_packed_ones_are() -> None:
    literal = field(1, field(2, 4) + field(3, 3)) + field(4, 1) + field(4, 2) + field(4, -3)
    assert literal_value(literal).tolist() == [1, 2, -3]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
def test_a_literal_lies_in_the_order_of_its_layout(order: list[int]) -> None:
    """The first of minor_to_major varies fastest."""
    logical = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    payload = logical.transpose(order[::-1]).tobytes()
    value = literal_value(field(1, shape(11, [2, 3, 4], order)) + field(8, payload))
    assert_array_equal(value, logical)


def test_tuples_of_literals_nest() -> None:
    scalar = field(1, field(2, 11)) + field(8, b"\x00\x00\x80\x3f")
    tuple_shape = field(1, field(2, 13))
    inner = tuple_shape + field(10, scalar) + field(10, field(1, field(2, 17)))
    value = literal_value(tuple_shape + field(10, inner) + field(10, tuple_shape))
    assert value == ((np.float32(1), TOKEN), ())


# Profiles


def profile(*modules: tuple[str, bytes]) -> bytes:
    """An XSpace with the modules that ran, among other planes (tsl/profiler/protobuf/xplane.proto)."""
    events = b"".join(
        field(
            4, field(1, at) + field(2, field(1, at) + field(2, name.encode()) + field(5, field(1, 4) + field(6, hlo)))
        )
        for at, (name, hlo) in enumerate(modules)
    )
    planes = field(1, 7) + field(2, b"/device:TPU:0"), field(2, b"/host:metadata") + events, field(2, b"/host:CPU")
    return b"".join(field(1, plane) for plane in planes)


def test_the_only_module_of_a_profile_is_read(proto: bytes) -> None:
    assert load_bytes(profile(("jit_program(12)", field(1, proto)))) == load_bytes(proto)


def test_one_of_several_modules_of_a_profile_is_chosen(tmp_path: Path, proto: bytes) -> None:
    other = jax.jit(lambda x: x + 1).lower(MATRIX).compiler_ir("hlo").as_serialized_hlo_module_proto()
    path = tmp_path / "vm.xplane.pb"
    modules = ("jit_program(12)", proto), ("jit_f(3)", other), ("jit_f(4)", other)
    path.write_bytes(gzip.compress(profile(*((name, field(1, module)) for name, module in modules)), mtime=0))
    names = r"choose one as FILE#NAME, where NAME is one of jit_f\(3\), jit_f\(4\), jit_program\(12\)$"
    with pytest.raises(InputError, match=rf"is a profile of 3 modules; {names}"):
        hloexec.load(path)
    for name in ("jit_program", "jit_program(12)", "12"):
        assert hloexec.load(f"{path}#{name}") == load_bytes(proto)
    assert hloexec.load(f"{path}#4") == load_bytes(other)
    with pytest.raises(InputError, match=rf"has 2 modules 'jit_f'; {names}"):
        hloexec.load(f"{path}#jit_f")
    with pytest.raises(InputError, match=rf"has no module 'jit_g'; {names}"):
        hloexec.load(f"{path}#jit_g")


def test_a_choice_among_modules_needs_a_profile(tmp_path: Path, proto: bytes) -> None:
    path = tmp_path / "module#1.pb"
    path.write_bytes(proto)
    assert hloexec.load(path) == load_bytes(proto)
    with pytest.raises(InputError, match="is no profile of several modules"):
        hloexec.load(f"{path}#2")
    with pytest.raises(InputError, match=r"cannot read .*absent"):
        hloexec.load(tmp_path / "absent#2")


def test_a_profile_without_modules_says_so() -> None:
    with pytest.raises(InputError, match="is a profile that has no modules"):
        load_bytes(profile())


@pytest.mark.slow
def test_profiles_of_jax_are_read(tmp_path: Path) -> None:
    @jax.jit
    def doubled_and_profiled(x: Any) -> Any:
        return x * 2

    with jax.profiler.trace(os.fspath(tmp_path)):
        doubled_and_profiled(jnp.asarray(MATRIX)).block_until_ready()
    (path,) = tmp_path.glob("**/*.xplane.pb")
    with suppress(InputError):  # of several modules, where moving the argument is one
        hloexec.load(path)
    module = hloexec.load(f"{path}#jit_doubled_and_profiled")
    assert_array_equal(hloexec.run(module, MATRIX), MATRIX * 2)


# JAX


def test_from_jax_takes_functions_jitted_functions_and_their_stages(lowered: Any, proto: bytes) -> None:
    expected = of_proto(proto)
    assert canonical(from_jax(lowered)) == expected
    assert canonical(from_jax(jax.jit(program), MATRIX, scale=np.float32(3))) == expected
    assert canonical(from_jax(program, MATRIX, np.float32(3))) == expected
    assert canonical(from_jax(program, jax.ShapeDtypeStruct((2, 3), np.float32), np.float32(3))) == expected


def test_from_jax_of_a_compiled_function_is_the_optimized_module(lowered: Any) -> None:
    compiled = lowered.compile()
    assert canonical(from_jax(compiled)) == canonical(compiled.runtime_executable().hlo_modules()[0])


def test_from_jax_has_a_parameter_for_every_leaf_of_the_arguments() -> None:
    module = from_jax(lambda tree, unused: tree["b"] * 2, {"a": MATRIX, "b": MATRIX}, np.int32(1))
    assert [str(shape) for shape in module.entry.parameter_shapes] == ["f32[2,3]", "f32[2,3]", "s32[]"]
    assert_array_equal(hloexec.run(module, MATRIX, MATRIX, np.int32(1)), MATRIX * 2)


def test_from_jax_keeps_large_constants() -> None:
    table = np.random.default_rng(0).normal(size=(50, 50)).astype(np.float32)
    assert_array_equal(hloexec.run(from_jax(lambda: jnp.asarray(table))), table)


def test_from_jax_refuses_what_is_no_function(lowered: Any) -> None:
    with pytest.raises(InputError, match="must be a function"):
        from_jax(3)
    with pytest.raises(InputError, match="arguments already"):
        from_jax(lowered, MATRIX)


# Bad input


def test_without_jaxlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "jaxlib", "jaxlib._hlo", "jaxlib._jax"):
        monkeypatch.setitem(sys.modules, name, None)
    for attempt in (
        lambda: load_bytes(b"ML\xefR\x01", "m.mlirbc"),
        lambda: from_jax(program, MATRIX, 3),
    ):
        with pytest.raises(UnsupportedError, match=r"hloexec\[jax\]"):
            attempt()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\n\n ", "empty"),
        (b"\x1f\x8b\x08\x00broken", "gzip"),
        (gzip.compress(b"HloModule m", mtime=0)[:-4], "gzip"),
        (b"ML\xefR" + bytes(40), "XLA cannot read"),
        (b"module @m { func.func @main() { garbage } }", "XLA cannot read"),
        (b"\x7fELF\x02\x01\x01" + bytes(30), "neither text nor"),
        (b"\x0a\x00\x08" + b"\xff" * 30, "does not end within 10 bytes"),
        (b"\x0a\xff\xff\xff\xff\x0fabc", "should have"),
        (field(1, field(1, field(1, b"x"))) + b"\x00\x00", "number 0"),
        (b"\x07\x00", "wire type"),
        (b"HloModule \xff", "not UTF-8"),
        (b"HloModule m\n// na\xefve\n", "the byte 0xef at offset 17, on line 2, is not UTF-8"),
        (b"HloModule m\x00", "zero byte"),
        ("plain prose".encode("utf-16"), "found 'prose'"),
        ("plain prose".encode("utf-16-be"), "found 'prose'"),
        (lzma.compress(b"HloModule m" * 9), "file is compressed with xz: unpack it first"),
        (gzip.compress(bz2.compress(b"HloModule m" * 9), mtime=0), "file is compressed with bzip2: unpack it first"),
        (b"\x28\xb5\x2f\xfd\x04\x00" + b"HloModule m", "file is compressed with zstd: unpack it first"),
    ],
)
def test_what_is_no_module_is_refused_with_a_reason(data: bytes, message: str) -> None:
    with pytest.raises(HloError, match=message):
        load_bytes(data, "file")


def test_a_folder_names_the_command_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder; name a file in it$"):
        hloexec.load(tmp_path)
    module = tmp_path / "module_0001.jit_f.before_optimizations.txt"
    module.touch()
    with pytest.raises(InputError) as caught:
        hloexec.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is a folder that XLA dumped, which `hloexec diff` and `hloexec triage` read; "
        f"a module in it is {module}"
    )
    golden = tmp_path / "f.golden"
    golden.mkdir()
    (golden / "golden.json").touch()
    for folder in (tmp_path, golden):
        with pytest.raises(
            InputError, match=rf"of goldens, which `hloexec golden check` runs; .* {golden}/module\.hlo$"
        ):
            hloexec.load(folder)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_a_damaged_proto_is_refused_or_read_but_nothing_else(proto: bytes, data: Any) -> None:
    damaged = bytearray(proto)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(proto) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(proto)), st.integers(1, len(proto))))
    try:
        load_bytes(bytes(damaged[:length]))
    except HloError as error:
        assert error.message


def test_bytecode_that_crashes_its_reader_is_refused(lowered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloexec.language.interop.through_jaxlib._READ_BYTECODE", "import os; os.abort()")
    with pytest.raises(InputError, match="crashed"):
        load_bytes(b"ML\xefR")


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=60))
@example(field(1, field(2, 11) + field(3, varint(2**62) * 4)))
@example(field(1, field(2, 4) + field(3, varint(-1))))
@example(field(1, field(2, 13)) + field(10, 5))
@example(field(1, shape(11, [2], [3])) + field(8, bytes(8)))
@example(field(1, shape(11, [2])) + field(8, bytes(7)))
def test_a_damaged_literal_is_refused_or_read_but_nothing_else(data: bytes) -> None:
    try:
        literal_value(data)
    except HloError as error:
        assert error.message


def test_tuples_that_nest_too_deep_are_refused() -> None:
    data = b""
    for _ in range(300):
        data = field(1, field(2, 13)) + field(10, data)
    with pytest.raises(InputError, match="deeper than"):
        literal_value(data)


def test_a_bomb_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloexec.language.interop.content._MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match="more than"):
        load_bytes(gzip.compress(bytes(1 << 23), mtime=0), "bomb.gz")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=9)))))
def test_messages_are_split_into_their_fields(fields: list[tuple[int, int | bytes]]) -> None:
    message = read(b"".join(field(number, payload) for number, payload in fields))
    expected: dict[int, list[int | bytes]] = {}
    for number, payload in fields:
        expected.setdefault(number, []).append(payload)
    found = {
        number: [payload if isinstance(payload, int) else bytes(payload) for payload in payloads]
        for number, payloads in message.fields.items()
    }
    assert found == expected


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_packed_numbers_are_decoded(values: list[int]) -> None:
    assert read(field(1, b"".join(map(varint, values)))).varints(1).tolist() == values
