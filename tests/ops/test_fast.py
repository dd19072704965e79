"""Every fast variant gives the bits of its definition, and is what runs where shapes and types are known."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hloexec
from conformance.cell import Example, module_text
from conformance.matrix import examples_of
from hloexec.core.tree import flat
from hloexec.language.element_types import accepted_element_types
from hloexec.ops import registry
from hloexec.ops.registry import OPCODES

TYPES = "f32 bf16 f64 s32 u8 pred".split()
MOST = 6
"""Examples of each opcode and type."""
LONG = {
    ("reduce-window", "f32"): (
        Example(
            "reduce-window",
            "f32",
            "f32[4,8]",
            "reduce-window($0, $1), window={size=1x9 stride=1x9 pad=0_0x3_5}, to_apply=@sum",
            (np.sin(np.arange(256, dtype=np.float32)).reshape(4, 64), np.zeros((), np.float32)),
            computations="@sum { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b) }\n",
        ),
    )
}
"""Windows that are worth an array of rows."""
NAMES = [name for name, entry in sorted(OPCODES.items()) if entry.fast.bind is not None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_fast_variants_have_the_bits_of_their_definitions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: Counter[str] = Counter()
    chosen = registry.Site.fast

    def counted(site: registry.Site, operands: Any = None) -> Any:
        found = chosen(site, operands)
        bound[site.entry.name] += found is not None
        return found

    accepted = {entry.name for entry in accepted_element_types(OPCODES[name]) or ()}
    for element_type in [each for each in TYPES if each in accepted]:
        drawn = [*examples_of(name, element_type, MOST, seed=3), *LONG.get((name, element_type), ())]
        examples = [example for example in drawn if example.runs]
        with monkeypatch.context() as patched:
            patched.setattr(registry.Site, "fast", counted)
            found = _leaves(examples)
        with monkeypatch.context() as patched:
            patched.setattr(registry.Site, "fast", lambda site, operands=None: None)
            expected = _leaves(examples)
        for example, ours, theirs in zip(examples, found, expected, strict=True):
            for one, other in zip(flat(ours), flat(theirs), strict=True):
                assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), example
    assert bound[name], "no example has one"


def _leaves(examples: Sequence[Example]) -> list[Any]:
    """What examples give, each instruction run by itself."""
    operands = [operand for example in examples for operand in example.operands]
    return list(hloexec.run(hloexec.parse(module_text(examples)), *operands, planner=False)) if examples else []
