"""Programs that several tests of memory run, and what a run counts; MB is a million bytes."""

from hloexec.engine.exec import run
from hloexec.engine.exec.statistics import Statistics
from tests.exec.programs import parsed

MB = 1_000_000

CHAIN = """HloModule m, is_scheduled=true
ENTRY e { x = f32[250000] parameter(0)
  a = f32[250000] add(x, x)
  b = f32[250000] add(a, a)
  c = f32[250000] add(b, b)
  ROOT d = f32[250000] add(c, c) }
"""

COPIES = """HloModule m, is_scheduled=true
ENTRY e { x = f32[250000] parameter(0)
  a = f32[250000] concatenate(x), dimensions={0}
  b = f32[250000] concatenate(a), dimensions={0}
  c = f32[250000] concatenate(b), dimensions={0}
  ROOT d = f32[250000] concatenate(c), dimensions={0} }
"""


def counted(text, *inputs):
    statistics = Statistics()
    run(parsed(text), *inputs, statistics=statistics)
    return statistics
