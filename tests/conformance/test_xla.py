"""What the oracle promises: XLA:CPU's result for HLO text, and equivalent text where XLA:CPU would refuse."""

import json

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance import xla

pytestmark = pytest.mark.skipif(not xla.available(), reason="jaxlib is not installed")


def module(body: str, computations: str = "", header: str = "HloModule m") -> str:
    return f"{header}\n{computations}\nENTRY e {{\n{body}\n}}\n"


ADDITION = """sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}"""
DOUBLE = """double {
  x = f32[2,3] parameter(0)
  ROOT y = f32[2,3] add(x, x)
}"""
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_nested_tuples_are_flattened_in_order():
    a, c = xla.run_hlo(
        module("""
  p = (f32[2,3], (s32[], f32[2,3])) parameter(0)
  q = (s32[], f32[2,3]) get-tuple-element(p), index=1
  r = f32[2,3] get-tuple-element(p), index=0
  ROOT t = ((s32[], f32[2,3]), f32[2,3]) tuple(q, r)"""),
        MATRIX,
        np.int32(7),
        MATRIX + 1,
    )[::2]
    assert a == 7
    assert_array_equal(c, MATRIX)


def test_tokens_are_left_out_of_results():
    results = xla.run_hlo(
        module("""
  p = f32[2,3] parameter(0)
  t = token[] after-all()
  ROOT r = (token[], f32[2,3]) tuple(t, p)"""),
        MATRIX,
    )
    assert len(results) == 1
    assert_array_equal(results[0], MATRIX)


