"""Every opcode's relation, held to its shape rule: shrink the operands, infer the result, and compare."""

import warnings

import attrs
import numpy as np
import pytest

import hloexec
import hloexec.ops
from hloexec.ops.registry import OPCODES, Role
from tests.shrinking.smallest import assert_valid, shuffled, sizes_of, smallest
from tests.text import building

COMPUTATIONS = """
add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT r = f32[] add(x, y) }
more { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT r = pred[] compare(x, y), direction=GE }
step { x = f32[48] parameter(0)  y = f32[48] parameter(1)  s = f32[48] add(x, y)  ROOT r = (f32[48], f32[48]) tuple(s, s) }
twice { x = f32[64,48] parameter(0)  ROOT r = f32[64,48] add(x, x) }
once { x = f32[64,48] parameter(0)  ROOT r = f32[64,48] negate(x) }
body { x = f32[64,48] parameter(0)  ROOT r = f32[64,48] negate(x) }
never { x = f32[64,48] parameter(0)  ROOT r = pred[] constant(false) }
"""

SAME = "elementwise"
"""Operands and result are f32[64,48]."""

LINES = {
    "add-dependency": "t = token[] after-all()  ROOT r = f32[64,48] add-dependency(a, t)",
    "after-all": "t = token[] after-all()  ROOT r = f32[64,48] add-dependency(a, t)",
    "all-gather": "ROOT r = f32[256,48] all-gather(a), dimensions={0}, replica_groups={{0,1,2,3}}",
    "all-gather-start": "s = (f32[64,48], f32[256,48]) all-gather-start(a), dimensions={0}, replica_groups={{0,1,2,3}}  ROOT r = f32[256,48] all-gather-done(s)",
    "all-gather-done": "s = (f32[64,48], f32[64,192]) all-gather-start(a), dimensions={1}, replica_groups={{0,1,2,3}}  ROOT r = f32[64,192] all-gather-done(s)",
    "all-reduce": "ROOT r = f32[64,48] all-reduce(a), replica_groups={{0,1,2,3}}, to_apply=add",
    "all-reduce-start": "s = f32[64,48] all-reduce-start(a), replica_groups={{0,1,2,3}}, to_apply=add  ROOT r = f32[64,48] all-reduce-done(s)",
    "all-reduce-done": "s = (f32[64,48], f32[64,48]) all-reduce-start(a, b), replica_groups={{0,1,2,3}}, to_apply=add  ROOT r = (f32[64,48], f32[64,48]) all-reduce-done(s)",
    "all-to-all": "ROOT r = f32[64,48] all-to-all(a), dimensions={0}, replica_groups={{0,1,2,3}}",
    "async-start": "s = ((f32[64,48]), f32[64,48], u32[]) async-start(a), calls=once  ROOT r = f32[64,48] async-done(s), calls=once",
    "async-update": "s = ((f32[64,48]), f32[64,48], u32[]) async-start(a), calls=once  u = ((f32[64,48]), f32[64,48], u32[]) async-update(s), calls=once  ROOT r = f32[64,48] async-done(u), calls=once",
    "async-done": "s = ((f32[64,48]), f32[64,48], u32[]) async-start(a), calls=once  ROOT r = f32[64,48] async-done(s), calls=once",
    "batch-norm-grad": "m = f32[48] parameter(2)  ROOT r = (f32[64,48], f32[48], f32[48]) batch-norm-grad(a, m, m, m, b), epsilon=0.1, feature_index=1",
    "batch-norm-inference": "m = f32[48] parameter(2)  ROOT r = f32[64,48] batch-norm-inference(a, m, m, m, m), epsilon=0.1, feature_index=1",
    "batch-norm-training": "m = f32[48] parameter(2)  ROOT r = (f32[64,48], f32[48], f32[48]) batch-norm-training(a, m, m), epsilon=0.1, feature_index=1",
    "bitcast": "ROOT r = f32[48,64]{0,1} bitcast(a)",
    "bitcast-convert": "ROOT r = u16[64,48,2] bitcast-convert(a)",
    "broadcast": "ROOT r = f32[64,9,48] broadcast(a), dimensions={0,2}",
    "call": "ROOT r = f32[64,48] call(a), to_apply=twice",
    "cholesky": "m = f32[8,64,64] parameter(2)  ROOT r = f32[8,64,64] cholesky(m), lower=true",
    "collective-broadcast": "ROOT r = f32[64,48] collective-broadcast(a), replica_groups={{0,1,2,3}}",
    "collective-permute": "ROOT r = f32[64,48] collective-permute(a), source_target_pairs={{0,1},{1,0}}",
    "collective-permute-start": "s = (f32[64,48], f32[64,48], u32[], u32[]) collective-permute-start(a), source_target_pairs={{0,1},{1,0}}  ROOT r = f32[64,48] collective-permute-done(s)",
    "collective-permute-done": "s = (f32[64,48], f32[64,48], u32[], u32[]) collective-permute-start(a), source_target_pairs={{0,1},{1,0}}  ROOT r = f32[64,48] collective-permute-done(s)",
    "collective-reduce": "ROOT r = f32[64,48] collective-reduce(a), replica_groups={{0,1,2,3}}, to_apply=add",
    "concatenate": "c = f32[16,48] parameter(2)  ROOT r = f32[80,48] concatenate(a, c), dimensions={0}",
    "conditional": "p = pred[] parameter(2)  ROOT r = f32[64,48] conditional(p, a, b), true_computation=once, false_computation=twice",
    "constant": "c = f32[] constant(2)  d = f32[64,48] broadcast(c), dimensions={}  ROOT r = f32[64,48] add(a, d)",
    "convolution": "x = f32[8,32,32,16] parameter(2)  k = f32[3,3,16,24] parameter(3)  ROOT r = f32[8,16,32,24] convolution(x, k), window={size=3x3 stride=2x1 pad=0_1x1_1}, dim_labels=b01f_01io->b01f",
    "copy-start": "s = (f32[64,48], f32[64,48], u32[]) copy-start(a)  ROOT r = f32[64,48] copy-done(s)",
    "copy-done": "s = (f32[64,48], f32[64,48], u32[]) copy-start(a)  ROOT r = f32[64,48] copy-done(s)",
    "custom-call": 'ROOT r = f32[64,48] custom-call(a), custom_call_target="Sharding"',
    "domain": "ROOT r = f32[64,48] domain(a), domain={kind=\"sharding\", entry={replicated}, exit={replicated}}",
    "dot": "w = f32[48,80] parameter(2)  ROOT r = f32[64,80] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "dynamic-slice": "i = s32[] parameter(2)  ROOT r = f32[16,1] dynamic-slice(a, i, i), dynamic_slice_sizes={16,1}",
    "dynamic-update-slice": "i = s32[] parameter(2)  w = f32[16,48] parameter(3)  ROOT r = f32[64,48] dynamic-update-slice(a, w, i, i)",
    "fft": "ROOT r = c64[64,25] fft(a), fft_type=RFFT, fft_length={48}",
    "fusion": "ROOT r = f32[64,48] fusion(a), kind=kLoop, calls=twice",
    "gather": "i = s32[80,1] parameter(2)  ROOT r = f32[80,48] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,48}",
    "get-dimension-size": "n = s32[] get-dimension-size(a), dimensions={0}  ROOT r = (f32[64,48], s32[]) tuple(a, n)",
    "get-tuple-element": "t = (f32[64,48], f32[64,48]) tuple(a, b)  ROOT r = f32[64,48] get-tuple-element(t), index=1",
    "iota": "i = f32[64,48] iota(), iota_dimension=0  ROOT r = f32[64,48] add(a, i)",
    "map": "ROOT r = f32[64,48] map(a, b), dimensions={0,1}, to_apply=add",
    "opt-barrier": "ROOT r = f32[64,48] opt-barrier(a)",
    "pad": "z = f32[] constant(0)  ROOT r = f32[128,51] pad(a, z), padding=0_64x3_0",
    "parameter": "ROOT r = f32[64,48] negate(a)",
    "partition-id": "i = u32[] partition-id()  ROOT r = (f32[64,48], u32[]) tuple(a, i)",
    "ragged-dot": "w = f32[8,48,80] parameter(2)  g = s32[8] parameter(3)  ROOT r = f32[64,80] ragged-dot(a, w, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
    "recv": "t = token[] after-all()  s = (f32[64,48], u32[], token[]) send(a, t), channel_id=1  d = token[] send-done(s), channel_id=1  v = (f32[64,48], u32[], token[]) recv(t), channel_id=1  ROOT r = (f32[64,48], token[]) recv-done(v), channel_id=1",
    "reduce": "z = f32[] constant(0)  ROOT r = f32[48] reduce(a, z), dimensions={0}, to_apply=add",
    "reduce-precision": "ROOT r = f32[64,48] reduce-precision(a), exponent_bits=8, mantissa_bits=7",
    "reduce-scatter": "ROOT r = f32[16,48] reduce-scatter(a), dimensions={0}, replica_groups={{0,1,2,3}}, to_apply=add",
    "reduce-window": "z = f32[] constant(0)  ROOT r = f32[64,48] reduce-window(a, z), window={size=64x1 pad=63_0x0_0}, to_apply=add",
    "replica-id": "i = u32[] replica-id()  ROOT r = (f32[64,48], u32[]) tuple(a, i)",
    "reshape": "ROOT r = f32[3072] reshape(a)",
    "reverse": "ROOT r = f32[64,48] reverse(a), dimensions={0}",
    "rng": "z = f32[] constant(0)  u = f32[64,48] rng(z, z), distribution=rng_uniform  ROOT r = f32[64,48] add(a, u)",
    "rng-bit-generator": "s = u64[2] parameter(2)  g = (u64[2], f32[64,48]) rng-bit-generator(s), algorithm=rng_default  u = f32[64,48] get-tuple-element(g), index=1  ROOT r = f32[64,48] add(a, u)",
    "rng-get-and-update-state": "s = u64[2] rng-get-and-update-state(), delta=1  ROOT r = (f32[64,48], u64[2]) tuple(a, s)",
    "scaled-dot": "x = f8e4m3fn[64,96] parameter(2)  w = f8e4m3fn[96,80] parameter(3)  s = f8e8m0fnu[64,3] parameter(4)  t = f8e8m0fnu[3,80] parameter(5)  ROOT r = f32[64,80] scaled-dot(x, w, s, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "scan": "c = f32[48] parameter(2)  ROOT r = (f32[64,48], f32[48]) scan(a, c), dimensions={0}, num_carries=1, to_apply=step",
    "scatter": "i = s32[80,1] parameter(2)  u = f32[80,48] parameter(3)  ROOT r = f32[64,48] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
    "select-and-scatter": "z = f32[] constant(0)  s = f32[32,24] parameter(2)  ROOT r = f32[64,48] select-and-scatter(a, s, z), window={size=2x2 stride=2x2}, select=more, scatter=add",
    "shuffle": "ROOT r = f32[64,48] shuffle(a), dimensions={0,1}, mode=rotate, shifts={1,-2}",
    "slice": "ROOT r = f32[32,47] slice(a), slice={[32:64], [1:48]}",
    "sort": "ROOT r = f32[64,48] sort(a), dimensions={1}, to_apply=more",
    "topk": "ROOT r = (f32[64,4], s32[64,4]) topk(a), k=4",
    "transpose": "ROOT r = f32[48,64] transpose(a), dimensions={1,0}",
    "triangular-solve": "m = f32[64,64] parameter(2)  ROOT r = f32[64,48] triangular-solve(m, a), left_side=true, transpose_a=NO_TRANSPOSE",
    "tuple": "ROOT r = (f32[64,48], f32[64,48]) tuple(a, b)",
    "while": "ROOT r = f32[64,48] while(a), condition=never, body=body",
}  # fmt: skip
"""For each opcode, instructions on a and b, which are f32[64,48]; for those not listed, one of its own operands."""

