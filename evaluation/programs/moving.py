"""Programs that mostly move elements, in f32 and bf16, in ways that no other module has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from evaluation.programs.program import Program, normal, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)
_BF16 = ml_dtypes.bfloat16


def _half(*arguments: Any) -> Any:
    return normal(*arguments).astype(_BF16)


def _heads(jax: Any) -> Any:

    def attend(x: Any, qkv: Any, out: Any, bias: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = ((x @ qkv).reshape(batch, length, 3, 4, -1)).transpose(2, 0, 3, 1, 4)
        scores = (q @ k.swapaxes(-1, -2)) / np.float32(2).astype(x.dtype) + bias
        mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        return mixed @ out + x

    return attend


@_program
def _split_heads(jax: Any) -> Any:
    """Queries, keys and values from one product, heads beside one another, and a bias for each pair of places."""
    return _heads(jax), (normal(1, 3, 6, 16), normal(2, 16, 48), normal(3, 16, 16), normal(4, 4, 6, 6))


@_program
def _split_heads_bf16(jax: Any) -> Any:
    """The same in bf16, of other sizes."""
    return _heads(jax), (_half(1, 2, 5, 24), _half(2, 24, 72), _half(3, 24, 24), _half(4, 4, 5, 5))


@_program
def _pixels_to_channels(jax: Any) -> Any:
    """Blocks of pixels become channels, are mixed, and go back into blocks."""
    jnp = jax.numpy

    def mix(image: Any, w: Any, gain: Any) -> Any:
        batch, height, width, channels = image.shape
        blocks = image.reshape(batch, height // 2, 2, width // 3, 3, channels).transpose(0, 1, 3, 2, 4, 5)
        flat = blocks.reshape(batch, height // 2, width // 3, -1)
        mixed = jnp.tanh(flat @ w) * gain
        back = mixed.reshape(*flat.shape[:3], 2, 3, channels).transpose(0, 1, 3, 2, 4, 5)
        return back.reshape(image.shape) - image

    return mix, (normal(1, 2, 6, 9, 4), normal(2, 24, 24), normal(3, 24))


@_program
def _columns_of_patches_bf16(jax: Any) -> Any:
    """A convolution by columns of patches, and its weights' gradient, in bf16."""
    jnp = jax.numpy

    def columns(image: Any, size: int) -> Any:
        _, height, width, _ = image.shape
        rows = [image[:, y : height - size + 1 + y, x : width - size + 1 + x] for y in range(size) for x in range(size)]
        return jnp.stack(rows, -2).reshape(-1, size * size * image.shape[-1])

    def step(image: Any, kernel: Any, target: Any) -> Any:
        def loss(kernel: Any) -> Any:
            found = columns(image, 3) @ kernel.reshape(-1, kernel.shape[-1])
            return ((jax.nn.relu(found) - target).astype(jnp.float32) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(kernel)
        return value, gradient, columns(image, 2).reshape(2, -1, 4, 3).transpose(0, 2, 3, 1)

    return step, (_half(1, 2, 6, 5, 3), _half(2, 3, 3, 3, 7), _half(3, 24, 7))


def _rotary(jax: Any) -> Any:
    jnp = jax.numpy

    def turn(x: Any, w: Any, angles: Any) -> Any:
        made = (x @ w).reshape(*x.shape[:2], -1, 8)
        even, odd = made[..., 0::2], made[..., 1::2]
        c, s = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        turned = jnp.stack([even * c - odd * s, even * s + odd * c], -1).reshape(made.shape).astype(x.dtype)
        return jnp.einsum("bqhd,bkhd->bhqk", turned, turned[:, ::-1]), turned.transpose(0, 2, 3, 1)

    return turn


@_program
def _interleaved_rotary(jax: Any) -> Any:
    """Neighbouring channels turn by angles that follow from their place."""
    return _rotary(jax), (normal(1, 2, 7, 12), normal(2, 12, 24), normal(3, 7, 4) * 3)


@_program
def _interleaved_rotary_bf16(jax: Any) -> Any:
    """The same in bf16, but for the angles."""
    return _rotary(jax), (_half(1, 3, 5, 10), _half(2, 10, 16), normal(3, 5, 4) * 3)


@_program
def _gates_in_a_row(jax: Any) -> Any:
    """A recurrent cell whose gates lie beside one another, in both directions of time."""
    jnp, lax = jax.numpy, jax.lax

    def run(x: Any, w: Any, u: Any, b: Any) -> Any:
        def cell(h: Any, row: Any) -> Any:
            made = (row + h @ u).reshape(h.shape[0], 3, -1).transpose(1, 0, 2)
            z, r = jax.nn.sigmoid(made[0]), jax.nn.sigmoid(made[1])
            h = (1 - z) * h + z * jnp.tanh(made[2] * r)
            return h, h

        rows = (x @ w + b).transpose(1, 0, 2)
        start = jnp.zeros((x.shape[0], u.shape[0]))
        _, forth = lax.scan(cell, start, rows)
        _, back = lax.scan(cell, start, rows, reverse=True)
        return jnp.stack([forth, back], -1).transpose(1, 0, 3, 2).reshape(*x.shape[:2], -1)

    return run, (normal(1, 4, 6, 5), normal(2, 5, 24), normal(3, 8, 24), normal(4, 24))


@_program
def _gates_in_a_row_bf16(jax: Any) -> Any:
    """Two steps of a cell with four gates, in bf16."""
    jnp = jax.numpy

    def run(x: Any, w: Any, u: Any) -> Any:
        h = c = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
        for row in x:
            made = (row @ w + h @ u).reshape(-1, 4, u.shape[0]).swapaxes(0, 1)
            i, f, o, g = (*map(jax.nn.sigmoid, made[:3]), jnp.tanh(made[3]))
            c = f * c + i * g
            h = o * jnp.tanh(c)
        return h.T, c.reshape(2, -1, u.shape[0]).transpose(1, 2, 0)

    return run, (_half(1, 2, 6, 5), _half(2, 5, 32), _half(3, 8, 32))


@_program
def _windows_bf16(jax: Any) -> Any:
    """An image in windows, shifted by half of one, with attention in each, in bf16."""
    jnp = jax.numpy

    def attend(image: Any, qk: Any, v: Any) -> Any:
        height, width, channels = image.shape
        moved = jnp.roll(image, (-1, -1), (0, 1))
        windows = moved.reshape(height // 2, 2, width // 2, 2, channels).transpose(0, 2, 1, 3, 4)
        flat = windows.reshape(-1, 4, channels)
        q, k = jnp.split(flat @ qk, 2, -1)
        mixed = jax.nn.softmax((q @ k.transpose(0, 2, 1)).astype(jnp.float32), -1).astype(_BF16) @ (flat @ v)
        back = mixed.reshape(height // 2, width // 2, 2, 2, channels).transpose(0, 2, 1, 3, 4)
        return jnp.roll(back.reshape(image.shape), (1, 1), (0, 1))

    return attend, (_half(1, 4, 6, 8), _half(2, 8, 12), _half(3, 8, 8))


@_program
def _shuffled_channels(jax: Any) -> Any:
    """Groups of channels are mixed each by itself, and shuffled; spaces between are filled."""
    jnp = jax.numpy

    def mix(x: Any, first: Any, second: Any) -> Any:
        for w in (first, second):
            grouped = x.reshape(*x.shape[:2], 3, -1)
            x = jnp.einsum("btgc,gcd->btgd", grouped, w).swapaxes(2, 3).reshape(*x.shape[:2], -1)
            x = x * jax.nn.sigmoid(x.mean(1, keepdims=True))
        return x.transpose(2, 0, 1)

    return mix, (normal(1, 2, 5, 12), normal(2, 3, 4, 4), normal(3, 3, 4, 4))


@_program
def _products_of_parts(jax: Any) -> Any:
    """A tensor of three indices from matrices, unfolded along each, with a step of alternating least squares."""
    jnp = jax.numpy

    def fit(tensor: Any, a: Any, b: Any, c: Any) -> Any:
        def solved(unfolded: Any, first: Any, second: Any) -> Any:
            joint = (first[:, None] * second[None]).reshape(-1, first.shape[-1])
            return unfolded @ joint @ jnp.linalg.inv(joint.T @ joint + 0.1 * jnp.eye(joint.shape[-1]))

        a = solved(tensor.reshape(tensor.shape[0], -1), b, c)
        b = solved(tensor.transpose(1, 0, 2).reshape(tensor.shape[1], -1), a, c)
        c = solved(tensor.transpose(2, 0, 1).reshape(tensor.shape[2], -1), a, b)
        return a, b, c

    return fit, (normal(1, 4, 5, 6), normal(2, 4, 3), normal(3, 5, 3), normal(4, 6, 3))


@_program
def _kept_keys_bf16(jax: Any) -> Any:
    """A step of decoding: a key and a value are added to kept ones, which lie by heads, in bf16."""
    jnp, lax = jax.numpy, jax.lax

    def step(x: Any, w: Any, keys: Any, values: Any, place: Any) -> Any:
        q, k, v = (x @ w).reshape(x.shape[0], 3, 4, -1).transpose(1, 0, 2, 3)
        keys = lax.dynamic_update_slice(keys, k[:, :, None], (0, 0, place, 0))
        values = lax.dynamic_update_slice(values, v[:, :, None], (0, 0, place, 0))
        scores = jnp.einsum("bhd,bhtd->bht", q, keys).astype(jnp.float32)
        seen = jnp.arange(keys.shape[2]) <= place
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1).astype(_BF16)
        return jnp.einsum("bht,bhtd->bhd", weights, values).reshape(x.shape[0], -1), keys, values

    return step, (_half(1, 2, 12), _half(2, 12, 60), _half(3, 2, 4, 6, 5), _half(4, 2, 4, 6, 5), np.int32(3))