@pytest.mark.parametrize(
    ("element_type", "dtype"),
    [
        ("s2", ml_dtypes.int2),
        ("u4", ml_dtypes.uint4),
        ("s64", np.int64),
        ("pred", np.bool_),
        ("f8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("f4e2m1fn", ml_dtypes.float4_e2m1fn),
        ("bf16", ml_dtypes.bfloat16),
        ("f64", np.float64),
        ("c128", np.complex128),
    ],
)
def test_element_types_travel_both_ways_unchanged(element_type, dtype):
    text = module(f"  p = {element_type}[3] parameter(0)\n  ROOT r = {element_type}[3] reverse(p), dimensions={{0}}")
    values = np.array([0, 0, 1]).astype(dtype)
    (result,) = xla.run_hlo(text, values)
    assert result.dtype == np.dtype(dtype)
    assert_array_equal(result.astype(np.complex128), values[::-1].astype(np.complex128))


def test_bf16_results_are_rounded_at_each_instruction():
    text = module("""
  p = bf16[] parameter(0)
  q = bf16[] parameter(1)
  s = bf16[] add(p, q)
  ROOT r = bf16[] subtract(s, p)""")
    (result,) = xla.run_hlo(text, ml_dtypes.bfloat16(256), ml_dtypes.bfloat16(1))
    assert result == 0


def test_an_input_of_another_shape_is_refused():
    text = module("  ROOT p = f32[2,3] parameter(0)")
    with pytest.raises(xla.XlaError, match=r"input 0 is float32\[3, 2\], the parameter is float32\[2, 3\]"):
        xla.run_hlo(text, MATRIX.T)


def test_a_bounded_dynamic_result_has_its_runtime_extent():
    text = module("""
  p = f32[2,3] parameter(0)
  n = s32[] constant(2)
  b = f32[2,<=3] set-dimension-size(p, n), dimensions={1}
  ROOT t = (f32[2,3], f32[2,<=3]) tuple(p, b)""")
    whole, bounded = xla.run_hlo(text, MATRIX)
    assert_array_equal(whole, MATRIX)
    assert_array_equal(bounded, MATRIX[:, :2])


def test_donated_inputs_can_be_used_again():
    text = module(
        "  p = f32[2,3] parameter(0)\n  ROOT r = f32[2,3] add(p, p)",
        header="HloModule m, input_output_alias={ {}: (0, {}, must-alias) }",
    )
    compiled = xla.compile_hlo(text)
    placed = compiled.place([[MATRIX]])
    for _ in range(2):
        ((result,),) = compiled.fetch(compiled.execute(placed))
        assert_array_equal(result, 2 * MATRIX)


def test_syntax_errors_carry_xlas_message():
    with pytest.raises(xla.XlaError, match="Unknown opcode: frobnicate"):
        xla.parse_hlo(module("  ROOT p = f32[] frobnicate()"))


def test_canonical_text_prints_whole_constants_and_is_a_fixed_point():
    numbers = ",".join(str(n) for n in range(40))
    text = module(f"  ROOT c = s32[40] constant({{{numbers}}})")
    canonical = xla.canonical_text(text)
    assert "38, 39" in canonical
    assert xla.canonical_text(canonical) == canonical


def test_flags_apply_to_one_compilation_and_unknown_flags_are_refused():
    text = module("  ROOT p = f32[2,3] parameter(0)")
    xla.run_hlo(text, MATRIX, xla_flags={"xla_cpu_enable_fast_math": True})
    with pytest.raises(xla.XlaError, match="xla_nonsense"):
        xla.run_hlo(text, MATRIX, xla_flags={"xla_nonsense": True})


COLLECTIVES = [
    # Groups of replicas, one instance for each partition.
    ("replica_groups={{0,1}}, to_apply=sum", [2.0, 4.0, 2.0, 4.0]),
    # With a channel alone, replicas' groups span all partitions.
    ("replica_groups={{0},{1}}, to_apply=sum, channel_id=1", [1.0, 1.0, 5.0, 5.0]),
    ("replica_groups={{0,3},{1,2}}, to_apply=sum, channel_id=1, use_global_device_ids=true", [3.0] * 4),
    ("replica_groups=[2,2]<=[2,2]T(1,0), to_apply=sum, channel_id=1, use_global_device_ids=true", [2.0, 4.0, 2.0, 4.0]),
]


@pytest.mark.parametrize(("attributes", "expected"), COLLECTIVES)
def test_replicas_and_partitions_run_together(attributes, expected):
    text = module(
        f"""
  p = f32[] parameter(0)
  a = f32[] all-reduce(p), {attributes}
  r = u32[] replica-id()
  i = u32[] partition-id()
  ROOT t = (f32[], u32[], u32[]) tuple(a, r, i)""",
        ADDITION,
        "HloModule m, replica_count=2, num_partitions=2",
    )
    results = xla.compile_hlo(text).run_devices([[np.float32(device)] for device in range(4)])
    assert [float(reduced) for reduced, _, _ in results] == expected
    assert [(int(r), int(p)) for _, r, p in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_permute_over_partitions_leaves_zeros_where_nothing_arrives():
    text = module(
        """
  p = f32[] parameter(0)
  ROOT a = f32[] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2}}""",
        header="HloModule m, num_partitions=3",
    )
    results = xla.run_hlo_devices(text, [[np.float32(device + 1)] for device in range(3)])
    assert [float(value) for (value,) in results] == [0.0, 1.0, 2.0]


@pytest.mark.slow
def test_isolated_runs_agree():
    text = module("  p = bf16[3] parameter(0)\n  ROOT r = bf16[3] negate(p)")
    values = np.array([1, 2, 3]).astype(ml_dtypes.bfloat16)
    (result,) = xla.run_hlo_isolated(text, values)
    assert result.dtype == values.dtype
    assert_array_equal(result, -values)


def test_isolated_runs_survive_a_crash_of_xla():
    # jaxlib's StableHLO import follows a null pointer for this opcode.
    crashing = module("""
  p = f32[4] parameter(0)
  o = s32[1] constant({0})
  ROOT r = f32[4] ragged-all-to-all(p, p, o, o, o, o), replica_groups={{0}}""")
    with pytest.raises(xla.XlaError):
        xla.run_hlo_isolated(crashing, np.zeros(4, np.float32))


@pytest.mark.slow
def test_an_isolated_run_that_never_ends_is_stopped():
    text = module(
        """
  p = u32[] parameter(0)
  ROOT w = u32[] while(p), condition=odd, body=next""",
        """next {
  x = u32[] parameter(0)
  two = u32[] constant(2)
  ROOT y = u32[] add(x, two)
}
odd {
  x = u32[] parameter(0)
  one = u32[] constant(1)
  ROOT y = pred[] compare(x, one), direction=NE
}""",
    )
    with pytest.raises(xla.XlaError, match="had not finished"):
        xla.run_hlo_isolated(text, np.uint32(0), timeout=5)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[6]{0}", MATRIX.reshape(6)),
        ("f32[3,2]{0,1}", MATRIX.T),
        ("f32[2,3]{0,1}", MATRIX.reshape(3, 2).T),
        ("s32[3,2]{1,0}", MATRIX.view(np.int32).reshape(3, 2)),
        ("f32[1,3,2]{1,2,0}", MATRIX.T[None]),
    ],
)
def test_an_equivalent_bitcast_reinterprets_the_order_in_memory(shape, expected):
    text = module(f"  p = f32[2,3]{{1,0}} parameter(0)\n  ROOT r = {shape} bitcast(p)")
    (result,) = xla.run_hlo(xla.equivalent_module(text), MATRIX)
    assert_array_equal(result, expected)


