"""Pages in a browser: they open without a word on the console, filter, follow links and keep to themselves."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.slow

ALL = "run nan shadow diff memory compare explain triage".split()


@pytest.fixture
def open_page(browser: Any, pages: dict[str, Path]) -> Any:
    """Opens a page by its name, in a theme."""

    def opened(name: str, theme: str = "light", anchor: str = "") -> Any:
        feature = {"name": "prefers-color-scheme", "value": theme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(pages[name].as_uri() + anchor)
        return browser

    return opened


def _value(browser: Any, expression: str) -> Any:
    return browser.execute_script(f"return {expression}")


def _becomes(browser: Any, expression: str, value: object) -> None:
    """Waits until something is so; links are followed once the script that clicks has ended."""
    end = time.monotonic() + 30
    while (found := _value(browser, expression)) != value:
        assert time.monotonic() < end, (expression, found)
        time.sleep(0.02)


@pytest.mark.parametrize("name", ALL)
def test_a_page_opens_in_silence_and_asks_for_nothing(open_page: Any, name: str) -> None:
    browser = open_page(name)
    assert browser.get_log("browser") == []
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in asked) == 1
    assert _value(browser, "document.querySelector('h1').textContent.length") > 0


@pytest.mark.parametrize("name", "run nan compare triage".split())
def test_what_comes_from_a_module_is_no_markup(open_page: Any, name: str) -> None:
    browser = open_page(name)
    browser.execute_script("if (document.getElementById('search')) location.hash = '#main/bad'")
    assert _value(browser, "typeof hacked") == "undefined"
    assert _value(browser, "document.querySelectorAll('img, b').length") == 0
    assert "onerror=hacked" in _value(browser, "document.body.textContent")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize(
    ("name", "theme"),
    [("shadow", "light"), ("diff", "dark"), ("compare", "dark"), ("nan", "light"), ("triage", "light")],
)
def test_axe_finds_nothing_serious(open_page: Any, name: str, theme: str) -> None:
    axe = pytest.importorskip("axe_selenium_python", reason="axe-selenium-python is not installed")
    browser = open_page(name, theme)
    if name not in ("compare", "triage"):
        browser.find_element("css selector", "#rows tbody a").click()
        _becomes(browser, "document.getElementById('selected').hidden", False)
    checker = axe.Axe(browser)
    checker.inject()
    found = checker.run()["violations"]
    told = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
    assert told == []


@pytest.mark.parametrize("name", ["shadow", "memory"])
def test_the_text_of_a_graph_lies_within_its_nodes(open_page: Any, name: str) -> None:
    """Graphviz rounds widths and the browser hints glyphs: a pixel at either side is allowed."""
    widest = """Math.max(...[...document.querySelectorAll('.graph .node')].map(node => {
      const [box, ...texts] = ['path, polygon', 'text'].flatMap(kind => [...node.querySelectorAll(kind)])
        .map(each => each.getBoundingClientRect());
      return Math.max(...texts.map(text => Math.max(box.left - text.left, text.right - box.right)));
    }))"""
    assert -100 < _value(open_page(name), widest) < 1


def test_the_search_filters_and_the_count_says_so(open_page: Any) -> None:
    browser = open_page("shadow")
    search = browser.find_element("id", "search")
    total = _value(browser, "document.getElementById('count').textContent")
    assert total == "167"
    search.send_keys("dot_general")
    names = _value(browser, "[...document.querySelectorAll('#rows tbody a')].map(a => a.textContent)")
    assert names and all("dot_general" in name for name in names)
    assert _value(browser, "document.getElementById('count').textContent") == f"{len(names)} of 167"
    search.send_keys("-that-is-not-there")
    assert _value(browser, "document.querySelectorAll('#rows tbody a').length") == 0
    assert _value(browser, "document.getElementById('count').textContent") == "0 of 167"


def test_columns_sort_in_both_directions(open_page: Any) -> None:
    browser = open_page("shadow")
    button = browser.find_element("xpath", "//div[@id='rows']//th/button[text()='error']")

    def first() -> str:
        return str(_value(browser, "document.querySelector('#rows tbody tr:nth-child(2) td.figure').textContent"))

    button.click()
    largest = float(first())
    assert _value(browser, "document.querySelector('#rows th[aria-sort]').getAttribute('aria-sort')") == "descending"
    button.click()
    assert first() == "–" and largest > 0


def test_links_lead_to_details_or_to_the_selected_instruction_and_back(open_page: Any) -> None:
    browser = open_page("shadow")
    # The foremost instruction has a place of its own.
    browser.find_element("css selector", ".ranking a").click()
    anchor = _value(browser, "location.hash.slice(1)")
    _becomes(browser, "document.activeElement.id", anchor)
    assert _value(browser, "document.querySelector('.detail:target h3').textContent").startswith("1 %")
    # Another one is shown below the table.
    browser.execute_script("document.getElementById('search').value = 'reduce_max'")
    browser.execute_script("document.getElementById('search').dispatchEvent(new Event('input'))")
    link = browser.find_element("css selector", "#rows tbody a")
    name = link.text
    link.click()
    _becomes(browser, "document.querySelector('#selected h3').textContent", f"%{name}")
    assert (
        _value(browser, "document.querySelector('#selected mark').textContent")
        .removeprefix("ROOT ")
        .startswith(f"%{name} =")
    )
    browser.back()
    _becomes(browser, "location.hash.slice(1)", anchor)
    browser.back()
    _becomes(browser, "location.hash", "")


def test_a_page_opens_at_an_instruction(open_page: Any) -> None:
    browser = open_page("shadow", anchor="#" + quote("main.6") + "/x.1")
    assert _value(browser, "document.querySelector('#selected h3').textContent") == "%x.1"
    assert not _value(browser, "document.getElementById('selected').hidden")


def test_the_theme_is_that_of_the_system_until_it_is_chosen(open_page: Any) -> None:
    browser = open_page("compare", "dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = _value(browser, ground)
    browser.find_element("id", "theme").click()
    light = _value(browser, ground)
    assert light == "rgb(255, 255, 255)" and dark != light
    assert _value(browser, "document.getElementById('theme').textContent") == "Dark"


def test_the_keyboard_reaches_the_report_the_filters_and_the_rows(open_page: Any) -> None:
    browser = open_page("memory")
    from selenium.webdriver.common.keys import Keys

    def tab(count: int) -> list[str]:
        seen = []
        for _ in range(count):
            browser.switch_to.active_element.send_keys(Keys.TAB)
            seen.append(_value(browser, "document.activeElement.id || document.activeElement.textContent"))
        return seen

    assert tab(6) == ["Skip to the report", "Summary", "Plots", "Ranking", "Instructions", "theme"]
    browser.execute_script("document.getElementById('search').focus()")
    assert tab(3) == ["opcode", "computation", "rows"]
    name = _value(browser, "document.querySelector('#rows tbody a').textContent")
    assert name in tab(12)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    _becomes(browser, "document.activeElement.id", "selected")
