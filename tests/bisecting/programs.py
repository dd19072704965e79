"""Modules to bisect, and an environment whose XLA has a faulty pass."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

RICH = """HloModule rich

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
less { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=LT }
more { g = f32[8,8] parameter(0)  ROOT r = f32[8,8] sine(g) }
half { h = f32[8,8] parameter(0)
  k = f32[] constant(0.5)
  ks = f32[8,8] broadcast(k), dimensions={}
  ROOT r = f32[8,8] multiply(h, ks) }
condition { p = (s32[], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT lt = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8,8] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[8,8] cosine(x)
  ROOT t = (s32[], f32[8,8]) tuple(j, y) }

ENTRY e {
  x = f32[8,8] parameter(0)
  w = f32[8,8] parameter(1)
  q = pred[] parameter(2)
  called = f32[8,8] call(x), to_apply=half
  logistic = f32[8,8] logistic(called)
  wt = f32[8,8] transpose(w), dimensions={1,0}
  d = f32[8,8] dot(logistic, wt), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  rw = f32[8,8] reduce-window(d, zero), window={size=1x8 pad=0_0x7_0}, to_apply=add
  th = f32[8,8] tanh(rw)
  z = s32[] constant(0)
  init = (s32[], f32[8,8]) tuple(z, th)
  loop = (s32[], f32[8,8]) while(init), condition=condition, body=body
  out = f32[8,8] get-tuple-element(loop), index=1
  c = f32[8,8] conditional(q, out, out), true_computation=more, false_computation=half
  b = bf16[8,8] convert(c)
  bb = bf16[8,8] multiply(b, b)
  cc = f32[8,8] convert(bb)
  m = f32[8] constant({1,2,3,4,5,6,7,1.25})
  bn = f32[8,8] batch-norm-inference(cc, m, m, m, m), epsilon=0.01, feature_index=1
  e1 = f32[8,8] exponential(bn)
  e2 = f32[8,8] exponential(bn)
  ee = f32[8,8] add(e1, e2)
  s = f32[8,8] sort(ee), dimensions={1}, to_apply=less
  r1 = f32[64] reshape(s)
  r2 = f32[64] negate(r1)
  r3 = f32[8,8] reshape(r2)
  at = s32[2,1] constant({{1},{5}})
  g = f32[2,8] gather(r3, at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  sc = f32[8,8] scatter(r3, at, g), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  ROOT t = (f32[8,8], f32[8,8]) tuple(sc, d)
}
"""
"""A module that two dozen passes of XLA:CPU change."""

_PROGRAM = """#!{python}
import sys
sys.argv[:1] = []
sys.path[:0] = [{root!r}]
from tests.bisecting.programs import run_faulty
run_faulty(*{fault!r})
"""


def write_environment(path: Path, pass_name: str, right: str, wrong: str) -> str:
    """The SPEC of XLA:CPU as this environment has it, but for a pass that writes `wrong` in place of `right`."""
    fault = (pass_name, right, wrong)
    path.write_text(_PROGRAM.format(python=sys.executable, root=str(ROOT), fault=fault))
    path.chmod(0o755)
    return f"python:{path}"


def run_faulty(pass_name: str, right: str, wrong: str) -> None:
    """Answer questions as the worker does, with what hloexec gives for XLA's module if the pass has changed it.

    XLA dumps the module after each of its passes. From the pass on, its text is edited.
    """
    import tempfile

    import hloexec
    from hloexec.core.values import arrays_of
    from hloexec.tools.counterparts import worker
    from hloexec.tools.diffing.folders import dumped_modules

    compiling = worker._compiling

    def faulty(**settings: object) -> worker.Run:
        run = compiling(**settings)  # type: ignore[arg-type]

        def run_edited(header: worker.Header, inputs: list[worker.Row], reply: worker.Header) -> list[worker.Row]:
            with tempfile.TemporaryDirectory() as folder:
                header["dump"] = header["dump"] or folder
                rows = run(header, inputs, reply)
                (module,) = dumped_modules(header["dump"])
                edited = list(module.stages)
                names = [stage.name for stage in edited]
                if pass_name not in names:
                    return [*rows]
                for stage in edited[names.index(pass_name) :]:
                    text = stage.path.read_text()
                    assert right in text
                    stage.path.write_text(text.replace(right, wrong))
                return [arrays_of(hloexec.run(hloexec.load(edited[-1].path), *inputs[0]))]

        return run_edited

    worker._compiling = faulty  # type: ignore[assignment]
    worker.main()
