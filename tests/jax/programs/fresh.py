"""Twenty programs that were written after hloexec ran all the others, and measured once before anything was changed."""

from typing import Any

import numpy as np
import pytest

from tests.jax.programs.devices import _mapped, _mesh, _on
from tests.jax.programs.program import Call, call, integers, normal, positive, program

jax: Any = pytest.importorskip("jax")
for _part in "custom_batching experimental.jet scipy.sparse.linalg experimental.pallas".split():
    pytest.importorskip(f"jax.{_part}")
from jax.experimental import io_callback, jet  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402

jnp, lax, nn, random = jax.numpy, jax.lax, jax.nn, jax.random
P = jax.sharding.PartitionSpec


@program
def custom_vmap_of_a_product(_: Any) -> Call:
    """A batching rule of one's own, which tells that it was used."""

    @jax.custom_batching.custom_vmap
    def product(x: Any, y: Any) -> Any:
        return x @ y

    @product.def_vmap
    def rule(size: Any, is_batched: Any, x: Any, y: Any) -> Any:
        assert is_batched == [True, False]
        return jnp.einsum("bij,j->bi", x, y) + 1, True

    return call(jax.vmap(product, (0, None)), normal(1, 3, 4, 5), normal(2, 5))


@program
def taylor_series_by_jet(_: Any) -> Call:
    def series(x: Any, first: Any, second: Any) -> Any:
        return jet.jet(lambda x: jnp.exp(jnp.sin(x)) / (1 + x**2), (x,), ([first, second, first * second],))

    return call(series, normal(1, 4), normal(2, 4), normal(3, 4))


@program
def conjugate_gradients(_: Any) -> Call:
    """Solvers that differentiate themselves, for a number of steps that is known."""

    def solve(b: Any, diagonal: Any) -> Any:
        def matvec(x: Any) -> Any:
            return diagonal * x - 0.25 * (jnp.roll(x, 1) + jnp.roll(x, -1))

        return jax.scipy.sparse.linalg.cg(matvec, b, tol=0.0, maxiter=4)[0]

    def loss(b: Any, diagonal: Any) -> Any:
        return (solve(b, diagonal) ** 2).sum()

    return call(jax.value_and_grad(loss, (0, 1)), normal(1, 9), positive(2, 9) + 2)


