"""Texts that XLA accepts: headers, tables, computations, names, and what any instruction may carry."""

from tests.text.building import ADD, module, op

_ONE = "a = f32[2] parameter(0)\nROOT b = f32[2] negate(a)"
_TUPLE = "a = f32[2] parameter(0)\nb = s32[] parameter(1)\nROOT t = (f32[2], s32[]) tuple(a, b)"
_TABLES = """
FileNames
1 "a.py"
2 "b \\"quoted\\".py"

FunctionNames
1 "f"
2 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=2 line=3 end_line=4 column=5 end_column=6}
2 {file_name_id=2, function_name_id=1, line=0, end_line=0, column=0, end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

"""


def _header(attributes: str, body: str = _ONE, computations: str = "") -> str:
    return module(body, computations, f", {attributes}")


def _carries(attributes: str, shape: str = "f32[2]") -> str:
    """An instruction that carries attributes every opcode may carry."""
    return op(f"{shape} copy(a), {attributes}", a=shape)


def _sharding(text: str, shape: str = "f32[4,4]") -> str:
    return _carries(f"sharding={text}", shape)


MODULES: dict[str, str] = {
    "scheduled": _header("is_scheduled=true"),
    "not scheduled": _header("is_scheduled=false"),
    "replicas and partitions": _header("replica_count=2, num_partitions=4"),
    "one replica": _header("replica_count=1, num_partitions=1"),
    "aliasing of the whole result": _header("input_output_alias={ {}: (0, {}, may-alias) }"),
    "aliasing of elements": _header("input_output_alias={ {0}: (0, {}, must-alias), {1}: (1, {}) }", _TUPLE),
    "aliasing without entries": _header("input_output_alias={}"),
    "aliasing of an element of a parameter": _header(
        "input_output_alias={ {1}: (0, {0}, may-alias) }",
        "p = (s32[]) parameter(0)\nb = f32[] constant(1)\ng = s32[] get-tuple-element(p), index=0\n"
        "ROOT t = (f32[], s32[]) tuple(b, g)",
    ),
    "buffer donors": _header("buffer_donor={ (0, {}), (1, {}) }", _TUPLE),
    "no buffer donors": _header("buffer_donor={}"),
    "alias_passthrough_params": _header("alias_passthrough_params=true"),
    "entry layout": _header("entry_computation_layout={(f32[2]{0})->f32[2]{0}}"),
    "entry layout with tiles": _header("entry_computation_layout={(f32[2]{0:T(128)})->f32[2]{0:T(128)}}"),
    "entry layout without layouts": _header("entry_computation_layout={(f32[2])->f32[2]}"),
    "entry layout of nothing": _header("entry_computation_layout={()->()}", "ROOT t = () tuple()"),
    "entry layout of tuples": _header(
        "entry_computation_layout={(f32[2]{0}, /*index=1*/s32[])->(f32[2]{0}, s32[])}", _TUPLE
    ),
    "frontend attributes of a module": _header('frontend_attributes={b="x",a={"c":[1,2]}}'),
    "no frontend attributes of a module": _header("frontend_attributes={}"),
    "sharding propagation": _header(
        "allow_spmd_sharding_propagation_to_parameters={true,false}, allow_spmd_sharding_propagation_to_output={true}",
        _TUPLE,
    ),
    "sharding propagation of one": _header(
        "allow_spmd_sharding_propagation_to_parameters=true, allow_spmd_sharding_propagation_to_output=false"
    ),
    "sharding propagation in an empty list": _header("allow_spmd_sharding_propagation_to_output={}"),
    "origin recovery table": _header('origin_recovery_table={{"a" {0}}:{"b"}, {"c"}:{"d" {1,2}}}').replace("}, {", "} {"),
    "origin recovery table with a module": _header(
        'origin_recovery_table={{"a"}:{"b"},"ENTRY e {\\n ROOT p = f32[] parameter(0)\\n}\\n"}'
    ),
    "origin recovery table without entries": _header("origin_recovery_table={}"),
    "every header attribute": _header(
        "is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, alias_passthrough_params=true, "
        "entry_computation_layout={(f32[2]{0})->f32[2]{0}}, allow_spmd_sharding_propagation_to_parameters={true}, "
        'allow_spmd_sharding_propagation_to_output={true}, replica_count=2, num_partitions=2, frontend_attributes={a="b"}'
    ),
    "header attributes in another order": _header("num_partitions=2, is_scheduled=true, replica_count=3"),
    "module name with dots and dashes": module(_ONE).replace("HloModule m", "HloModule jit_f-x.12_3"),
    "module name with percent": module(_ONE).replace("HloModule m", "HloModule %m"),
    "module name with colon": module(_ONE).replace("HloModule m", "HloModule m:"),
    "tables": module(_ONE).replace("HloModule m", "HloModule m" + _TABLES),
    "empty tables": module(_ONE).replace("HloModule m", "HloModule m\nFileNames\nFunctionNames\nFileLocations\nStackFrames\n"),
    "tables with a frame": _carries('metadata={op_name="x" stack_frame_id=2}').replace("HloModule m", "HloModule m" + _TABLES),
    "tables numbered freely": module(_ONE).replace(
        "HloModule m", "HloModule m\nFileNames\n7 \"x\"\n3 \"y\"\nFunctionNames\nFileLocations\nStackFrames\n"
    ),
    "computation with parameters": module("").replace(
        "ENTRY main {\n\n}", "ENTRY %main (a: f32[2], b: f32[2]{0}) -> f32[2] {\n  %a = f32[2] parameter(0)\n"
        "  %b = f32[2] parameter(1)\n  ROOT %s = f32[2] add(%a, %b)\n}"
    ),
    "computation with parameters that do not match": module("").replace(
        "ENTRY main {\n\n}", "ENTRY %main (z: f32[3]) -> f32[2] {\n  %a = f32[2] parameter(0)\n"
        "  ROOT %s = f32[2] negate(%a)\n}"
    ),
    "computation with spaced parameters": "HloModule m\nENTRY main ( a:f32[2] ) -> f32[2] { ROOT a = f32[2] parameter(0) }",
    "computation with tuples": (
        "HloModule m\nENTRY %main (a.1: (f32[2], (s32[], pred[]))) -> (f32[2], (s32[], pred[])) {\n"
        "  ROOT %a.1 = (f32[2]{0}, (s32[], pred[])) parameter(0)\n}\n"
    ),
    "no ENTRY": "HloModule m\nf {\n a = f32[] parameter(0)\n}\ng {\n b = f32[] parameter(0)\n ROOT c = f32[] negate(b)\n}\n",
    "ENTRY first": "HloModule m\nENTRY g {\n b = f32[] parameter(0)\n}\nf {\n a = f32[] parameter(0)\n}\n",
    "no ROOT": module("a = f32[] parameter(0)\nb = f32[] negate(a)"),
    "ROOT in the middle": module("a = f32[] parameter(0)\nROOT b = f32[] negate(a)\nc = f32[] abs(a)"),
    "no header": "ENTRY main {\n a = f32[] parameter(0)\n ROOT b = f32[] negate(a)\n}\n",
    "no header and no ENTRY": "main {\n a = f32[] parameter(0)\n ROOT b = f32[] negate(a)\n}\n",
    "no header and several computations": ADD + "ENTRY main {\n a = f32[] parameter(0)\n ROOT b = f32[] call(a, a), to_apply=add_f32\n}\n",
    "execution thread": module("a = f32[] parameter(0)\nROOT b = f32[] call(a, a), to_apply=add_f32", ADD.rstrip() + ', execution_thread="side"\n'),
    "execution thread main": module("a = f32[] parameter(0)\nROOT b = f32[] call(a, a), to_apply=add_f32", ADD.rstrip() + ', execution_thread="main"\n'),
    "execution thread of the entry": module(_ONE).rstrip() + ', execution_thread="x y"\n',
    "all on one line": "HloModule m ENTRY e { a = f32[] parameter(0) ROOT b = f32[] negate(a) }",
    "no space": "HloModule m ENTRY e{a=f32[]parameter(0)ROOT b=f32[]negate(a)}".replace("a=f32", "a =f32").replace("b=f32", "b =f32"),
    "Windows line ends": module(_ONE).replace("\n", "\r\n"),
    "tabs": module(_ONE).replace("  ", "\t"),
    "comments": "// first\nHloModule m // second\n/* third\n * lines */ENTRY /**/ e {\n a = f32[] parameter(/*no*/0) // x }\n}\n// end",
    "comment at the very end": module(_ONE) + "// no line end",
    "names with percent": module("%a = f32[] parameter(0)\nROOT %b.1-x_2 = f32[] negate(%a)"),
    "names mixed": module("%a = f32[] parameter(0)\nROOT b = f32[] negate(f32[] a)"),
    "names like types": module("%f32.1 = f32[] parameter(0)\nROOT s2_ = f32[] negate(f32.1)"),
    "names that are keywords": module("%ROOT = f32[] parameter(0)\nROOT %ENTRY = f32[] negate(%ROOT)"),
    "names that are opcodes": module("add = f32[] parameter(0)\nROOT negate = f32[] negate(add)"),
    "names with colon": module("a = f32[] parameter(0)\nROOT b: = f32[] negate(a)"),
    "name of a literal word": module("%true = f32[] parameter(0)\nROOT %nan = f32[] add(%true, %true)"),
    "name b before a parenthesis": module("b = f32[] parameter(0)\nROOT r = f32[] negate(b)"),
    "the same name in two computations": module("x = f32[] parameter(0)\nROOT y = f32[] call(x, x), to_apply=add_f32", ADD),
    "types on operands": module("a = f32[2]{0} parameter(0)\nROOT b = f32[2]{0} add(f32[2]{0} a, f32[2]{0} %a)"),
    "types on operands with another layout": module("a = f32[2,2]{0,1} parameter(0)\nROOT b = f32[2,2] negate(f32[2,2]{1,0} a)"),
    "tuple types on operands": module("a = (f32[2], s32[]) parameter(0)\nROOT b = f32[2] get-tuple-element((f32[2], s32[]) a), index=0"),
    "comments between operands": module("a = f32[2] parameter(0)\nROOT b = (f32[2], f32[2]) tuple(a, /*index=1*/a)"),
    "shapes left out": module("a = f32[2] parameter(0)\nb = add(a, a)\nROOT c = tuple(b, a)"),
    "shapes left out of what needs attributes": module(
        "a = f32[2,3] parameter(0)\nc = concatenate(a, a), dimensions={0}\nd = dot(a, c), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={1}\nROOT r = reverse(d), dimensions={0}"
    ),
    "shape left out of a reduction": op("reduce(a, z), dimensions={0}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"),
    "shape left out of replica-id": op("replica-id()"),
    "nested instructions": module("a = f32[2] parameter(0)\nROOT r = f32[2] add(multiply(a, a), f32[2] negate(a))"),
    "nested instructions in nested instructions": module(
        "a = f32[2] parameter(0)\nROOT r = f32[2] add(f32[2] multiply(f32[2] negate(a), abs(abs(a))), f32[2] add(a, a))"
    ),
    "nested instructions apart from their brackets": module(
        "a = f32[2] parameter(0)\nROOT r = f32[2] add(a, negate (abs/* c */(a)))"
    ),
    "operands with commas too many": op("f32[2] add(, a,, negate(b,), )", a="f32[2]", b="f32[2]"),
    "layout behind a comment": op("f32[2]{/* minor first */0} negate(a)", a="f32[2]"),
    "nested constant": module("a = f32[] parameter(0)\nROOT r = f32[] add(a, f32[] constant(2))"),
    "nested instructions and names like theirs": module(
        "a = f32[] parameter(0)\nnegate.anon = f32[] abs(a)\nROOT r = f32[] add(negate(a), negate(negate.anon))"
    ),
    "nested broadcast of a scalar": module("a = f32[] parameter(0)\nROOT r = f32[2] negate(f32[2] broadcast(a))"),
    "inline computation": op("f32[2] reduce(a, z), dimensions={1}, to_apply={ x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }", a="f32[2,3]", z="f32[]"),
    "two inline computations": op(
        "f32[2] conditional(p, a, a), true_computation={ x = f32[2] parameter(0) ROOT n = f32[2] negate(x) }, "
        "false_computation={\n x = f32[2] parameter(0)\n ROOT n = f32[2] abs(x)\n}", p="pred[]", a="f32[2]"
    ),
    "inline computations in a list": op(
        "f32[2] conditional(p, a, a), branch_computations={{ x = f32[2] parameter(0) }, { y = f32[2] parameter(0) }}",
        p="s32[]", a="f32[2]"
    ),
    "inline computation in an inline computation": op(
        "f32[] call(a), to_apply={ x = f32[] parameter(0) ROOT c = f32[] call(x), to_apply={ y = f32[] parameter(0) } }",
        a="f32[]",
    ),
    "single instruction": "r = f32[2] add(f32[2] x, f32[2] y)",
    "single instruction as root": "ROOT r = f32[2] add(f32[2] x, f32[2] y)",
    "single instruction with percent": "%r = f32[2]{0} add(f32[2]{0} %x, f32[2]{0} %y), metadata={op_name=\"n\"}",
    "single instruction without a name": "f32[2] add(f32[2] x, f32[2] y)",
    "single instruction without names of operands": "f32[2] add(f32[2], f32[2])",
    "single instruction of a repeated operand": "f32[2] add(f32[2] x, f32[2] x)",
    "single instruction without operands": "s32[3] iota(), iota_dimension=0",
    "single instruction of a tuple": "(f32[2], s32[]) tuple(f32[2] x, s32[] y)",
    "single instruction that calls": "f32[] reduce(f32[2] a, f32[] z), dimensions={0}, to_apply={ x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }",
    "single constant": "c = f32[2] constant({1, 2})",
    "single fusion": 'f32[2] fusion(f32[2] p, f32[2] q), kind=kLoop, calls={ a = f32[2] parameter(0) b = f32[2] parameter(1) ROOT m = f32[2] multiply(a, b) }, backend_config={"x":1}',
    "control predecessors": module("a = f32[] parameter(0)\nb = f32[] negate(a)\nROOT c = f32[] abs(a), control-predecessors={b}"),
    "control predecessors with percent": module("a = f32[] parameter(0)\nb = f32[] negate(a)\nROOT c = f32[] abs(a), control-predecessors={%b, %a}"),
    "metadata": _carries('metadata={op_type="t" op_name="a/b[c]" source_file="/x/y.py" source_line=12}'),
    "metadata with everything": _carries(
        'metadata={op_type="t", op_name="n", source_file="f", source_line=1, source_end_line=2, source_column=3, '
        'source_end_column=4, profile_type={1}, deduplicated_name="d", stack_frame_id=5, scheduling_name="s"}'
    ),
    "metadata without anything": _carries("metadata={}"),
    "metadata with escapes": _carries('metadata={op_name="a\\"b\\\\c\\n\\t\\\'\\303\\251 \\x41"}'),
    "metadata with other characters": _carries('metadata={op_name="naïve ≤ 日本"}'),
    "metadata in single quotes": _carries("metadata={op_name='a\"b'}"),
    "metadata over two lines": _carries('metadata={op_name="a\nb"}').replace("\\n", "\n"),
    "metadata with braces": _carries('metadata={op_name="}{, metadata={"}'),
    "metadata with payload": _carries('metadata={op_name="n" metadata_payload="p"}'),
    "metadata with a profile": _carries("metadata={profile_type={1,2,3}}"),
    "metadata with zeros": _carries('metadata={source_line=0 op_name="" stack_frame_id=0}'),
    "metadata with a negative line": _carries("metadata={source_line=-1}"),
    "backend_config as a string": _carries('backend_config="abc"'),
    "backend_config as an object": _carries('backend_config={"a": {"b": [1, 2, "}"]}, "c": null}'),
    "backend_config that looks like one": _carries('backend_config="{\\"a\\": 1}"'),
    "backend_config over lines": _carries('backend_config={\n"a":\n1}'),
    "backend_config empty": _carries('backend_config=""'),
    "frontend attributes": _carries('frontend_attributes={k="v",_x.y-z="1 2"}'),
    "frontend attributes as objects": _carries('frontend_attributes={a={"x":{"y":1}},b={}}'),
    "frontend attributes not in order": _carries('frontend_attributes={b="1", a="2"}'),
    "frontend attribute twice": _carries('frontend_attributes={a="1",a="2"}'),
    "frontend attributes with escapes": _carries('frontend_attributes={a="\\"q\\" \\\\ \\n"}'),
    "frontend attributes empty": _carries("frontend_attributes={}"),
    "statistics": _carries("statistics={visualizing_index=0, a=1, b=2.5, c=-3}"),
    "statistics of nothing": _carries("statistics={}"),
    "statistics with an index only": _carries("statistics={visualizing_index=3}"),
    "origin": _carries('origin={{"x"}}'),
    "origin with an index": _carries('origin={{"x" {1,0}}}'),
    "origin of a tuple": _carries('origin={({"x"}, ({"y" {0}}, {"z"}))}', "(f32[2], (s32[], s32[]))"),
    "origin in part": _carries('origin={({"x"}, {})}', "(f32[2], s32[])"),
    "origin of a synthetic call": _carries("origin={[synthetic_call]}"),
    "parameter replication": module("ROOT a = (f32[2], s32[]) parameter(0), parameter_replication={true,false}"),
    "parameter replication of an array": module("ROOT a = f32[2] parameter(0), parameter_replication={true}"),
    "everything an instruction may carry": _carries(
        'metadata={op_name="n"}, backend_config={"a":1}, sharding={replicated}, frontend_attributes={k="v"}, '
        'control-predecessors={a}, statistics={visualizing_index=0, x=1.5}, origin={{"o"}}'
    ),
    "sharding of a tuple": _sharding("{{devices=[2,1]0,1}, {replicated}}", "(f32[4,4], s32[])"),
    "sharding of a nested tuple": _sharding("{{replicated}, {maximal device=1}, {manual}}", "(f32[4,4], (s32[], s32[]))"),
    "sharding of an empty tuple": _sharding("{}", "()"),
    "sharding of a tuple by one": _sharding("{replicated}", "(f32[4,4], s32[])"),
    "sharding of a tuple by one device": _sharding("{maximal device=3}", "(f32[4,4], s32[])"),
    "sharding of a parameter": module("ROOT a = f32[4,4] parameter(0), sharding={devices=[2,2]<=[4]}"),
}  # fmt: skip

