"""Files of values: round trips, what plain NumPy sees, and every way a file can be wrong."""

import contextlib
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec import testing
from hloexec.core.dtypes import ELEMENT_TYPES, element_type
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import TOKEN, Value
from hloexec.errors import LiteralError
from hloexec.language import literals
from hloexec.ops.resources import owner_of
from tests.drawing import examples

ARRAY_TYPES = [entry for entry in ELEMENT_TYPES.values() if entry.is_array]


@attrs.frozen
class _Number:
    number: int


def shape(name: str, *dimensions: int) -> ArrayShape:
    return ArrayShape(element_type(name), dimensions)


def parameter(number: int, theirs: Shape, name: str | None = None) -> Instruction:
    return Instruction(name=name or f"p.{number}", shape=theirs, opcode="parameter", attributes=_Number(number))


def all_bits(entry: Any) -> np.ndarray[Any, Any]:
    """An array with every bit pattern of a narrow type, or a spread of them."""
    if entry.is_integral and entry.bits < 8:
        low = 0 if entry.name.startswith("u") else -(1 << (entry.bits - 1))
        return np.arange(low, low + (1 << entry.bits)).astype(np.int8).astype(entry.storage)
    if entry.name == "pred":
        return np.array([True, False])
    if entry.bits < 16:
        return np.arange(1 << entry.bits, dtype=np.uint8).view(entry.storage)
    return np.random.default_rng(1).integers(0, 256, 64 * entry.byte_size, np.uint8).view(entry.storage)


def same(left: Value, right: Value) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return left is right


@pytest.mark.parametrize("entry", ARRAY_TYPES, ids=str)
def test_every_element_type_survives_bit_for_bit(entry: Any, tmp_path: Path) -> None:
    array = all_bits(entry)
    literals.save(tmp_path / "x.npz", (array, (array[:1].reshape(()),)))
    assert same(literals.load(tmp_path / "x.npz"), (array, (array[:1].reshape(()),)))


@pytest.mark.parametrize("entry", ARRAY_TYPES, ids=str)
def test_plain_numpy_opens_every_entry_without_pickle(entry: Any, tmp_path: Path) -> None:
    array = all_bits(entry)
    literals.save(tmp_path / "x.npz", array)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        (key,) = file.files
        stored = file[key]
    assert stored.dtype.isbuiltin == 1
    if entry.is_floating and ":" in key:
        assert stored.view(entry.storage).tobytes() == array.tobytes()
    elif entry.is_integral:
        assert stored.tolist() == array.tolist()


