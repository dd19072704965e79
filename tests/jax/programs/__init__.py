"""Programs as JAX's, Flax's and Optax's documentation has them, written anew, each for one part of JAX."""

from tests.jax.programs import arrays, control, devices, differentiating, effects, fresh, libraries, science
from tests.jax.programs.program import PROGRAMS, Call

__all__ = [
    "PROGRAMS",
    "Call",
    "arrays",
    "control",
    "devices",
    "differentiating",
    "effects",
    "fresh",
    "libraries",
    "science",
]
