"""CUB's sorts and prefix sums against the sorts and scans that XLA turns into them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from conformance.xla import run_hlo
from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.errors import HloError, UnsupportedError
from tests.drawing import examples

KEYS = "bf16 f16 f32 f64 s8 s16 s32 s64 u8 u16 u32 u64".split()
SORTS = (
    "__cub$DeviceRadixSort",
    "__cub$DeviceRadixSortUnassignedScratchSize",
    "xla.gpu.ext.cub_sort_unassigned_scratch_size",
)


def text_of(array: Any, layout: str = "") -> str:
    return f"{element_type_of(array.dtype).name}[{','.join(map(str, array.shape))}]{layout}"


def call(target: str, *operands: Any, config: str, results: str | None = None, layout: str = "") -> Any:
    shapes = [text_of(operand, layout) for operand in operands]
    parameters = "\n".join(f"  p{n} = {shape} parameter({n})" for n, shape in enumerate(shapes))
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    declared = results or f"({', '.join(shapes)}, u8[7])"
    suffix = f", backend_config={config}" if config else ""
    root = f'ROOT r = {declared} custom-call({names}), custom_call_target="{target}"{suffix}'
    return hloexec.run(hloexec.parse(f"HloModule m\n\nENTRY e {{\n{parameters}\n  {root}\n}}\n"), *operands)


def sorted_by_xla(keys: Any, values: Any, direction: str) -> list[Any]:
    """XLA's own stable sort; floats by a total order in which the zeros are one."""
    name, shape = element_type_of(keys.dtype).name, text_of(keys)
    kind = ", type=TOTALORDER" if name[0] in "fb" else ""
    parts = [(name, shape), (element_type_of(values.dtype).name, text_of(values))]
    parameters = "\n".join(
        f"    {side}{n} = {part[0]}[] parameter({2 * n + s})"
        for n, part in enumerate(parts)
        for s, side in enumerate("ab")
    )
    # −0 is made +0 before keys are compared.
    zeros = f"    z = {name}[] constant(0)\n" + "\n".join(
        f"    e{side} = pred[] compare({side}0, z), direction=EQ\n    k{side} = {name}[] select(e{side}, z, {side}0)"
        for side in "ab"
    )
    text = f"""HloModule m

  order {{
{parameters}
{zeros}
    ROOT r = pred[] compare(ka, kb), direction={direction}{kind}
  }}

  ENTRY e {{
    k = {shape} parameter(0)
    v = {parts[1][1]} parameter(1)
    ROOT r = ({shape}, {parts[1][1]}) sort(k, v), dimensions={{{keys.ndim - 1}}}, is_stable=true, to_apply=order
  }}
"""
    return run_hlo(text, keys, values)


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def keys_of(name: str, *shape: int) -> Any:
    """Few different numbers, so that many are equal, and floats' special values."""
    generator = np.random.default_rng(0)
    storage = ELEMENT_TYPES[name].storage
    if name[0] in "su":
        return generator.integers(-4 if name[0] == "s" else 0, 5, shape).astype(storage)
    special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1, -1, 2.5, -2.5], np.float64)
    return special[generator.integers(0, len(special), shape)].astype(storage)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(200,), (3, 2, 50)])
def test_pairs_and_keys_are_sorted_as_xla_sorts_them(name, descending, shape):
    keys, values = keys_of(name, *shape), np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    expected = sorted_by_xla(keys, values, "GT" if descending else "LT")
    word = str(descending).lower()
    for target in SORTS:
        found = call(target, keys, values, config=f'{{"descending":{word}}}')
        assert_array_equal(bits(found[0]), bits(expected[0]))
        assert_array_equal(found[1], expected[1])
        assert found[2].tolist() == [0] * 7
        assert_array_equal(bits(call(target, keys, config=f'{{"descending":{word}}}')[0]), bits(expected[0]))
    config = f"{{descending = {word}, batch_size = {np.prod(shape[:-1], dtype=int)} : i64}}"
    found = call("xla.gpu.ext.cub_sort_pairs", keys, values, config=config)
    assert_array_equal(found[1], expected[1])
    assert_array_equal(bits(call("xla.gpu.ext.cub_sort_keys", keys, config=config)[0]), bits(expected[0]))


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 2**16 - 1), max_size=40), st.booleans())
def test_any_bits_of_bf16_are_ordered_by_sign_and_magnitude(patterns, descending):
    """The order of the bits, the upper half turned around: exact arithmetic on integers of Python."""
    keys = np.array(patterns, np.uint16).view(ml_dtypes.bfloat16)
    found = bits(call(SORTS[0], keys, config=f'{{"descending":{str(descending).lower()}}}')[0]).tolist()

    def place(pattern: int) -> int:
        return -(pattern - 2**15) if pattern >= 2**15 else pattern

    # −0 and +0 have the same place; every other pattern has its own, and sorted() is stable in both directions.
    assert found == sorted(patterns, key=place, reverse=descending)


