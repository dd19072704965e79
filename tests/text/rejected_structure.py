"""Texts that XLA rejects: characters, headers, tables, computations, instructions and their operands."""

from tests.text.building import ADD, ADD2, F2, binary, carries, constant, module, op, parameter, unary, with_header

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
    "string without an end": carries('metadata={op_name=§"abc}'),
    "string with a bad escape": carries('metadata={op_name=§"a\\§qb"}'),
    "string with a bad hexadecimal escape": carries('metadata={op_name=§"a\\§xZZ"}'),
    "string with an octal escape too large": carries('metadata={op_name=§"a\\§777"}'),
    "character outside the grammar": module("a = f32[] §@parameter(0)"),
    "semicolon": module("a = f32[] parameter(0)§;"),
    "letter beyond ASCII": module("§é = f32[] parameter(0)"),
    "percent alone": module("§% a = f32[] parameter(0)"),
    "percent before a digit": module("§%1 = f32[] parameter(0)"),
    "two dots": constant("f32[2] constant({§..})"),
    "less alone": parameter("§f32[§<4]"),
    "JSON object without an end": carries('backend_config=§{"a": {"b": 1}') + "§",
    "JSON object with an open string": carries('backend_config=§{"a": "b}'),
    "no name": "HloModule §{",
    "no computations": "HloModule m§",
    "no computations but attributes": "HloModule m, is_scheduled=true\n§",
    "module name is a string": 'HloModule §"m"\nENTRY e { ROOT a = f32[] parameter(0) }',
    "module name is a keyword": "HloModule §true\nENTRY e { ROOT a = f32[] parameter(0) }",
    "space before the equals sign": with_header("§is_scheduled §= true"),
    "is_scheduled is not a boolean": with_header("§is_scheduled=§1"),
    "is_scheduled twice": with_header("is_scheduled=true, §is_scheduled=true"),
    "replica_count is not an integer": with_header("replica_count=§two"),
    "num_partitions is a decimal": with_header("num_partitions=§1.5"),
    "comma without an attribute": "HloModule m, §\nENTRY e { ROOT a = f32[] parameter(0) }",
    "aliasing without braces": with_header("input_output_alias=§0"),
    "aliasing without a colon": with_header("input_output_alias={ {} §(0, {}) }"),
    "aliasing without parentheses": with_header("input_output_alias={ {}: §0 }"),
    "aliasing without an index": with_header("input_output_alias={ {}: (0§) }"),
    "aliasing of an output that is not there": with_header("§input_output_alias={ §{1}: (0, {}) }").replace("HloModule ", "HloModule §").replace("m, ", "§m§, "),
    "buffer donor without parentheses": with_header("buffer_donor={ §0 }"),
    "buffer donor without an index": with_header("buffer_donor={ (0§) }"),
    "entry layout without an arrow": with_header("entry_computation_layout={(f32[2]{0})§ §f32[2]{0}}"),
    "entry layout without a parenthesis": with_header("entry_computation_layout={§f32[2]{0}->f32[2]{0}}"),
    "entry layout without a result": with_header("entry_computation_layout={(f32[2]{0})->§}"),
    "entry layout without braces": with_header("entry_computation_layout=§(f32[2]{0})->f32[2]{0}"),
    "entry layout without commas": with_header("entry_computation_layout={(f32[2]{0} §f32[2]{0})->f32[2]{0}}"),
    "propagation is not a boolean": with_header("allow_spmd_sharding_propagation_to_output=§1"),
    "propagation list of integers": with_header("allow_spmd_sharding_propagation_to_output={§1}"),
    "frontend attributes without a value": with_header("frontend_attributes={a=§}"),
    "frontend attributes with a bare word": with_header("frontend_attributes={a=§b}"),
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
    "no operands but a comma": unary("f32[2] §negate§(§,§)"),
    "operand that is a number": module("ROOT b = f32[] negate(§1)"),
    "too few operands": unary("f32[2] §add§(a§)"),
    "too many operands": binary("f32[2] §negate§(a, b)"),
    "no operands": unary("f32[2] §negate§(§)"),
    "too many operands of a select": op("f32[] §select§(p, a, a, a)", p="pred[]", a="f32[]"),
    "odd number of operands of a reduction": op(
        "f32[] §reduce§(a, a, z), dimensions={0}, to_apply=add_f32§", ADD, a=F2, z="f32[]"
    ),
    "even number of operands of a scatter": op(
        "f32[4] §scatter§(a, i), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=add_f32§",
        ADD,
        a="f32[4]",
        i="s32[5,1]",
    ),
    "dynamic-slice without operands": unary("f32[1] §dynamic-slice§(), dynamic_slice_sizes={1}§"),
    "dynamic-slice with too few starts": op("f32[1,1] §dynamic-slice§(a, i), dynamic_slice_sizes={1,1}§", a="f32[4,4]", i="s32[]"),
    "dynamic-update-slice with too few starts": op("f32[4,4] §dynamic-update-slice§(a, u, i)§", a="f32[4,4]", u="f32[1,1]", i="s32[]"),
    "tuple of another length": unary("(f32[2], f32[2]) §tuple§(a)"),
    "parameter of a negative number": module("ROOT a = f32[] parameter(§-1§)"),
    "parameter of no number": module("ROOT a = f32[] parameter(§)"),
    "parameter of a word": module("ROOT a = f32[] parameter(§a)"),
    "shape left out of a parameter": module("ROOT a = parameter§(0)").replace("= p", "= §p"),
    "shape left out of a constant": module("ROOT a = §constant§(0)"),
    "shape left out of a slice": unary("§slice§(a), slice={[0:1]}"),
    "shape left out of a fusion": binary("§fusion§(a, b), kind=kLoop, calls=add_f32", ADD),
    "shape left out of a collective": unary("§all-gather§(a), dimensions={0}"),
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
    "opcode in upper case": unary("f32[2] §Negate(a)"),
}  # fmt: skip


