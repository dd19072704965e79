"""Pages of small results: one of each command's, of modules whose names and texts try to be markup."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import attrs
import numpy as np

import hloexec
from hloexec.report.html import write_html, write_page
from hloexec.tools.triaging import Blamed, CauseGroup, MinifiedModule, TriagedModule

EXAMPLES = Path(__file__).parents[3] / "examples"
ATTACK = "</script></style><img src=x onerror=hacked=1><script>hacked=1</script><b>\"'&lt;"
"""What closes every element that a page has, and calls what a test can see."""

_LOG = """HloModule hostile

inner {
  a = f32[3,4] parameter(0)
  ROOT squares = f32[3,4] multiply(a, a)
}

ENTRY main {
  x = f32[3,4] parameter(0)
  flags = pred[3,4] compare(x, x), direction=EQ
  y = f32[3,4] fusion(x), kind=kLoop, calls=inner
  shifted = f32[3,4] subtract(y, x)
  bad = f32[3,4] log(shifted), metadata={op_name="OP" source_file="FILE" source_line=7}
  ROOT result = (f32[3,4], pred[3,4]) tuple(bad, flags)
}
"""


def hostile_module() -> hloexec.Module:
    """A module that makes NaN, with an attack as its name, and in the metadata of the instruction that makes them."""
    escaped = ATTACK.replace("\\", "\\\\").replace('"', '\\"')
    module = hloexec.parse(_LOG.replace("OP", escaped).replace("FILE", escaped))
    return attrs.evolve(module, name=ATTACK)


@contextmanager
def few_details(count: int = 2) -> Iterator[None]:
    """Pages have plots of so many instructions, unless they are told otherwise: drawing them takes longest."""
    with mock.patch.object(write_page, "__defaults__", (count,)), mock.patch.dict(write_html.__kwdefaults__, top=count):
        yield


def write_samples(folder: Path) -> dict[str, Path]:
    """A page of each kind of result, by name."""
    module = hostile_module()
    x = [np.linspace(-1, 3, 12, dtype=np.float32).reshape(3, 4)]
    attention = hloexec.load(EXAMPLES / "attention.hlo")
    inputs = hloexec.random_inputs(attention)
    changed = hloexec.parse((EXAMPLES / "attention.hlo").read_text().replace("divide(", "multiply(", 1))
    names = ("run", "nan", "shadow", "diff", "memory", "compare", "explain", "triage")
    pages = {name: folder / f"{name}.html" for name in names}
    hloexec.write_html(module, pages["run"], inputs=x, top=2)
    hloexec.write_html(hloexec.find_nan(module, x), pages["nan"], module=module, inputs=x, top=2)
    shadow = hloexec.shadow(attention, inputs)
    hloexec.write_html(shadow, pages["shadow"], module=attention, inputs=inputs, top=1)
    hloexec.write_html(hloexec.diff(attention, changed, inputs), pages["diff"], inputs=inputs, top=1)
    hloexec.write_html(hloexec.memory_usage(attention), pages["memory"], module=attention, top=1)
    hloexec.write_html(hloexec.compare({ATTACK: x[0]}, {ATTACK: x[0] * 2}), pages["compare"])
    result = hloexec.run(attention, *inputs, numerics="bf16")
    hloexec.write_html(hloexec.explain(attention, inputs, result, runs=12), pages["explain"], module=attention, top=1)
    hloexec.write_html(_triage(), pages["triage"])
    return pages


def _triage() -> hloexec.Triage:
    """One module for one cause, with attacks wherever a text of a module or of a file may stand."""
    blamed = Blamed(
        "dot", ("f32",), "f32[2]", "array", ATTACK, ATTACK, ATTACK, ATTACK, source=(ATTACK,), instead_of="x"
    )
    member = TriagedModule(ATTACK, "pair", (ATTACK, "b"), ATTACK, "differ", blamed=blamed)
    small = MinifiedModule(ATTACK, None, hlo_text=ATTACK)
    group = CauseGroup(1, "differ", ATTACK, "dot", ("f32",), "array", "numbers", None, (member,), ATTACK, small)
    return hloexec.Triage(ATTACK, None, None, (member,), (group,), 1, 0.1, is_complete=True)
