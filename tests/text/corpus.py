"""HLO texts made by jaxlib at test time: small functions of ours, printed before and after XLA:CPU's optimization.

Between them the functions use every kind of attribute that JAX produces, so a parser that reads and prints all of the
texts knows the format as the installed XLA writes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from conformance import xla


@dataclass(frozen=True)
class Program:
    """A function, its arguments (shapes are enough), and options of `jax.jit`."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()
    optimized: bool = True
    """False where XLA:CPU cannot compile the program."""
    wide: bool = False
    """Whether 64-bit types are kept."""


def names() -> list[str]:
    """Of all texts: the programs `.before` and `.after` optimization; needs jaxlib."""
    found = []
    for name, program in sorted(_all_programs().items()):
        found += [f"{name}{form}" for form in (*_BEFORE, *([_AFTER] if program.optimized else []))]
    return [*found, *(f"{name}{form}" for name in _WRITTEN for form in _BEFORE[:2])]


def text_of(name: str) -> str:
    """The HLO text of a name."""
    program, point, form = name.partition(".")
    form = point + form
    return _optimized(program) if form == _AFTER else _texts(program)[form]


_BEFORE = (".before", ".before.verbose", ".before.short")
"""Dumps differ in what they show: whole constants, operand shapes, percent signs."""
_AFTER = ".after"
# JAX does not lower these to HLO.
_WRITTEN = {
    "bounded_dynamic": """HloModule bounded, entry_computation_layout={(f32[<=8,4]{1,0}, s32[])->(f32[<=8,4]{1,0}, s32[])}

ENTRY entry {
  operand = f32[<=8,4]{1,0} parameter(0)
  size = s32[] parameter(1)
  resized = f32[<=8,4]{1,0} set-dimension-size(operand, size), dimensions={0}
  extent = s32[] get-dimension-size(resized), dimensions={0}
  ROOT result = (f32[<=8,4]{1,0}, s32[]) tuple(resized, extent)
}
""",
    "asynchronous": """HloModule asynchronous, replica_count=2

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}

ENTRY entry {
  operand = f32[4]{0:T(128)S(1)} parameter(0)
  reducing = f32[4]{0} all-reduce-start(operand), replica_groups=[1,2]<=[2], to_apply=sum
  copying = (f32[4]{0}, f32[4]{0:S(5)}, u32[]{:S(2)}) copy-start(operand), cross_program_prefetch_index=0
  permuting = (f32[4], f32[4]) collective-permute-start(operand), source_target_pairs={{0,1},{1,0}}
  reduced = f32[4]{0} all-reduce-done(reducing), control-predecessors={copying}
  copied = f32[4]{0} copy-done(copying)
  permuted = f32[4]{0} collective-permute-done(permuting)
  ROOT result = (f32[4], f32[4], f32[4]) tuple(reduced, copied, permuted)
}
""",
}

_SHORT = {"print_percent": False, "print_metadata": False, "print_operand_shape": False, "print_program_shape": False}


VARIED = (
    "arg_reduction.after arg_reduction.before.short asynchronous.before batched_dot.before "
    "bounded_dynamic.before.verbose callback.before collapse.before.short collectives.before "
    "complex_numbers.before.verbose conditional.before conversions.before.short convolution_grouped.before "
    "donated.before.verbose dot_highest.after elementwise.before.short fusion_barrier.before "
    "indexing.before.verbose int4.before integers.before.short linear_algebra.before looped_collective.after "
    "nested_scan.after pads.before.verbose partitioned.after partitioned.before.short pooling_gradient.before "
    "random_bits.after random_bits.before.verbose sorting.before.short transforms.before windows.before.verbose"
).split()  # fmt: skip
"""Texts among which is every opcode, attribute, element type and target that any text has."""


@cache
def _texts(name: str) -> dict[str, str]:
    """The forms of a program's text before optimization."""
    if name in _WRITTEN:
        return dict(zip(_BEFORE, (_WRITTEN[name], xla.canonical_text(_WRITTEN[name])), strict=False))
    before = _lowered(name).as_text("hlo", debug_info=True)
    module = xla.parse_hlo(before)
    forms = (before, xla.canonical_text(module), xla.canonical_text(module, **_SHORT))
    return dict(zip(_BEFORE, forms, strict=True))


