"""Two networks for images of 224²: ResNet-50 forward with stored statistics, MobileNetV2 trained one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.sizes import Program, array, sized

_MOBILENET = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
"""Expansion, channels, blocks, stride of the first: table 2 of Sandler et al., MobileNetV2 (2018)."""


class _ResNet(nn.Module):
    """ResNet-50 (He et al. 2015, table 1), the stride in the 3×3 convolution."""

    size: Callable[[int], int]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def convolution(x: Any, channels: int, kernel: int, stride: int = 1) -> Any:
            x = nn.Conv(channels, (kernel, kernel), (stride, stride), use_bias=False)(x)
            return nn.BatchNorm(use_running_average=True)(x)

        x = nn.relu(convolution(x, self.size(64), 7, 2))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            narrow, wide = self.size(64 << stage), self.size(256 << stage)
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                y = nn.relu(convolution(x, narrow, 1))
                y = nn.relu(convolution(y, narrow, 3, stride))
                y = convolution(y, wide, 1)
                x = nn.relu(y + (x if block else convolution(x, wide, 1, stride)))
        return nn.Dense(self.size(1000))(x.mean((1, 2)))


class _MobileNet(nn.Module):
    """MobileNetV2, in training: batch normalization by the batch's own statistics."""

    size: Callable[[int], int]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def convolution(x: Any, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
            x = nn.Conv(channels, (kernel, kernel), (stride, stride), feature_group_count=groups, use_bias=False)(x)
            return nn.BatchNorm(use_running_average=False, momentum=0.9)(x)

        x = nn.relu6(convolution(x, self.size(32), 3, 2))
        for expansion, channels, blocks, first_stride in _MOBILENET:
            for block in range(blocks):
                stride = first_stride if not block else 1
                inner = expansion * x.shape[-1]
                y = nn.relu6(convolution(x, inner)) if expansion > 1 else x
                y = nn.relu6(convolution(y, inner, 3, stride, inner))
                y = convolution(y, self.size(channels))
                x = x + y if x.shape == y.shape else y
        x = nn.relu6(convolution(x, self.size(1280)))
        return nn.Dense(self.size(1000))(x.mean((1, 2)))


def resnet_forward(scale: float, side: int | None = None) -> Program:
    """4 images, of the given side where they are not cut as everything else is."""
    images = _images(scale, 4, side)
    network = _ResNet(sized(scale, least=2))
    return network.apply, (jax.eval_shape(network.init, jax.random.key(0), images), images)


def mobilenet_train_step(scale: float, side: int | None = None) -> Program:
    """Gradient descent with momentum on 8 images; the running statistics of batch normalization are results too."""
    images = _images(scale, 8, side)
    network = _MobileNet(sized(scale, least=2))
    variables = jax.eval_shape(network.init, jax.random.key(0), images)

    def step(parameters: Any, momentum: Any, statistics: Any, images: Any, labels: Any) -> Any:
        def loss(weights: Any) -> Any:
            given = {"params": weights, "batch_stats": statistics}
            logits, changed = network.apply(given, images, mutable=["batch_stats"])
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean(), changed["batch_stats"]

        (value, changed), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return value, jax.tree.map(lambda p, m: p - 0.05 * m, parameters, momentum), momentum, changed

    weights = variables["params"]
    return step, (weights, weights, variables["batch_stats"], images, array(images.shape[0], dtype=np.int32))


def _images(scale: float, batch: int, side: int | None) -> Any:
    side = side or sized(scale, least=8)(224)
    return array(sized(scale, least=2)(batch), side, side, 3)