def test_an_equivalent_bitcast_honours_tiles():
    text = module("  p = f32[3,4]{1,0:T(2,2)} parameter(0)\n  ROOT r = f32[16]{0} bitcast(p)")
    operand = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    (result,) = xla.run_hlo(xla.equivalent_module(text), operand)
    assert_array_equal(result, [1, 2, 5, 6, 3, 4, 7, 8, 9, 10, 0, 0, 11, 12, 0, 0])


def test_fusions_become_calls():
    text = module("  p = f32[2,3] parameter(0)\n  ROOT f = f32[2,3] fusion(p), kind=kCustom, calls=double", DOUBLE)
    equivalent = xla.equivalent_module(text)
    assert "fusion" not in equivalent
    assert_array_equal(xla.run_hlo(equivalent, MATRIX)[0], 2 * MATRIX)


@pytest.mark.parametrize(
    "pair",
    [
        "s = (f32[2,3], f32[2,3], u32[]) copy-start(p)\n  d = f32[2,3] copy-done(s)\n  ROOT r = f32[2,3] add(d, d)",
        "s = ((f32[2,3]), f32[2,3], u32[]) call-start(p), to_apply=double\n  ROOT r = f32[2,3] call-done(s)",
        "s = ((f32[2,3]), f32[2,3], s32[]) fusion-start(p), kind=kLoop, calls=double\n"
        "  ROOT r = f32[2,3] fusion-done(s)",
    ],
)
def test_asynchronous_pairs_become_plain_operations(pair):
    equivalent = xla.equivalent_module(module(f"  p = f32[2,3] parameter(0)\n  {pair}", DOUBLE))
    assert_array_equal(xla.run_hlo(equivalent, MATRIX)[0], 2 * MATRIX)


@pytest.mark.parametrize(
    "pair",
    [
        "ROOT r = (f32[1,3], f32[2,3]) reduce-scatter(p, q), {config}",
        """s = ((f32[2,3], f32[4,3]), (f32[1,3], f32[2,3])) reduce-scatter-start(p, q), {config}
  ROOT r = (f32[1,3], f32[2,3]) reduce-scatter-done(s)""",
    ],
)
def test_each_operand_of_a_reduce_scatter_is_scattered(pair):
    pair = pair.format(config="replica_groups={{0,1}}, dimensions={0}, to_apply=sum")
    text = module(
        f"  p = f32[2,3] parameter(0)\n  q = f32[4,3] parameter(1)\n  {pair}", ADDITION, "HloModule m, replica_count=2"
    )
    p, q = MATRIX, np.arange(12, dtype=np.float32).reshape(4, 3)
    results = xla.run_hlo_devices(xla.equivalent_module(text), [[p, q], [10 * p, 10 * q]])
    for device, (first, second) in enumerate(results):
        assert_array_equal(first, 11 * p[device : device + 1])
        assert_array_equal(second, 11 * q[2 * device : 2 * device + 2])


