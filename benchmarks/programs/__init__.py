"""The JAX programs whose modules, as they are before optimization, hloexec is measured on.

Each is a function of a scale, which cuts every size (rows, widths, steps, images; not the blocks of ResNet and
MobileNet): 1 is the benchmark, 0.1 what the StableHLO interpreter can bear, and 0.02 is for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.programs import (
    clustering,
    convnets,
    diffusion,
    experts,
    graphs,
    physics,
    rendering,
    selective_scan,
    sequences,
    single,
    state_estimation,
    transformer,
)
from benchmarks.programs.sizes import Program
from hloexec.language.interop.through_jaxlib import text_of_module

__all__ = ["PROGRAMS", "hlo_text", "stablehlo_text"]

PROGRAMS: dict[str, Callable[[float], Program]] = {
    "transformer": partial(transformer.train_step, dtype=jnp.float32),
    "transformer-bf16": partial(transformer.train_step, dtype=jnp.bfloat16),
    "resnet": convnets.resnet_forward,
    "mobilenet": convnets.mobilenet_train_step,
    "lstm": sequences.lstm_gradient,
    "experts": experts.top_2_layer,
    "sort": single.sort_pairs,
    "embedding": single.embedding_gradient,
    "chain": single.elementwise_chain,
    "norm-softmax": single.layer_norm_softmax,
    "cumsum": single.cumulative_sum,
    "threefry": single.threefry_normal,
    "depthwise": single.depthwise_convolution,
    "mlp-bf16": single.bf16_mlp,
    "newton": sequences.newton,
    "fft": single.fourier,
    "max-pool": single.max_pool_gradient,
    "unet": diffusion.unet_train_step,
    "mamba": selective_scan.mamba_train_step,
    "gru": sequences.gru_train_step,
    "kalman": state_estimation.kalman_smoother,
    "k-means": clustering.k_means,
    "ray-march": rendering.ray_march,
    "graph": graphs.graph_network_train_step,
    "pinn": physics.pinn_train_step,
}


def hlo_text(name: str, scale: float = 1.0) -> str:
    """The program's module before optimization, as HLO text with all constants whole."""
    return text_of_module(_lowered(name, scale).compiler_ir("hlo").get_hlo_module())


def stablehlo_text(name: str, scale: float = 1.0) -> str:
    """The same module in StableHLO, as JAX emits it."""
    return _lowered(name, scale).as_text()


def _lowered(name: str, scale: float) -> jax.stages.Lowered:
    function, arguments = PROGRAMS[name](scale)
    return jax.jit(function, keep_unused=True).lower(*arguments)