@program
def attention_with_masks(_: Any) -> Call:
    """jax.nn's attention with grouped heads, a bias, lengths of sequences; in bf16, forward and backward."""

    def loss(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        out = nn.dot_product_attention(q, k, v, is_causal=True, key_value_seq_lengths=lengths)
        return (out.astype(jnp.float32) ** 2).sum()

    q, k, v = (normal(seed, 2, 6, heads, 4).astype(jnp.bfloat16) for seed, heads in ((1, 4), (2, 2), (3, 2)))
    return call(jax.value_and_grad(loss, (0, 1, 2)), q, k, v, np.int32([6, 3]))


@program
def quantized_product(_: Any) -> Call:
    """Scales of rows, rounding to int8, a product in int32, and the straight-through gradient."""

    def quantize(x: Any, axis: int) -> Any:
        scale = jnp.abs(x).max(axis, keepdims=True) / 127
        return lax.round(x / scale, lax.RoundingMethod.TO_NEAREST_EVEN).astype(jnp.int8), scale

    def product(x: Any, w: Any) -> Any:
        (a, s), (b, t) = quantize(x, 1), quantize(w, 0)
        whole = lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        through = x + lax.stop_gradient(a * s - x)
        return whole, whole * s * t, through

    scale = np.float32([127, 64, -32, 5, 1])
    return call(product, np.stack([scale, scale[::-1]]) * 2, np.stack([scale, -scale]).T)


@program
def ragged_products_and_segments(_: Any) -> Call:
    """Rows in groups of different sizes, and sums, maxima and products of segments."""

    def all_of(x: Any, w: Any, sizes: Any, segments: Any) -> Any:
        summed = jax.ops.segment_sum(x, segments, 4)
        largest = jax.ops.segment_max(x, segments, 4), jax.ops.segment_prod(x, segments, 4)
        return lax.ragged_dot(x, w, sizes), summed, largest

    return call(all_of, normal(1, 7, 3), normal(2, 3, 3, 4), np.int32([2, 0, 5]), np.int32([0, 3, 3, 1, 0, 1, 9]))


@program
def eigenvalues_of_a_general_matrix(_: Any) -> Call:
    """Complex results of LAPACK, in an order of their own; and the polynomial whose roots they are."""

    def all_of(a: Any) -> Any:
        values = jnp.linalg.eigvals(a)
        return values[jnp.argsort(values.imag)], jnp.poly(a), jnp.roots(jnp.array([1.0, -2.5, 1.5]), strip_zeros=False)

    return call(all_of, np.float32([[1, -2, 0], [2, 1, 0.5], [0, 0.25, 3]]))


@program
def more_decompositions(_: Any) -> Call:
    """Schur and Hessenberg forms and polar factors, put together again."""
    linalg = jax.scipy.linalg

    def all_of(a: Any) -> Any:
        t, z = linalg.schur(a)
        h, q = linalg.hessenberg(a, calc_q=True)
        u, p = linalg.polar(a, side="right", method="svd")
        return (
            z @ t @ z.T,
            q @ h @ q.T,
            u @ p,
            linalg.sqrtm(a @ a.T).real,
            linalg.toeplitz(a[0]),
            linalg.block_diag(a, a),
        )

    return call(all_of, normal(1, 4, 4) + 2 * np.eye(4, dtype=np.float32))


@program
def complex_functions(_: Any) -> Call:
    """A holomorphic derivative, branch cuts, polar form, and the real gradient of a modulus."""

    def all_of(z: Any) -> Any:
        holomorphic = jax.vmap(jax.grad(lambda z: jnp.exp(z) * z**2, holomorphic=True))(z)
        branches = jnp.log(z), jnp.sqrt(z), jnp.arctanh(z / 4), jnp.power(z, 1.5), jnp.angle(z)
        return holomorphic, branches, jax.grad(lambda z: (jnp.abs(z) ** 2).sum())(z), jnp.vdot(z, z)

    return call(all_of, (normal(1, 6) + 1j * normal(2, 6)).astype(np.complex64))


@program
def double_precision(_: Any) -> Call:
    """With JAX's 64 bits: sums and products that 32 cannot hold."""

    def sums(n: Any) -> Any:
        terms = 1 / jnp.arange(1, 200, dtype=jnp.float64) ** n
        return terms.sum(), (jnp.cumsum(terms)[::20], jnp.int64(2**40) + jnp.arange(3), 1e-300 * terms[:3])

    return call(jax.value_and_grad(sums, has_aux=True), np.float64(2.5), x64=True)


@program
def vectorized_by_signature(_: Any) -> Call:
    """numpy.vectorize's signatures, piecewise, apply_along_axis, gradients of finite differences, interpolation."""

    def all_of(x: Any, y: Any) -> Any:
        products = jnp.vectorize(jnp.dot, signature="(n),(n)->()")(x[:, None], y)
        pieces = jnp.piecewise(y, [y < 0, y > 0.25], [lambda v: -v, lambda v: v**2, 0.5])
        along = jnp.apply_along_axis(lambda row: row[::-1].cumsum(), 1, x)
        return (
            products,
            pieces,
            along,
            jnp.gradient(x, axis=1),
            jnp.interp(y[0], jnp.arange(4.0) / 4, x[0]),
            jnp.trapezoid(x),
        )

    return call(all_of, normal(1, 3, 4), normal(2, 2, 4))


@program
def pipeline_over_devices(_: Any) -> Call:
    """Eight stages, each a layer on its own device; microbatches go from one to the next, and gradients back."""
    mesh = _mesh()

    @_mapped(mesh, (P("d"), P()), P("d"), check_vma=False)
    def stages(weights: Any, batches: Any) -> Any:
        place = lax.axis_index("d")

        def tick(carried: Any, time: Any) -> Any:
            x = jnp.where(place == 0, batches[jnp.minimum(time, 2)], carried)
            y = jnp.tanh(x @ weights[0])
            return lax.ppermute(y, "d", [(i, i + 1) for i in range(7)]), y

        _, outputs = lax.scan(tick, jnp.zeros_like(batches[0]), jnp.arange(10))
        return outputs[None, 7:]

    def loss(weights: Any, batches: Any) -> Any:
        return (stages(weights, batches)[7] ** 2).sum()

    return call(jax.value_and_grad(loss), normal(1, 8, 4, 4), normal(2, 3, 2, 4))


@program
def sharded_optimizer_step(_: Any) -> Call:
    """Parameters and optimizer state split over one axis, the batch over the other, Adam by optax."""
    optax = pytest.importorskip("optax")
    mesh = _mesh(4, 2)
    optimizer = optax.adam(0.125)
    parameters = jax.device_put(
        {"up": normal(1, 4, 8), "down": normal(2, 8, 2)}, {"up": _on(mesh, None, "m"), "down": _on(mesh, "m")}
    )

    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return ((nn.relu(x @ p["up"]) @ p["down"] - y) ** 2).mean()

        gradients = jax.grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state

    x, y = jax.device_put((normal(3, 8, 4), normal(4, 8, 2)), _on(mesh, "d"))
    return call(step, parameters, optimizer.init(parameters), x, y)


@program
def callbacks_in_shard_map(events: Any) -> Call:
    """Each device calls with its own shard."""
    mesh = _mesh()

    @_mapped(mesh, P("d"), P("d"), check_vma=False)
    def told(x: Any) -> Any:
        jax.debug.callback(lambda place, x: events.append((int(place), x.tolist())), lax.axis_index("d"), x)
        return x * 2

    return call(told, integers(1, 9, 16), ordered=False)


@program
def callback_of_a_tree(events: Any) -> Call:
    """Structures in and out of a callback, a key among them, a bf16, and an empty array; in a nested jit and a scan."""

    def answer(tree: Any) -> Any:
        events.append(sorted((name, np.asarray(value).dtype.name, np.shape(value)) for name, value in tree.items()))
        return {"sum": np.float32(tree["a"].astype(np.float32).sum()), "none": np.zeros((0, 2), np.int8)}

    shapes = {"sum": jax.ShapeDtypeStruct((), np.float32), "none": jax.ShapeDtypeStruct((0, 2), np.int8)}

    @jax.jit
    def asked(tree: Any) -> Any:
        return io_callback(answer, shapes, tree, ordered=True)

    def loop(a: Any) -> Any:
        return lax.scan(
            lambda c, x: (c + 1, asked({"a": a * x, "c": c, "flag": c > 1})), 0, jnp.arange(3, dtype=a.dtype)
        )

    return call(loop, jnp.array([1, 2, 3], jnp.bfloat16))


@program
def pallas_kernel_under_vmap_and_grad(_: Any) -> Call:
    """A kernel with a rule for its derivative, masked loads, and an alias of an input with the output."""

    def kernel(x: Any, old: Any, out: Any) -> Any:
        columns = jnp.arange(x.shape[-1])
        out[...] = jnp.where(columns % 2 == 0, jnp.exp(x[...]), old[...])

    @jax.custom_vjp
    def run(x: Any, old: Any) -> Any:
        return pl.pallas_call(
            kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), input_output_aliases={1: 0}, interpret=True
        )(x, old)

    run.defvjp(lambda x, old: (run(x, old), x), lambda x, c: (c * jnp.exp(x) * (jnp.arange(x.shape[-1]) % 2 == 0), c))
    return call(jax.vmap(jax.value_and_grad(lambda x, old: run(x, old).sum())), normal(1, 3, 6), normal(2, 3, 6))