TYPES = {
    "and": "s32", "or": "s32", "xor": "s32", "not": "s32", "popcnt": "s32", "count-leading-zeros": "s32",
    "shift-left": "s32", "shift-right-arithmetic": "s32", "shift-right-logical": "s32", "mulhi": "s32",
}  # fmt: skip
RESULTS = {
    "compare": "pred[64,48] compare(a, b), direction=LT",
    "is-finite": "pred[64,48] is-finite(a)",
    "complex": "c64[64,48] complex(a, b)",
    "convert": "bf16[64,48] convert(a)",
    "clamp": "f32[64,48] clamp(a, b, b)",
    "select": "f32[64,48] select(p, a, b)",
    "stochastic-convert": "s32[64,48] stochastic-convert(a, u)",
}
KEPT = {"dynamic-reshape", "infeed", "outfeed", "ragged-all-to-all", "set-dimension-size"}
"""Opcodes that keep their dimensions: of computed sizes, or exchanged with the host."""
SHARED = {"send": "recv", "send-done": "recv", "recv-done": "recv"}


def program(name: str) -> str:
    entry = OPCODES[name]
    element_type = TYPES.get(name, "f32")
    lines = LINES.get(SHARED.get(name, name))
    if lines is None:
        operands = ", ".join(["a", "b"][: entry.minimum_operands])
        lines = "ROOT r = " + RESULTS.get(name, f"{element_type}[64,48] {name}({operands})")
    more = "p = pred[64,48] parameter(2)" if name == "select" else ""
    more = "u = u32[64,48] parameter(2)" if name == "stochastic-convert" else more
    body = "\n  ".join(f"{more}  {lines}".split("  "))
    return f"""HloModule m, replica_count=4
{COMPUTATIONS}
ENTRY main {{
  a = {element_type}[64,48] parameter(0)
  b = {element_type}[64,48] parameter(1)
  {body}
}}
"""


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", sorted(OPCODES.keys() - KEPT))
def test_what_the_relation_says_is_what_the_shape_rule_infers(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hloexec.HloWarning)
        module = hloexec.parse(program(name))
        hloexec.verify(module)
        small = smallest(module)
        assert_valid(small)
        for seed in range(4):
            assert_valid(shuffled(module, seed))
    before, after = sizes_of(module), sizes_of(small)
    assert max(max(sizes, default=1) for sizes in after["a"]) < max(max(sizes, default=1) for sizes in before["a"])


