"""The attention half of a decoder layer: RMS norm, rotary embedding, causal attention of several heads, residual."""

import jax
import jax.numpy as jnp

SEQUENCE, HEADS, HEAD_SIZE = 16, 4, 8
MODEL_SIZE = HEADS * HEAD_SIZE


def rms_norm(x, scale):
    """x / rms(x) * scale over the last dimension."""
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + 1e-6) * scale


def rotary_embedding(x):
    """Rotates each pair (first half, second half) of x [sequence, head, size] by an angle that grows with position."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half) / half)
    angle = jnp.arange(x.shape[0])[:, None, None] * frequency
    first, second = x[..., :half], x[..., half:]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def attention(x, scale, w_qkv, w_out):
    """x + softmax(q k^T / sqrt(d), masked to the past) v w_out, for x [sequence, model]."""
    with jax.named_scope("norm"):
        normed = rms_norm(x, scale)
    with jax.named_scope("project"):
        query, key, value = jnp.unstack(jnp.einsum("sm,mthd->tshd", normed, w_qkv))
    with jax.named_scope("rotate"):
        query, key = rotary_embedding(query), rotary_embedding(key)
    with jax.named_scope("attend"):
        scores = jnp.einsum("qhd,khd->hqk", query, key) / jnp.sqrt(HEAD_SIZE)
        past = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("hqk,khd->qhd", weights, value)
    return x + jnp.einsum("shd,hdm->sm", mixed, w_out)


FUNCTION = attention
ARGUMENTS = (
    jax.ShapeDtypeStruct((SEQUENCE, MODEL_SIZE), jnp.float32),
    jax.ShapeDtypeStruct((MODEL_SIZE,), jnp.float32),
    jax.ShapeDtypeStruct((MODEL_SIZE, 3, HEADS, HEAD_SIZE), jnp.float32),
    jax.ShapeDtypeStruct((HEADS, HEAD_SIZE, MODEL_SIZE), jnp.float32),
)
