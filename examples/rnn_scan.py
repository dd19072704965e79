"""An LSTM run over a sequence by `lax.scan`, which lowers to a `while` loop with dynamic slices."""

import jax
import jax.numpy as jnp

STEPS, BATCH, INPUT, HIDDEN = 12, 4, 8, 16


def lstm(x, w_input, w_hidden, bias):
    """The hidden states [steps, batch, hidden] for x [steps, batch, input], and the last cell state."""

    def step(state, x_t):
        hidden, cell = state
        gates = x_t @ w_input + hidden @ w_hidden + bias
        input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(forget_gate) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
        hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
        return (hidden, cell), hidden

    start = jnp.zeros((BATCH, HIDDEN), x.dtype)
    (_, cell), hidden = jax.lax.scan(step, (start, start), x)
    return hidden, cell


FUNCTION = lstm
ARGUMENTS = (
    jax.ShapeDtypeStruct((STEPS, BATCH, INPUT), jnp.float32),
    jax.ShapeDtypeStruct((INPUT, 4 * HIDDEN), jnp.float32),
    jax.ShapeDtypeStruct((HIDDEN, 4 * HIDDEN), jnp.float32),
    jax.ShapeDtypeStruct((4 * HIDDEN,), jnp.float32),
)