@program
def lbfgs_of_optax(_: Any) -> Call:
    """A quasi-Newton step with a line search, whose decisions depend on values."""
    optax = pytest.importorskip("optax")

    def loss(x: Any) -> Any:
        return ((x - jnp.arange(4.0)) ** 2 * jnp.arange(1.0, 5.0)).sum()

    def step(x: Any) -> Any:
        optimizer = optax.lbfgs()
        state = optimizer.init(x)
        value, gradient = optax.value_and_grad_from_state(loss)(x, state=state)
        updates, _ = optimizer.update(gradient, state, x, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(x, updates), value, gradient

    return call(step, normal(1, 4))


@program
def losses_of_optax(_: Any) -> Call:
    """Cross entropies, contrastive and ranking losses, CTC and what perturbs gradients."""
    optax = pytest.importorskip("optax")

    def all_of(logits: Any, labels: Any, sequence: Any) -> Any:
        crossed = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        others = (
            optax.huber_loss(logits),
            optax.cosine_similarity(logits, logits[::-1]),
            optax.sigmoid_focal_loss(logits, nn.one_hot(labels, 5)),
        )
        ctc = optax.ctc_loss(sequence, jnp.zeros((2, 6)), labels[:4].reshape(2, 2) + 1, jnp.zeros((2, 2)))
        return crossed, others, ctc

    return call(all_of, normal(1, 6, 5), integers(2, 4, 6), normal(3, 2, 6, 6))


@program
def equinox_recurrent_step(_: Any) -> Call:
    """A GRU cell in a scan under vmap, with filtered gradients and Optax's Adam."""
    equinox, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    cell = equinox.nn.GRUCell(3, 4, key=random.key(0))
    optimizer = optax.adam(0.125)
    arrays, rest = equinox.partition(cell, equinox.is_inexact_array)

    def step(arrays: Any, state: Any, sequences: Any) -> Any:
        def loss(arrays: Any) -> Any:
            cell = equinox.combine(arrays, rest)

            def run(sequence: Any) -> Any:
                return lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(4), sequence)[0]

            return (jax.vmap(run)(sequences) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(arrays)
        updates, state = optimizer.update(gradients, state, arrays)
        return equinox.apply_updates(arrays, updates), state, value

    return call(step, arrays, optimizer.init(arrays), normal(1, 2, 5, 3))


@program
def variational_inference(_: Any) -> Call:
    """Two updates of NumPyro's SVI with an automatic guide."""
    numpyro, infer = pytest.importorskip("numpyro"), pytest.importorskip("numpyro.infer")
    guides = pytest.importorskip("numpyro.infer.autoguide")
    distributions = numpyro.distributions

    def model(x: Any, y: Any) -> Any:
        slope = numpyro.sample("slope", distributions.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", distributions.LogNormal(0.0, 0.5))
        numpyro.sample("y", distributions.Normal(slope * x, scale), obs=y)

    svi = infer.SVI(model, guides.AutoNormal(model), numpyro.optim.Adam(0.125), infer.Trace_ELBO())
    x, y = normal(1, 8), normal(2, 8)
    state = svi.init(random.key(0), x, y)

    def update(state: Any, x: Any, y: Any) -> Any:
        return lax.scan(lambda s, _: svi.update(s, x, y), state, length=2)

    return call(update, state, x, y)
