"""The training step of a mixture of experts, optimized for sixteen GPUs, at a size that fits an ordinary computer.

Its text is rewritten with every large extent divided by one number. Multiples of 64 are divided; what stands beyond one
(the 1 of 2049 = 2048 + 1) and small extents (experts, microbatches, devices, trips) stay. So equal extents stay equal,
and products stay products as long as just one factor is divided; a table says what becomes of the others. Slices,
bounds of indices and means follow their extents. What comes of it has to verify, and its bitcasts have to keep all
elements.
"""

import re
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.core.ir import Module
from hloexec.ops.attributes import computation_names
from tests.text.seeds import seed_path

LOOP_BODIES = (
    "region_0.1585.sunk.clone.sunk.clone.clone.clone.clone_spmd.clone.clone.clone.clone.clone.clone.clone",
    "region_30.3928_spmd",
)
"""The computations that are the bodies of while loops."""

_UNIT = 64
_EXTENTS = {
    # The state of random numbers: 9 · 2 · 4 words.
    72: lambda divided: 72,
    65608: lambda divided: divided(65536) + 72,
    12582912: lambda divided: divided(2048) * divided(6144),
    # Long sums are made in two levels: 24576 = 128 · 192, 32768 = 128 · 256.
    192: lambda divided: 192,
    256: lambda divided: 256,
}
"""What becomes of extents that are made otherwise than by dividing multiples of 64."""
_PLACES = {
    # The batch is 4 microbatches of 32 sequences, and 32 is not divided.
    "s32[128,8192]": "s32[128,{sequence}]",
    # Sums of 65536 = 256 · 256 in two levels.
    "[256,256]": "[256,{tile}]",
    "[256,256,6144]": "[256,{tile},{model}]",
    # Sums along 16384 = 64 · 16 · 16 places, made in three levels; the last level has 64 = 4 · 16 of them.
    "s32[1,4,8,4,16]": "s32[1,4,8,1,{places}]",
    "s32[1,4,8,4,1]": "s32[1,4,8,1,1]",
    "s32[1,4,8,4]": "s32[1,4,8,1]",
    "s32[1,4,8,5]": "s32[1,4,8,2]",
    "s32[4,8,4]": "s32[4,8,1]",
    "slice={[0:1], [0:4], [0:8], [0:4], [15:16]}": "slice={{[0:1], [0:4], [0:8], [0:1], [{last}:{places}]}}",
    "slice={[0:1], [0:4], [0:8], [0:4]}": "slice={{[0:1], [0:4], [0:8], [0:1]}}",
    "size=1x1x1x4 pad=0_0x0_0x0_0x4_0": "size=1x1x1x1 pad=0_0x0_0x0_0x1_0",
    # Bounds of indices.
    "constant({31, 8191, 7})": "constant({{31, {last_place}, 7}})",
    # 1 / 6144 and 2 / 6144, of means.
    "constant(0.000162760422)": "constant({mean:.9g})",
    "constant(0.000325520843)": "constant({twice_mean:.9g})",
    # 1 / 128, of the exponents of rotary embeddings.
    "constant(0.0078125)": "constant({head:.9g})",
}
"""What stands, cut down, for pieces of text in which an extent of two factors, or a small one, is made of a large one."""
_PIECES = re.compile(
    "|".join(
        [
            *map(re.escape, _PLACES),
            r"(?<=[a-z0-9])\[[\d,]+\]",
            r"\b(?:dynamic_)?slice(?:_sizes)?=\{[^}]*\}",
            r"(?<=_max_seqlen = )\d+|(?<=_head_dim = )\d+",
            # Indices count in these units; 524288 = 32 · 16384.
            r"(?<=constant\()(?:2048|8192|16384)(?=\))|(?<=constant\(\{)524288(?=\}\))",
        ]
    )
)


def load_dump() -> Module:
    """The dump, as it is; skips the test where it is not there."""
    path = seed_path("000_c00fd3afea504246.txt")
    if path is None:
        pytest.skip("the dump 000 is not here")
    return hloexec.load(path)


def alone(module: Module, name: str) -> Module:
    """A computation and what it calls, as a module of its own."""
    reached, pending = {name}, [name]
    while pending:
        called = {n for i in module.by_name[pending.pop()] for n in computation_names(i.attributes)} - reached
        reached |= called
        pending += called
    return Module(
        name="alone",
        computations=tuple(computation for computation in module if computation.name in reached),
        entry_name=name,
        is_scheduled=module.is_scheduled,
        num_partitions=module.num_partitions,
    )


def cut_down(module: Module, divisor: int) -> Module:
    """The dump, or a part of it, with its large extents divided by `divisor`, a power of two up to 64."""

    def divided(extent: int) -> int:
        if extent in _EXTENTS:
            return _EXTENTS[extent](divided)
        whole, rest = divmod(extent, _UNIT)
        return whole * (_UNIT // divisor) + rest

    places = divided(64)
    known = {
        "sequence": divided(8192),
        "model": divided(6144),
        "tile": 256 // divisor,
        "places": places,
        "last": places - 1,
        "last_place": divided(8192) - 1,
        "head": 1 / divided(128),
        "mean": 1 / divided(6144),
        "twice_mean": 2 / divided(6144),
    }

    def smaller(piece: re.Match[str]) -> str:
        if piece[0] in _PLACES:
            return _PLACES[piece[0]].format(**known)
        return re.sub(r"\d+", lambda extent: str(divided(int(extent[0]))), piece[0])

    return attrs.evolve(hloexec.parse(_PIECES.sub(smaller, hloexec.format(module, metadata=False))), source=None)


def elided_constants() -> dict[str, np.ndarray[Any, Any]]:
    """The tables that the dump elides: which stage of the pipeline each device is (the table is compared with 0 and 1),
    and which of the 32 sequences of a microbatch are its own (the table is clamped to 7 and multiplied by 4).
    """
    stage, shard = np.arange(16) // 8, np.arange(16) % 8
    return {
        "constant_1625_0": stage.astype(np.int32),
        "constant_2898_0": stage.astype(np.int32),
        "constant_1684_0": shard.astype(np.int32),
        "constant_2887_0": shard.astype(np.int32),
        "constant_1705_0": shard.astype(np.uint32),
        "constant_2903_0": shard.astype(np.uint32),
        "constant_5301_0": shard.astype(np.uint32),
    }