values = st.recursive(
    st.just(TOKEN) | testing.arrays(testing.shapes(min_size=0)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


@given(value=values)
@settings(max_examples=examples(60), deadline=None)
def test_nested_tuples_tokens_and_empty_tuples_survive(value: Value, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("values") / "x.npz"
    literals.save(path, value)
    assert same(literals.load(path), value)


def test_a_tuple_nested_three_thousand_deep_survives_without_recursion(tmp_path: Path) -> None:
    value: Value = np.float32(3) * np.ones(2, np.float32)
    for _ in range(3000):
        value = (value,)
    literals.save(tmp_path / "x.npz", value)
    loaded = literals.load(tmp_path / "x.npz")
    depth = 0
    while isinstance(loaded, tuple):
        (loaded,) = loaded
        depth += 1
    assert depth == 3000


def test_the_same_value_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9)
    literals.save(tmp_path / "a.npz", (np.arange(4),))
    monkeypatch.setattr("time.time", lambda: 2e9)
    literals.save(tmp_path / "b.npz", (np.arange(4),))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_strided_and_broadcast_arrays_are_stored_in_logical_order(tmp_path: Path) -> None:
    array = np.broadcast_to(np.arange(3, dtype=np.int16).astype(ml_dtypes.bfloat16), (4, 3)).T[::-1]
    literals.save(tmp_path / "x.npz", array)
    loaded = literals.load(tmp_path / "x.npz")
    assert isinstance(loaded, np.ndarray) and loaded.tolist() == array.tolist()


def test_a_list_of_inputs_is_written_as_a_tuple(tmp_path: Path) -> None:
    literals.save(tmp_path / "x.npz", [np.arange(3), [np.arange(2), []]])
    first, (second, empty) = literals.load(tmp_path / "x.npz")  # type: ignore[misc]
    assert (first.tolist(), second.tolist(), empty) == ([0, 1, 2], [0, 1], ())


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    literals.save(tmp_path / "x.npz", np.arange(3))
    before = (tmp_path / "x.npz").read_bytes()
    with pytest.raises(LiteralError, match="leaf 1 is not an HLO value: object values"):
        literals.save(tmp_path / "x.npz", (np.arange(3), np.array([None])))
    assert (tmp_path / "x.npz").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.npz"]


def test_writing_through_a_symbolic_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    literals.save(tmp_path / "link.npz", np.arange(3))
    assert (tmp_path / "link.npz").is_symlink() and (tmp_path / "real.npz").is_file()


def test_a_npy_file_refuses_what_it_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(LiteralError, match=r"cannot hold bf16 values; write a .npz"):
        literals.save(tmp_path / "x.npy", np.ones(2, ml_dtypes.bfloat16))
    with pytest.raises(LiteralError, match="cannot hold a tuple"):
        literals.save(tmp_path / "x.npy", (np.ones(2),))
    with pytest.raises(LiteralError, match="should end in"):
        literals.save(tmp_path / "x.bin", np.ones(2))
    with pytest.raises(LiteralError, match="No such file or directory"):
        literals.save(tmp_path / "no" / "x.npz", np.ones(2))


def test_inputs_are_keyed_by_number_or_name_and_tokens_may_be_left_out(tmp_path: Path) -> None:
    parameters = [
        parameter(0, shape("f32", 2), "weights.1"),
        parameter(1, TupleShape((shape("s32"), TupleShape())), "state"),
        parameter(2, shape("token")),
    ]
    np.savez(tmp_path / "x.npz", **{"weights.1": np.zeros(2, np.float32), "1.0": np.int32(7)})
    loaded = literals.load_inputs(tmp_path / "x.npz", parameters)
    assert same(loaded[0], np.zeros(2, np.float32))
    assert same(loaded[1], (np.array(7, np.int32), ()))
    assert loaded[2] is TOKEN


def test_keys_that_numpy_makes_up_are_numbers(tmp_path: Path) -> None:
    first, second = np.arange(3, dtype=np.float32), np.array([1, 2], np.int32)
    path = tmp_path / "positional.npz"
    np.savez(path, first, second)
    value = literals.load(path)
    assert isinstance(value, tuple) and [np.asarray(leaf).tolist() for leaf in value] == [[0, 1, 2], [1, 2]]
    text = "HloModule m\nENTRY e {\n  x = f32[3] parameter(0)\n  ROOT arr_0 = s32[2] parameter(1)\n}\n"
    parameters = hloexec.parse(text).entry.parameters
    np.savez(path, **{"0": first, "arr_0": second})
    by_name = literals.load_inputs(path, parameters)  # a parameter's own name comes first
    assert np.asarray(by_name[0]).tolist() == [0, 1, 2] and np.asarray(by_name[1]).tolist() == [1, 2]
    np.savez(path, first)
    assert np.asarray(literals.load_value(path, parameters[0].shape)).tolist() == [0, 1, 2]
    np.savez(path, first, first)
    with pytest.raises(LiteralError, match="belongs to no leaf"):
        literals.load_value(path, parameters[0].shape)


def test_parameters_given_elsewhere_may_be_missing(tmp_path: Path) -> None:
    parameters = [parameter(0, shape("f32", 2)), parameter(1, shape("f32", 2))]
    np.savez(tmp_path / "x.npz", **{"1": np.zeros(2, np.float32)})
    assert list(literals.load_inputs(tmp_path / "x.npz", parameters, given=[0])) == [1]


def test_arrays_that_numpy_saved_as_raw_bytes_are_read_where_the_type_is_known(tmp_path: Path) -> None:
    array = np.arange(3).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", array)
    assert same(literals.load_value(tmp_path / "x.npy", shape("bf16", 3)), array)
    with pytest.raises(LiteralError, match=r"raw bytes \(\|V2\) without a type"):
        literals.load(tmp_path / "x.npy")
    with pytest.raises(LiteralError, match=r"raw bytes \(\|V2\), but f16\[3\] is expected"):
        literals.load_value(tmp_path / "x.npy", shape("f16", 3))


def test_big_endian_and_fortran_order_are_read_by_value(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)))
    loaded = literals.load_value(tmp_path / "x.npy", shape("s32", 2, 3))
    assert isinstance(loaded, np.ndarray) and loaded.dtype == np.int32 and loaded.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_dynamic_dimensions_take_any_extent_up_to_their_bound(tmp_path: Path) -> None:
    dynamic = ArrayShape(element_type("f32"), (4, 2), dynamic_dimensions=(True, False))
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    assert literals.load_value(tmp_path / "x.npy", dynamic).shape == (3, 2)  # type: ignore[union-attr]
    np.save(tmp_path / "x.npy", np.zeros((5, 2), np.float32))
    with pytest.raises(LiteralError, match=r"f32\[5,2\], but f32\[<=4,2\] is expected"):
        literals.load_value(tmp_path / "x.npy", dynamic)