@pytest.mark.parametrize(
    "instruction",
    [
        "f32[2,8] convolution(a, t), dim_labels=bf_io->bf, sparsity_config={lhs={sparsity=1x4 dimension=1 stride=1}}",
        "s4[5] convolution(a, k, a), dim_labels=bf_io->bf",
        "f32[8] dot(a, t, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "() copy(e)",
    ],
)
def test_operands_may_be_compressed_or_empty(instruction: str) -> None:
    """Of a compressed operand the verifier knows nothing."""
    lines = [
        "a = f32[2,4] parameter(0)",
        "k = f32[4,8] parameter(1)",
        "t = token[] parameter(2)",
        "e = () parameter(3)",
    ]
    body = "\n  ".join((*lines, f"ROOT r = {instruction}"))
    module = hloexec.parse(f"HloModule m\n\nENTRY main {{\n  {body}\n}}\n")
    assert hloexec.shrink(module).module.entry.root == module.entry.root


def test_the_dimensions_of_an_opcode_without_a_relation_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    module = hloexec.parse(program("reverse"))
    without = attrs.evolve(OPCODES["reverse"], relate=None)
    monkeypatch.setitem(OPCODES, "reverse", without)
    found = hloexec.shrink(module, dims={64: 2})
    assert sizes_of(found.module)["a"] == [(64, 48)]
    assert {each.reason for each in found.kept} == {"how the dimensions of reverse depend on one another is not known"}


