"""Other spellings of whole programs: read as XLA reads them, or rejected where it rejects them."""

from functools import cache

import pytest

from hloexec.errors import HloError, ParseError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from tests.drawing import examples
from tests.text import oracle
from tests.text.spellings import spellings

pytest.importorskip("jax", reason="JAX lowers the programs, and XLA reads them")
corpus = pytest.importorskip("tests.text.corpus", reason="the corpus is not here")

_SEED, _COUNT, _TOGETHER = 20_261_124, examples(320), 40


@cache
def _texts() -> tuple[str, ...]:
    texts = (oracle.with_signed_zeros(corpus.text_of(name)) for name in corpus.VARIED)
    return tuple(spellings(texts, _COUNT, _SEED))


@cache
def _xla_verdicts() -> tuple[str | None, ...]:
    return tuple(oracle.verdicts(_texts()))


@pytest.mark.filterwarnings("ignore::hloexec.errors.HloWarning")
@pytest.mark.parametrize("first", range(0, _COUNT, _TOGETHER))
def test_spellings_are_read_as_xla_reads_them(first: int) -> None:
    for number in range(first, min(first + _TOGETHER, _COUNT)):
        text, verdict = _texts()[number], _xla_verdicts()[number]
        if verdict is None:
            printed = format_module(parse(text, strict=True))
            assert oracle.canonical_text(printed) == oracle.canonical_text(text), text
        else:
            with pytest.raises(HloError):
                verify(parse(text, strict=True), strict=True)
                pytest.fail(f"XLA says {verdict} of\n{text}")


def test_spellings_are_accepted_and_rejected() -> None:
    """The comparison means something: XLA accepts a good part, and the parser alone finds most of what it rejects."""
    accepted = sum(verdict is None for verdict in _xla_verdicts())
    assert _COUNT / 3 < accepted < _COUNT * 2 / 3
    unread = sum(isinstance(_fault(text), ParseError) for text in _texts())
    assert unread > 0.95 * (_COUNT - accepted)


def _fault(text: str) -> HloError | None:
    try:
        verify(parse(text, strict=True), strict=True)
    except HloError as error:
        return error
    return None
