"""Where JAX printed a module without source lines, commands that blame an instruction say how it prints them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hloexec.cli import main

_TEXT = "HloModule jit_f\n\nENTRY main {\n  x = f32[2] parameter(0)\n  ROOT log.1 = f32[2] log(x)%s\n}\n"
_ADVICE = "the text has no source lines; JAX prints them: lowered.as_text('hlo', debug_info=True)"


@pytest.mark.parametrize(
    ("text", "is_advised"),
    [
        (_TEXT % "", True),
        (_TEXT % ', metadata={op_name="jit(f)/log"}', False),
        (_TEXT.replace("jit_f", "m") % "", False),
    ],
)
def test_a_module_of_jax_without_metadata_is_printed_with_it_by_debug_info(
    text: str, is_advised: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, other, inputs = (str(tmp_path / name) for name in ("m.hlo", "other.hlo", "x.npz"))
    Path(module).write_text(text)
    Path(other).write_text(text.replace("log(x)", "sine(x)"))
    np.savez(inputs, np.float32([-1, 2]))
    for arguments in (["nan", module, "--inputs", inputs], ["diff", module, other]):
        assert main(arguments) == 1
        assert (_ADVICE in capsys.readouterr().out) == is_advised
    assert main(["diff", module, module]) == 0
    assert _ADVICE not in capsys.readouterr().out


def test_debug_info_is_what_jax_calls_it() -> None:
    jax = pytest.importorskip("jax")
    import hloexec
    from hloexec.language.origins import advice_on_source_lines

    lowered = jax.jit(lambda x: jax.numpy.log(x)).lower(np.float32([1]))
    assert advice_on_source_lines(hloexec.parse(lowered.as_text("hlo"))) is not None
    assert advice_on_source_lines(hloexec.parse(lowered.as_text("hlo", debug_info=True))) is None