def test_every_opcode_says_how_its_dimensions_depend_on_one_another() -> None:
    for name in sorted(OPCODES):
        entry = OPCODES[name]
        assert entry.relate is not None or entry.role not in (Role.KERNEL, Role.MACHINE), name


def test_a_window_of_two_fifths_of_a_dimension_stays_so() -> None:
    """Two arrays side by side, as the maximum of both padded, of which each device reads what it starts at."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[32,1536] parameter(0)
  b = f32[32,1024] parameter(1)
  least = f32[] constant(-inf)
  first = f32[32,2560] pad(a, least), padding=0_0x0_1024
  second = f32[32,2560] pad(b, least), padding=0_0x1536_0
  both = f32[32,2560] maximum(first, second)
  zero = s32[] constant(0)
  start = s32[] constant(512)
  ROOT part = f32[32,1024] dynamic-slice(both, zero, start), dynamic_slice_sizes={32,1024}
}
""")
    small = hloexec.shrink(module, dims={1024: 64}).module
    assert_valid(small)
    assert [shape.dimensions for shape in small.entry.parameter_shapes] == [(32, 96), (32, 64)]
    a, b = hloexec.random_inputs(small)
    np.testing.assert_array_equal(hloexec.run(small, a, b), np.concatenate((a, b), 1)[:, 32:96])


