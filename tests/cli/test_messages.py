"""Messages of functions, as the command line says them."""

import re
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import hloexec
from hloexec.cli import _hloexec, main
from tests.command_line import CommandLine
from tests.text.building import op

CHANNELS = """HloModule m

ENTRY main {
  p = f32[2] parameter(0)
  t = token[] after-all()
  s = (f32[2], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true
  sd = token[] send-done(s), channel_id=1, is_host_transfer=true
  r = (f32[2], u32[], token[]) recv(sd), channel_id=2, is_host_transfer=true
  rd = (f32[2], token[]) recv-done(r), channel_id=2, is_host_transfer=true
  ROOT v = f32[2] get-tuple-element(rd), index=0
}
"""
FEEDS = """HloModule m

ENTRY main {
  t = token[] after-all()
  i = (f32[2], token[]) infeed(t)
  v = f32[2] get-tuple-element(i), index=0
  o = token[] outfeed(v, t), outfeed_shape=f32[2]
  ROOT r = f32[2] negate(v)
}
"""
SUMMED = """HloModule m, replica_count=2

sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

ENTRY main { x = f32[2] parameter(0)
  ROOT r = f32[2] all-reduce(x), replica_groups={{0,1}}, to_apply=sum }
"""
LOOP = """HloModule m

less { c = s32[] parameter(0)
  n = s32[] constant(9)
  ROOT l = pred[] compare(c, n), direction=LT }

next { c = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT s = s32[] add(c, one) }

ENTRY main { z = s32[] constant(0)
  ROOT w = s32[] while(z), condition=less, body=next }
"""


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> None:
    Path("add.hlo").write_text(op("f32[2] add(x, x)", x="f32[2]"))
    Path("unknown.hlo").write_text(op('f32[2] custom-call(x), custom_call_target="nobody"', x="f32[2]"))
    Path("callback.hlo").write_text(
        op('f32[2] custom-call(x), custom_call_target="xla_ffi_python_cpu_callback"', x="f32[2]")
    )
    Path("elided.hlo").write_text(
        op("f32[2] add(x, c)", x="f32[2]").replace("  ROOT", "  c = f32[2] constant({...})\n  ROOT")
    )
    Path("channels.hlo").write_text(CHANNELS)
    Path("feeds.hlo").write_text(FEEDS)
    Path("loop.hlo").write_text(LOOP)
    Path("summed.hlo").write_text(SUMMED)
    Path("three.hlo").write_text(SUMMED.replace("replica_count=2", "replica_count=3").replace("{{0,1}}", "{{0,1,2}}"))
    np.save("x.npy", np.ones(2, np.float32))
    np.savez("x.npz", **{"0": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run unknown.hlo", "with --custom-call TARGET=MODULE:FUNCTION"),
        ("run unknown.hlo", "with --unknown zeros or --unknown random"),
        ("run callback.hlo", "with --custom-call TARGET=MODULE:FUNCTION"),
        ("run elided.hlo --elided error", "choose --elided zeros or random"),
        ("run channels.hlo", "give them with --recv 2=FILE.npz\n"),
        ("run channels.hlo --recv 2=x.npz", "take them with --send 1=FILE.npz)"),
        ("run add.hlo --recv 7=x.npz", "--recv or --send names channel 7"),
        ("run feeds.hlo", "give them with --infeed FILE.npz\n"),
        ("run feeds.hlo --infeed x.npz", "take them with --outfeed FILE.npz)"),
        ("run loop.hlo --max-iterations 3", "--max-iterations 3 ends the loop"),
        ("run summed.hlo --replicas 1", "run the module on all of its devices (--replicas, --partitions)"),
        ("run three.hlo --replicas 2", "give --replicas … and --partitions …"),
        ("run add.hlo --computation nothing", "has no computation nothing; there are main"),
        ("extract loop.hlo --instruction w[2]:next/s --iteration 1 -o s", "--iteration must not be given, too"),
        ("shrink add.hlo -o s --dim 2=4", "--dim 2=4 makes a size larger; sizes can only shrink"),
        ("shrink add.hlo -o s --dim 2=0", "what --dim says of 2 must be at least 1"),
        ("shrink summed.hlo -o s --devices 4", "--devices is 4, but module m has 2"),
        ("run loop.hlo --max-iterations 1", "--max-iterations 1 ends the loop"),
        ("compare x.npy x.npy --atol -1", "--atol must not be negative"),
        ("compare x.npy x.npy --selects 9=x.npy", "--selects names leaf '9'"),
        ("golden record add.hlo -o g.golden", "--force records it again"),
        ("trace add.hlo -o t --disk-limit 1", "(--select PATTERN), or record statistics only (--stats-only)"),
    ],
)
def test_messages_speak_of_options(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if line.startswith("golden"):
        assert main(line.split()) == 0
    main(line.split())
    err = capsys.readouterr().err
    assert message in err
    assert not re.search(r"\b[a-z_]+=[a-zA-Z{[…]", err.replace("TARGET=MODULE:FUNCTION", "")), err


def test_what_several_runs_warn_of_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.hlo").write_text(Path("elided.hlo").read_text().replace("add(x, c)", "subtract(x, c)"))
    assert main("diff elided.hlo other.hlo --inputs x.npz --numerics-after exact".split()) in (0, 1)
    assert capsys.readouterr().err == "warning: constants that the text elides are taken as zeros: c\n"


def test_reasons_in_tables_speak_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "callback.hlo"]) == 0
    assert "with --custom-call TARGET=MODULE:FUNCTION" in capsys.readouterr().out
    hloexec.record_golden(hloexec.load("unknown.hlo"), [np.ones(2, np.float32)], "u.golden", unknown="zeros")
    record = Path("u.golden/golden.json")
    record.write_text(record.read_text().replace('"unknown": "zeros"', '"unknown": "error"'))
    capsys.readouterr()
    assert main(["golden", "check", "u.golden"]) == 2
    out = capsys.readouterr().out
    assert "with --custom-call TARGET=MODULE:FUNCTION" in out and "--unknown" not in out


