"""What needs several devices, or the host: parsed, verified, printed, read back by XLA; run where one device can."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from conformance.cell import Example
from conformance.cells.generator import Generator
from conformance.cells.reductions import binary
from conformance.values import numbers
from conformance.xla import knows_latest_opcodes


@attrs.frozen
class _Form:
    """Texts in which `T` stands for the element type; the operands are T[4], or s32[2] where named in `integers`."""

    result: str
    instruction: str
    before: tuple[str, ...] = ()
    computations: str = ""
    integers: int = 0
    arrays: int = 1
    is_latest: bool = False
    """Whether only jaxlib that knows the latest opcodes reads it."""


_GROUPS = "replica_groups={{0,1},{2,3}}"
_IOTA = "channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true"
_ROOT = "@r = s32[1] constant({1})"
_ROOTED = f"{_GROUPS}, has_dynamic_root=true"
_TOKEN = "@t = token[] after-all()"
_ASYNC = "@w {\n  p = T[4] parameter(0)\n  ROOT r = T[4] copy(p)\n}\n"
_STARTED = "@s = ((T[4]), T[4], u32[]) async-start($0), calls=@w"

_FORMS: dict[str, tuple[_Form, ...]] = {
    "all-reduce": (
        _Form("T[4]", f"all-reduce($0), {_GROUPS}, to_apply=@c", computations="+"),
        _Form("(T[4], T[4])", f"all-reduce($0, $1), {_IOTA}, to_apply=@c", computations="+", arrays=2),
    ),
    "all-reduce-start": (_Form("T[4]", f"all-reduce-start($0), {_GROUPS}, to_apply=@c", computations="+"),),
    "all-reduce-done": (
        _Form("T[4]", "all-reduce-done(@s)", (f"@s = T[4] all-reduce-start($0), {_GROUPS}, to_apply=@c",), "+"),
    ),
    "all-gather": (
        _Form("T[8]", f"all-gather($0), {_GROUPS}, dimensions={{0}}"),
        _Form("T[8]", f"all-gather($0), {_IOTA}, dimensions={{0}}"),
    ),
    "all-gather-start": (_Form("(T[4], T[8])", f"all-gather-start($0), {_GROUPS}, dimensions={{0}}"),),
    "all-gather-done": (
        _Form("T[8]", "all-gather-done(@s)", (f"@s = (T[4], T[8]) all-gather-start($0), {_GROUPS}, dimensions={{0}}",)),
    ),
    "collective-reduce": (
        _Form("T[4]", f"collective-reduce($0), {_GROUPS}, to_apply=@c", computations="+"),
        _Form("T[4]", f"collective-reduce($0, @r), {_ROOTED}, to_apply=@c", (_ROOT,), "+"),
    ),
    "reduce-scatter": (
        _Form("T[2]", f"reduce-scatter($0), {_GROUPS}, dimensions={{0}}, to_apply=@c", computations="+"),
    ),
    "all-to-all": (
        _Form("T[4]", f"all-to-all($0), {_GROUPS}, dimensions={{0}}"),
        _Form("(T[4], T[4])", f"all-to-all($0, $1), {_GROUPS}", arrays=2),
    ),
    "ragged-all-to-all": (
        _Form("T[4]", f"ragged-all-to-all($0, $1, $2, $3, $4, $5), {_GROUPS}", arrays=2, integers=4),
    ),
    "collective-broadcast": (
        _Form("T[4]", f"collective-broadcast($0), {_GROUPS}"),
        _Form("T[4]", f"collective-broadcast($0, @r), {_ROOTED}", (_ROOT,), is_latest=True),
    ),
    "collective-permute": (_Form("T[4]", "collective-permute($0), source_target_pairs={{0,1},{1,2}}"),),
    "collective-permute-start": (
        _Form("(T[4], T[4], u32[], u32[])", "collective-permute-start($0), source_target_pairs={{0,1}}"),
    ),
    "collective-permute-done": (
        _Form(
            "T[4]", "collective-permute-done(@s)",
            ("@s = (T[4], T[4], u32[], u32[]) collective-permute-start($0), source_target_pairs={{0,1}}",),
        ),
    ),
    "partition-id": (_Form("u32[]", "partition-id()"),),
    "replica-id": (_Form("u32[]", "replica-id()"),),
    "async-start": (_Form("((T[4]), T[4], u32[])", "async-start($0), calls=@w", computations=_ASYNC),),
    "async-update": (_Form("((T[4]), T[4], u32[])", "async-update(@s)", (_STARTED,), _ASYNC),),
    "async-done": (_Form("T[4]", "async-done(@s)", (_STARTED,), _ASYNC),),
    "copy-start": (_Form("(T[4], T[4], u32[])", "copy-start($0)"),),
    "copy-done": (_Form("T[4]", "copy-done(@s)", ("@s = (T[4], T[4], u32[]) copy-start($0)",)),),
    "send": (_Form("(T[4], u32[], token[])", "send($0, @t), channel_id=1", (_TOKEN,)),),
    "send-done": (
        _Form(
            "token[]", "send-done(@s), channel_id=1",
            (_TOKEN, "@s = (T[4], u32[], token[]) send($0, @t), channel_id=1"),
        ),
    ),
    "recv": (_Form("(T[4], u32[], token[])", "recv(@t), channel_id=1", (_TOKEN,)),),
    "recv-done": (
        _Form(
            "(T[4], token[])", "recv-done(@s), channel_id=1",
            (_TOKEN, "@s = (T[4], u32[], token[]) recv(@t), channel_id=1"),
        ),
    ),
    "infeed": (_Form("(T[4], token[])", "infeed(@t)", (_TOKEN,)),),
    "outfeed": (_Form("token[]", "outfeed($0, @t), outfeed_shape=T[4]", (_TOKEN,)),),
}  # fmt: skip


_RUN = frozenset({"async-done", "copy-done"})
"""What a single device runs by itself, and whose result is no state."""


def _generate(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for form in _FORMS[opcode]:
        if form.is_latest and not knows_latest_opcodes():
            continue
        operands = tuple(numbers(name, generator, (4,)) for _ in range(form.arrays))
        operands += tuple(generator.integers(0, 2, 2).astype(np.int32) for _ in range(form.integers))
        operation = "or" if name == "pred" else "add"
        computations = binary(operation, name) if form.computations == "+" else form.computations

        def placed(text: str) -> str:
            return text.replace("T[", f"{name}[")

        yield Example(
            opcode, name, placed(form.result), placed(form.instruction), operands,
            before=tuple(map(placed, form.before)), computations=placed(computations), runs=opcode in _RUN,
        )  # fmt: skip


GENERATORS: dict[str, Generator] = dict.fromkeys(_FORMS, _generate)
