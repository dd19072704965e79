"""Shards of a triage, and the one report that is made of them."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from evaluation.executing.running import plain
from tests.cluster.conftest import TRIAGE
from tests.command_line import CommandLine


def test_shards_that_are_merged_give_the_same_report(
    farm: Path,
    expected: tuple[str, Any],
    cli: CommandLine,
) -> None:
    for shard in (1, 2, 3):
        # Each has a module that differs, or one that could not be judged.
        cli(f"{TRIAGE} --shard {shard}/3 -o part{shard}", code=CODES[shard])
    merged = cli("triage --merge part1 part2 part3 --no-minify", code=1)
    assert merged == expected[0]
    assert plain(cli.record("triage --merge part3 part1 part2 --no-minify", code=1)) == expected[1]
    # What a shard has lost is judged again.
    shutil.rmtree("part2/modules")
    Path("part2/modules").mkdir()
    assert cli("triage --merge part1 part2 part3 --no-minify", code=1) == expected[0]


CODES = {1: 1, 2: 2, 3: 1}
"""Exit codes of the shards."""
PAIR = "HloModule m\nENTRY e { x = f32[SIZE] parameter(0)\n ROOT y = f32[SIZE] add(x, x) }\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pairs -o new --shard 0/3", "--shard must be I/N with I from 1 to N, such as 3/8, not '0/3'"),
        ("pairs -o new --shard 4/3", "not '4/3'"),
        ("pairs -o new --shard 1", "not '1'"),
        ("pairs -o new --shard a/b", "not 'a/b'"),
        ("pairs -o new --shard -1/3", "not '-1/3'"),
        ("pairs -o new --shard 1/3/5", "not '1/3/5'"),
        ("pairs --shard 1/3", "--shard needs --output, the folder that merging reads"),
        ("--merge missing", "'missing' is no folder of a triage: it has no triage.json"),
        ("--merge pairs", "'pairs' is no folder of a triage: it has no triage.json"),
        ("--merge pairs/a.after.hlo", "'pairs/a.after.hlo' is no folder of a triage"),
        ("--merge part1 pairs", "'pairs' is no folder of a triage"),
        ("--merge part1 seeded", "'seeded' has results of other options: seed was 3; merge shards of one triage"),
        ("--merge part1 others", "'others' is of other modules than 'part1'; merge shards of one folder"),
        ("--merge damaged", "'damaged/triage.json' is damaged"),
        ("--merge strange", "'strange/triage.json' is no file of a triage"),
        ("--merge part1 -o pairs", "'pairs' is not empty"),
        ("--merge part1 --seed 3", "--seed is what the shards were made with; leave it out with --merge"),
        ("--merge part1 --shard 1/2", "--shard is what the shards were made with"),
        ("--merge part1 --select a", "--select is what the shards were made with"),
        ("--merge", "Missing argument"),
    ],
)
def test_a_wrong_use_of_shards_is_one_clear_line(words: str, message: str, shards: None, cli: CommandLine) -> None:
    complaint = cli.complaint("triage", *shlex.split(words))
    assert message in complaint and not Path("new").exists()
    lines = complaint.splitlines()
    assert lines[0].startswith(("error: ", "Usage: ")) and sum("rror: " in line for line in lines) == 1


@pytest.fixture
def shards(empty_folder: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of shards without results."""
    from hloexec.tools.triaging import running

    monkeypatch.setattr(running, "run_tasks", lambda *_: iter(()))
    for folder, size in (("pairs", "4"), ("others_pairs", "5")):
        Path(folder).mkdir()
        for side in ("before", "after"):
            Path(folder, f"a.{side}.hlo").write_text(PAIR.replace("SIZE", size))
    for line in ("pairs -o part1", "pairs -o seeded --seed 3", "others_pairs -o others"):
        cli(f"triage {line} --shard 1/1")
    for name, text in (("damaged", '{"schema": '), ("strange", '{"schema": "other"}')):
        Path(name).mkdir()
        Path(name, "triage.json").write_text(text)