def test_options_that_messages_name_are_there() -> None:
    from hloexec.cli import problems
    from hloexec.cli.commands.explaining import bisect, precision
    from hloexec.cli.commands.inspecting import graph, memory
    from hloexec.cli.commands.judging import compare, diff, triage
    from hloexec.cli.commands.reducing import extract, minify, shrink
    from hloexec.cli.commands.running import golden, run, trace

    commands = [
        run.command,
        compare.command,
        diff.command,
        triage.command,
        precision.command,
        bisect.command,
        extract.command,
        trace.command,
        shrink.command,
        minify.command,
        graph.command,
        memory.command,
        *golden.command.commands.values(),
    ]
    options = {name for command in commands for parameter in command.params for name in parameter.opts}
    named = {text or f"--{name.replace('_', '-')}" for name, text in problems._OPTIONS.items()}
    assert {option for text in named for option in re.findall(r"--[a-z-]+", text)} <= options
    sources = [path.read_text(encoding="utf-8") for path in Path(hloexec.__file__).parent.rglob("*.py")]
    spoken_of = {name for source in sources for name in re.findall(r"\{argument\(['\"]([\w.]+)['\"]", source)}
    assert len(spoken_of) > 20
    assert spoken_of <= problems._OPTIONS.keys()


@pytest.mark.parametrize(
    "line",
    [
        "shrink loop.hlo --dim §",
        "run loop.hlo --range §",
        "run loop.hlo --numerics §",
        "run loop.hlo --numerics reference,§",
        "run loop.hlo --print §",
        "run loop.hlo --custom-call x=§",
        "shrink loop.hlo -o s --max-bytes §",
        "graph loop.hlo --around §",
        "extract loop.hlo --instruction § -o s",
        "schema §",
    ],
)
def test_messages_quote_the_beginning_of_a_long_text(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.replace("§", "9" * 5000).split()) != 0
    said = capsys.readouterr().err
    assert "9…" in said and len(said) < 1000


def _options_of(words: list[str]) -> set[str]:
    """The options of the command that a line names, as its help says."""
    found = CliRunner().invoke(_command_of(words[0]), [*words[1:2], "--help"] if words[0] == "golden" else ["--help"])
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", found.output))


def _command_of(name: str) -> click.Command:
    command = _hloexec.get_command(click.Context(_hloexec), name)
    assert command is not None
    return command


@pytest.mark.parametrize("file", "feeds.hlo channels.hlo unknown.hlo summed.hlo three.hlo".split())
@pytest.mark.parametrize(
    "line",
    [
        "run",
        "trace -o t.trace",
        "step -x step",
        "nan",
        "shadow",
        "explain --expected x.npy",
        "precision --tolerance 1e-2",
        "extract --instruction r -o out",
        "diff again.hlo",
        "golden record -o g.golden",
        "graph -o g.svg",
        "plan",
        "memory",
    ],
)
def test_advice_is_for_the_command_at_hand(file: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("again.hlo").write_text(Path(file).read_text())
    command, *options = line.split()
    subcommand = [options.pop(0)] if command == "golden" else []
    main([command, *subcommand, file, *options])
    err = capsys.readouterr().err
    said = {
        option
        for text in err.splitlines()
        if "hloexec" not in text
        for option in re.findall(r"(?<![\w-])--[a-z-]+", text)
    }
    assert said <= _options_of([command, *subcommand]), err


def test_what_has_no_option_at_hand_is_said_to_have_one_elsewhere(cli: CommandLine) -> None:
    err = cli.complaint("trace feeds.hlo -o t.trace")
    assert err.endswith("from the infeed; hloexec trace has no option for that, but hloexec run has\n")


_TEXT = "HloModule jit_f\n\nENTRY main {\n  x = f32[2] parameter(0)\n  ROOT log.1 = f32[2] log(x)%s\n}\n"
_ADVICE = "the text has no source lines; JAX prints them: lowered.as_text('hlo', debug_info=True)"


@pytest.mark.parametrize(
    ("text", "is_advised"),
    [
        (_TEXT % "", True),
        (_TEXT % ', metadata={op_name="jit(f)/log"}', False),
        (_TEXT.replace("jit_f", "m") % "", False),
    ],
)
def test_a_module_of_jax_without_metadata_is_printed_with_it_by_debug_info(
    text: str, is_advised: bool, tmp_path: Path, cli: CommandLine
) -> None:
    module, other, inputs = (str(tmp_path / name) for name in ("m.hlo", "other.hlo", "x.npz"))
    Path(module).write_text(text)
    Path(other).write_text(text.replace("log(x)", "sine(x)"))
    np.savez(inputs, np.float32([-1, 2]))
    for arguments in (["nan", module, "--inputs", inputs], ["diff", module, other]):
        assert (_ADVICE in cli(*arguments, code=1)) == is_advised
    assert _ADVICE not in cli("diff", module, module)


def test_debug_info_is_what_jax_calls_it() -> None:
    jax = pytest.importorskip("jax")
    import hloexec
    from hloexec.language.origins import advice_on_source_lines

    lowered = jax.jit(lambda x: jax.numpy.log(x)).lower(np.float32([1]))
    assert advice_on_source_lines(hloexec.parse(lowered.as_text("hlo"))) is not None
    assert advice_on_source_lines(hloexec.parse(lowered.as_text("hlo", debug_info=True))) is None