def test_a_missing_field_means_ascending():
    keys = np.array([3, 1, 2], np.int32)
    assert call(SORTS[0], keys, config='"{}"')[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", "s32 u8 f32 f64 bf16 f16".split())
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", ["{1,0}", "{0,1}"])
def test_prefix_sums_are_those_of_whole_numbers_along_rows_in_memory(name, reverse, layout):
    """Sums of at most 12 numbers up to 3 are exact in every type."""
    operand = np.random.default_rng(0).integers(0, 4, (5, 12)).astype(ELEMENT_TYPES[name].storage)
    axis = 1 if layout == "{1,0}" else 0
    whole = operand.astype(np.int64)
    turned = np.flip(np.cumsum(np.flip(whole, axis), axis), axis) if reverse else np.cumsum(whole, axis)
    rows, columns = operand.shape[axis], operand.shape[1 - axis]
    word = str(reverse).lower()
    config = (
        f'{{"vector_length":"1","row_length":"{rows}","column_length":"{columns}","kind":"SUM","is_reverse":{word}}}'
    )
    found = call("xla.gpu.ext.cub_scan_unassigned_scratch_size", operand, config=config, layout=layout)
    assert_array_equal(found[0].astype(np.int64), turned)
    config = (
        f"{{vector_length = 1 : i64, row_length = {rows} : i64, column_length = {columns} : i64, kind = 1 : i32, "
        f"is_reverse = {word}}}"
    )
    found = call("xla.gpu.ext.cub_scan", operand, config=config, layout=layout)
    assert_array_equal(found[0].astype(np.int64), turned)
    assert found[0].dtype == operand.dtype


def test_prefix_sums_of_vectors_go_across_them_and_round_once():
    operand = np.full((2, 300, 3), 1, ml_dtypes.bfloat16)
    config = (
        "{vector_length = 3 : i64, row_length = 300 : i64, column_length = 2 : i64, kind = 1 : i32, is_reverse = false}"
    )
    found = call("xla.gpu.ext.cub_scan", operand, config=config)[0]
    expected = np.arange(1, 301, dtype=np.float32).astype(ml_dtypes.bfloat16)  # exact sums, rounded
    assert_array_equal(found, np.broadcast_to(expected[None, :, None], operand.shape))


def test_prefix_sums_of_integers_wrap():
    config = (
        "{vector_length = 1 : i64, row_length = 3 : i64, column_length = 1 : i64, kind = 1 : i32, is_reverse = false}"
    )
    assert call("xla.gpu.ext.cub_scan", np.array([200, 100, 1], np.uint8), config=config)[0].tolist() == [200, 44, 45]


K = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("target", "config", "message"),
    [
        (SORTS[0], "", "lacks the attribute|must be a dictionary|not JSON"),
        (SORTS[0], '{"descending":1}', "descending of its backend_config is 1"),
        (SORTS[0], '{"descending":true,"stable":false}', "field stable, which hloexec does not know"),
        (SORTS[0], '"[]"', "must be a JSON object"),
        ("xla.gpu.ext.cub_sort_keys", "{descending = true}", "lacks the attribute batch_size"),
        ("xla.gpu.ext.cub_sort_keys", "{descending = true, batch_size = -1 : i64}", "batch_size is -1"),
        ("xla.gpu.ext.cub_scan", "{kind = 1 : i32}", "lacks the attribute"),
        ("xla.gpu.ext.cub_scan_unassigned_scratch_size", '{"kind":"MAX"}', "kind of its backend_config is 'MAX'"),
        ("xla.gpu.ext.cub_scan_unassigned_scratch_size", '{"row_length":3}', "lacks the kind"),
    ],
)
def test_configs_that_say_something_else_are_refused_before_running(target, config, message):
    with pytest.raises(UnsupportedError, match=message):
        call(target, K, config=config)


@pytest.mark.parametrize(
    ("operands", "results", "message"),
    [
        ([K.astype(bool)], None, "must be integers"),
        ([K[0]], None, "must be integers"),
        ([K, K[:2]], None, "cannot sort values"),
        ([K, K, K], None, "3 operands"),
        ([K], "(f32[3], f32[3], u8[1])", "2 results"),
        ([K], "(f32[3], s8[1])", "vector of u8"),
    ],
)
def test_operands_and_results_that_do_not_fit_are_refused(operands, results, message):
    with pytest.raises(HloError, match=message):
        call(SORTS[0], *map(np.asarray, operands), config='{"descending":false}', results=results)


def test_sizes_in_configs_must_be_those_of_the_shapes():
    with pytest.raises(HloError, match="batch_size 2"):
        call("xla.gpu.ext.cub_sort_keys", K, config="{descending = true, batch_size = 2 : i64}")
    lengths = '{"vector_length":1,"row_length":2,"column_length":1,"kind":1,"is_reverse":false}'
    with pytest.raises(HloError, match="1 × 2 × 1 elements"):
        call("xla.gpu.ext.cub_scan_unassigned_scratch_size", K, config=lengths)