@cache
def _optimized(name: str) -> str:
    return str(_lowered(name).compile({"xla_backend_optimization_level": 0}).as_text())


@cache
def _lowered(name: str) -> Any:
    import jax

    program = _all_programs()[name]
    with jax.enable_x64(program.wide):
        return jax.jit(program.function, **dict(program.options)).lower(*program.arguments)


@cache
def _all_programs() -> dict[str, Program]:
    return _programs() | _distributed_programs()


def _programs() -> dict[str, Program]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    def array(*shape: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    f32 = array(8, 8)

    def convolution(x: Any, kernel: Any, **options: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)

    def conditional(index: Any, x: Any) -> Any:
        return lax.switch(index, [jnp.sin, jnp.cos, lambda y: (y * 2).astype(y.dtype)], x)

    def two_way(flag: Any, x: Any) -> Any:
        return lax.cond(flag, lambda y: (y, y.sum()), lambda y: (y + 1, y.max()), x)

    def while_loop(n: Any, x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] @ s[1]), (0, x))

    def nested_scan(x: Any) -> Any:
        def outer(carry: Any, row: Any) -> Any:
            inner = lax.fori_loop(0, 3, lambda i, value: value * row + i, carry)
            return inner, inner.sum()

        return lax.scan(outer, jnp.zeros(8), x)

    def named_scopes(x: Any) -> Any:
        with jax.named_scope("outer [a]"), jax.named_scope('quoted "inner" {b}'):
            return jnp.tanh(x) @ x

    def odd_names(x: Any) -> Any:
        return {"loss value": x.sum(), "nested": [(x, x + 1)]}

    def constants(x: Any) -> Any:
        special = jnp.array([jnp.inf, -jnp.inf, jnp.nan, -0.0, 1e-45, 3.4028235e38, 1 / 3, 1e10], jnp.float32)
        table = jnp.arange(40.0).reshape(5, 8) / 7
        flags = jnp.array([True, False] * 4)
        return jnp.where(flags, x * special, table.sum(0)), jnp.array([[1 + 2j, -3j]])

    def low_precision_dot(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    def dot_algorithm(a: Any, b: Any) -> Any:
        return lax.dot(a, b, precision=lax.DotAlgorithmPreset.BF16_BF16_F32_X3)

    def collapse(x: Any) -> Any:
        return lax.reduce(x, jnp.array(0, x.dtype), lax.bitwise_xor, (1,))

    def arg_reduction(x: Any) -> Any:
        return jnp.argmax(x, axis=1), jnp.argmin(x, axis=0), lax.top_k(x, 3), lax.approx_max_k(x, 2)

    def windows(x: Any) -> Any:
        summed = lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), ((1, 0), (2, 1)), (1, 1), (1, 2))
        return summed, lax.cumsum(x, axis=1), lax.cumlogsumexp(x, axis=0, reverse=True)

    def pooling_gradient(x: Any) -> Any:
        return jax.grad(lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum())(x)

    def indexing(x: Any, index: Any) -> Any:
        taken = x[index], x[::-2, 1:7:3], jnp.take(x, index, axis=1, mode="fill")
        return (
            taken,
            lax.dynamic_slice(x, (index[0], index[1]), (2, 2)),
            lax.dynamic_update_slice(x, x[:2], (index[2], 0)),
        )

    def scatters(x: Any, index: Any) -> Any:
        unique = x.at[index].set(1.0, unique_indices=True, indices_are_sorted=True)
        return unique, x.at[index].add(x[:4]), x.at[index, 1].mul(2.0), x.at[:, index].max(0.0)

    def sorting(x: Any) -> Any:
        return jnp.sort(x, axis=0), lax.sort((x, -x, x.astype(jnp.int32)), dimension=1, num_keys=2), jnp.argsort(x)

    def transforms(x: Any) -> Any:
        return jnp.fft.fft(x), jnp.fft.rfft2(x), jnp.fft.irfft(jnp.fft.rfft(x), 8), jnp.fft.ifft(x)

    def linear_algebra(x: Any) -> Any:
        positive = x @ x.T + 8 * jnp.eye(8)
        factor = jnp.linalg.cholesky(positive)
        solved = lax.linalg.triangular_solve(factor, x, left_side=True, lower=True, transpose_a=True)
        return factor, solved, jnp.linalg.qr(x), jnp.linalg.eigh(positive), jnp.linalg.svd(x), jnp.linalg.det(x)

    def random_numbers(key: Any) -> Any:
        key = jax.random.wrap_key_data(key)
        return jax.random.normal(key, (4, 4)), jax.random.permutation(key, 8), jax.random.bits(key, (3,), jnp.uint8)

    def random_bits(key: Any) -> Any:
        return lax.rng_bit_generator(key, (4,), jnp.uint32), lax.rng_uniform(0.0, 1.0, (3,))

    def complex_numbers(z: Any) -> Any:
        return jnp.exp(z) * z.conj(), jnp.abs(z), z.real + z.imag, lax.complex(z.real, z.imag) ** 2

    def elementwise(x: Any) -> Any:
        floats = [getattr(lax, name)(x) for name in _FLOAT_FUNCTIONS]
        return floats, lax.nextafter(x, 2 * x), lax.atan2(x, x), lax.rem(x, x), jnp.clip(x, -1.0, 1.0)

    def integers(x: Any, y: Any) -> Any:
        shifted = x << y, lax.shift_right_logical(x, y), lax.shift_right_arithmetic(x, y)
        return shifted, lax.population_count(x), lax.clz(x), x // y, lax.rem(x, y), ~x, x & y | x ^ y, lax.sign(x)

    def conversions(x: Any) -> Any:
        types = (jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8, jnp.uint64, jnp.bool_)
        return [x.astype(t) for t in types], lax.bitcast_convert_type(x, jnp.uint16), lax.reduce_precision(x, 5, 3)

    def fusion_barrier(x: Any) -> Any:
        left, right = lax.optimization_barrier((x * 2, x + 1))
        return left @ right

    def callback(x: Any) -> Any:
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    def pads(x: Any) -> Any:
        return lax.pad(x, 1.0, ((1, 2, 1), (-1, 0, 0))), jnp.pad(x, 1, mode="reflect"), jnp.roll(x, 3, axis=1)

    def mapped_tree(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * 2, tree), jnp.einsum("abc,cbd->adb", tree["a"], tree["b"][0])

    index = array(4, dtype=jnp.int32)
    image, kernel = array(2, 9, 9, 4), array(3, 3, 4, 8)
    return {
        "arg_reduction": Program(arg_reduction, (f32,)),
        "batched_dot": Program(partial(jnp.einsum, "bij,bjk->bik"), (array(2, 3, 4), array(2, 4, 5))),
        "callback": Program(callback, (f32,)),
        "collapse": Program(collapse, (array(4, 4, dtype=jnp.uint8),)),
        "complex_numbers": Program(complex_numbers, (array(4, dtype=jnp.complex128),), wide=True),
        "conditional": Program(conditional, (array(dtype=jnp.int32), f32)),
        "constants": Program(constants, (array(8),)),
        "conversions": Program(conversions, (array(4, dtype=jnp.float16),), wide=True),
        "convolution": Program(partial(convolution, window_strides=(2, 1), padding=((1, 1), (0, 2))), (image, kernel)),
        "convolution_dilated": Program(
            partial(
                convolution, window_strides=(1, 1), padding=((2, 1), (0, 3)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)
            ),
            (image, kernel),
        ),
        "convolution_gradient": Program(
            jax.grad(lambda x, k: convolution(x, k, window_strides=(1, 1), padding="VALID").sum(), argnums=(0, 1)),
            (image, kernel),
        ),
        "convolution_grouped": Program(
            partial(convolution, window_strides=(1, 1), padding="SAME", feature_group_count=4),
            (image, array(3, 3, 1, 8)),
        ),
        "donated": Program(lambda x, y: (x + 1, y * 2), (f32, f32), (("donate_argnums", (0, 1)),)),
        "dot_algorithm": Program(dot_algorithm, (f32, f32)),
        "dot_highest": Program(partial(jnp.dot, precision="highest"), (f32, f32)),
        "elementwise": Program(elementwise, (array(5),)),
        "float8_dot": Program(
            low_precision_dot, (array(4, 8, dtype=jnp.float8_e4m3fn), array(8, 4, dtype=jnp.float8_e5m2))
        ),
        "fusion_barrier": Program(fusion_barrier, (f32,)),
        "indexing": Program(indexing, (f32, index)),
        "int4": Program(lambda x, y: (x + y, x.astype(jnp.float32)), (array(4, dtype=jnp.int4),) * 2),
        "integers": Program(integers, (array(4, dtype=jnp.int32),) * 2),
        "linear_algebra": Program(linear_algebra, (f32,)),
        "low_precision_dot": Program(
            low_precision_dot, (array(4, 8, dtype=jnp.bfloat16), array(8, 4, dtype=jnp.bfloat16))
        ),
        "mapped_tree": Program(mapped_tree, ({"a": array(2, 3, 4), "b": [array(4, 3, 2)]},)),
        "named_scopes": Program(named_scopes, (f32,)),
        "nested_scan": Program(nested_scan, (array(5, 8),)),
        "no_arguments": Program(lambda: lax.iota(jnp.int32, 5), ()),
        "odd_names": Program(odd_names, (f32,)),
        "pads": Program(pads, (f32,)),
        "pooling_gradient": Program(pooling_gradient, (f32,)),
        "random_bits": Program(random_bits, (array(4, dtype=jnp.uint32),)),
        "random_numbers": Program(random_numbers, (array(2, dtype=jnp.uint32),)),
        "scatters": Program(scatters, (f32, index)),
        "sorting": Program(sorting, (f32,)),
        "transforms": Program(transforms, (f32,)),
        "two_way": Program(two_way, (array(dtype=jnp.bool_), f32)),
        "while_loop": Program(while_loop, (array(dtype=jnp.int64), array(8, 8, dtype=jnp.float64)), wide=True),
        "windows": Program(windows, (f32,)),
        "zero_sized": Program(lambda x: (x + 1, x.sum()), (array(0, 3),)),
    }


