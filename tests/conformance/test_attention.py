"""Transformer Engine's attention in operations of XLA:CPU keeps to the bounds that hold for hloexec's own.

The tests of hloexec's call check it against JAX in f64; here they check what XLA:CPU makes of the equivalent module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from conformance import xla

if not xla.available():
    pytest.skip("jaxlib is not installed", allow_module_level=True)

from tests.library_calls.calls import attributes_text, call_text
from tests.library_calls.transformer_engine import test_attention as of_hloexec


def run_by_xla(target: str, operands: Sequence[Any], results: Sequence[str], config: Mapping[str, Any]) -> list[Any]:
    text = call_text(target, operands, results, attributes_text(config))
    return xla.run_hlo(xla.equivalent_module(text), *operands, xla_flags=xla.COMPILED_SOONEST)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_and_its_gradients(monkeypatch: pytest.MonkeyPatch, groups: int, mask: str, name: str) -> None:
    monkeypatch.setattr(of_hloexec, "run_call", run_by_xla)
    b, s, t, h, d, e = 2, 5, 7, 4, 8, 6
    shapes = (b, s, h, d), (b, t, groups, d), (b, t, groups, e)
    q, k, v = (of_hloexec.numbers(seed, shape, name) for seed, shape in enumerate(shapes))
    case = of_hloexec.Case(q, k, v, of_hloexec.seen(mask, [s] * b, [t] * b, s, t))
    tail = of_hloexec.plain_tail([s] * b, [t] * b)
    of_hloexec.check(case, name, tail, mask_type=of_hloexec.MASKS[mask])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"mask_type": 1}, "it has padding"), ({"dropout_probability": 0.5}, "its attribute dropout_probability is 0.5")],
)
def test_what_has_no_equivalent_is_refused(changes: dict[str, Any], reason: str) -> None:
    q, k, v = (of_hloexec.numbers(seed, (2, 5, 4, 8)) for seed in range(3))
    nothing = of_hloexec.numbers(0, (0,))
    operands = [q, k, v, nothing, of_hloexec.lengths([2]), *of_hloexec.plain_tail([5, 5], [5, 5])]
    text = call_text(
        "te_fused_attn_forward_ffi",
        operands,
        "f32[2,5,4,8] f32[2,4,5,1] u32[2,4] u8[1]".split(),
        attributes_text(of_hloexec.ATTRIBUTES | changes),
    )
    with pytest.raises(xla.XlaError, match=reason):
        xla.equivalent_module(text)