def gemm(alpha: float, beta: float, epilogue: str, operands: str, parameters: str) -> str:
    config = {
        "gemm_backend_config": {
            "alpha_real": alpha,
            "alpha_imag": 0,
            "beta": beta,
            "dot_dimension_numbers": {
                "lhs_contracting_dimensions": ["2"],
                "rhs_contracting_dimensions": ["1"],
                "lhs_batch_dimensions": ["0"],
                "rhs_batch_dimensions": ["0"],
            },
            "epilogue": epilogue,
        }
    }
    return module(f"""
  a = f32[2,3,4] parameter(0)
  b = f32[2,4,5] parameter(1)
  {parameters}
  ROOT g = (f32[2,3,5]{{1,2,0}}, s8[64]) custom-call(a, b{operands}), custom_call_target="__cublas$gemm",
    backend_config={json.dumps(config)}""")


@pytest.mark.parametrize(("alpha", "beta", "epilogue"), [(1, 0, "DEFAULT"), (2, 0.5, "DEFAULT"), (1, 0, "BIAS_RELU")])
def test_a_gemm_becomes_its_dot(alpha, beta, epilogue):
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4), (2, 4, 5)))
    inputs, operands, parameters = [a, b], "", ""
    expected = alpha * np.einsum("bik,bkj->bij", a, b, dtype=np.float64)
    magnitude = alpha * np.einsum("bik,bkj->bij", np.abs(a), np.abs(b), dtype=np.float64)
    if beta:
        inputs.append(random.standard_normal((2, 3, 5)).astype(np.float32))
        operands, parameters = ", c", "c = f32[2,3,5] parameter(2)"
        expected, magnitude = expected + beta * inputs[2], magnitude + beta * np.abs(inputs[2])
    if epilogue == "BIAS_RELU":
        inputs.append(random.standard_normal(5).astype(np.float32))
        operands, parameters = ", c", "c = f32[5] parameter(2)"
        expected, magnitude = np.maximum(expected + inputs[2], 0), magnitude + np.abs(inputs[2])
    equivalent = xla.equivalent_module(gemm(alpha, beta, epilogue, operands, parameters))
    result, workspace = xla.run_hlo(equivalent, *inputs)
    # f32: at most 4 products, 3 sums, alpha, beta and one more sum are rounded, each by 2^-24 of no more than the sum
    # of magnitudes.
    assert (np.abs(result - expected) <= 10 * 2.0**-24 * magnitude).all()
    assert_array_equal(workspace, np.zeros(64, np.int8))


def test_an_unknown_epilogue_is_refused_by_name():
    with pytest.raises(xla.XlaError, match="epilogue 'D_RELU'"):
        xla.equivalent_module(gemm(1, 0, "D_RELU", "", ""))


def test_threefry_matches_the_published_vectors():
    text = module("""
  k = u32[1] parameter(0)
  x = u32[1] parameter(1)
  ROOT t = (u32[1], u32[1]) custom-call(k, k, x, x), custom_call_target="cuda_threefry2x32"
""")
    equivalent = xla.equivalent_module(text)
    for word, expected in ((0, (0x6B200159, 0x99BA4EFE)), (0xFFFFFFFF, (0x1CB996FC, 0xBB002BE7))):
        value = np.array([word], np.uint32)
        assert tuple(int(leaf[0]) for leaf in xla.run_hlo(equivalent, value, value)) == expected
