"""Shadows in loops, fusions, branches and on several devices, and what cannot be looked at."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec import HloError, InputError
from tests.shadowing.running import exact_numbers, shadows_of
from tests.shadowing.test_truth import ADD, numbers, parsed, require_near

FOUR = "replica_count=4"


def _on_devices(body: str, kind: str, computations: str = ADD) -> hloexec.Module:
    text = hloexec.format(parsed(body, kind, computations=computations))
    return hloexec.parse(text.replace("HloModule m", f"HloModule m, {FOUR}", 1))


def test_an_all_reduce_adds_the_shadows_of_all_devices() -> None:
    module = _on_devices(
        """x = T[8] parameter(0)
        y = T[8] multiply(x, x)
        ROOT s = T[8] all-reduce(y), replica_groups={{0,1},{2,3}}, to_apply=add""",
        "bf16",
    )
    inputs = [[numbers("bf16", 8, seed=device)] for device in range(4)]
    results = hloexec.run_devices(module, inputs)
    found = shadows_of(module, inputs)
    squares = [[a * a for a in exact_numbers(x)] for (x,) in inputs]
    for pair in ((0, 1), (2, 3)):
        expected = [a + b for a, b in zip(*(squares[device] for device in pair), strict=True)]
        require_near(found[pair[0], 0], expected, results[pair[0]], 2.0**-20)
    outputs = hloexec.shadow(module, inputs).outputs
    assert sorted(device for output in outputs for device in output.devices) == [0, 1, 2, 3]
    assert {loss.instruction for loss in hloexec.shadow(module, inputs).losses} == {"y", "s"}


def test_permutes_and_gathers_take_shadows_along() -> None:
    module = _on_devices(
        """x = T[4] parameter(0)
        y = T[4] multiply(x, x)
        p = T[4] collective-permute(y), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
        ROOT g = T[16] all-gather(p), dimensions={0}""",
        "bf16",
    )
    inputs = [[numbers("bf16", 4, seed=device)] for device in range(4)]
    expected = [a * a for device in (3, 0, 1, 2) for a in exact_numbers(inputs[device][0])]
    for found in shadows_of(module, inputs).values():
        assert found == expected


def test_boundaries_of_manual_regions_take_shadows_along() -> None:
    body = """x = T[8] parameter(0), sharding={devices=[4]<=[4]}
        w = T[8] parameter(1), sharding={replicated}
        part = T[2] custom-call(x), custom_call_target="SPMDFullToShardShape", sharding={manual}
        all = T[8] custom-call(w), custom_call_target="SPMDFullToShardShape", sharding={manual}
        two = T[2] slice(all), slice={[2:4]}, sharding={manual}
        y = T[2] multiply(part, two), sharding={manual}
        ROOT r = T[8] custom-call(y), custom_call_target="SPMDShardToFullShape", sharding={devices=[4]<=[4]}"""
    module = _on_devices(body, "bf16")
    module = hloexec.parse(hloexec.format(module).replace(FOUR, "num_partitions=4", 1))
    inputs = [numbers("bf16", 8), numbers("bf16", 8, seed=1)]
    x, w = map(exact_numbers, inputs)
    expected = [a * w[2 + number % 2] for number, a in enumerate(x)]
    assert list(shadows_of(module, [inputs]).values()) == [expected]
    assert [loss.instruction for loss in hloexec.shadow(module, [inputs]).losses] == ["y"]


def test_what_leaves_a_region_whole_lies_beside_what_differs_between_copies() -> None:
    """Devices whose copies differ show the call one after the other, with the same whole in all of them."""
    body = """x = T[2] parameter(0), sharding={manual}
        y = T[2] multiply(x, x), sharding={manual}
        w = (T[8], T[4], T[2]) custom-call(y, y, y), custom_call_target="xla.sdy.LocalToGlobalShape",
          sharding={{devices=[4]<=[4]}, {devices=[2,2]<=[4] last_tile_dim_replicate}, {manual}}
        ROOT r = T[14] concatenate(w#0, w#1, w#2), dimensions={0}"""
    module = _on_devices(body, "bf16")
    module = hloexec.parse(hloexec.format(module).replace(FOUR, "num_partitions=4", 1))
    inputs = [[numbers("bf16", 2, seed=device)] for device in range(4)]
    squares = [[a * a for a in exact_numbers(x)] for (x,) in inputs]
    found = shadows_of(module, inputs)
    for device in range(4):
        parts = *range(4), device % 2, 2 + device % 2, device
        assert found[device, 0] == [square for part in parts for square in squares[part]]


def test_asynchronous_pairs_take_shadows_along() -> None:
    module = _on_devices(
        """x = T[4] parameter(0)
        y = T[4] multiply(x, x)
        s = (T[4], T[16]) all-gather-start(y), dimensions={0}
        g = T[16] all-gather-done(s)
        a = T[16] all-reduce-start(g), to_apply=add
        ROOT r = T[16] all-reduce-done(a)""",
        "bf16",
    )
    inputs = [[numbers("bf16", 4, seed=device)] for device in range(4)]
    expected = [4 * a * a for device in range(4) for a in exact_numbers(inputs[device][0])]
    results = hloexec.run_devices(module, inputs)
    for device, found in shadows_of(module, inputs).items():
        require_near(found, expected, results[device[0]], 2.0**-20)


def test_fusions_calls_and_branches_take_shadows_along() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        y = T[8] multiply(x, x)
        f = T[8] fusion(y), kind=kLoop, calls=twice
        c = T[8] call(f), to_apply=twice
        p = pred[] constant(true)
        ROOT r = T[8] conditional(p, c, y), true_computation=twice, false_computation=twice""",
        "bf16",
        computations="twice { a = T[8] parameter(0)\n b = T[8] multiply(a, a)\n ROOT t = T[8] add(b, a) }\n",
    )
    x = numbers("bf16", 8)

    def twice(a: Fraction) -> Fraction:
        return a * a + a

    expected = [twice(twice(twice(a * a))) for a in exact_numbers(x)]
    (found,) = shadows_of(module, [x]).values()
    require_near(found, expected, hloexec.run(module, x), 2.0**-16)


def test_loops_carry_shadows_along() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        zero = s32[] constant(0)
        s = (s32[], T[8]) tuple(zero, x)
        w = (s32[], T[8]) while(s), condition=cond, body=body
        ROOT r = T[8] get-tuple-element(w), index=1""",
        "f32",
        computations="""body {
          s = (s32[], T[8]) parameter(0)
          i = s32[] get-tuple-element(s), index=0
          x = T[8] get-tuple-element(s), index=1
          one = s32[] constant(1)
          j = s32[] add(i, one)
          y = T[8] multiply(x, x)
          half = T[8] constant({0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5})
          z = T[8] multiply(y, half)
          ROOT t = (s32[], T[8]) tuple(j, z)
        }
        cond {
          s = (s32[], T[8]) parameter(0)
          i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(5)
          ROOT c = pred[] compare(i, n), direction=LT
        }
        """,
    )
    x = numbers("f32", 8)
    expected = exact_numbers(x)
    for _ in range(5):
        expected = [a * a / 2 for a in expected]
    (found,) = shadows_of(module, [x]).values()
    require_near(found, expected, hloexec.run(module, x), 2.0**-16)


