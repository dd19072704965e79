"""The public API: what `import hloexec` gives, and what it costs."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys

import numpy as np
import pytest

import hloexec

TEXT = """HloModule tiny
ENTRY main { x = f32[2] parameter(0)
  ROOT y = f32[2] add(x, x) }
"""


def test_the_five_lines_of_the_readme_work(tmp_path):
    path = tmp_path / "module.txt"
    path.write_text(TEXT)
    module = hloexec.load(path)
    hloexec.verify(module)
    (x,) = hloexec.random_inputs(module, seed=0)
    np.testing.assert_array_equal(hloexec.run(module, x), x + x)
    assert hloexec.parse(hloexec.format(module)) == module


def test_importing_brings_in_neither_numpy_nor_the_operations():
    program = (
        "import sys, hloexec\n"
        "assert 'numpy' not in sys.modules and 'hloexec.ops' not in sys.modules\n"
        "import hloexec.language.verifier, hloexec.engine.exec\n"
        "assert callable(hloexec.verify) and callable(hloexec.run)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_public_name_is_there():
    for name in hloexec.__all__:
        assert getattr(hloexec, name) is not None
    assert set(hloexec.__all__) <= set(dir(hloexec))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hloexec.nonsense  # noqa: B018


def test_gzipped_text_is_found_by_its_content(tmp_path):
    path = tmp_path / "module.anything"
    path.write_bytes(gzip.compress(TEXT.encode(), mtime=0))
    assert hloexec.load(path).name == "tiny"


def test_a_dash_reads_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    module = hloexec.load("-")
    assert (module.name, module.filename) == ("tiny", "<stdin>")


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("m.txt", b"", hloexec.InputError, "is empty"),
        ("m.txt", b"  \n\n", hloexec.InputError, "is empty"),
        ("m.gz", b"\x1f\x8b\x08broken", hloexec.InputError, "m.gz"),
        ("m.gz", gzip.compress(TEXT.encode(), mtime=0)[:-9], hloexec.InputError, "m.gz"),
        ("m.txt", b"this is no HLO", hloexec.ParseError, "m.txt:1:"),
    ],
)
def test_what_is_not_a_module_is_refused(tmp_path, name, content, error, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        hloexec.load(path)


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path):
    with pytest.raises(hloexec.InputError, match=r"cannot read .*nothing: No such file"):
        hloexec.load(tmp_path / "nothing")
    with pytest.raises(hloexec.InputError, match=r"is a folder; name a file in it"):
        hloexec.load(tmp_path)
