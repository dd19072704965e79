"""Programs in the style of real ones, lowered by JAX and compiled by XLA:CPU, in which faults are planted at random.

The modules here hold the programs; `HELD` says which of them are not looked at while `diff` is worked on, so that what
is measured on them is measured once; `RESERVE` and `FRESH`, which of them came later and are not looked at before that.
"""

from evaluation.programs import (
    decisions,
    devices,
    fresh,
    learning,
    loops,
    moving,
    numeric,
    ordinary,
    ordinary_methods,
    reserve_learning,
    reserve_methods,
    sequences,
    vision,
)
from evaluation.programs.program import Program

__all__ = ["FRESH", "HELD", "LATER", "MOVING", "ORDINARY", "PROGRAMS", "RESERVE", "Program"]

PROGRAMS: dict[str, Program] = {
    program.name: program
    for module in (
        learning, sequences, vision, numeric, loops, decisions, devices, reserve_learning, reserve_methods, fresh,
        ordinary, ordinary_methods, moving,
    )
    for program in module.PROGRAMS
}  # fmt: skip
"""All of them by name."""

HELD = frozenset(
    "adam_bf16 lstm vit_block_bf16 kalman_filter ppo_loss ray_marching conjugate_gradient "
    "sampling_loop collatz quantized_matmul associative_scan gaussian_process top_k_sampling "
    "contrastive_bf16 line_search expert_parallel sharded_train_step graph_network event_machine".split()
)
"""The programs of the held half; all others, those of later sets aside, are of the seen one."""

RESERVE = frozenset(program.name for module in (reserve_learning, reserve_methods) for program in module.PROGRAMS)
"""Programs written after the search of `diff`, and not looked at until it is measured."""

FRESH = frozenset(program.name for program in fresh.PROGRAMS)
"""Programs written after that, in the same way."""

ORDINARY = frozenset(program.name for module in (ordinary, ordinary_methods) for program in module.PROGRAMS)
"""Programs on which the time of `diff` is measured; they belong to no half, either."""

MOVING = frozenset(program.name for program in moving.PROGRAMS)
"""Programs for the layouts that `edits` edits, written after all of these, and in the same way."""

LATER = RESERVE | FRESH | ORDINARY | MOVING
"""Those that belong to no half."""
