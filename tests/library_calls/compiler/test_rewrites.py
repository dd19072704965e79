"""Halves of integers, dynamic shapes, slices, buffers and callbacks: against NumPy and the definitions."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.values import TOKEN
from hloexec.errors import EvaluationError, HloError, UnsupportedError, VerificationError


def run(body: str, *arguments: object) -> object:
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    return hloexec.run(hloexec.parse(f"HloModule m\n\nENTRY e {{\n{lines}\n}}\n"), *arguments)


@pytest.mark.parametrize(("whole", "half"), [("s64", "u32"), ("u64", "s32"), ("u64", "u32")])
def test_halves_of_integers_make_up_the_integers(whole, half):
    values = np.array([0, -1, 1 << 40, -(1 << 63), (1 << 63) - 1, 0x123456789ABCDEF]).astype(
        whole.replace("s", "int").replace("u", "uint")
    )
    low, high, again = run(
        f"""x = {whole}[6] parameter(0)
        l = {half}[6] custom-call(x), custom_call_target="X64SplitLow"
        h = {half}[6] custom-call(x), custom_call_target="X64SplitHigh"
        c = {whole}[6] custom-call(l, h), custom_call_target="X64Combine"
        ROOT r = ({half}[6], {half}[6], {whole}[6]) tuple(l, h, c)""",
        values,
    )
    assert (low.view(np.uint32) == (values.view(np.uint64) & np.uint64(0xFFFFFFFF))).all()
    assert (high.view(np.uint32) == values.view(np.uint64) >> np.uint64(32)).all()
    assert (again == values).all()


def halves(whole, half, size, bits=64):
    return f"""x = {whole}[{size}] parameter(0)
        l = {half}[{size}] custom-call(x), custom_call_target="X{bits}SplitLow"
        h = {half}[{size}] custom-call(x), custom_call_target="X{bits}SplitHigh"
        c = {whole}[{size}] custom-call(l, h), custom_call_target="X{bits}Combine"
        ROOT r = ({half}[{size}], {half}[{size}], {whole}[{size}]) tuple(l, h, c)"""


def test_halves_of_f64_are_the_nearest_f32_and_the_nearest_to_what_it_leaves():
    values = np.array([1 / 3, -np.pi, 1e300, -np.inf, np.nan, 0.0, 1 + 2.0**-40])
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    low, high, again = run(halves("f64", "f32", 7), values)
    assert_array_equal(low, nearest)
    assert_array_equal(high, [np.float32(1 / 3 - float(nearest[0])), np.float32(-np.pi - float(nearest[1])), 0, 0, 0, 0, 2.0**-40])  # fmt: skip
    finite = np.isfinite(nearest)
    assert (np.abs(again[finite] - values[finite]) <= 2.0**-48 * np.abs(values[finite])).all()
    assert_array_equal(again[~finite], nearest[~finite])


@pytest.mark.parametrize(("whole", "half", "bits"), [("c64", "f32", 64), ("c128", "f64", 128)])
def test_halves_of_complex_numbers_are_their_parts(whole, half, bits):
    values = np.array([1 - 2j, -0.0 + 3j, complex(np.nan, -np.inf)]).astype(f"complex{whole[1:]}")
    low, high, again = run(halves(whole, half, 3, bits), values)
    assert (low.tobytes(), high.tobytes()) == (values.real.tobytes(), values.imag.tobytes())
    assert again.tobytes() == values.tobytes()


def test_halves_of_narrow_numbers_are_refused():
    with pytest.raises(UnsupportedError, match="its result is bf16"):
        run('x = f32[] parameter(0)\nROOT l = bf16[] custom-call(x), custom_call_target="X64SplitLow"', np.float32(1))
    with pytest.raises(HloError, match="must be s64 or u64"):
        run('x = f64[] parameter(0)\nROOT l = s32[] custom-call(x), custom_call_target="X64SplitLow"', np.float64(1))


def test_a_dynamic_array_is_padded_and_cut_again():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    dynamic = """x = f32[4,3] parameter(0)
        n = s32[] parameter(1)
        d = f32[<=4,3] set-dimension-size(x, n), dimensions={0}
        ROOT p = (f32[4,3], s32[], s32[]) custom-call(d), custom_call_target="PadToStatic"
        """
    padded, rows, columns = run(dynamic, x, np.int32(2))
    assert (padded[:2] == x[:2]).all() and not padded[2:].any()
    assert (int(rows), int(columns)) == (2, 3)
    cut = run(
        """x = f32[4,3] parameter(0)
        n = s32[] parameter(1)
        three = s32[] constant(3)
        ROOT d = f32[<=4,3] custom-call(x, n, three), custom_call_target="SliceToDynamic"
        """,
        x,
        np.int32(2),
    )
    assert (cut == x[:2]).all()


def test_extents_beyond_the_bound_are_an_error():
    with pytest.raises(EvaluationError, match=r"extents \[5\]"):
        run(
            """x = f32[4] parameter(0)
            n = s32[] constant(5)
            ROOT d = f32[<=4] custom-call(x, n), custom_call_target="SliceToDynamic"
            """,
            np.zeros(4, np.float32),
        )


def test_a_cut_array_keeps_its_rank():
    with pytest.raises(VerificationError, match=r"f32\[<=4\], but its operands give f32\[\]"):
        run(
            """x = f32[] parameter(0)
            ROOT d = f32[<=4] custom-call(x), custom_call_target="SliceToDynamic"
            """,
            np.float32(0),
        )


def test_slices_are_put_together_in_their_dimension():
    parts = [np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(8, 12, dtype=np.float32).reshape(2, 2)]
    value = run(
        """a = f32[2,3] parameter(0)
        b = f32[2,2] parameter(1)
        ROOT c = f32[2,5] custom-call(a, b), custom_call_target="ConcatBitcast"
        """,
        *parts,
    )
    assert (value == np.concatenate(parts, 1)).all()
    with pytest.raises(VerificationError, match="do not make up"):
        run(
            """a = f32[2,3] parameter(0)
            b = f32[2,2] parameter(1)
            ROOT c = f32[4,5] custom-call(a, b), custom_call_target="ConcatBitcast"
            """,
            *parts,
        )


def test_slices_of_the_bytes_of_an_array_are_the_array():
    array = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)
    flat = "s8[16384]{0:T(1024)(128)(4,1)}"
    body = f"""a = f32[16,256]{{1,0:T(8,128)}} parameter(0)
        bits = {flat} bitcast(a)
        b = s8[4096]{{0:T(1024)(128)(4,1)}} slice(bits), slice={{[0:4096]}}
        c = s8[12288]{{0:T(1024)(128)(4,1)}} slice(bits), slice={{[4096:16384]}}
        """
    together = 'custom-call(b, c), custom_call_target="ConcatBitcast"'
    assert (run(f"{body}ROOT r = f32[16,256]{{1,0:T(8,128)}} {together}", array) == array).all()
    with pytest.raises(VerificationError, match="nor its bits"):
        run(f"{body}ROOT r = f32[16,128]{{1,0:T(8,128)}} {together}", array)


FETCHED = """HloModule fetched
low (a: f32[4,3]) -> f32[1,3] {
  a = f32[4,3] parameter(0)
  ROOT s = f32[1,3] slice(a), slice={[0:1], [0:3]}
}
high (a: f32[4,3]) -> f32[3,3] {
  a = f32[4,3] parameter(0)
  ROOT s = f32[3,3] slice(a), slice={[1:4], [0:3]}
}
ENTRY main {
  x = f32[4,3] parameter(0)
  first = ((f32[4,3]), f32[3,3], s32[]) async-start(x), calls=high
  second = ((f32[4,3]), f32[1,3], s32[]) async-start(x), calls=low
  a = f32[3,3] async-done(first)
  b = f32[1,3] async-done(second)
  ROOT c = f32[4,3] custom-call(a, b), custom_call_target="ConcatBitcast"
}
"""


def test_slices_lie_where_they_were_whatever_the_order_in_which_they_are_fetched():
    """The order of the operands is that in which the transfers begin (XLA: SlicedCopyAllocation)."""
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    module = hloexec.parse(FETCHED)
    assert (hloexec.run(module, x) == x).all()
    assert module.entry.root.operands == ("b", "a")
    assert hloexec.parse(hloexec.format(module)) == module
    same = 'ROOT c = f32[4,3] custom-call(a, b), custom_call_target="ConcatBitcast"'
    slices = """x = f32[4,3] parameter(0)
        y = f32[4,3] parameter(1)
        a = f32[3,3] slice(x), slice={[1:4], [0:3]}
        b = f32[1,3] slice(SOURCE), slice={[0:1], [0:3]}
        """
    assert (run(slices.replace("SOURCE", "x") + same, x, -x) == x).all()
    # Of two arrays, no order is known but that of the operands.
    assert (run(slices.replace("SOURCE", "y") + same, x, -x) == np.concatenate([x[1:], -x[:1]])).all()


@pytest.mark.parametrize(
    "target",
    "SPMDFullToShardShape SPMDShardToFullShape xla.sdy.GlobalToLocalShape xla.sdy.LocalToGlobalShape".split(),
)
def test_a_border_of_shards_is_nothing_on_one_device_and_refused_on_more(target):
    x = np.arange(4, dtype=np.float32)
    assert (
        run(f'x = f32[4] parameter(0)\nROOT y = f32[4] custom-call(x), custom_call_target="{target}"', x) == x
    ).all()
    with pytest.raises(UnsupportedError, match="no sharding says how"):
        run(f'x = f32[4] parameter(0)\nROOT y = f32[2] custom-call(x), custom_call_target="{target}"', x)


def test_buffers_hold_what_they_were_made_of():
    x = np.arange(4, dtype=np.float32)
    value = run(
        """x = f32[4] parameter(0)
        p = b(f32[4]) custom-call(x), custom_call_target="Pin"
        ROOT u = f32[4] custom-call(p), custom_call_target="Unpin"
        """,
        x,
    )
    assert (value == x).all()


@pytest.mark.parametrize("target", ["AllocateBuffer", "CreateBuffer"])
def test_reserved_memory_is_zero(target):
    value = run(f'ROOT b = (f32[3], (bf16[], s4[2])) custom-call(), custom_call_target="{target}"')
    assert value[0].shape == (3,) and not value[0].any() and value[1][1].shape == (2,)


def test_a_call_in_place_of_a_transfer_gives_a_token():
    x = np.ones(3, np.float32)
    value = run(
        """x = f32[3] parameter(0)
        t = token[] custom-call(x), custom_call_target="NopReturnToken", custom_call_has_side_effect=true
        ROOT r = (token[], f32[3]) tuple(t, x)""",
        x,
    )
    assert value[0] is TOKEN


def test_an_assertion_that_fails_is_an_error():
    text = """p = pred[] parameter(0)
        n = s32[] constant(7)
        a = () custom-call(p, n), custom_call_target="shape_assertion", custom_call_has_side_effect=true
        ROOT r = s32[] copy(n)"""
    assert run(text, np.True_) == 7
    with pytest.raises(EvaluationError, match="does not hold"):
        run(text, np.False_)


@pytest.mark.parametrize("target", ["xla_python_cpu_callback", "xla_ffi_python_cpu_callback", "HostExecute"])
def test_callbacks_are_refused_with_what_to_do(target):
    line = f'x = f32[] parameter(0)\nROOT y = f32[] custom-call(x), custom_call_target="{target}", backend_config={{index = 0 : ui64}}'
    with pytest.raises(UnsupportedError, match="register_custom_call"):
        run(line, np.float32(1))
    hloexec.register_custom_call(target, lambda x: x * 2)
    try:
        assert run(line, np.float32(3)) == 6
    finally:
        hloexec.unregister_custom_call(target)


@pytest.mark.parametrize(
    "line",
    [
        'ROOT y = f32[4] custom-call(x, x), custom_call_target="MoveToHost"',
        'ROOT y = f32[4] custom-call(), custom_call_target="Sharding"',
        'ROOT y = (f32[4], s32[], s32[]) custom-call(x), custom_call_target="PadToStatic"',
        'ROOT y = (f32[4], f32[4]) custom-call(x), custom_call_target="SPMDFullToShardShape"',
    ],
)
def test_wrong_calls_are_errors_of_hloexec(line):
    with pytest.raises(HloError):
        run(f"x = f32[4] parameter(0)\n{line}", np.zeros(4, np.float32))


def test_slices_that_are_put_together_are_one_at_least():
    with pytest.raises(VerificationError, match="ConcatBitcast must have at least one operand"):
        run('ROOT c = f32[4,3] custom-call(), custom_call_target="ConcatBitcast"')