F32 = np.zeros(2, np.float32)

WRONG_INPUTS = [
    ({"0": F32}, "lacks '1.0', '1.1'; the module's 2 parameters are keyed by number or by name"),
    ({"0": F32, "1.0": F32}, "lacks '1.1'"),
    ({"0": F32, "1": F32}, "parameter 1 is .f32.2., bf16.2.. and is a tuple, whose leaves are keyed 0.0"),
    (
        {"0": F32, "2": F32},
        "key '2' belongs to no parameter: they are keyed by number, 0 to 1, or by name, such as p.0",
    ),
    ({"0": np.zeros(3, np.float32)}, r"key '0' holds f32\[3\], but f32\[2\] is expected"),
    ({"0": np.zeros(2)}, r"holds f64 values, but f32\[2\] is expected; convert with array.astype\(numpy.float32\)"),
    ({"0": F32, "p.0": F32}, "another entry for the same leaf of parameter 0"),
    ({"1.1": F32}, r"holds f32 values, but bf16\[2\] is expected; convert with array.astype\(ml_dtypes.bfloat16\)"),
    ({"1.1": np.zeros(2, np.uint16)}, r"holds u16 values, but bf16\[2\] is expected"),
    ({"1.1:bf16": F32}, "bf16 values are stored as uint16, but these are float32"),
    ({"1.1:bf17": F32}, "'bf17' is not an element type"),
    ({"0": np.array([1, None])}, "holds Python objects .pickled., not an array of numbers; it is not read"),
    ({"0": np.array(["a", "b"])}, "holds str[0-9]* values, which HLO has not"),
    ({"0": np.zeros(2, np.longdouble)}, "values, which HLO has not"),
    ({"0:token": np.zeros(0, np.uint8)}, r"holds a token, but f32\[2\] is expected"),
    ({"0:tuple": np.zeros(0, np.uint8)}, r"holds an empty tuple, but f32\[2\] is expected"),
]


@pytest.mark.parametrize(("arrays", "message"), WRONG_INPUTS)
def test_inputs_that_do_not_fit_are_refused_with_the_reason(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    parameters = [parameter(0, shape("f32", 2)), parameter(1, TupleShape((shape("f32", 2), shape("bf16", 2))))]
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(LiteralError, match=message):
        literals.load_inputs(tmp_path / "x.npz", parameters)


def test_a_name_that_may_mean_two_parameters_is_refused(tmp_path: Path) -> None:
    parameters = [parameter(0, TupleShape((shape("f32"), shape("f32"))), "p"), parameter(1, shape("f32"), "p.1")]
    np.savez(tmp_path / "x.npz", **{"p.1": np.float32(0)})
    with pytest.raises(LiteralError, match=r"key 'p.1' may mean parameter 0 \(p\) or 1 \(p.1\); key it by number"):
        literals.load_inputs(tmp_path / "x.npz", parameters)


def test_an_element_outside_a_narrow_type_is_refused(tmp_path: Path) -> None:
    for key, stored, message in (
        ("value:s4", np.array([8], np.int8), "s4 values lie between -8 and 7"),
        ("value:u1", np.array([2], np.uint8), "u1 values lie between 0 and 1"),
        ("value:f4e2m1fn", np.array([16], np.uint8), "the bits of f4e2m1fn values are below 16"),
    ):
        np.savez(tmp_path / "x.npz", **{key: stored})
        with pytest.raises(LiteralError, match=message):
            literals.load(tmp_path / "x.npz")


def _npz(tmp_path: Path, data: bytes, name: str = "0.npy") -> Path:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr(name, data)
    return tmp_path / "x.npz"


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    literals.save(tmp_path / "x.npz", (np.arange(9), np.ones(3, ml_dtypes.bfloat16)))
    whole = (tmp_path / "x.npz").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "x.npz").write_bytes(whole[:length])
        with pytest.raises(LiteralError):
            literals.load(tmp_path / "x.npz")


