"""Texts that XLA rejects: attributes of opcodes, and what any instruction may carry."""

from tests.text.building import ADD, F2, binary, carries, module, op, unary


def _all_reduce(groups: str) -> str:
    return op(f"f32[2] all-reduce(a), replica_groups={groups}, to_apply=add_f32", ADD, a=F2)


ATTRIBUTES: dict[str, str] = {
    "padding beyond the largest size": module(
        "a = f32[2] parameter(0)\nz = f32[] constant(0)\nROOT root = §pad(a, z), padding=9223372036854775807_1§"
    ),
    "attribute twice": unary("f32[2,2] broadcast(a), dimensions={0}, §dimensions={0}"),
    "attribute without a value": unary("f32[2,2] broadcast(a), dimensions=§"),
    "attribute without equals": unary("f32[2,2] broadcast(a), §dimensions"),
    "attributes without a comma": op("pred[2] compare(a, b), direction=EQ §type=§FLOAT", a=F2, b=F2),
    "trailing comma": module("a = f32[2] parameter(0),\nROOT §b = f32[2] negate(a)").replace("ROOT", "§ROOT"),
    "missing dimensions": unary("f32[2,2] §broadcast(a)§"),
    "missing dimensions of a transpose": unary("f32[2] §transpose(a)§"),
    "missing iota_dimension": op("f32[2] §iota()§"),
    "missing direction": binary("pred[2] §compare(a, b)§"),
    "missing index": op("f32[2] §get-tuple-element(a)§", a="(f32[2])"),
    "missing padding": op("f32[2] §pad(a, z)§", a=F2, z="f32[]"),
    "missing slice": unary("f32[2] §slice(a)§"),
    "missing to_apply": op("f32[] §reduce(a, z), dimensions={0}§", a=F2, z="f32[]").replace("), d", ")§, d"),
    "missing calls": binary("f32[2] §fusion(a, b)§, kind=kLoop§"),
    "missing kind": binary("f32[] §fusion(a, b)§, calls=add_f32§", ADD),
    "missing custom_call_target": unary("f32[2] §custom-call(a)§"),
    "missing condition": op("f32[] §while(a)§, body=f§", "f { ROOT x = f32[] parameter(0) }\n", a="f32[]"),
    "missing source_target_pairs": unary("f32[2] §collective-permute(a)§"),
    "missing fft_length": op("c64[2] §fft(a)§, fft_type=FFT§", a="c64[2]"),
    "missing epsilon": op(
        "(f32[2,3], f32[3], f32[3]) §batch-norm-training(a, s, o)§, feature_index=1§", a="f32[2,3]", s="f32[3]", o="f32[3]"
    ),
    "missing dim_labels": op("f32[2,8] §convolution(a, k)§", a="f32[2,4]", k="f32[4,8]"),
    "missing delta": op("u64[2] §rng-get-and-update-state()§"),
    "missing algorithm": op("(u64[2], u32[8]) §rng-bit-generator(a)§", a="u64[2]"),
    "missing exponent_bits": unary("f32[2] §reduce-precision(a)§, mantissa_bits=2§"),
    "missing offset_dims": op(
        "f32[5] §gather(a, i)§, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}§",
        a="f32[4]",
        i="s32[5,1]",
    ),
    "missing branch_computations": op("f32[2] §conditional(i, a)§", i="s32[]", a=F2),
    "missing false_computation": op(
        "f32[] §conditional(p, a, a)§, true_computation=f§", "f { ROOT x = f32[] parameter(0) }\n", p="pred[]", a="f32[]"
    ),
    "missing domain": unary("f32[2] §domain(a)§"),
    "missing k": op("(f32[1], s32[1]) §topk(a)§", a="f32[3]"),
    "dimensions are not a list": unary("f32[2,2] broadcast(a), dimensions=§0"),
    "dimensions are words": unary("f32[2,2] broadcast(a), dimensions={§a}"),
    "dimensions without an end": unary("f32[2,2] broadcast(a), dimensions={0§") + "§",
    "dimensions without a comma": op("f32[2,2] transpose(a), dimensions={1 §0}", a="f32[2,2]"),
    "dimensions with an open comma": op("f32[2,2] transpose(a), dimensions={1,§}", a="f32[2,2]"),
    "dimensions with decimals": unary("f32[2,2] broadcast(a), dimensions={§0.0}"),
    "sort along two dimensions": op("f32[2,2] §sort(a), §dimensions=§{0,1}, to_apply=add_f32§", ADD, a="f32[2,2]"),
    "concatenate along two dimensions": op("f32[2,2] §concatenate(a), §dimensions=§{0,1}§", a="f32[2,2]"),
    "integer that is a word": op("f32[2] iota(), iota_dimension=§x"),
    "integer that is a decimal": op("f32[2] iota(), iota_dimension=§0.5"),
    "integer in a list": op("f32[2] iota(), iota_dimension=§{0}"),
    "integer beyond 64 bits": op("f32[2] iota(), iota_dimension=§99999999999999999999"),
    "integer beyond 32 bits": module(
        "a = f32[2] parameter(0)\nROOT s = (f32[2], f32[2], u32[]) copy-start(a), cross_program_prefetch_index=§4294967296"
    ),
    "float beyond its range": op(
        "(f32[2,3], f32[3], f32[3]) batch-norm-training(a, s, o), epsilon=§1e39, feature_index=1",
        a="f32[2,3]",
        s="f32[3]",
        o="f32[3]",
    ),
    "float that is a word": op(
        "(f32[2,3], f32[3], f32[3]) batch-norm-training(a, s, o), epsilon=§small, feature_index=1",
        a="f32[2,3]",
        s="f32[3]",
        o="f32[3]",
    ),
    "boolean that is a number": op("f32[3,3] cholesky(a), lower=§1", a="f32[3,3]"),
    "string without quotes": unary("f32[2] custom-call(a), custom_call_target=§foo"),
    "precision without braces": binary(
        "f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision=§high"
    ),
    "result accuracy unknown": unary("f32[2] log(a), result_accuracy={§odd=§1}"),
    "result accuracy empty": unary("f32[2] log(a), result_accuracy={§}"),
    "tolerance unknown": unary("f32[2] log(a), result_accuracy={tolerance={§odd=§1}}"),
    "result accuracy of negate": unary("f32[2] negate(a), §result_accuracy={mode=highest}"),
    "computation that is not there": op("f32[] reduce(a, z), dimensions={0}, to_apply=§f", a=F2, z="f32[]"),
    "computation that comes later": (
        "HloModule m\nENTRY e {\n a = f32[] parameter(0)\n ROOT r = f32[] call(a), to_apply=§f\n}\n"
        "f {\n x = f32[] parameter(0)\n}\n"
    ),
    "computation that is itself": "HloModule m\n§ENTRY §e {\n a = f32[] parameter(0)\n ROOT r = f32[] call(a), to_apply=§e\n}\n",
    "computation that is a number": op("f32[] reduce(a, z), dimensions={0}, to_apply=§1", a=F2, z="f32[]"),
    "computations without braces": op(
        "f32[] conditional(i, a), branch_computations=§f", "f { ROOT x = f32[] parameter(0) }\n", i="s32[]", a="f32[]"
    ),
    "conditional without branches": op("f32[] §conditional(i), branch_computations=§{}§", i="s32[]"),
    "conditional with too few operands": op(
        "f32[] §conditional(i, a), branch_computations=§{f, f}§",
        "f { ROOT x = f32[] parameter(0) }\n",
        i="s32[]",
        a="f32[]",
    ),
    "conditional on a vector": op(
        "f32[] §conditional§(§i, a), branch_computations={f}", "f { ROOT x = f32[] parameter(0) }\n", i="s32[2]", a="f32[]"
    ).replace("a), b", "a)§, b"),
    "conditional on a float": op(
        "f32[] §conditional§(§i, a), branch_computations={f}", "f { ROOT x = f32[] parameter(0) }\n", i="f32[]", a="f32[]"
    ).replace("a), b", "a)§, b"),
    "conditional on a predicate with a list": op(
        "f32[] §conditional(i, a, a)§, §branch_computations={f, f}§",
        "f { ROOT x = f32[] parameter(0) }\n",
        i="pred[]",
        a="f32[]",
    ),
    "slice without a limit": unary("f32[1] slice(a), slice={§[0§]}"),
    "slice with four numbers": unary("f32[1] slice(a), slice={§[0:1:1§:1]}"),
    "slice in parentheses": unary("f32[1] slice(a), slice={§(0:1)}"),
    "slice without braces": unary("f32[1] slice(a), slice=§[0:1]"),
    "slice with a comma": unary("f32[1] slice(a), slice={§[0§,1]}"),
    "padding with one number": op("f32[2] pad(a, z), padding=§1", a=F2, z="f32[]"),
    "padding with four numbers": op("f32[2] pad(a, z), padding=§0_0_0§_0", a=F2, z="f32[]"),
    "padding that is a word": op("f32[2] pad(a, z), padding=§x", a=F2, z="f32[]"),
    "padding with a negative interior": op("f32[2] pad(a, z), padding=§0_0§_-1", a=F2, z="f32[]"),
    "padding beyond 64 bits": op("f32[2] pad(a, z), padding=§9223372036854775808_0", a=F2, z="f32[]"),
    "padding of more digits than Python reads": op(f"f32[2] pad(a, z), padding=§{'9' * 5000}_0", a=F2, z="f32[]"),
    "window with a size beyond 64 bits": op(
        "f32[2,2] reduce-window(a, z), window={size=§9223372036854775808x1}, to_apply=add_f32",
        ADD,
        a="f32[2,2]",
        z="f32[]",
    ),
    "window with padding of more digits than Python reads": op(
        f"f32[2] reduce-window(a, z), window={{size=1 pad=§{'9' * 5000}_0}}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "window without braces": op(
        "f32[2] reduce-window(a, z), window=§size=1, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "window with an unknown field": op(
        "f32[2] reduce-window(a, z), window={size=1 §odd=1}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "window with too many strides": op(
        "f32[2] reduce-window(a, z), window=§{§size=1 §stride=§1x1}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "window with too few pads": op(
        "f32[2,2] reduce-window(a, z), window=§{§size=1x1 §pad=§0_0}, to_apply=add_f32", ADD, a="f32[2,2]", z="f32[]"
    ),
    "window with an interior pad": op(
        "f32[2] reduce-window(a, z), window={size=1 pad=§0_0_0}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ).replace("0_0_0", "0_0§_0"),
    "window of several sizes with a negative one": op(
        'f32[2] custom-call(a), custom_call_target="t", window={size=§-1x3}', a="f32[2]"
    ),
    "window of several strides with a negative one": op(
        'f32[2] custom-call(a), custom_call_target="t", window={size=1x3 stride=§1x-1}', a="f32[2]"
    ),
    "window with a size twice": op(
        "f32[2] reduce-window(a, z), window={size=1 §size=§1}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "window with commas": op(
        "f32[2] reduce-window(a, z), window={size=1§, stride=1}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "window without a size but strides": op(
        "f32[2] reduce-window(a, z), window=§{§stride=§1}, to_apply=add_f32", ADD, a="f32[2]", z="f32[]"
    ),
    "dim_labels without an arrow": op("f32[2,8] convolution(a, k), dim_labels=§bf_io", a="f32[2,4]", k="f32[4,8]"),
    "dim_labels with a letter twice": op(
        "f32[2,8] convolution(a, k), dim_labels=§bb_io->bf", a="f32[2,4]", k="f32[4,8]"
    ),
    "dim_labels with another letter": op(
        "f32[2,8] convolution(a, k), dim_labels=§bx_io->bf", a="f32[2,4]", k="f32[4,8]"
    ),
    "dim_labels with ranks that differ": op(
        "f32[2,8] convolution(a, k), dim_labels=§b0f_io->bf", a="f32[2,4,1]", k="f32[4,8]"
    ),
    "dim_labels with a digit too large": op(
        "f32[2,8] convolution(a, k), dim_labels=§b9f_0io->b0f", a="f32[2,4,1]", k="f32[1,4,8]"
    ),
    "replica groups of words": op("f32[2] all-reduce(a), replica_groups={{§x}}, to_apply=add_f32", ADD, a=F2),
    "replica groups not nested": op("f32[2] all-reduce(a), replica_groups={§0,1}, to_apply=add_f32", ADD, a=F2),
    "replica groups without an end": op("f32[2] all-reduce(a), replica_groups={{0,1}§, §to_apply=add_f32", ADD, a=F2),
    "replica groups as an iota of one dimension": op(
        "f32[2] all-reduce(a), §replica_groups=§[4]<=[4]§, to_apply=add_f32", ADD, a=F2
    ),
    "replica groups as an iota without a source": op(
        "f32[2] all-reduce(a), replica_groups=[2,2]§, to_apply=add_f32", ADD, a=F2
    ),
    "replica groups as a list of devices": op(
        "f32[2] all-reduce(a), replica_groups=[2,2]§0,1,2,3, to_apply=add_f32", ADD, a=F2
    ),
    "replica groups with a transposition missing": op(
        "f32[2] all-reduce(a), replica_groups=[2,2]<=[2,2]§, to_apply=add_f32", ADD, a=F2
    ),
    "replica groups with a transposition out of range": op(
        "f32[2] all-reduce(a), replica_groups=[2,2]<=[2,2]T§(1,§2§), to_apply=add_f32", ADD, a=F2
    ),
    "replica groups along no mesh": op("f32[2] all-reduce(a), replica_groups=§x, to_apply=add_f32", ADD, a=F2),
    "source_target_pairs of three": unary("f32[2] collective-permute(a), source_target_pairs={§{0,1,2}}§").replace(
        "source_target", "§source_target"
    ),
    "source_target_pairs not nested": unary("f32[2] collective-permute(a), source_target_pairs={§0,1}"),
    "literal= without a shape": unary('f32[2] custom-call(a), custom_call_target="x", literal=§{1, 2}'),
    "layout constraints of another count": unary(
        'f32[2]{0} §custom-call(a), custom_call_target="x", §operand_layout_constraints=§{f32[2]{0}, f32[2]{0}}§'
    ),
    "layout constraints of another shape": unary(
        'f32[2]{0} §custom-call(a), custom_call_target="x", §operand_layout_constraints=§{§f32[3]{0}}§'
    ),
    "both to_apply and called computations": unary(
        'f32[2] custom-call(a), custom_call_target="x", to_apply=§f, called_computations={§f}'
    ),
    "async-start of a shape that is no tuple": unary("§f32[2] §negate-start§(a)§"),
    "async-start of a flat tuple": unary("§(f32[2], f32[2]) §negate-start§(a)§"),
    "async-start without calls": unary("((f32[2]), f32[2]) §async-start(a)§"),
    "async-done of another opcode": module(
        "a = f32[2] parameter(0)\ns = ((f32[2]), f32[2], s32[]) negate-start(a)\nROOT u = f32[2] §abs-done§(§s)§"
    ),
    "async-done on another thread": module(
        'a = f32[2] parameter(0)\ns = ((f32[2]), f32[2], s32[]) negate-start(a), async_execution_thread="x"\n'
        'ROOT u = f32[2] §negate-done(s), §async_execution_thread=§"y"§'
    ),
    "async sugar without an attribute of its opcode": unary("((f32[2]), f32[1]) §slice-start(a)§").replace("root", "§root").replace("ROOT", "§ROOT"),
    "domain of another kind": unary(
        'f32[2] domain(a), domain=§{§kind=§"odd", entry={replicated}, exit={replicated}§}§'
    ),
    "domain without an exit": unary('f32[2] domain(a), domain=§{§kind="sharding", entry={replicated}§}'),
    "domain without braces": unary("f32[2] domain(a), domain=§x"),
    "aliasing of operands without a colon": binary(
        'f32[2] custom-call(a, b), custom_call_target="x", output_to_operand_aliasing={{} §(0, {})}'
    ),
    "aliasing of operands of a word": binary(
        'f32[2] custom-call(a, b), custom_call_target="x", output_to_operand_aliasing={{}: (§a§, {})}'
    ),
    "outfeed_shape that is not a shape": op("token[] outfeed(a, t), outfeed_shape=§x", a=F2, t="token[]"),
    "infeed of an array": op("§f32[2] §infeed§(t)§", t="token[]"),
    "channel of recv-done differs": module(
        "t = token[] after-all()\nr = (f32[2], u32[], token[]) recv(t), channel_id=1\n"
        "ROOT d = (f32[2], token[]) §recv-done(r), §channel_id=§2§"
    ),
    "channel of recv-done left out": module(
        "t = token[] after-all()\nr = (f32[2], u32[], token[]) recv(t), channel_id=1\n"
        "ROOT d = (f32[2], token[]) §recv-done(r)"
    ),
    "channel of send-done that send leaves out": module(
        "t = token[] after-all()\na = f32[2] parameter(0)\ns = (f32[2], u32[], token[]) send(a, t)\n"
        "ROOT d = token[] §send-done(s), channel_id=2"
    ),
    "metadata of a wrong type": carries("metadata={op_name=§n}"),
    "metadata line that is a string": carries('metadata={source_line=§"1"}'),
    "metadata line beyond 32 bits": carries("metadata={source_line=§4294967296}"),
    "metadata twice the same": carries('metadata={op_name="a" §op_name="b"}'),
    "metadata without an end": carries('metadata={op_name="a"§') + "§",
    "metadata with a profile unknown": carries("metadata={§profile_type=§{§99}}§"),
    "metadata without braces": carries('metadata=§"x"'),
    "backend_config is a word": carries("backend_config=§x"),
    "frontend attribute of a number": carries("frontend_attributes={a=§1}"),
    "frontend attribute without a comma": carries('frontend_attributes={a="1" §b="2"}'),
    "statistics without an index": carries("statistics={visualizing_index=§a}"),
    "statistics of a word": carries("statistics={visualizing_index=0, a=§b}"),
    "control predecessor that is not there": carries("control-predecessors={§zz§}"),
    "control predecessors empty": carries("control-predecessors=§{§}"),
    "control predecessor that is itself": carries("control-predecessors={§root§}"),
    "origin without braces": carries("origin=§x"),
    "origin of a number": carries("origin={§1}"),
    "parameter replication of another length": module("§ROOT §a = f32[2] parameter(0), §parameter_replication=§{true,false}§"),
    "parameter replication of a number": module("ROOT a = f32[2] parameter(0), parameter_replication={§1}"),
    "sharding without braces": carries("sharding=§replicated"),
    "sharding of an unknown kind": carries("sharding={§odd}"),
    "sharding replicated with devices": carries("sharding={§replicated §devices=[2]0,1}"),
    "sharding maximal without a device": carries("sharding={§maximal§}"),
    "sharding of one device": carries("sharding={§devices=[1]0}"),
    "sharding without dimensions": carries("sharding={devices=§0,1}"),
    "sharding with an unknown field": carries("sharding={devices=[2]0,1 §odd=1}"),
    "sharding with axes that are replicated twice": carries(
        "sharding={mesh['x'=2,'y'=2], [{'x'},{}], replicated={'y'}, §replicated={'y'}}"
    ),
    "sharding with an unknown subgroup": carries("sharding={devices=[1,2]0,1 last_tile_dims={§odd}}"),
    "sharding without an end": carries("sharding={replicated§") + "§",
    "sharding shard_as without a number": carries("sharding={replicated shard_as§}"),
    "sharding of a mesh with bare axes": carries("sharding={mesh[§x=2], [{§x}]}"),
    "sharding of a mesh of a word": carries("sharding={mesh['x'=§two], [{'x'}]}"),
    "sharding of a mesh with an unknown field": carries("sharding={mesh['x'=2], [{'x'}], §odd={}}"),
    "sharding of a mesh with an axis behind a question mark": carries("sharding={mesh['x'=2], [{?,§'x'}]}"),
    "sharding of a mesh with two axes of a name": carries("sharding={mesh['x'=2,§'x'=4], [{'x'}]}"),
    "sharding along an axis twice": carries("sharding={mesh['x'=2]§, §[{'x'}], replicated={'x'}}"),
    "sharding along parts that do not divide": carries("sharding={mesh['x'=4]§, §[{'x':(3)2}]}"),
    "sharding along a part that goes beyond its axis": carries("sharding={mesh['x'=4]§, §[{'x':(2)4}]}"),
    "replica groups along an unknown axis": _all_reduce("mesh['x'=2,'y'=4] {§'z'}"),
    "replica groups along an axis twice": _all_reduce("mesh['x'=2,'y'=4] §{'x','x'}"),
    "sharding of a tuple without a comma": op(
        "(f32[2], s32[]) copy(a), sharding={{replicated} §{replicated}}", a="(f32[2], s32[])"
    ),
}  # fmt: skip