_INNER = "inner {\n x = f32[2] parameter(0)\n ROOT r = f32[2] negate(x)\n}\n"
_OTHER = _INNER.replace("inner", "other")
_START = "s = ((f32[2]), f32[2], s32[]) async-start(a), calls=inner"
_UPDATE = "u = ((f32[2]), f32[2], s32[]) async-update(s)"
_DONE = "ROOT d = f32[2] async-done(u)"
_CONSTRAINED = 'f32[2] §custom-call(a), custom_call_target="t", operand_layout_constraints='


def _asynchronous(*lines: str) -> str:
    return module("\n".join(["a = f32[2] parameter(0)", *lines]), _INNER + _OTHER)


def _collective(shape: str, opcode: str) -> str:
    attributes = "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add_f32"
    return op(f"{shape} §{opcode}(a), {attributes}{', dimensions={0}' if 'scatter' in opcode else ''}", ADD, a="f32[2]")


FORMS: dict[str, str] = {
    "async-start without a tuple": _asynchronous("s = f32[2] §async-start(a), calls=inner", "ROOT d = f32[2] async-done(s)"),
    "async-start without its operands": _asynchronous(
        "s = (f32[2], f32[2], s32[]) §async-start(a), calls=inner", "ROOT d = f32[2] async-done(s)"
    ),
    "async-start without a result": _asynchronous("s = ((f32[2])) §async-start(a), calls=inner", "ROOT n = f32[2] negate(a)"),
    "async-done of an async-done": _asynchronous(_START, _UPDATE, "d = f32[2] async-done(u)", "ROOT e = f32[2] §async-done(d)"),
    "async-update on another thread": _asynchronous(_START, _UPDATE.replace("async-u", "§async-u") + ', async_execution_thread="side"', _DONE),
    "async-done on another thread": _asynchronous(_START, _UPDATE, 'ROOT d = f32[2] §async-done(u), async_execution_thread="side"'),
    "async-update of another computation": _asynchronous(_START, _UPDATE.replace("async-u", "§async-u") + ", calls=other", _DONE),
    "async-done of another computation": _asynchronous(_START, _UPDATE, "ROOT d = f32[2] §async-done(u), calls=other"),
    "asynchronous opcode's done on another thread": module(
        'a = f32[2] parameter(0)\ns = ((f32[2]), f32[2], s32[]) negate-start(a), async_execution_thread="side"\n'
        'ROOT d = f32[2] §negate-done(s), async_execution_thread="main"'
    ),
    "global device numbers without a channel": _collective("f32[2]", "all-reduce"),
    "global device numbers without a channel of a start": _collective("f32[2]", "all-reduce-start"),
    "global device numbers without a channel of reduce-scatter": _collective("f32[1]", "reduce-scatter"),
    "layout constraints for too many operands": op(_CONSTRAINED + "{f32[2]{0}, f32[2]{0}}", a="f32[2]"),
    "layout constraints for no operand": op(_CONSTRAINED + "{}", a="f32[2]"),
    "layout constraint of another size": op(_CONSTRAINED + "{f32[3]{0}}", a="f32[2]"),
    "layout constraint of another width": op(_CONSTRAINED + "{bf16[2]{0}}", a="f32[2]"),
    "infeed without a tuple": op("f32[2] §infeed(t)", t="token[]"),
    "infeed of nothing": op("() §infeed(t)", t="token[]"),
    "conditional on a long index": op("f32[2] §conditional(i, a), branch_computations={inner}", _INNER, i="s64[]", a="f32[2]"),
    "conditional with a false computation only": op(
        "f32[2] §conditional(p, a, a), false_computation=inner", _INNER, p="pred[]", a="f32[2]"
    ),
    "conditional on a predicate with too few operands": op(
        "f32[2] §conditional(p, a), true_computation=inner, false_computation=inner", _INNER, p="pred[]", a="f32[2]"
    ),
    "shape left out of an opt-barrier": op("§opt-barrier(a)", a="f32[2]"),
    "nested opt-barrier without a shape": op("f32[2] negate(§opt-barrier(a))", a="f32[2]"),
    "nested instruction of an unknown opcode": op("f32[2] add(a, f32[2] §frobnicate(a))", a="f32[2]"),
    "nested instruction of an unknown operand": op("f32[2] add(a, f32[2] negate(§b))", a="f32[2]"),
    "nested instruction with a name": op("f32[2] add(a, f32[2] §n §negate(a))", a="f32[2]"),
    "shape left out of a reduce-window of two arrays": op(
        "§reduce-window(a, b, z, y), window={size=2}, to_apply=add_two", ADD2, a="f32[4]", b="s32[4]", z="f32[]", y="s32[]"
    ),
    "sum of sizes that do not broadcast": op("§add(a, b)", a="f32[2,3]", b="f32[3]"),
    "broadcast to a negative size without a shape": op("§broadcast(a), dimensions={-1}", a="f32[3]"),
    "thread of a computation twice": module("ROOT a = f32[] parameter(0)").rstrip()
    + ', execution_thread="x", §execution_thread="x"',
    "types on operands of another bound": module("a = f32[<=2] parameter(0)\nROOT b = f32[<=2] negate(§f32[<=3] §a)"),
}  # fmt: skip