def test_the_result_of_an_observed_run_stays_the_same() -> None:
    module = parsed("x = T[8] parameter(0)\n y = T[8] multiply(x, x)\n ROOT r = T[8] tanh(y)", "f32")
    x = numbers("f32", 8)
    first = hloexec.shadow(module, [x])
    assert first == hloexec.shadow(module, [x])
    assert first.outputs[0].worst_value == float(hloexec.run(module, x)[first.outputs[0].worst_index])


def test_the_shadow_of_a_rounding_policy_is_exact_all_the_same() -> None:
    module = parsed(
        """a = T[4,24] parameter(0)
        b = T[24,3] parameter(1)
        ROOT c = T[4,3] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
        "f32",
    )
    a, b = numbers("f32", 4, 24), numbers("f32", 24, 3, seed=1)
    errors = {
        policy: hloexec.shadow(module, [a, b], numerics=policy).outputs[0].relative_error
        for policy in ("reference", "tf32", "bf16")
    }
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for policy, error in errors.items():
        value = hloexec.run(module, a, b, numerics=policy)
        assert error == pytest.approx(np.linalg.norm(value - exact) / np.linalg.norm(exact), rel=1e-6)
    assert errors["reference"] < errors["tf32"] < errors["bf16"]


def test_confidence_intervals_hold_the_spread_of_known_noise() -> None:
    """Of f32 sums, rounded up or down: the interval holds the digits of a run with many more samples."""
    module = parsed("x = T[256] parameter(0)\n y = T[256] parameter(1)\n ROOT s = T[256] add(x, y)", "f32")
    inputs = [numbers("f32", 256), numbers("f32", 256, seed=1)]
    (few,) = hloexec.shadow(module, inputs, samples=5).digits
    (many,) = hloexec.shadow(module, inputs, samples=60).digits
    assert few.low <= many.digits <= few.high
    assert many.high - many.low < few.high - few.low
    assert many.probability == pytest.approx(0.05 ** (1 / 60))


# Wrong uses


def test_a_module_without_floats_has_no_error() -> None:
    module = hloexec.parse("HloModule m\nENTRY e {\n x = s32[4] parameter(0)\n ROOT y = s32[4] add(x, x)\n}\n")
    found = hloexec.shadow(module, [np.arange(4, dtype=np.int32)])
    assert not found.losses and found.culprit is None
    assert found.outputs[0].digits is None
    assert str(found) == "no rounding error in 1 outputs"


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_inputs_without_digits_do_not_disturb_others(value: float) -> None:
    module = parsed("x = T[4] parameter(0)\n y = T[4] multiply(x, x)\n ROOT r = T[4] add(y, x)", "f32")
    x = np.array([value, 1.1, 1.2, 1.3], np.float32)
    found = hloexec.shadow(module, [x])
    assert [output.lost for output in found.outputs] == [0]
    assert found.outputs[0].digits is not None and found.outputs[0].digits > 6
    assert {loss.instruction for loss in found.losses} <= {"y", "r"}
    assert all(math.isfinite(loss.share) for loss in found.losses)


def test_outputs_that_are_nothing_but_zeros_or_nan_are_told() -> None:
    module = parsed("x = T[4] parameter(0)\n ROOT y = T[4] multiply(x, x)", "f32")
    for value in (0.0, np.nan):
        found = hloexec.shadow(module, [np.full(4, value, np.float32)])
        assert not found.losses


def test_empty_arrays_are_no_matter() -> None:
    module = parsed("x = T[0] parameter(0)\n y = T[0] multiply(x, x)\n ROOT t = (T[0]) tuple(y)", "bf16")
    found = hloexec.shadow(module, [np.zeros(0, ml_dtypes.bfloat16)], samples=2)
    assert not found.losses
    assert found.outputs[0].digits is None


def test_random_numbers_count_as_exact() -> None:
    module = parsed(
        """a = T[] constant(0)
        b = T[] constant(1)
        u = T[8] rng(a, b), distribution=rng_uniform
        ROOT y = T[8] multiply(u, u)""",
        "f32",
    )
    found = hloexec.shadow(module, [])
    assert [loss.instruction for loss in found.losses] == ["y"]


def test_bits_that_are_read_as_numbers_count_as_exact() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        y = T[8] multiply(x, x)
        i = u32[8] bitcast-convert(y)
        z = T[8] bitcast-convert(i)
        ROOT r = T[8] add(z, z)""",
        "f32",
    )
    assert not hloexec.shadow(module, [numbers("f32", 8)]).losses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": -1}, "samples must not be negative"),
        ({"samples": 1}, "samples must be 0 or at least 2"),
        ({"samples": 2.5}, "samples must be"),
        ({"samples": 3, "numerics": "random-rounding:1"}, "random"),
        ({"numerics": "none"}, "numerics policy"),
        ({"computation": "other"}, "other"),
        ({"observers": [3]}, "observers"),
    ],
)
def test_wrong_options_are_told(options: dict[str, object], message: str) -> None:
    module = parsed("x = T[4] parameter(0)\n ROOT y = T[4] multiply(x, x)", "f32")
    with pytest.raises(HloError, match=message):
        hloexec.shadow(module, [numbers("f32", 4)], **options)  # type: ignore[arg-type]


