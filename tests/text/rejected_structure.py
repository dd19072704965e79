"""Texts that XLA rejects: characters, headers, tables, computations, instructions and their operands."""

from __future__ import annotations

from tests.text.building import ADD, module, op

_F2 = "f32[2]{0}"


def _unary(text: str) -> str:
    return op(text, a=_F2)


def _binary(text: str, computations: str = "") -> str:
    return op(text, computations, a=_F2, b=_F2)


def _header(attributes: str) -> str:
    return module("ROOT a = f32[2] parameter(0)", "", f", {attributes}")


def _carries(attributes: str) -> str:
    return _unary(f"f32[2] copy(a), {attributes}")


def _parameter(shape: str) -> str:
    return module(f"ROOT p = {shape} parameter(0)")


def _constant(text: str) -> str:
    return module(f"ROOT c = {text}")


STRUCTURE: dict[str, str] = {
    "nothing": "§",
    "only spaces": " \n\t §",
    "only a comment": "// nothing§",
    "NUL byte": module("a = f32[] §\0parameter(0)"),
    "NUL byte at the start": "§\0",
    "NUL byte in a comment": module("§/* \0 */ a = f32[] parameter(0)").replace("/* \0", "/* §\0"),
    "NUL byte in a line comment": "§// a§\0\n" + module("a = f32[] parameter(0)"),
    "comment without an end": module("a = f32[] parameter(0) §/* open"),
    "slash alone": module("a = f32[] parameter(0) §/ b"),
    "string without an end": _carries('metadata={op_name=§"abc}'),
    "string with a bad escape": _carries('metadata={op_name=§"a\\§qb"}'),
    "string with a bad hexadecimal escape": _carries('metadata={op_name=§"a\\§xZZ"}'),
    "string with an octal escape too large": _carries('metadata={op_name=§"a\\§777"}'),
    "character outside the grammar": module("a = f32[] §@parameter(0)"),
    "semicolon": module("a = f32[] parameter(0)§;"),
    "letter beyond ASCII": module("§é = f32[] parameter(0)"),
    "percent alone": module("§% a = f32[] parameter(0)"),
    "percent before a digit": module("§%1 = f32[] parameter(0)"),
    "two dots": _constant("f32[2] constant({§..})"),
    "less alone": _parameter("§f32[§<4]"),
    "JSON object without an end": _carries('backend_config=§{"a": {"b": 1}') + "§",
    "JSON object with an open string": _carries('backend_config=§{"a": "b}'),
    "no name": "HloModule §{",
    "no computations": "HloModule m§",
    "no computations but attributes": "HloModule m, is_scheduled=true\n§",
    "module name is a string": 'HloModule §"m"\nENTRY e { ROOT a = f32[] parameter(0) }',
    "module name is a keyword": "HloModule §true\nENTRY e { ROOT a = f32[] parameter(0) }",
    "space before the equals sign": _header("§is_scheduled §= true"),
    "is_scheduled is not a boolean": _header("§is_scheduled=§1"),
    "is_scheduled twice": _header("is_scheduled=true, §is_scheduled=true"),
    "replica_count is not an integer": _header("replica_count=§two"),
    "num_partitions is a decimal": _header("num_partitions=§1.5"),
    "comma without an attribute": "HloModule m, §\nENTRY e { ROOT a = f32[] parameter(0) }",
    "aliasing without braces": _header("input_output_alias=§0"),
    "aliasing without a colon": _header("input_output_alias={ {} §(0, {}) }"),
    "aliasing without parentheses": _header("input_output_alias={ {}: §0 }"),
    "aliasing without an index": _header("input_output_alias={ {}: (0§) }"),
    "aliasing of an output that is not there": _header("§input_output_alias={ §{1}: (0, {}) }").replace("HloModule ", "HloModule §").replace("m, ", "§m§, "),
    "buffer donor without parentheses": _header("buffer_donor={ §0 }"),
    "buffer donor without an index": _header("buffer_donor={ (0§) }"),
    "entry layout without an arrow": _header("entry_computation_layout={(f32[2]{0})§ §f32[2]{0}}"),
    "entry layout without a parenthesis": _header("entry_computation_layout={§f32[2]{0}->f32[2]{0}}"),
    "entry layout without a result": _header("entry_computation_layout={(f32[2]{0})->§}"),
    "entry layout without braces": _header("entry_computation_layout=§(f32[2]{0})->f32[2]{0}"),
    "entry layout without commas": _header("entry_computation_layout={(f32[2]{0} §f32[2]{0})->f32[2]{0}}"),
    "propagation is not a boolean": _header("allow_spmd_sharding_propagation_to_output=§1"),
    "propagation list of integers": _header("allow_spmd_sharding_propagation_to_output={§1}"),
    "frontend attributes without a value": _header("frontend_attributes={a=§}"),
    "frontend attributes with a bare word": _header("frontend_attributes={a=§b}"),
    "tables without function names": "HloModule m\nFileNames\n1 \"a\"\n§ENTRY e { ROOT a = f32[] parameter(0) }",
    "tables without file locations": "HloModule m\nFileNames\nFunctionNames\n§ENTRY e { ROOT a = f32[] parameter(0) }",
    "tables without stack frames": (
        "HloModule m\nFileNames\nFunctionNames\nFileLocations\n§ENTRY e { ROOT a = f32[] parameter(0) }"
    ),
    "file location without a line": (
        "HloModule m\nFileNames\nFunctionNames\nFileLocations\n"
        "1 §{§file_name_id=1 function_name_id=1 end_line=1 column=1 end_column=1}\nStackFrames\n"
        "ENTRY e { ROOT a = f32[] parameter(0) }"
    ),
    "stack frame without a location": (
        "HloModule m\nFileNames\nFunctionNames\nFileLocations\nStackFrames\n1 §{§parent_frame_id=1}\n"
        "ENTRY e { ROOT a = f32[] parameter(0) }"
    ),
    "stack frame with an unknown field": (
        "HloModule m\nFileNames\nFunctionNames\nFileLocations\nStackFrames\n1 {file_location_id=1 parent_frame_id=1 §x=1}\n"
        "ENTRY e { ROOT a = f32[] parameter(0) }"
    ),
    "file location beyond 32 bits": (
        "HloModule m\nFileNames\nFunctionNames\nFileLocations\n"
        "1 {file_name_id=1 function_name_id=1 line=1 end_line=§2147483648 column=1 end_column=1}\nStackFrames\n"
        "ENTRY e { ROOT a = f32[] parameter(0) }"
    ),
    "stack frame beyond 32 bits": (
        "HloModule m\nFileNames\nFunctionNames\nFileLocations\nStackFrames\n"
        "1 {file_location_id=1 parent_frame_id=§-2147483649}\nENTRY e { ROOT a = f32[] parameter(0) }"
    ),
    "two ENTRY": "HloModule m\nENTRY a {\n x = f32[] parameter(0)\n}\n§ENTRY §b {\n x = f32[] parameter(0)\n}\n",
    "two computations of one name": "HloModule m\n§f {\n x = f32[] parameter(0)\n}\nENTRY §f {\n x = f32[] parameter(0)\n}\n",
    "computation without a name": "HloModule m\nENTRY §{ ROOT a = f32[] parameter(0) }",
    "computation without instructions": "HloModule m\nENTRY e {§}",
    "computation without an end": "HloModule m\nENTRY e {\n ROOT a = f32[] parameter(0)\n§",
    "computation without braces": "HloModule m\nENTRY e §ROOT a = f32[] parameter(0)",
    "computation with a parameter without a type": "HloModule m\nENTRY e (a§) -> f32[] { ROOT a = f32[] parameter(0) }",
    "computation with parameters but no arrow": "HloModule m\nENTRY e (a: f32[]) §{ ROOT a = f32[] parameter(0) }",
    "computation with parameters but no result": "HloModule m\nENTRY e (a: f32[]) -> §{ ROOT a = f32[] parameter(0) }",
    "computation of another result": (
        "HloModule m\nENTRY e (a: f32[]) -> §f32[2] {\n ROOT a = f32[] parameter(0)\n}\n"
    ),
    "text behind the last computation": module("ROOT a = f32[] parameter(0)") + "§)",
    "brace behind the last computation": module("ROOT a = f32[] parameter(0)") + "§}",
    "attribute of a computation without a value": module("ROOT a = f32[] parameter(0)").rstrip() + ", execution_thread=§",
    "execution thread is not a string": module("ROOT a = f32[] parameter(0)").rstrip() + ", execution_thread=§main",
    "no equals sign": module("ROOT a §f32[] parameter(0)"),
    "two equals signs": module("ROOT a = §= f32[] parameter(0)"),
    "no opcode": module("ROOT a = f32[] §(0)"),
    "no parenthesis": module("ROOT a = f32[] parameter§"),
    "no closing parenthesis": module("ROOT a = f32[] parameter(0§"),
    "name is a type": module("§f32 = f32[] parameter(0)"),
    "name is a type behind a percent": module("§%f32 = f32[] parameter(0)"),
    "name is a keyword": module("§true = f32[] parameter(0)"),
    "name is a number": module("§1 = f32[] parameter(0)"),
    "name is a string": module('§"a" = f32[] parameter(0)'),
    "two instructions of one name": module("§a = f32[] parameter(0)\n§a = f32[] parameter(1)"),
    "two roots": module("ROOT a = f32[] parameter(0)\n§ROOT §b = f32[] negate(a)"),
    "operand that is not there": module("a = f32[] parameter(0)\nROOT b = f32[] negate(§c)"),
    "operand that comes later": module("a = f32[] parameter(0)\nROOT b = f32[] negate(§c)\nc = f32[] negate(a)"),
    "operand that is itself": module("ROOT b = f32[] negate(§b)"),
    "operand of another computation": module("ROOT b = f32[] negate(§x)", ADD),
    "operand of another type": module("a = f32[2] parameter(0)\nROOT b = f32[2] negate(§f32[3] §a§)"),
    "operand with a type but no name": module("a = f32[2] parameter(0)\nROOT b = f32[2] negate(f32[2]§)"),
    "operands without a comma": module("a = f32[] parameter(0)\nROOT b = f32[] add(§a §a)"),
    "operands with an open comma": module("a = f32[] parameter(0)\nROOT b = f32[] §add§(a, §)"),
    "no operands but a comma": _unary("f32[2] §negate§(§,§)"),
    "operand that is a number": module("ROOT b = f32[] negate(§1)"),
    "too few operands": _unary("f32[2] §add§(a§)"),
    "too many operands": _binary("f32[2] §negate§(a, b)"),
    "no operands": _unary("f32[2] §negate§(§)"),
    "too many operands of a select": op("f32[] §select§(p, a, a, a)", p="pred[]", a="f32[]"),
    "odd number of operands of a reduction": op(
        "f32[] §reduce§(a, a, z), dimensions={0}, to_apply=add_f32§", ADD, a=_F2, z="f32[]"
    ),
    "even number of operands of a scatter": op(
        "f32[4] §scatter§(a, i), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=add_f32§",
        ADD,
        a="f32[4]",
        i="s32[5,1]",
    ),
    "dynamic-slice without operands": _unary("f32[1] §dynamic-slice§(), dynamic_slice_sizes={1}§"),
    "dynamic-slice with too few starts": op("f32[1,1] §dynamic-slice§(a, i), dynamic_slice_sizes={1,1}§", a="f32[4,4]", i="s32[]"),
    "dynamic-update-slice with too few starts": op("f32[4,4] §dynamic-update-slice§(a, u, i)§", a="f32[4,4]", u="f32[1,1]", i="s32[]"),
    "tuple of another length": _unary("(f32[2], f32[2]) §tuple§(a)"),
    "parameter of a negative number": module("ROOT a = f32[] parameter(§-1§)"),
    "parameter of no number": module("ROOT a = f32[] parameter(§)"),
    "parameter of a word": module("ROOT a = f32[] parameter(§a)"),
    "shape left out of a parameter": module("ROOT a = parameter§(0)").replace("= p", "= §p"),
    "shape left out of a constant": module("ROOT a = §constant§(0)"),
    "shape left out of a slice": _unary("§slice§(a), slice={[0:1]}"),
    "shape left out of a fusion": _binary("§fusion§(a, b), kind=kLoop, calls=add_f32", ADD),
    "shape left out of a collective": _unary("§all-gather§(a), dimensions={0}"),
    "shape left out of what cannot be inferred": op("§add§(a, b)§", a="f32[2]", b="f32[3]"),
    "shape left out of a call of nothing": op("§call§(a), to_apply=§nosuch", a="f32[2]"),
    "shape left out of a reduce by nothing": op("§reduce§(a, z), dimensions={0}, to_apply=§nosuch", a="f32[2]", z="f32[]"),
    "shape left out of a reduce-window by nothing": op(
        "§reduce-window§(a, z), window={size=1}, to_apply=§nosuch", a="f32[2]", z="f32[]"
    ),
    "nested instruction with attributes": module(
        "a = f32[2,3] parameter(0)\nROOT b = f32[3,2] negate(f32[3,2] §transpose§(§a)§, dimensions={1,0})"
    ),
    "nested instruction without a shape": module("ROOT b = f32[] negate(§constant§(1))"),
    "single instruction without a type on an operand": "r = f32[2] add(§x§, f32[2] y)",
    "single instruction behind one that is not there": (
        "r = f32[2] add(f32[2] x, f32[2] y), control-predecessors={§z§}"
    ),
    "single instruction of an operand called as a type": "r = f32[2] add(f32[2] §f32, f32[2] y)",
    "single instruction of its own result": "r = f32[2] add(f32[2] x, §f32[2] §r)",
    "single instruction with something behind": "r = f32[2] negate(f32[2] x)\n§s = f32[2] negate(r)",
    "token with a layout": op("token[] after-all(a)", a="token[]§{:S(1)}"),
    "opcode in upper case": _unary("f32[2] §Negate(a)"),
}  # fmt: skip