TOGETHER = """HloModule m, replica_count=2
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
ENTRY main {
  a = f32[96,40] parameter(0)
  b = f32[96] parameter(1)
  c = f32[3,3,40,56] parameter(2)
  loss = f32[] parameter(3)
  flat = f32[3840] reshape(a)
  kernel = f32[20160] reshape(c)
  one = f32[1] reshape(loss)
  all = f32[24097] concatenate(flat, b, kernel, one), dimensions={0}
  sum = f32[24097] all-reduce(all), replica_groups={{0,1}}, to_apply=add
  first = f32[3840] slice(sum), slice={[0:3840]}
  whole = f32[96,40] reshape(first)
  bias = f32[96] slice(sum), slice={[3840:3936]}
  last = f32[20161] slice(sum), slice={[3936:24097]}
  ROOT r = (f32[96,40], f32[96], f32[20161]) tuple(whole, bias, last)
}
"""


def test_arrays_that_are_sent_as_one_keep_their_own_sizes() -> None:
    """Gradients of all shapes lie side by side in one all-reduce, and are cut apart where they end."""
    module = hloexec.parse(TOGETHER)
    small = hloexec.shrink(module, dims={96: 6, 40: 10, 56: 7}).module
    assert_valid(small)
    assert [shape.dimensions for shape in small.entry.parameter_shapes] == [(6, 10), (6,), (3, 3, 10, 7), ()]
    inputs = hloexec.random_inputs(small)
    whole, bias, last = hloexec.run_devices(small, [inputs, inputs])[0]
    a, b, c, loss = inputs
    np.testing.assert_array_equal(whole, a + a)
    np.testing.assert_array_equal(bias, b + b)
    np.testing.assert_array_equal(last, np.append(c.reshape(-1), loss) * 2)