VALUES: dict[str, str] = {
    "type unknown": module("ROOT p = §f31[2] parameter(0)"),
    "type without brackets": module("ROOT p = f32 §parameter(0)").replace("= f32", "= §f32"),
    "dimension that is a word": parameter("§f32[§x]"),
    "dimension that is negative": parameter("§f32[§-1]§"),
    "dimension that is a decimal": parameter("§f32[§1.5]"),
    "number of more digits than Python reads": constant(f"f32[] constant(§{'9' * 5000})"),
    "dimension beyond 64 bits": parameter("§f32[§99999999999999999999]"),
    "dimensions of a type without an end": parameter("§f32[2§"),
    "dimensions of a type with an open comma": parameter("§f32[2,§]"),
    "dimensions of a type without commas": parameter("§f32[2 §3]"),
    "bound of nothing": parameter("§f32[<=§]"),
    "bound unknown": parameter("§f32[<=§?]"),
    "tuple without commas": parameter("(f32[2] §f32[3])"),
    "tuple without an end": parameter("(f32[2], f32[3] §"),
    "tuple with an open comma": parameter("(f32[2], §)"),
    "buffer of a tuple": parameter("§b(§(f32[2])§)"),
    "layout of another rank": parameter("§f32[2,3]§{§0}§"),
    "layout of an unknown letter": parameter("§f32[2]{0:§Z(1)}"),
    "layout with fields out of order": parameter("§f32[2]{0:S(1)§T(8)}"),
    "layout with an empty element size": parameter("§f32[2]{0:E(§)}"),
    "layout with an unknown level": parameter("§f32[2]{0:D(§Q)}"),
    "layout with a tile of words": parameter("§f32[2]{0:T(§x)}"),
    "layout with a tile of less than nothing": parameter("§f32[2]{0:T(§-1)}"),
    "layout with an alignment of nothing": parameter("§f32[2]{0:L(§0)}"),
    "layout with a decimal": parameter("§f32[2]{§0.0}"),
    "layout with a physical shape": parameter("§f32[2]§{0:§P§(f32[2])}§"),
    "literal of too few elements": constant("f32[3] constant({1, 2§})"),
    "literal of too many elements": constant("f32[2] constant({1, 2, §3§})"),
    "literal of too few rows": constant("f32[2,2] constant({{1, 2}§})"),
    "literal of too many rows": constant("f32[1,2] constant({{1, 2}, §{3, 4}})"),
    "literal nested too deeply": constant("f32[2] constant({§{1, 2}})"),
    "literal not nested enough": constant("f32[2,2] constant({§1, 2, 3, 4})"),
    "literal of a scalar in braces": constant("f32[] constant(§{1})"),
    "literal of a vector without braces": constant("f32[2] constant(§1§, 2)"),
    "literal that is empty": constant("f32[] constant(§)"),
    "literal that is a word": constant("f32[] constant(§x)"),
    "literal that is a string": constant('f32[] constant(§"1")'),
    "literal of decimals for integers": constant("s32[] constant(§1.0)"),
    "literal of an exponent for integers": constant("s32[] constant(§1e3)"),
    "literal of infinity for integers": constant("s32[] constant(§inf)"),
    "literal of NaN for integers": constant("s32[] constant(§nan)"),
    "literal beyond s8": constant("s8[] constant(§128)"),
    "literal below s8": constant("s8[] constant(§-129)"),
    "literal beyond u8": constant("u8[] constant(§256)"),
    "literal below u8": constant("u8[] constant(§-1)"),
    "literal beyond s4": constant("s4[] constant(§8)"),
    "literal beyond u4": constant("u4[] constant(§16)"),
    "literal beyond s2": constant("s2[] constant(§2)"),
    "literal beyond u1": constant("u1[] constant(§2)"),
    "literal beyond s32": constant("s32[] constant(§2147483648)"),
    "literal beyond u32": constant("u32[] constant(§4294967296)"),
    "literal beyond u64": constant("u64[] constant(§18446744073709551616)"),
    "literal below s64": constant("s64[] constant(§-9223372036854775809)"),
    "literal beyond f16": constant("f16[] constant(§1e6)"),
    "literal beyond bf16": constant("bf16[] constant(§1e39)"),
    "literal beyond f32": constant("f32[] constant(§3.5e38)"),
    "literal beyond f64": constant("f64[] constant(§1e400)"),
    "literal beyond f8e4m3fn": constant("f8e4m3fn[] constant(§1000)"),
    "literal beyond f8e5m2": constant("f8e5m2[] constant(§1e6)"),
    "literal with a payload too large": constant("f16[] constant(§nan(0x400))"),
    "literal with a payload of zero": constant("f32[] constant(§nan(§0x0))"),
    "literal with a payload of no number": constant("f32[] constant(§nan§(§zz))"),
    "literal with a payload where there is none": constant("f8e4m3fn[] constant(§nan(0x1))"),
    "literal complex without an imaginary part": constant("c64[] constant(§(1§))"),
    "literal complex without parentheses": constant("c64[] constant(§1)"),
    "literal complex of words": constant("c64[] constant((§x, 1))"),
    "literal complex beyond its range": constant("c64[] constant(§(§1e39, 0))"),
    "literal real in parentheses": constant("f32[] constant(§(1, 2))"),
    "literal elided in a row": constant("f32[2,2] constant({{§...}, {...}})"),
    "literal elided without braces": constant("f32[2] constant(§...)"),
    "literal of a tuple elided": constant("(f32[2], s32[]) constant(§{§...})"),
    "literal of a tuple of too few": constant("(f32[], f32[]) constant((1§))"),
    "literal of a tuple of too many": constant("(f32[]) constant((1§, 2))"),
    "literal of a tuple without parentheses": constant("(f32[]) constant(§1)"),
    "literal without an end": constant("f32[2] constant({1, 2§") + "§",
    "literal true for a float": constant("f32[] constant(§true)"),
    "literal of a token": constant("token[] §constant(§0)"),
}  # fmt: skip
