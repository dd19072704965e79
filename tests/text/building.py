"""Short ways to write HLO texts for tests."""

ADD = """add_f32 {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}
"""
"""A computation `add_f32` that reducers may call."""

ADD2 = """add_two {
  x0 = f32[] parameter(0)
  x1 = s32[] parameter(1)
  y0 = f32[] parameter(2)
  y1 = s32[] parameter(3)
  z0 = f32[] add(x0, y0)
  z1 = s32[] add(x1, y1)
  ROOT pair = (f32[], s32[]) tuple(z0, z1)
}
"""
"""A computation `add_two` on pairs, for variadic reducers."""

LESS = """less {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT lt = pred[] compare(x, y), direction=LT
}
"""
"""A comparator `less`; on one operand."""


def module(body: str, computations: str = "", header: str = "") -> str:
    """A module `m` whose entry computation holds the lines of `body`; `header` follows the module's name."""
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    return f"HloModule m{header}\n\n{computations}\nENTRY main {{\n{lines}\n}}\n"


def op(text: str, computations: str = "", header: str = "", **parameters: str) -> str:
    """A module whose root is `text`, a right-hand side, on parameters given as name=shape, in order."""
    declared = [f"{name} = {shape} parameter({number})" for number, (name, shape) in enumerate(parameters.items())]
    return module("\n".join([*declared, f"ROOT root = {text}"]), computations, header)


F2 = "f32[2]{0}"


def unary(text: str) -> str:
    return op(text, a=F2)


def binary(text: str, computations: str = "") -> str:
    return op(text, computations, a=F2, b=F2)


def with_header(attributes: str) -> str:
    return module("ROOT a = f32[2] parameter(0)", "", f", {attributes}")


def carries(attributes: str) -> str:
    return unary(f"f32[2] copy(a), {attributes}")


def parameter(shape: str) -> str:
    return module(f"ROOT p = {shape} parameter(0)")


def constant(text: str) -> str:
    return module(f"ROOT c = {text}")
