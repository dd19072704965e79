"""Long names on narrow terminals: nothing is cut."""

from pathlib import Path

import numpy as np
import pytest

from tests.otherwise import problems

LONG = """HloModule module_of_a_name_that_is_long_enough_to_fill_a_line, is_scheduled=true

a_reducer_with_quite_a_long_name_of_its_own { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

ENTRY the_entry_computation_with_a_long_name_too {
  parameter_with_a_name_of_forty_characters = f32[16,1024]{1,0} parameter(0)
  product_with_a_name_that_no_column_holds_as_it_is = f32[16,16]{1,0} dot(parameter_with_a_name_of_forty_characters, parameter_with_a_name_of_forty_characters), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  logarithm_with_a_name_that_no_column_holds.12345 = f32[16,16]{1,0} log(product_with_a_name_that_no_column_holds_as_it_is)
  zero_with_a_name_that_no_column_holds_either = f32[] constant(0)
  ROOT reduced_with_a_name_that_no_column_can_hold = f32[16]{0} reduce(logarithm_with_a_name_that_no_column_holds.12345, zero_with_a_name_that_no_column_holds_either), dimensions={1}, to_apply=a_reducer_with_quite_a_long_name_of_its_own
}
"""
RANGE = ["--range", "0=-2:2"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "long.hlo", *RANGE], 0),
        (["nan", "long.hlo", *RANGE], 1),
        (["trace", "long.hlo", "-o", "t", *RANGE], 0),
        ("extract long.hlo -o s --instruction logarithm_with_a_name_that_no_column_holds.12345".split(), 0),
        (["diff", "long.hlo", "other.hlo", *RANGE], 1),
        (["compare", "a.npz", "b.npz"], 1),
        (["info", "long.hlo"], 0),
        (["info", "long.hlo", "--computations"], 0),
        (["info", "a.npz"], 0),
        (["memory", "long.hlo"], 0),
        (["plan", "long.hlo"], 0),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
@pytest.mark.parametrize("columns", [40, pytest.param(80, marks=pytest.mark.slow)])
def test_long_names_are_not_cut(words: list[str], code: int, columns: int, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "long.hlo").write_text(LONG)
    (folder / "other.hlo").write_text(LONG.replace("log(", "exponential("))
    np.savez(folder / "a.npz", an_array_with_a_name_of_forty_two_letters=np.ones((4, 4), np.float32))
    np.savez(folder / "b.npz", an_array_with_a_name_of_forty_two_letters=np.zeros((4, 4), np.float32))
    assert problems(words, code, folder, columns) == []
