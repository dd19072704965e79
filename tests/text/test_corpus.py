"""The corpus of whole programs: round trips, and XLA's opinion of what is printed."""

import pytest

from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from tests.text import oracle

pytest.importorskip("jax", reason="JAX lowers the programs, and XLA reads them")
corpus = pytest.importorskip("tests.text.corpus", reason="the corpus is not here")

_TEXTS = [pytest.param(name, marks=() if name in corpus.VARIED else pytest.mark.slow) for name in corpus.names()]


@pytest.mark.parametrize("name", _TEXTS)
def test_program_survives_printing(name: str) -> None:
    module = parse(corpus.text_of(name), filename=name, strict=True)
    assert parse(format_module(module), strict=True) == module


@pytest.mark.parametrize("name", _TEXTS)
def test_program_is_well_formed(name: str) -> None:
    verify(parse(corpus.text_of(name), filename=name))


@pytest.mark.parametrize("name", _TEXTS)
def test_printed_program_is_the_same_module_to_xla(name: str) -> None:
    text = oracle.with_signed_zeros(corpus.text_of(name))
    assert oracle.canonical_text(format_module(parse(text))) == oracle.canonical_text(text)
