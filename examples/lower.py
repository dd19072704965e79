"""Writes the HLO text of the JAX programs in this folder, beside them: `python examples/lower.py`.

Metadata keeps each instruction's source line, with paths relative to the repository.
"""

import importlib
import os
import re
from pathlib import Path

# XLA:CPU otherwise turns some dots and elementwise operations into calls of its own runtime libraries.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_onednn=false --xla_cpu_use_xnnpack=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

FOLDER = Path(__file__).resolve().parent
PROGRAMS = ("attention", "mlp_train_step", "rnn_scan")
OPTIMIZED = ("attention",)


def relative_paths(text: str) -> str:
    """Source files in this repository become relative to it; frames of installed packages keep their file's name."""
    text = text.replace(f"{FOLDER.parent}{os.sep}", "")
    return re.sub(r'"/[^"\n]*/site-packages/([^"\n]*)"', r'"\1"', text)


def main() -> None:
    for name in PROGRAMS:
        program = importlib.import_module(name)
        lowered = jax.jit(program.FUNCTION).lower(*program.ARGUMENTS)
        (FOLDER / f"{name}.hlo").write_text(relative_paths(lowered.as_text("hlo", debug_info=True)), encoding="utf-8")
        if name in OPTIMIZED:
            (FOLDER / f"{name}.optimized.hlo").write_text(relative_paths(lowered.compile().as_text()), encoding="utf-8")


if __name__ == "__main__":
    main()