def test_what_counts_along_arrays_side_by_side_keeps_them_in_proportion() -> None:
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[1000] parameter(0)
  b = f32[24] parameter(1)
  all = f32[1024] concatenate(a, b), dimensions={0}
  index = s32[1024] iota(), iota_dimension=0
  last = s32[] constant(1000)
  lasts = s32[1024] broadcast(last), dimensions={}
  is_first = pred[1024] compare(index, lasts), direction=LT
  more = f32[1024] add(all, all)
  either = f32[1024] select(is_first, more, all)
  ROOT first = f32[1000] slice(either), slice={[0:1000]}
}
""")
    small = smallest(module)
    assert_valid(small)
    assert sizes_of(small)["b"] == [(24,)]


def test_halves_of_one_element_more_or_less_are_no_unequal_parts() -> None:
    """Frequencies of real numbers, and those that are their conjugates."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[513] parameter(0)
  b = f32[511] parameter(1)
  zero = f32[] constant(0)
  first = f32[1024] pad(a, zero), padding=0_511
  second = f32[1024] pad(b, zero), padding=513_0
  ROOT r = f32[1024] add(first, second)
}
""")
    small = hloexec.shrink(module, dims={1024: 64}).module
    assert_valid(small)
    assert [sizes_of(small)[name] for name in ("a", "b", "r")] == [[(33,)], [(31,)], [(64,)]]


def test_what_is_padded_is_no_fraction_of_what_is_sliced_from_it() -> None:
    """Eight parts with what each needs of the next one, as of rows that convolutions divide; 64 of 72 is no 8/9."""
    module = hloexec.parse("""HloModule m
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
ENTRY main {
  a = f32[64] parameter(0)
  zero = f32[] constant(0)
  padded = f32[72] pad(a, zero), padding=1_7
  split = f32[8,9] reshape(padded)
  longer = f32[8,11] pad(split, zero), padding=0_0x0_2
  summed = f32[8,9] reduce-window(longer, zero), window={size=1x3}, to_apply=add
  back = f32[72] reshape(summed)
  ROOT r = f32[64] slice(back), slice={[0:64]}
}
""")
    small = hloexec.shrink(module, dims={64: 16}).module
    assert_valid(small)
    shapes = sizes_of(small)
    assert [shapes[name] for name in ("a", "padded", "split", "longer", "r")] == [
        [(16,)], [(24,)], [(8, 3)], [(8, 5)], [(16,)],
    ]  # fmt: skip


def test_what_rows_need_of_the_next_ones_is_no_fraction_of_them() -> None:
    module = hloexec.parse("""HloModule m
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
ENTRY main {
  a = f32[8,8] parameter(0)
  next = f32[8,2] parameter(1)
  zero = f32[] constant(0)
  own = f32[8,10] pad(a, zero), padding=0_0x0_2
  others = f32[8,10] pad(next, zero), padding=0_0x8_0
  both = f32[8,10] add(own, others)
  summed = f32[8,8] reduce-window(both, zero), window={size=1x3}, to_apply=add
  ROOT r = f32[64] reshape(summed)
}
""")
    small = hloexec.shrink(module, dims={10: 4}).module
    assert_valid(small)
    shapes = sizes_of(small)
    assert [shapes[name] for name in ("a", "next", "both", "r")] == [[(8, 2)], [(8, 2)], [(8, 4)], [(16,)]]


def test_a_slice_of_all_of_a_dimension_does_not_make_it_one_that_is_taken_apart() -> None:
    module = hloexec.parse("""HloModule m
ENTRY main {
  steps = s32[12] constant({9,3,1,5,2,8,7,4,6,0,1,2})
  first = s32[1] slice(steps), slice={[0:1]}
  rest = s32[11] slice(steps), slice={[1:12]}
  features = f32[12,12] parameter(0)
  few = f32[3,12] slice(features), slice={[0:3], [0:12]}
  ROOT r = (s32[1], s32[11], f32[3,12]) tuple(first, rest, few)
}
""")
    small = hloexec.shrink(module, dims={12: 4}).module
    assert_valid(small)
    assert sizes_of(small)["features"] == [(4, 4)] and sizes_of(small)["steps"] == [(12,)]


def test_a_size_that_is_padded_before_it_is_split_shrinks_with_one_of_its_factors() -> None:
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[96,5] parameter(0)
  zero = f32[] constant(0)
  padded = f32[104,5] pad(a, zero), padding=2_6x0_0
  split = f32[8,13,5] reshape(padded)
  b = f32[8,13,5] parameter(1)
  ROOT sum = f32[8,13,5] add(split, b)
}
""")
    small = hloexec.shrink(module, dims={96: 24}).module
    assert_valid(small)
    assert sizes_of(small)["a"] == [(24, 5)] and sizes_of(small)["b"] == [(8, 4, 5)]


