"""One step of training an MLP classifier in bf16: softmax cross-entropy, its gradient, and SGD with momentum.

Parameters and arithmetic are bf16, the loss is f32: the places where precision is lost are the interesting ones.
"""

import jax
import jax.numpy as jnp

BATCH, FEATURES, HIDDEN, CLASSES = 32, 48, 64, 10
LEARNING_RATE, MOMENTUM = 0.1, 0.9


def loss(parameters, x, label):
    """The mean negative log-likelihood of `label` [batch] under softmax(mlp(x))."""
    w1, b1, w2, b2 = parameters
    hidden = jax.nn.gelu(x @ w1 + b1)
    logits = (hidden @ w2 + b2).astype(jnp.float32)
    log_likelihood = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(log_likelihood, label[:, None], axis=1))


def train_step(parameters, momenta, x, label):
    """(new parameters, new momenta, loss)."""
    value, gradients = jax.value_and_grad(loss)(parameters, x, label)
    momenta = [MOMENTUM * m + g for m, g in zip(momenta, gradients, strict=True)]
    parameters = [p - LEARNING_RATE * m for p, m in zip(parameters, momenta, strict=True)]
    return parameters, momenta, value


_PARAMETERS = [
    jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    for shape in ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
]
FUNCTION = train_step
ARGUMENTS = (
    _PARAMETERS,
    _PARAMETERS,
    jax.ShapeDtypeStruct((BATCH, FEATURES), jnp.bfloat16),
    jax.ShapeDtypeStruct((BATCH,), jnp.int32),
)