_FLOAT_FUNCTIONS = (
    "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh digamma erf erf_inv exp exp2 expm1 floor is_finite lgamma "
    "log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh"
).split()


def _distributed_programs() -> dict[str, Program]:
    """Programs for eight devices: written for one device of many, and split by XLA's partitioner."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if jax.device_count() < 8:
        return {}
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))

    def sharded(*axes: Any) -> Any:
        return jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    def per_device(function: Callable[..., Any]) -> Callable[..., Any]:
        spec = PartitionSpec("x", "y")
        return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    def collectives(x: Any) -> Any:
        total = lax.psum(x, "x") + lax.pmax(x, ("x", "y"))
        gathered = lax.all_gather(total, "y", axis=1, tiled=True)
        scattered = lax.psum_scatter(gathered, "y", scatter_dimension=1, tiled=True)
        exchanged = lax.all_to_all(scattered, "x", split_axis=0, concat_axis=1, tiled=True)
        moved = lax.ppermute(exchanged, "x", [(0, 1), (1, 2), (2, 3), (3, 0)])
        return lax.all_to_all(moved, "x", split_axis=1, concat_axis=0, tiled=True) + lax.axis_index("y")

    def looped_collective(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, value: lax.ppermute(value, "y", [(0, 1), (1, 0)]) + i, x)

    def constrained(a: Any, b: Any) -> Any:
        product = lax.with_sharding_constraint(a @ b, NamedSharding(mesh, PartitionSpec(None, "y")))
        return jnp.tanh(product).sum(axis=0), lax.with_sharding_constraint(
            product.T, NamedSharding(mesh, PartitionSpec())
        )

    return {
        "collectives": Program(per_device(collectives), (sharded("x", "y"),)),
        "looped_collective": Program(per_device(looped_collective), (sharded("x", "y"),)),
        "partitioned": Program(constrained, (sharded("x", "y"), sharded("y", None))),
        "partitioned_sort": Program(lambda x: jnp.sort(x, axis=0), (sharded("x", "y"),)),
    }