def test_parts_that_cannot_be_shares_of_it_are_all_but_a_few_elements_or_a_few() -> None:
    """Rows are padded, and divided into blocks; the first two of each block are put after the block before it."""
    module = hloexec.parse("""HloModule m
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
ENTRY main {
  a = f32[128,5] parameter(0)
  zero = f32[] constant(0)
  padded = f32[136,5] pad(a, zero), padding=0_8x0_0
  split = f32[8,17,5] reshape(padded)
  blocks = f32[8,18,5] pad(split, zero), padding=0_0x0_1x0_0
  first = f32[7,2,5] slice(blocks), slice={[1:8], [0:2], [0:5]}
  halo = f32[8,20,5] pad(first, zero), padding=0_1x18_0x0_0
  room = f32[8,20,5] pad(blocks, zero), padding=0_0x0_2x0_0
  longer = f32[8,20,5] add(room, halo)
  ROOT sums = f32[8,18,5] reduce-window(longer, zero), window={size=1x3x1}, to_apply=add
}
""")
    small = hloexec.shrink(module, dims={128: 32}).module
    assert_valid(small)
    names = ("a", "padded", "blocks", "first", "longer", "sums")
    sizes = [(32, 5), (40, 5), (8, 6, 5), (7, 2, 5), (8, 8, 5), (8, 6, 5)]
    assert [sizes_of(small)[name] for name in names] == [[size] for size in sizes]
    (a,) = hloexec.random_inputs(small)
    longer = np.zeros((8, 8, 5), np.float32)
    longer[:, :5] = np.concatenate([a, np.zeros((8, 5), np.float32)]).reshape(8, 5, 5)
    longer[:-1, 6:] = longer[1:, :2]
    np.testing.assert_array_equal(hloexec.run(small, a), longer[:, :-2] + longer[:, 1:-1] + longer[:, 2:])


def test_rows_on_both_sides_of_an_array_and_those_after_it_stay() -> None:
    """More than a quarter of what is padded is padding, and no fraction of it: three rows each, as for windows of 7."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[16] parameter(0)
  b = f32[6] parameter(1)
  zero = f32[] constant(0)
  between = f32[22] pad(a, zero), padding=3_3
  one = f32[17] pad(a, zero), padding=0_1
  front = f32[23] pad(one, zero), padding=0_6
  back = f32[23] pad(b, zero), padding=17_0
  all = f32[23] add(front, back)
  ROOT r = (f32[22], f32[23]) tuple(between, all)
}
""")
    small = hloexec.shrink(module, dims={16: 8}).module
    assert_valid(small)
    a, b = hloexec.random_inputs(small)
    between, all_rows = hloexec.run(small, a, b)
    assert a.shape == (8,) and b.shape == (6,)
    np.testing.assert_array_equal(between, np.pad(a, 3))
    np.testing.assert_array_equal(all_rows, np.concatenate([a, [0], b]))


def test_windows_that_reduce_in_several_rounds_shrink_with_what_they_reduce() -> None:
    module = hloexec.parse("""HloModule m
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
ENTRY main {
  a = f32[65536] parameter(0)
  zero = f32[] constant(0)
  first = f32[2048] reduce-window(a, zero), window={size=32 stride=32}, to_apply=add
  second = f32[64] reduce-window(first, zero), window={size=32 stride=32}, to_apply=add
  ROOT r = f32[] reduce(second, zero), dimensions={0}, to_apply=add
}
""")
    small = hloexec.shrink(module, dims={65536: 16}).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    assert hloexec.run(small, a) == pytest.approx(float(a.sum(dtype=np.float64)), rel=1e-5)


def test_a_sum_in_two_rounds_is_divided_anew_where_its_rows_do_not_shrink_in_proportion() -> None:
    text = """
    x = f32[8,1000,64] parameter(0)
    rows = f32[8,999,64] slice(x), slice={[0:8], [0:999], [0:64]}
    split = f32[74,108,64] bitcast(rows)
    zero = f32[] constant(0)
    first = f32[74,64] reduce(split, zero), dimensions={1}, to_apply=add_f32
    ROOT r = f32[64] reduce(first, zero), dimensions={0}, to_apply=add_f32
    """
    module = hloexec.parse(building.module(text, building.ADD))
    smaller = hloexec.shrink(module, max_bytes=100_000).module
    assert_valid(smaller)
    batch, length, width = smaller.entry.parameter_shapes[0].dimensions
    assert batch == 8 and length < 100
    x = np.arange(batch * length * width, dtype=np.float32).reshape(batch, length, width) % 7
    (total,) = hloexec.run_devices(smaller, [[x]])
    assert (total == x[:, :-1].sum((0, 1))).all()