def test_wrong_arguments_are_told() -> None:
    module = parsed("x = T[4] parameter(0)\n ROOT y = T[4] multiply(x, x)", "f32")
    with pytest.raises(InputError, match="module"):
        hloexec.shadow("module.hlo", None)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        hloexec.shadow(module, [])
    with pytest.raises(InputError):
        hloexec.shadow(module, [numbers("bf16", 4)])
    with pytest.raises(TypeError, match="did you mean"):
        hloexec.shadow(module, [numbers("f32", 4)], numeric="tf32")  # type: ignore[call-arg]


def test_what_a_compiler_has_put_into_a_fusion_has_the_fusion_s_source_line() -> None:
    module = hloexec.parse("""HloModule m
f { a = f32[4] parameter(0)
  ROOT b = bf16[4] convert(a) }
ENTRY e { x = f32[4] parameter(0)
  c = bf16[4] fusion(x), kind=kLoop, calls=f, metadata={source_file="net.py" source_line=7}
  ROOT r = f32[4] convert(c) }""")
    (loss,) = hloexec.shadow(module, [numbers("f32", 4)]).losses
    assert (loss.instruction, str(loss.source[0])) == ("b", "net.py:7")


def _called(function: object, x: np.ndarray) -> hloexec.Module:
    jax = pytest.importorskip("jax", reason="JAX compiles the program")
    return hloexec.from_jax(jax.jit(function).lower(x).compile())


