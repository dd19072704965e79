"""Where the functions of LAPACK come from: SciPy's compiled modules by themselves, or its package."""

import subprocess
import sys

import pytest

pytest.importorskip("scipy")

_CHOLESKY = """
import sys
import numpy as np
import hloexec
import hloexec.ops.library_calls.linalg.solver_calls as routines
{before}
module = hloexec.parse('''HloModule m
ENTRY main {{
  a = f64[2,2] parameter(0)
  ROOT r = (f64[2,2], s32[]) custom-call(a), custom_call_target="lapack_dpotrf_ffi", backend_config={{uplo = 76 : ui8}}
}}''')
factor, info = hloexec.run(module, np.array([[4.0, 2.0], [2.0, 5.0]]))
assert info == 0 and (np.tril(factor) == [[2, 0], [1, 2]]).all(), factor
assert ("scipy.linalg" in sys.modules) is {is_imported}
import scipy.linalg
assert (scipy.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]), lower=True) == [[2, 0], [1, 2]]).all()
assert scipy.linalg.lapack.dpotrf
"""


@pytest.mark.slow_cases("imported before", "not found", "does not load")
@pytest.mark.parametrize(
    ("before", "is_imported"),
    [
        ("", False),
        ("import scipy.linalg", True),
        ("routines.PathFinder = type('None_', (), {'find_spec': staticmethod(lambda *_: None)})", True),
        ("routines.module_from_spec = lambda spec: (_ for _ in ()).throw(ImportError())", True),
    ],
    ids=["not imported", "imported before", "not found", "does not load"],
)
def test_lapack_is_imported_without_the_rest_of_scipy_where_it_can_be(before: str, is_imported: bool) -> None:
    code = _CHOLESKY.format(before=before, is_imported=is_imported)
    subprocess.run([sys.executable, "-c", code], check=True)