def test_the_shift_of_relative_positions_shrinks() -> None:
    """Of 2n - 1 distances for each of n queries, those to n keys, by reading rows of 2n as rows of n."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[4,400,799] parameter(0)
  zero = f32[] constant(0)
  padded = f32[4,400,800] pad(a, zero), padding=0_0x0_0x1_0
  turned = f32[4,800,400] reshape(padded)
  rest = f32[4,799,400] slice(turned), slice={[0:4], [1:800], [0:400]}
  shifted = f32[4,400,799] reshape(rest)
  ROOT r = f32[4,400,400] slice(shifted), slice={[0:4], [0:400], [0:400]}
}
""")
    small = hloexec.shrink(module, dims={400: 8, 799: 15}).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    assert a.shape == (4, 8, 15)
    expected = np.stack([a[:, query, 7 - query : 15 - query] for query in range(8)], 1)
    np.testing.assert_array_equal(hloexec.run(small, a), expected)


@pytest.mark.parametrize(("size", "times"), [(401, 2), (399, 2), (400, 2)])
def test_a_part_that_is_about_a_share_shrinks_with_the_whole(size: int, times: int) -> None:
    module = hloexec.parse(f"""HloModule m
ENTRY main {{
  a = f32[800] parameter(0)
  first = f32[{size}] slice(a), slice={{[0:{size}]}}
  last = f32[{size}] slice(a), slice={{[{800 - size}:800]}}
  ROOT r = f32[{size}] add(first, last)
}}
""")
    small = smallest(module)
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    result = hloexec.run(small, a)
    assert len(a) < 50 and abs(len(a) - times * len(result)) <= times
    np.testing.assert_array_equal(result, a[: len(result)] + a[-len(result) :])


def test_what_is_fetched_in_slices_and_put_together_is_the_same_dimension() -> None:
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[799,16] parameter(0)
  first = f32[200,16] slice(a), slice={[0:200], [0:16]}
  second = f32[200,16] slice(a), slice={[200:400], [0:16]}
  third = f32[200,16] slice(a), slice={[400:600], [0:16]}
  fourth = f32[199,16] slice(a), slice={[600:799], [0:16]}
  again = f32[799,16] custom-call(first, second, third, fourth), custom_call_target="ConcatBitcast"
  zero = f32[] constant(0)
  ROOT r = f32[800,16] pad(again, zero), padding=0_1x0_0
}
""")
    small = hloexec.shrink(module, dims={799: 7}).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    np.testing.assert_array_equal(hloexec.run(small, a), np.pad(a, ((0, 1), (0, 0))))


def test_what_stays_in_a_product_does_not_hold_the_others() -> None:
    """Four devices send 28 rows each, and 7 heads of 16 have them, which a compiler fetches in 2 + 2 + 2 + 1."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[4,1792,64] parameter(0)
  b = f32[7,1024,64] reshape(a)
  first = f32[2,1024,64] slice(b), slice={[0:2], [0:1024], [0:64]}
  second = f32[2,1024,64] slice(b), slice={[2:4], [0:1024], [0:64]}
  third = f32[2,1024,64] slice(b), slice={[4:6], [0:1024], [0:64]}
  fourth = f32[1,1024,64] slice(b), slice={[6:7], [0:1024], [0:64]}
  ROOT r = f32[7,1024,64] custom-call(first, second, third, fourth), custom_call_target="ConcatBitcast"
}
""")
    small = hloexec.shrink(module, max_bytes=50_000).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    rows = small.entry.root.shape.dimensions
    assert np.prod(rows) < 12_500
    np.testing.assert_array_equal(hloexec.run(small, a), a.reshape(rows))


def test_bits_that_are_rotated_are_no_size() -> None:
    text = """
    index = u32[256] iota(), iota_dimension=0
    more = u32[256] parameter(0)
    mixed = u32[256] add(index, more)
    eight = u32[] constant(8)
    eights = u32[256] broadcast(eight), dimensions={}
    low = u32[256] shift-right-logical(mixed, eights)
    rest = u32[] constant(24)
    rests = u32[256] broadcast(rest), dimensions={}
    high = u32[256] shift-left(mixed, rests)
    ROOT r = u32[256] or(high, low)
    """
    small = hloexec.shrink(hloexec.parse(building.module(text)), dims={256: 32})
    assert small.module.entry.by_name["eight"].attributes.literal.value == 8