def test_what_a_library_call_chooses_keeps_its_errors() -> None:
    jax = pytest.importorskip("jax", reason="JAX compiles the program")

    def program(x: np.ndarray) -> object:
        return jax.lax.top_k(x * x, 3)

    x = np.array([[1.1, -3.3, 2.3, 0.7, 5.7]], np.float32)
    module = _called(program, x)
    assert any("TopK" in str(each.attributes) for computation in module for each in computation)
    (squares,) = (sorted((a * a for a in exact_numbers(x)), reverse=True),)
    (found, *_) = shadows_of(module, [x]).values()
    assert found == squares[:3]
    result = hloexec.shadow(module, [x])
    assert not result.untold and result.outputs[0].relative_error > 0


def test_eigenvalues_have_their_errors_where_the_vectors_turn_around() -> None:
    jax = pytest.importorskip("jax", reason="JAX compiles the program")
    mpmath = pytest.importorskip("mpmath")
    hilbert = (1 / (np.arange(8)[:, None] + np.arange(8) + 1)).astype(np.float32)
    module = _called(jax.numpy.linalg.eigvalsh, hilbert)
    found = hloexec.shadow(module, [hilbert])
    with mpmath.workdps(40):
        exact = mpmath.eigsy(mpmath.matrix(hilbert.astype(float).tolist()), eigvals_only=True)
    values = hloexec.run(module, hilbert)
    (output,) = found.outputs
    (place,) = output.worst_index
    assert output.worst_exact == pytest.approx(float(exact[place]), rel=1e-4)
    # An error that is larger than the number leaves no digit, as one that is as large.
    digits = -np.log10(abs(values[place] / float(exact[place]) - 1))
    assert output.worst_digits == pytest.approx(max(0.0, digits), abs=0.01)
    assert all("other sign" in each.reason for each in found.untold)


@pytest.mark.parametrize("device", [0, 1])
def test_of_several_devices_the_run_is_shown_whose_error_reaches_the_outputs(device: int) -> None:
    """One of two devices adds 2^24 and takes it away again, the other 1; then they swap what is left."""
    text = f"""HloModule m, num_partitions=2
ENTRY e {{
  x = f32[32] parameter(0)
  id = u32[] partition-id()
  mine = u32[] constant({device})
  is_mine = pred[] compare(id, mine), direction=EQ
  large = f32[] constant(16777216)
  one = f32[] constant(1)
  offset = f32[] select(is_mine, large, one)
  offsets = f32[32] broadcast(offset), dimensions={{}}
  shifted = f32[32] add(x, offsets)
  back = f32[32] subtract(shifted, offsets)
  swapped = f32[32] collective-permute(back), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}
  ROOT r = f32[32] negate(swapped)
}}
"""
    draw = np.random.default_rng(1)
    inputs = [[draw.uniform(0.1, 0.4, 32).astype(np.float32)] for _ in range(2)]
    found = hloexec.shadow(hloexec.parse(text), inputs)
    first = found.losses[0]
    assert (first.instruction, first.kind, first.devices) == ("shifted", "absorption", (device,))
    assert first.share > 0.99 and first.runs == 2
