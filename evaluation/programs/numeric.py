"""Numerical methods without a loop that depends on data, and integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program(keeps=[0, 2])
def _gaussian_process(jax: Any) -> Any:
    """Regression with a kernel: Cholesky, triangular solves, mean, variance and evidence."""
    jnp = jax.numpy

    def kernel(x: Any, y: Any, scale: Any) -> Any:
        squares = ((x[:, None] - y[None]) ** 2).sum(-1)
        return jnp.exp(-0.5 * squares / scale**2)

    def gaussian_process(x: Any, y: Any, new: Any, scale: Any) -> Any:
        covariance = kernel(x, x, scale) + 0.1 * jnp.eye(10)
        lower = jnp.linalg.cholesky(covariance)
        solve = jax.scipy.linalg.solve_triangular
        alpha = solve(lower.T, solve(lower, y, lower=True), lower=False)
        across = kernel(x, new, scale)
        mean = across.T @ alpha
        v = solve(lower, across, lower=True)
        variance = 1.0 - (v**2).sum(0)
        evidence = -0.5 * y @ alpha - jnp.log(jnp.diagonal(lower)).sum() - 5 * np.log(2 * np.pi)
        return mean, variance, evidence

    return gaussian_process, (normal(1, 10, 2) * 3, normal(2, 10), normal(3, 4, 2) * 3, np.float32(1.2))


@_program
def _fourier_filter(jax: Any) -> Any:
    """A spectrogram of overlapping frames with a window, a filter, and a sum of the frames again."""
    jnp = jax.numpy

    def fourier_filter(signal: Any, response: Any) -> Any:
        starts = jnp.arange(7) * 8
        window = 0.5 - 0.5 * jnp.cos(2 * np.pi * jnp.arange(16) / 16)
        frames = signal[starts[:, None] + jnp.arange(16)] * window
        spectrum = jnp.fft.rfft(frames)
        power = jnp.abs(spectrum) ** 2
        gain = power / (power + 0.1 * power.mean(0) + 1e-6)
        back = jnp.fft.irfft(spectrum * gain * response, n=16) * window
        total = jnp.zeros(64).at[(starts[:, None] + jnp.arange(16)).reshape(-1)].add(back.reshape(-1))
        return total, jnp.log(power + 1e-8)

    return fourier_filter, (normal(1, 64), (np.linspace(1, 0, 9) ** 2).astype(np.float32))


@_program
def _top_k_sampling(jax: Any) -> Any:
    """The best tokens at a temperature, a nucleus of them, and a draw by a key."""
    jnp = jax.numpy

    def top_k_sampling(logits: Any, seen: Any, key: Any) -> Any:
        counts = jnp.zeros((4, 24)).at[jnp.arange(4)[:, None], seen].add(1.0)
        logits = (logits - 0.5 * (counts > 0) - 0.2 * counts) / 0.7
        best, tokens = jax.lax.top_k(logits, 8)
        probabilities = jax.nn.softmax(best)
        before = jnp.cumsum(probabilities, -1) - probabilities
        kept = jnp.where(before < 0.8, best, -jnp.inf)
        noise = jax.random.gumbel(jax.random.wrap_key_data(key), kept.shape)
        place = jnp.argmax(kept + noise, -1)
        token = jnp.take_along_axis(tokens, place[:, None], 1)[:, 0]
        return token, probabilities, jax.nn.log_softmax(logits)[jnp.arange(4), token]

    return top_k_sampling, (2 * normal(1, 4, 24) * 2, integers(2, 24, 4, 6), np.array([1, 5], np.uint32))


@_program
def _quantized_matmul(jax: Any) -> Any:
    """Activations and weights in eight bits with scales and zero points, accumulated in s32, and quantized again."""
    jnp, lax = jax.numpy, jax.lax

    def quantized_matmul(x: Any, w: Any, bias: Any) -> Any:
        low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
        scale = jnp.maximum((high - low) / 255, 1e-6)
        zero = jnp.round(-low / scale) - 128
        codes = jnp.clip(jnp.round(x / scale) + zero, -128, 127).astype(jnp.int8)
        w_scale = jnp.abs(w).max(0) / 127
        w_codes = jnp.clip(jnp.round(w / w_scale), -127, 127).astype(jnp.int8)
        total = lax.dot(codes, w_codes, preferred_element_type=jnp.int32)
        total = total - zero.astype(jnp.int32) * w_codes.astype(jnp.int32).sum(0)
        out = jax.nn.relu(total.astype(jnp.float32) * scale * w_scale + bias)
        out_scale = out.max() / 127
        return jnp.round(out / out_scale).astype(jnp.int8), out, out_scale

    return quantized_matmul, (normal(1, 12, 24), normal(2, 24, 10), 0.1 * normal(3, 10))


@_program
def _molecular_forces(jax: Any) -> Any:
    """Energies of pairs with a cutoff in a periodic box, forces by their gradient, and three steps of motion."""
    jnp = jax.numpy

    def molecular_forces(places: Any, speeds: Any, charges: Any) -> Any:
        def energy(places: Any) -> Any:
            apart = places[:, None] - places[None]
            apart = apart - 4.0 * jnp.round(apart / 4.0)
            squares = (apart**2).sum(-1) + 10.0 * jnp.eye(9)
            inverse = 0.5 / squares**3
            near = squares < 3.5
            pairs = 4 * (inverse**2 - inverse) + charges[:, None] * charges[None] * jax.lax.rsqrt(squares)
            return 0.5 * jnp.where(near, pairs, 0.0).sum()

        def step(state: Any, _: Any) -> Any:
            places, speeds = state
            speeds = speeds - 0.005 * jax.grad(energy)(places)
            places = jnp.mod(places + 0.01 * speeds, 4.0)
            speeds = speeds - 0.005 * jax.grad(energy)(places)
            return (places, speeds), (energy(places), 0.5 * (speeds**2).sum())

        return jax.lax.scan(step, (places, speeds), None, length=3)

    grid = np.stack(np.meshgrid([0.0, 1.3, 2.6], [0.0, 1.3, 2.6]), -1).reshape(9, 2).astype(np.float32)
    return molecular_forces, (grid + 0.1 * normal(1, 9, 2), normal(2, 9, 2), positive(3, 9) - 0.5)


@_program
def _hashed_bloom(jax: Any) -> Any:
    """Hashes of words, bits set in a table, members counted, checksums and fixed-point averages; all integers."""
    jnp = jax.numpy

    def hashed_bloom(words: Any, queries: Any, samples: Any) -> Any:
        def hashes(x: Any) -> Any:
            x = x.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
            x = (x ^ (x >> 15)) * jnp.uint32(0x85EBCA6B)
            return jnp.stack([(x >> shift) % 97 for shift in (0, 7, 16)])

        table = jnp.zeros(97, jnp.int32).at[hashes(words).reshape(-1)].max(1)
        member = (table[hashes(queries)] > 0).all(0)
        checksum = jax.lax.reduce(words, jnp.int32(0), jax.lax.bitwise_xor, (0,))
        bits = jax.lax.population_count(words) + jax.lax.clz(queries[:12])
        fixed = (samples * 205 + (1 << 10)) >> 11
        average = (fixed.sum(0) // 5) - (-samples).min(0) // 3
        order = jnp.argsort(words % 31)
        return member, checksum, bits, average, order, jnp.cumsum(words[order] % 1000)

    return hashed_bloom, (integers(1, 2**30, 12), integers(1, 2**30, 20), integers(3, 4000, 6, 5) - 2000)


@_program(keeps=[0, 1, 2])
def _tiny_likelihoods(jax: Any) -> Any:
    """Products of likelihoods below the smallest normal number, scaled up again, and missing values passed on."""
    jnp = jax.numpy

    def tiny_likelihoods(first: Any, second: Any, prior: Any, measured: Any) -> Any:
        joint = first * second * prior
        posterior = joint * np.float32(1e30)
        weights = jnp.exp(-0.5 * measured**2 - 88.0) * jnp.maximum(measured, -1.0)
        largest = jnp.maximum(jnp.abs(measured), 0.5)
        return posterior / posterior.sum(-1, keepdims=True), joint, weights * np.float32(1e30), largest, largest.max(0)

    exponents = np.random.default_rng(1).uniform(-20, -17, (2, 6, 8))
    likelihoods = (10**exponents).astype(np.float32)
    return tiny_likelihoods, (*likelihoods, positive(2, 8), normal(3, 6, 8) * 3)
