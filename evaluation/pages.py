"""`python -m evaluation page`: how large the page of a large module is, and how fast it opens and filters, in Chromium."""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click

import hloexec
from tests.report.html.conftest import FLAGS

_PAIRS = ("add", "multiply", "subtract", "maximum", "minimum")
_SINGLES = ("tanh", "negate", "abs", "cosine", "logistic")
_FILTER = """
const search = document.getElementById('search');
const started = performance.now();
search.value = arguments[0];
search.dispatchEvent(new Event('input'));
document.getElementById('rows').getBoundingClientRect();
document.body.offsetHeight;
return performance.now() - started;
"""
_SORT = """
const button = [...document.querySelectorAll('#rows th button')].find(each => each.textContent === arguments[0]);
const started = performance.now();
button.click();
document.body.offsetHeight;
return performance.now() - started;
"""
_OPENED = """
const done = arguments[arguments.length - 1];
requestAnimationFrame(() => setTimeout(() => {
  const entry = performance.getEntriesByType('navigation')[0];
  done([entry.loadEventEnd, performance.now()]);
}));
"""


def _large_module(count: int, seed: int = 1) -> str:
    """A module of so many instructions of f32[64,32], with metadata as frameworks write it."""
    chance = random.Random(seed)
    lines = ["HloModule large", "ENTRY main {"]
    lines += [f"  x{number} = f32[64,32] parameter({number})" for number in range(2)]
    for number in range(2, count):
        near, far = (chance.randrange(max(0, number - reach), number) for reach in (12, 40))
        layer = f"jit(train_step)/jit(main)/transformer/layer_{number // 200}/block_{number // 20 % 10}/op_{number}"
        place = f'source_file="models/transformer/layer.py" source_line={number % 700 + 1}'
        root = "ROOT " if number == count - 1 else ""
        call = (
            f"{chance.choice(_SINGLES)}(x{near})"
            if chance.random() < 0.4
            else f"{chance.choice(_PAIRS)}(x{near}, x{far})"
        )
        lines.append(f'  {root}x{number} = f32[64,32] {call}, metadata={{op_name="{layer}" {place}}}')
    return "\n".join([*lines, "}", ""])


def _browser(profile: str) -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def _told(name: str, milliseconds: list[float]) -> str:
    return f"{name}: {statistics.median(milliseconds):.0f} ms, at most {max(milliseconds):.0f} ms"


@click.command()
@click.argument("instructions", type=click.IntRange(3), default=10_000)
@click.option("--keep", type=click.Path(path_type=Path, dir_okay=False), help="Keep the page under this name.")
def page(instructions: int, keep: Path | None) -> None:
    """How large the page of a large module is, and how fast it opens.

    The module has so many INSTRUCTIONS, by default 10000. Printed are the page's size, the time to write it, the time
    from the request to the load event and to the first frame after it, and the time of one filter or sort, layout
    included: the median and the worst of nine.
    """
    module = hloexec.parse(_large_module(instructions))
    inputs = hloexec.random_inputs(module)
    found = hloexec.shadow(module, inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = keep or Path(folder) / "page.html"
        start = time.process_time()
        hloexec.write_html(found, path, module=module, inputs=inputs)
        click.echo(f"written in {time.process_time() - start:.1f} s of processor time")
        click.echo(f"{path.stat().st_size / 1e6:.1f} MB for {instructions} instructions")
        if not shutil.which("chromium") or not shutil.which("chromedriver"):
            click.echo("not opened: chromium or chromedriver is not installed")
            return
        browser = _browser(f"{folder}/profile")
        try:
            loads, frames = [], []
            for _ in range(9):
                browser.get("about:blank")
                browser.get(path.resolve().as_uri())
                load, frame = browser.execute_async_script(_OPENED)
                loads.append(load)
                frames.append(frame)
            click.echo(_told("load event", loads))
            click.echo(_told("first frame after it", frames))
            words = [
                "x12",
                "tanh",
                "layer_7",
                "layer.py:333",
                "f32[64,32] add",
                "nothing-like-it",
                "",
                "x",
                "block_3 x5",
            ]
            click.echo(_told("filter", [browser.execute_script(_FILTER, word) for word in words]))
            click.echo(_told("sort", [browser.execute_script(_SORT, name) for name in ("error", "runs", "opcode") * 3]))
        finally:
            browser.quit()