@given(position=st.integers(0, 10**6), byte=st.integers(0, 255))
@example(position=1683, byte=16)  # a size of 268 MB
@settings(max_examples=examples(150), deadline=None)
def test_a_changed_byte_never_gives_another_error(
    position: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x.npz"
    literals.save(path, (np.arange(9), np.ones(3, ml_dtypes.bfloat16)))
    data = bytearray(path.read_bytes())
    data[position % len(data)] = byte
    path.write_bytes(data)
    with contextlib.suppress(LiteralError):
        literals.load(path)


def test_a_header_that_promises_more_than_the_file_has_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    data = _npy(np.zeros(1 << 4, np.float32)).replace(b"(16,), ", b"(16000000000,), ")
    with pytest.raises(LiteralError, match="damaged"):
        literals.load(_npz(tmp_path, data))


@pytest.mark.parametrize(
    "header",
    [
        "(" * 5000,
        "{" * 6000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 5000 + "}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,),),)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } + " + "-" * 9000 + "1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "\n" * 100 + "  {",
        "\0" * 20,
        "",
    ],
    ids=lambda header: repr(header[:24]),
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_that_numpy_cannot_read_are_damage(header: str, version: int, tmp_path: Path) -> None:
    count = len(header).to_bytes(2 if version == 1 else 4, "little")
    data = b"\x93NUMPY" + bytes([version, 0]) + count + header.encode() + bytes(4)
    (tmp_path / "x.npy").write_bytes(data)
    for path in (str(tmp_path / "x.npy"), _npz(tmp_path, data)):
        with pytest.raises(LiteralError):
            literals.load(path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(LiteralError, match=r"is neither a .npz nor a .npy file"):
        literals.load(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("readme.txt", "'readme.txt' is not a .npy entry"),
        ("a.npy", "is not the index path of a leaf, such as 0 or 1.0"),
        ("1.npy", "lacks '0', but has later elements of its tuple"),
    ],
)
def test_stray_keys_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(LiteralError, match=message):
        literals.load(_npz(tmp_path, _npy(np.arange(3)), name))


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(LiteralError, match=r"cannot read '.*no.npz': No such file or directory"):
        literals.load(tmp_path / "no.npz")
    with pytest.raises(LiteralError, match="Is a directory"):
        literals.load(tmp_path)


LARGE = np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)


def _is_mapped(array: np.ndarray) -> bool:
    return isinstance(owner_of(array), np.memmap)


def test_large_arrays_of_a_file_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "values.npz"
    value = (np.int32([1, 2, 3]), LARGE, LARGE.T.astype(np.float64), LARGE.astype(ml_dtypes.bfloat16))
    literals.save(path, value)
    arrays = literals.load(path)
    assert [_is_mapped(array) for array in arrays] == [False, True, True, True]
    for array, expected in zip(arrays, value, strict=True):
        assert array.flags.aligned and array.flags.writeable and array.dtype == expected.dtype
        assert array.tobytes() == expected.tobytes()
    with np.load(path) as stored:
        assert stored["1"].tobytes() == LARGE.tobytes()
    # What is written to them stays in this process.
    before = path.read_bytes()
    arrays[1][...] = 0
    assert path.read_bytes() == before and literals.load(path)[1].tobytes() == LARGE.tobytes()


def test_a_mapped_array_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "values.npz"
    literals.save(path, LARGE)
    array = literals.load(path)
    literals.save(path, LARGE + 1)
    path.unlink()
    assert array.tobytes() == LARGE.tobytes()


def test_large_arrays_that_lie_otherwise_in_a_file_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "compressed.npz", LARGE)
    # The elements begin at an odd place.
    np.savez(tmp_path / "odd.npz", LARGE)
    for name in ("compressed", "odd"):
        array = literals.load(tmp_path / f"{name}.npz")[0]
        assert not _is_mapped(array) and array.flags.aligned and array.tobytes() == LARGE.tobytes()


def test_a_large_array_in_another_order_is_mapped(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "values.npz", "w") as archive, archive.open("0000000.npy", "w") as stream:
        np.lib.format.write_array(stream, np.asfortranarray(LARGE))
    array = literals.load_arrays(tmp_path / "values.npz")["0000000"]
    assert array.tobytes() == LARGE.tobytes() and not array.flags.c_contiguous


def test_a_damaged_large_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "values.npz"
    literals.save(path, LARGE)
    data = bytearray(path.read_bytes())
    data[1 << 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(LiteralError, match=r"values.npz', key 'value' is damaged: Bad CRC-32 for file 'value.npy'"):
        literals.load(path)