for _text in (
    "{replicated}",
    "{manual}",
    "{unknown}",
    "{unreduced}",
    "{maximal device=0}",
    '{maximal device=5 metadata={op_name="m"}}',
    "{devices=[2,2]0,1,2,3}",
    "{devices=[2,2]3,1,2,0}",
    "{devices=[2,2]<=[4]}",
    "{devices=[2,2]<=[2,2]T(1,0)}",
    "{devices=[4,1]<=[2,2]T(1,0)}",
    "{devices=[2,1,2]<=[4] last_tile_dim_replicate}",
    "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}",
    "{devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}",
    "{devices=[2,1,2]<=[4] last_tile_dims={replicated}}",
    "{devices=[1,2,2,2]<=[8] last_tile_dims={manual,unreduced}}",
    '{devices=[2,2]<=[4] metadata={op_name="a"}}',
    '{devices=[2,2]<=[4] metadata={{op_name="a"},{op_name="b" source_line=2}}}',
    '{replicated metadata={op_name="a"}}',
    "{replicated shard_as 3}",
    "{devices=[2,2]<=[4] shard_like 4}",
    "{devices=[2,1,2]<=[4] last_tile_dim_replicate shard_as 1}",
    '{manual shard_like 0 metadata={op_type="x"}}',
    "{mesh['x'=2,'y'=2], [{'x'},{'y'}]}",
    "{mesh['x'=2,'y'=2] [{'x'},{'y'}]}",
    '{mesh["x"=2,"y y"=2], [{"x"},{"y y"}]}',
    "{mesh['x'=2,'y'=2], [{'x','y'},{}]}",
    "{mesh['x'=2,'y'=2], [{},{?}]}",
    "{mesh['x'=2,'y'=2], [{'x',?},{}], replicated={'y'}}",
    "{mesh['x'=2,'y'=2], [{'x'},{}], unreduced={'y'}}",
    "{mesh['x'=2,'y'=2], [{'x'},{}], manual={'y'}}",
    "{mesh['x'=4,'y'=2], [{'x':(1)2},{'x':(2)2}], replicated={'y'}}",
    "{mesh['x'=2,'y'=2], replicated}",
    "{mesh['x'=2,'y'=2], manual}",
    "{mesh['x'=2,'y'=2], unreduced}",
    "{mesh['x'=2,'y'=2], [{'x'},{'y'}], metadata={op_name=\"m\"}}",
    "{mesh['x'=2,'y'=2], replicated, metadata={op_name=\"m\"}}",
    "{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [{'x'},{'y'}]}",
    "{mesh['x'=2,'y'=2], device_ids=(3,2,1,0), [{'x'},{'y'}]}",
    "{maximal_mesh[device_id=2]}",
    '{maximal_mesh[device_id=2], metadata={op_name="m"}}',
):
    MODULES[f"sharding {_text}"] = _sharding(_text)
