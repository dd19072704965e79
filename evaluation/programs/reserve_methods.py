"""Programs of the reserve: statistics, physics, signals, sparse and integer methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program
def _forward_backward(jax: Any) -> Any:
    """A hidden Markov model: probabilities forward and backward, and new estimates of what it consists of."""
    jnp, lax = jax.numpy, jax.lax

    def forward_backward(observed: Any, transition: Any, first: Any, means: Any) -> Any:
        logs = jax.nn.log_softmax(transition)
        likely = -0.5 * ((observed[..., None] - means) / 0.7) ** 2

        def forward(last: Any, given: Any) -> Any:
            new = jax.nn.logsumexp(last[:, :, None] + logs, 1) + given
            return new, new

        def backward(following: Any, given: Any) -> Any:
            new = jax.nn.logsumexp(logs + (given + following)[:, None], 2)
            return new, new

        start = jax.nn.log_softmax(first) + likely[0]
        end, rest = lax.scan(forward, start, likely[1:])
        before = jnp.concatenate([start[None], rest])
        _, rest = lax.scan(backward, jnp.zeros_like(start), likely[1:], reverse=True)
        after = jnp.concatenate([rest, jnp.zeros_like(start)[None]])
        total = jax.nn.logsumexp(end, 1)
        posterior = jnp.exp(before + after - total[:, None])
        joint = before[:-1, :, :, None] + logs + (likely + after)[1:, :, None] - total[:, None, None]
        counts = jnp.exp(joint).sum((0, 1))
        means = jnp.einsum("tbs,tb->s", posterior, observed) / (posterior.sum((0, 1)) + 1e-6)
        return total, posterior, counts / (counts.sum(1, keepdims=True) + 1e-6), means

    return forward_backward, (normal(1, 9, 3) * 3, normal(2, 4, 4) * 2, normal(3, 4), normal(4, 4) * 2)


@_program
def _alignment(jax: Any) -> Any:
    """Needleman and Wunsch: scores of all beginnings row by row, and the way back until both sequences are used up."""
    jnp, lax = jax.numpy, jax.lax

    def alignment(scores: Any, gap: Any, first: Any, second: Any) -> Any:
        columns = jnp.arange(10)

        def row(above: Any, letter: Any) -> Any:
            pairs = above[:-1] + scores[letter, second]
            reached = jnp.maximum(above - gap, jnp.concatenate([above[:1] - gap, pairs]))
            new = lax.cummax(reached + gap * columns) - gap * columns
            return new, new

        top = -gap * columns
        _, rows = lax.scan(row, top, first)
        table = jnp.concatenate([top[None], rows])

        def body(state: Any) -> Any:
            i, j, moves, count = state
            pair = jnp.where((i > 0) & (j > 0), table[i - 1, j - 1] + scores[first[i - 1], second[j - 1]], -1e9)
            up = jnp.where(i > 0, table[i - 1, j] - gap, -1e9)
            left = jnp.where(j > 0, table[i, j - 1] - gap, -1e9)
            move = jnp.argmax(jnp.stack([pair, up, left])).astype(jnp.int32)
            moves = lax.dynamic_update_index_in_dim(moves, move + 1, count, 0)
            return i - (move != 2), j - (move != 1), moves, count + 1

        state = (jnp.int32(11), jnp.int32(9), jnp.zeros(20, jnp.int32), 0)
        _, _, moves, count = lax.while_loop(lambda s: ((s[0] > 0) | (s[1] > 0)) & (s[3] < 20), body, state)
        return table[-1, -1], moves, count, (moves == 1).sum()

    scores = 2 * np.eye(4, dtype=np.float32) - 1 + 0.3 * normal(1, 4, 4)
    return alignment, (scores, np.float32(0.45), integers(2, 4, 11), integers(3, 4, 9))


@_program
def _metropolis(jax: Any) -> Any:
    """Chains of Metropolis and Hastings with a generator of shifts and exclusive ors, until each has moved enough."""
    jnp = jax.numpy

    def drawn(bits: Any) -> Any:
        bits = bits ^ (bits << 13)
        bits = bits ^ (bits >> 17)
        bits = bits ^ (bits << 5)
        return bits, (bits >> 8).astype(jnp.float32) / 2**24

    def metropolis(start: Any, shape: Any, width: Any, seeds: Any) -> Any:
        def density(places: Any) -> Any:
            bent = places[:, 1] - shape[0] * places[:, 0] ** 2 + shape[1]
            return -0.5 * (places[:, 0] ** 2 / 2 + bent**2 * shape[2])

        def body(state: Any) -> Any:
            places, value, bits, moved, total, count = state
            bits, first = drawn(bits)
            bits, second = drawn(bits)
            bits, third = drawn(bits)
            radius = width * jnp.sqrt(-2 * jnp.log(first + 1e-7))
            angle = 2 * np.pi * second
            tried = places + jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], 1)
            new = density(tried)
            taken = (jnp.log(third + 1e-7) < new - value) & (moved < 6)
            places, value = jnp.where(taken[:, None], tried, places), jnp.where(taken, new, value)
            return places, value, bits, moved + taken, total + places, count + 1

        state = (start, density(start), seeds, jnp.zeros(6, jnp.int32), jnp.zeros_like(start), 0)
        state = jax.lax.while_loop(lambda s: jnp.any(s[3] < 6) & (s[5] < 60), body, state)
        places, value, bits, moved, total, count = state
        return places, value, bits, moved, total / count, count

    seeds = (integers(4, 2**30, 6) * 2 + 1).astype(np.uint32)
    return metropolis, (normal(1, 6, 2), np.array([0.5, 0.4, 1.5], np.float32), np.float32(0.9), seeds)


@_program
def _n_body(jax: Any) -> Any:
    """Bodies that attract each other, by a method that keeps the energy; what is conserved, and who comes closest."""
    jnp = jax.numpy

    def n_body(places: Any, speeds: Any, masses: Any) -> Any:
        def separations(places: Any) -> Any:
            apart = places[None] - places[:, None]
            return apart, (apart**2).sum(-1)

        def pull(places: Any) -> Any:
            apart, squares = separations(places)
            strength = masses * (squares + 0.05) ** -1.5
            return (strength[..., None] * apart).sum(1)

        def energy(places: Any, speeds: Any) -> Any:
            _, squares = separations(places)
            bound = masses[:, None] * masses / jnp.sqrt(squares + 0.05)
            potential = jnp.triu(bound, 1).sum()
            return 0.5 * (masses * (speeds**2).sum(-1)).sum() - potential

        def step(state: Any, _: Any) -> Any:
            places, speeds, pulled = state
            speeds = speeds + 0.02 * pulled
            places = places + 0.04 * speeds
            pulled = pull(places)
            speeds = speeds + 0.02 * pulled
            _, squares = separations(places)
            squares = squares + 1e9 * jnp.eye(7)
            closest = squares.reshape(-1).argmin()
            return (places, speeds, pulled), (energy(places, speeds), closest, jnp.sqrt(squares.min()))

        speeds = speeds - (masses[:, None] * speeds).sum(0) / masses.sum()
        (places, speeds, _), seen = jax.lax.scan(step, (places, speeds, pull(places)), None, length=6)
        turning = (masses[:, None] * jnp.cross(places, speeds)).sum(0)
        return places, speeds, turning, seen, energy(places, speeds)

    return n_body, (normal(1, 7, 3) * 3, normal(2, 7, 3), positive(3, 7))


@_program
def _lattice_boltzmann(jax: Any) -> Any:
    """A flow around an obstacle: collisions in every cell, streams to the neighbours, walls that throw back."""
    jnp = jax.numpy
    moves = np.array([(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)])
    shares = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, np.float32)
    back = [0, 3, 4, 1, 2, 7, 8, 5, 6]

    def lattice_boltzmann(flow: Any, solid: Any, rate: Any, push: Any) -> Any:
        axes = moves.astype(np.float32)

        def moments(flow: Any) -> Any:
            density = flow.sum(0)
            return density, jnp.einsum("nk,nij->kij", axes, flow) / density

        def step(_: Any, flow: Any) -> Any:
            density, speed = moments(flow)
            speed = speed.at[0].add(push)
            along = jnp.einsum("nk,kij->nij", axes, speed)
            square = (speed**2).sum(0)
            rest = shares[:, None, None] * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * square)
            collided = jnp.where(solid > 0, flow[np.array(back)], flow + rate * (rest - flow))
            moved = [jnp.roll(collided[n], (int(i), int(j)), (0, 1)) for n, (i, j) in enumerate(moves)]
            return jnp.stack(moved)

        flow = jax.lax.fori_loop(0, 4, step, flow)
        density, speed = moments(flow)
        curl = jnp.roll(speed[1], -1, 0) - jnp.roll(speed[1], 1, 0)
        curl = curl - (jnp.roll(speed[0], -1, 1) - jnp.roll(speed[0], 1, 1))
        return flow, jnp.where(solid > 0, 0.0, curl), density.sum()

    flow = shares[:, None, None] * (1 + 0.2 * normal(1, 9, 8, 6))
    solid = np.zeros((8, 6), np.int32)
    solid[3:5, 2:4] = 1
    return lattice_boltzmann, (flow, solid, np.float32(1.2), np.float32(0.05))


@_program
def _wavelets(jax: Any) -> Any:
    """Three levels of Daubechies' wavelet, small coefficients shrunk by a median of the finest, and the way back."""
    jnp = jax.numpy
    root = np.sqrt(3)
    low = (np.array([1 + root, 3 + root, 3 - root, 1 - root]) / (4 * np.sqrt(2))).astype(np.float32)
    high = (low[::-1] * np.array([1, -1, 1, -1])).astype(np.float32)

    def apart(x: Any) -> Any:
        size = x.shape[-1]
        windows = x[:, (2 * np.arange(size // 2)[:, None] + np.arange(4)) % size]
        return windows @ low, windows @ high

    def joint(smooth: Any, detail: Any) -> Any:
        size = 2 * smooth.shape[-1]
        parts = smooth[..., None] * low + detail[..., None] * high
        places = (2 * np.arange(size // 2)[:, None] + np.arange(4)) % size
        return jnp.zeros((smooth.shape[0], size)).at[:, places].add(parts)

    def wavelets(signal: Any, strength: Any) -> Any:
        smooth, details = signal, []
        for _ in range(3):
            smooth, detail = apart(smooth)
            details.append(detail)
        noise = jnp.sort(jnp.abs(details[0]).reshape(-1))
        limit = strength * 0.5 * (noise[31] + noise[32]) / 0.6745
        kept = [jnp.sign(each) * jnp.maximum(jnp.abs(each) - limit, 0) for each in details]
        energies = jnp.stack([(each**2).sum() for each in [*details, smooth]])
        for detail in reversed(kept):
            smooth = joint(smooth, detail)
        return smooth, energies, sum((each == 0).sum() for each in kept), ((smooth - signal) ** 2).mean(1)

    waves = np.sin(np.linspace(0, 9, 32)[None] * np.array([[1], [2], [0.5], [3]]))
    return wavelets, ((waves + 0.2 * normal(1, 4, 32) * 2).astype(np.float32), np.float32(1.1))


@_program(keeps=[1, 2])
def _sparse_chebyshev(jax: Any) -> Any:
    """A filter of a graph by polynomials of its Laplacian, in products that gather and scatter along edges."""
    jnp = jax.numpy

    def sparse_chebyshev(values: Any, sources: Any, targets: Any, signal: Any, weights: Any) -> Any:
        rows, columns = jnp.concatenate([sources, targets]), jnp.concatenate([targets, sources])
        values = jnp.concatenate([values, values])
        degrees = jnp.zeros(14).at[rows].add(values)
        root = jax.lax.rsqrt(degrees + 1e-3)
        scaled = values * root[rows] * root[columns]

        def product(x: Any) -> Any:
            return -jnp.zeros_like(x).at[rows].add(scaled[:, None] * x[columns])

        def step(state: Any, weight: Any) -> Any:
            last, now, total = state
            new = 2 * product(now) - last
            return (now, new, total + weight * new), (new**2).sum()

        first = product(signal)
        start = (signal, first, weights[0] * signal + weights[1] * first)
        (_, _, total), sizes = jax.lax.scan(step, start, weights[2:])
        largest = jnp.full(14, -1e3).at[rows].max(total[columns, 0])
        pooled = jax.ops.segment_sum(total, jnp.arange(14) // 5, 3)
        return total, sizes, largest, pooled, jnp.argsort(total[:, 1])

    sources = np.concatenate([np.arange(14, dtype=np.int32), integers(2, 14, 10)])
    targets = np.concatenate([np.roll(np.arange(14, dtype=np.int32), 3), integers(3, 14, 10)])
    return sparse_chebyshev, (positive(1, 24), sources, targets, normal(4, 14, 3) * 3, normal(5, 7))


@_program
def _beamformer(jax: Any) -> Any:
    """Complex spectra of four sensors, covariances, equations solved by elimination, and one signal from a direction."""
    jnp, lax = jax.numpy, jax.lax

    def solved(matrix: Any, right: Any) -> Any:
        def eliminate(k: Any, system: Any) -> Any:
            row = lax.dynamic_index_in_dim(system, k, 1, keepdims=False)
            pivot = lax.dynamic_index_in_dim(row, k, 1)
            row = row / pivot
            column = lax.dynamic_index_in_dim(system, k, 2)
            cleared = system - column * row[:, None]
            return jnp.where((jnp.arange(4) == k)[None, :, None], row[:, None], cleared)

        return lax.fori_loop(0, 4, eliminate, jnp.concatenate([matrix, right[..., None]], 2))[..., 4]

    def beamformer(real: Any, imaginary: Any, delays: Any) -> Any:
        heard = lax.complex(real, imaginary)
        spectra = jnp.fft.fft(heard.reshape(4, 3, 8)).transpose(2, 0, 1)
        covariance = spectra @ jnp.conj(spectra.swapaxes(1, 2)) / 3
        loading = 0.1 * jnp.real(jnp.trace(covariance, axis1=1, axis2=2))[:, None, None] + 1e-3
        covariance = covariance + loading * jnp.eye(4)
        angles = -2 * np.pi * jnp.arange(8)[:, None] / 8 * delays
        steering = lax.complex(jnp.cos(angles), jnp.sin(angles))
        weights = solved(covariance, steering)
        weights = weights / (jnp.conj(steering) * weights).sum(1, keepdims=True)
        beam = jnp.einsum("fs,fst->ft", jnp.conj(weights), spectra)
        power = (jnp.abs(beam) ** 2).mean(1)
        turned = jnp.angle(beam[:, 0] * jnp.conj(spectra[:, 0, 0]) + 1e-3)
        signal = jnp.fft.ifft(beam.T)
        return jnp.real(signal), jnp.imag(signal), 10 * jnp.log10(power + 1e-6), turned, weights

    return beamformer, (normal(1, 4, 24) * 3, normal(2, 4, 24) * 3, positive(3, 4))


@_program
def _water_filling(jax: Any) -> Any:
    """Power shared among channels: levels found by bisection until all are exact, and what can be sent then."""
    jnp = jax.numpy

    def water_filling(gains: Any, powers: Any, noise: Any) -> Any:
        floors = noise / (gains**2 + 1e-3)

        def used(levels: Any) -> Any:
            return jnp.maximum(levels[:, None] - floors, 0)

        def goes_on(state: Any) -> Any:
            low, high, count = state
            return jnp.any(high - low > 1e-4 * high) & (count < 50)

        def body(state: Any) -> Any:
            low, high, count = state
            middle = 0.5 * (low + high)
            over = used(middle).sum(1) > powers
            return jnp.where(over, low, middle), jnp.where(over, middle, high), count + 1

        state = (floors.min(1), floors.max(1) + powers, 0)
        low, high, count = jax.lax.while_loop(goes_on, body, state)
        shares = used(0.5 * (low + high))
        shares = shares * (powers / (shares.sum(1) + 1e-9))[:, None]
        rates = jnp.log1p(shares / floors) / np.log(2)
        return shares, rates.sum(1), (shares > 0).sum(1), count

    return water_filling, (normal(1, 5, 7) * 3, positive(2, 5) * 4, positive(3, 7))


@_program
def _hash_table(jax: Any) -> Any:
    """Words put into a table, each where a search from its hash finds room; looked up again; powers modulo a prime."""
    jnp, lax = jax.numpy, jax.lax

    def mixed(key: Any) -> Any:
        key = (key ^ (key >> 16)) * jnp.uint32(0x7FEB352D)
        key = (key ^ (key >> 15)) * jnp.uint32(0x846CA68B)
        return key ^ (key >> 16)

    def hash_table(keys: Any, values: Any, wanted: Any, exponents: Any) -> Any:
        def search(table: Any, key: Any) -> Any:
            def goes_on(state: Any) -> Any:
                place, count = state
                return (table[place] != 0) & (table[place] != key) & (count < 32)

            start = (mixed(key) % 32).astype(jnp.int32)
            return lax.while_loop(goes_on, lambda s: ((s[0] + s[1] + 1) % 32, s[1] + 1), (start, 0))

        def put(state: Any, given: Any) -> Any:
            table, sums = state
            place, count = search(table, given[0])
            return (table.at[place].set(given[0]), sums.at[place].add(given[1])), count

        empty = (jnp.zeros(32, jnp.uint32), jnp.zeros(32, jnp.int32))
        (table, sums), probes = lax.scan(put, empty, (keys, values))

        def look(total: Any, key: Any) -> Any:
            place, _ = search(table, key)
            found = jnp.where(table[place] == key, sums[place], -1)
            return total * 31 + found, found

        checksum, found = lax.scan(look, 7, wanted)

        def square(state: Any) -> Any:
            base, left, result = state
            result = jnp.where(left % 2 == 1, result * base % 8191, result)
            return base * base % 8191, left // 2, result

        start = (wanted % 8191, exponents, jnp.ones_like(wanted))
        _, _, powers = lax.while_loop(lambda s: jnp.any(s[1] > 0), square, start)
        return table, sums, probes, checksum, found, powers, lax.population_count(table)

    keys = (integers(1, 23, 20) * 977 + 5).astype(np.uint32)
    wanted = np.concatenate([keys[::4], keys[:4] + np.uint32(1)])
    return hash_table, (keys, integers(2, 90, 20), wanted, (integers(3, 400, 9) + 1).astype(np.uint32))
