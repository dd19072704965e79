"""The registry of library calls."""

import pytest

import hloexec.ops.library_calls  # noqa: F401  (fills the registry)
from hloexec.ops.registry import CUSTOM_CALLS, custom_call, find_custom_call


def test_an_unknown_target_has_no_entry():
    assert find_custom_call("no_such_library") is None


def test_two_built_in_entries_for_one_target_are_a_mistake():
    with pytest.raises(ValueError, match="two entries"):

        @custom_call("__cublas$gemm")
        class Again:
            evaluate = staticmethod(lambda: None)


def test_every_entry_says_what_it_computes_and_where_that_is_written():
    for entry in CUSTOM_CALLS.values():
        assert "Source:" in entry.documentation, entry.name
