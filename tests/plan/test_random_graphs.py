"""Random graphs that provoke circular fusion, as regions of steps need each other's values, have the bits of their plain evaluation."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import plan_of
from hloexec.engine.plan.regions.region import RegionKernel
from tests.plan.ways import bits

INPUT_COUNT = 3
_SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"


class _Graph:
    def __init__(self, seed: int, side: int) -> None:
        self.random = np.random.default_rng(seed)
        self.side = side
        self.matrix, self.row, self.rows = f"f32[{side},{side}]", f"f32[{side}]", f"f32[{side * side}]"
        self.lines: list[str] = []
        self.matrices: list[str] = []
        self.unread: dict[str, None] = {}
        self.rows_seen: list[str] = []
        self.chains = int(self.random.integers(1, 6))
        """How many chains run side by side."""
        self.reach = float(self.random.choice([2.0, 20.0, 200.0]))
        """How far back a step takes its operands, about."""
        self.barriers = float(self.random.choice([0.02, 0.1, 0.3]))
        """How many steps no region takes in."""

    def emit(self, shape: str, call: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"  {name} = {shape} {call}")
        if shape == self.matrix:
            self.matrices.append(name)
            self.unread[name] = None
        elif shape == self.row:
            self.rows_seen.append(name)
        return name

    def earlier(self) -> str:
        """A matrix some way back, preferably one that nothing has read."""
        among = [*self.unread] if self.unread and self.random.random() < 0.7 else self.matrices
        back = 1 + int(self.random.exponential(self.reach)) * self.chains
        found = among[max(len(among) - back, 0)]
        self.unread.pop(found, None)
        return found

    def step(self) -> None:
        kind = self.random.random()
        one = self.earlier()
        if kind < self.barriers:
            self.barrier(one)
        elif kind < self.barriers + 0.12:
            total = self.emit(self.row, f"reduce({one}, zero), dimensions={{1}}, to_apply=sum")
            calm = self.emit(self.row, f"tanh({total})")
            if self.random.random() < 0.7:
                self.emit(self.matrix, f"broadcast({calm}), dimensions={{0}}")
        elif kind < self.barriers + 0.2 and self.rows_seen:
            place = int(self.random.integers(len(self.rows_seen)))
            self.emit(self.matrix, f"broadcast({self.rows_seen[place]}), dimensions={{{self.random.integers(2)}}}")
        elif kind < self.barriers + 0.3:
            flat = self.emit(self.rows, f"reshape({one})")
            self.emit(self.matrix, f"reshape({flat})")
        elif kind < self.barriers + 0.45:
            self.emit(self.matrix, f"{self.random.choice('sine tanh negate abs'.split())}({one})")
        else:
            opcode = self.random.choice("add subtract multiply maximum".split())
            self.emit(self.matrix, f"{opcode}({one}, {self.earlier()})")
            if opcode in ("add", "multiply"):
                # So that nothing grows beyond all bounds.
                large, _ = self.unread.popitem()
                self.emit(self.matrix, f"tanh({large})")

    def barrier(self, one: str) -> None:
        kind = self.random.random()
        if kind < 0.4:
            self.emit(self.matrix, f"transpose({one}), dimensions={{1,0}}")
        elif kind < 0.5:
            self.emit(self.matrix, f"reverse({one}), dimensions={{0}}")
        elif kind < 0.7:
            self.emit(self.row, f"reduce({one}, zero), dimensions={{0}}, to_apply=sum")
        else:
            self.emit(self.matrix, "rng(zero, unit), distribution=rng_uniform")


def random_graph(seed: int, steps: int, side: int = 128) -> str:
    """HLO text of a graph of about so many steps over f32[side, side]; it takes INPUT_COUNT such matrices."""
    graph = _Graph(seed, side)
    for number in range(INPUT_COUNT):
        graph.emit(graph.matrix, f"parameter({number})")
    graph.lines += ["  zero = f32[] constant(0)", "  unit = f32[] constant(1)"]
    while len(graph.lines) < steps:
        graph.step()
    chosen = [*graph.unread]
    shape = ", ".join([graph.matrix] * len(chosen))
    graph.lines.append(f"  ROOT result = ({shape}) tuple({', '.join(chosen)})")
    return f"HloModule graph\n\n{_SUM}\nENTRY main {{\n" + "\n".join(graph.lines) + "\n}\n"


SIDE = 128


def _inputs(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(INPUT_COUNT)]


@pytest.mark.slow_cases("0")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_have_the_bits_of_their_plain_evaluation(seed: int) -> None:
    steps = (30, 100, 300, 900)[seed % 4] if seed else 2000
    module = hloexec.parse(random_graph(seed, steps, SIDE))
    inputs = _inputs(seed)
    expected = bits(hloexec.run(module, *inputs, planner=False))
    assert bits(hloexec.run(module, *inputs)) == expected


def test_the_graphs_are_made_of_regions() -> None:
    plan = plan_of(hloexec.parse(random_graph(1, 900, SIDE)))
    regions = [step for step in plan.steps if isinstance(step.kernel, RegionKernel)]
    assert len(regions) > 30
