"""The modules that faults are planted in: the project's examples, parts of a real dump, and small models.

A model is a module as it is loaded and the inputs of each device, drawn as a user's data would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.pairs.device_models import DEVICE_MODELS
from evaluation.pairs.jax_models import JAX_MODELS
from hloexec.core.ir import ArrayShape, Module
from hloexec.tools.extraction.running import slice_module, slice_of
from tests.text.seeds import seed_path

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@attrs.frozen(eq=False)
class Model:
    """A module and what it is run on."""

    module: Module
    inputs_per_device: Sequence[Sequence[Any]]


@cache
def model(name: str) -> Model:
    """One of the models; LookupError where a dump that it is a part of is not here."""
    return MODELS[name]()


def _example(name: str) -> Model:
    module = hloexec.load(_EXAMPLES / f"{name}.hlo")
    inputs: list[Any] = list(hloexec.random_inputs(module, seed=5))
    if module.num_partitions == 1:
        return Model(module, [inputs])
    # The devices share their weights, and each has data of its own.
    weights, *data = inputs
    shares = range(module.num_partitions)
    return Model(module, [[weights, *(np.roll(each, n, -1) * np.float32(1 + n) for each in data)] for n in shares])


def _of_decoder_block(target: str, cuts: Sequence[str]) -> Model:
    """A part of a served decoder block, optimized for GPU, that runs in no time."""
    path = seed_path("002_2b3b731b0feb0bfe.txt")
    if path is None:
        raise LookupError("the dump 002 is not here")
    module = hloexec.load(path)
    part = slice_module(module, slice_of(module.by_name["command_buffer"], target, cuts=cuts))
    return Model(part, [list(hloexec.random_inputs(part, seed=6))])


def _from_jax(name: str) -> Model:
    import jax

    function, arguments = JAX_MODELS[name](jax)
    return Model(hloexec.from_jax(function, *arguments), [jax.tree.leaves(arguments)])


def _for_four_devices(name: str) -> Model:
    module = hloexec.parse(DEVICE_MODELS[name])
    generator = np.random.default_rng(3)
    sizes = [each.shape.dimensions for each in module.entry.parameters if isinstance(each.shape, ArrayShape)]
    return Model(module, [[generator.normal(size=size).astype(np.float32) for size in sizes] for _ in range(4)])


def _makers() -> dict[str, Callable[[], Model]]:
    found: dict[str, Callable[[], Model]] = {}
    for name in "attention attention.optimized mlp_train_step rnn_scan data_parallel_step markov_chain".split():
        found[name] = partial(_example, name)
    block = partial(_of_decoder_block, "get-tuple-element.1.0", ["loop_gather_fusion", "gemm_fusion_dot.7.0"])
    found["gated_mlp_of_002"] = block
    found["rotary_norm_of_002"] = partial(_of_decoder_block, "input_concatenate_fusion", ["get-tuple-element.4.0"])
    found |= {name: partial(_from_jax, name) for name in JAX_MODELS}
    found |= {name: partial(_for_four_devices, name) for name in DEVICE_MODELS}
    return found


MODELS = _makers()
"""How each of the models is made, by name."""
