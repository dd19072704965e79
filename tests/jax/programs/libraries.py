"""Flax, Optax, Equinox and NumPyro: a training step, or a step of a sampler, each."""

from typing import Any

import pytest

from tests.jax.programs.program import Call, call, integers, normal, program

jax: Any = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], -1).mean()


@program
def flax_linen_classifier(_: Any) -> Call:
    """Convolution, batch statistics, pooling and dropout, with a step of gradient descent."""
    linen = pytest.importorskip("flax.linen")

    class Classifier(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, x: Any, training: bool) -> Any:
            x = linen.Conv(4, (3, 3), use_bias=False)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=not training)(x))
            x = linen.avg_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
            return linen.Dense(3)(linen.Dropout(0.25, deterministic=not training)(x))

    model = Classifier()
    images, labels = normal(1, 6, 6, 6, 1), integers(2, 3, 6)

    def step(variables: Any, key: Any, images: Any, labels: Any) -> Any:
        def loss(parameters: Any) -> Any:
            given = {"params": parameters, "batch_stats": variables["batch_stats"]}
            logits, updated = model.apply(given, images, True, mutable=["batch_stats"], rngs={"dropout": key})
            return _cross_entropy(logits, labels), (logits, updated)

        (value, (_, updated)), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        parameters = jax.tree.map(lambda p, g: p - 0.125 * g, variables["params"], gradients)
        return {"params": parameters, **updated}, value

    return call(step, model.init(jax.random.key(0), images, False), jax.random.key(1), images, labels)


@program
def flax_linen_attention_and_lstm(_: Any) -> Call:
    linen = pytest.importorskip("flax.linen")

    class Network(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, tokens: Any) -> Any:
            x = linen.Embed(7, 8)(tokens)
            x = x + linen.MultiHeadDotProductAttention(2)(linen.LayerNorm()(x), mask=linen.make_causal_mask(tokens))
            return linen.RNN(linen.LSTMCell(5))(x)

    network = Network()
    tokens = integers(1, 7, 2, 5)

    def loss(parameters: Any, tokens: Any) -> Any:
        return (network.apply(parameters, tokens) ** 2).mean()

    return call(jax.value_and_grad(loss), network.init(jax.random.key(0), tokens), tokens)


@program
def flax_nnx_step(_: Any) -> Call:
    """A model with state, split into its graph and arrays, and merged inside."""
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(4, 6, rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs)
            self.last = nnx.Linear(6, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(nnx.relu(self.norm(self.first(x))))

    graph, state = nnx.split(Model(nnx.Rngs(0)))

    def step(state: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        return value, gradients, nnx.state(model)

    return call(step, state, normal(1, 8, 4), normal(2, 8, 2))


@program
def optax_adam_with_schedule(_: Any) -> Call:
    """Clipping by the global norm, weight decay, a warm-up; three steps in a scan."""
    optax = pytest.importorskip("optax")
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.125, 2, 10)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))

    def train(parameters: Any, x: Any, y: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            parameters, inner = state
            value, gradients = jax.value_and_grad(lambda p: optax.l2_loss(x @ p["w"] + p["b"], y).mean())(parameters)
            updates, inner = optimizer.update(gradients, inner, parameters)
            return (optax.apply_updates(parameters, updates), inner), value

        return lax.scan(step, (parameters, optimizer.init(parameters)), length=3)

    return call(train, {"w": normal(1, 4), "b": jnp.zeros(())}, normal(2, 8, 4), normal(3, 8))


@program
def optax_other_optimizers(_: Any) -> Call:
    """A step of each, from the same gradients."""
    optax = pytest.importorskip("optax")
    names = "sgd adagrad rmsprop adadelta lamb lion adafactor yogi novograd nadam".split()
    optimizers = {name: getattr(optax, name)(0.125) for name in names}
    optimizers["momentum"] = optax.sgd(0.125, momentum=0.5, nesterov=True)
    optimizers["accumulated"] = optax.MultiSteps(optax.adam(0.125), 2)

    def steps(parameters: Any, gradients: Any) -> Any:
        return {
            name: optimizer.update(gradients, optimizer.init(parameters), parameters)
            for name, optimizer in optimizers.items()
        }

    return call(steps, {"w": normal(1, 3, 4), "b": normal(2, 4)}, {"w": normal(3, 3, 4), "b": normal(4, 4)})


@program
def equinox_network(_: Any) -> Call:
    """A model is a pytree with functions in it: its arrays are the arguments."""
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.MLP(3, 2, 5, 2, key=jax.random.key(0))
    arrays, rest = equinox.partition(model, equinox.is_array)

    def loss(arrays: Any, x: Any) -> Any:
        return (jax.vmap(equinox.combine(arrays, rest))(x) ** 2).mean()

    return call(jax.value_and_grad(loss), arrays, normal(1, 6, 3))


@program
def numpyro_hamiltonian_step(_: Any) -> Call:
    """One step of HMC for a regression: leapfrog, and what is accepted."""
    numpyro = pytest.importorskip("numpyro")
    infer = pytest.importorskip("numpyro.infer")
    normals = numpyro.distributions.Normal

    def model(x: Any, y: Any) -> Any:
        weights = numpyro.sample("weights", normals(jnp.zeros(3), 1.0))
        numpyro.sample("y", normals(x @ weights, 0.5), obs=y)

    x, y = normal(1, 10, 3), normal(2, 10)
    kernel = infer.HMC(model, step_size=0.125, num_steps=3, adapt_step_size=False, adapt_mass_matrix=False)
    state = kernel.init(jax.random.key(0), 0, None, (x, y), {})

    def step(state: Any, x: Any, y: Any) -> Any:
        new = kernel.sample(state, (x, y), {})
        return new.z, new.potential_energy, new.num_steps, new.rng_key

    return call(step, state, x, y)


@program
def numpyro_density(_: Any) -> Call:
    """The log density of a hierarchical model, and its gradient."""
    numpyro = pytest.importorskip("numpyro")
    infer = pytest.importorskip("numpyro.infer.util")
    distributions = numpyro.distributions

    def model(counts: Any) -> Any:
        rate = numpyro.sample("rate", distributions.Gamma(2.0, 1.0))
        with numpyro.plate("groups", counts.size):
            effect = numpyro.sample("effect", distributions.StudentT(4.0, 0.0, 1.0))
            numpyro.sample("counts", distributions.Poisson(rate * jnp.exp(effect)), obs=counts)

    def density(values: Any, counts: Any) -> Any:
        return infer.log_density(model, (counts,), {}, values)[0]

    return call(jax.value_and_grad(density), {"rate": 1.5, "effect": normal(1, 5)}, integers(2, 6, 5))
