"""Accessibility and appearance of the page and of /docs in Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from typing import Any

import pytest

from tests.serve.harness import KEY, KEYED, Server, eventually
from tests.serve.page.visit import DROP, HANDBOOK, QUESTION, WHERE, Visit


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_page_is_accessible(browser: Any, server: Server, scheme: str, width: int) -> None:
    """axe-core finds nothing in any state: first visit, dialogs, errors, answers and their reasons, no documents."""
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    options = {
        "color_scheme": scheme,
        "viewport": {"width": width, "height": 800},
        "bypass_csp": True,
    }
    visit = Visit(browser, server.url, **options)
    visit.page.evaluate(axe)

    def check() -> None:
        found = visit.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")[
            "violations"
        ]
        serious = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]
        assert serious == []

    def show(view: str) -> None:
        if width < 760:
            visit.page.click(f".views [data-view={view}]")

    check()
    visit.page.click("#forget")
    check()
    visit.page.keyboard.press("Escape")
    visit.page.fill("#question", "zzyzx")
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector("#nothing")
    check()
    visit.own_example()
    visit.page.evaluate(DROP, ["handbook.md", list(HANDBOOK.encode())])
    visit.wait_for_document("handbook.md")
    visit.page.evaluate(DROP, ["empty.txt", []])
    visit.page.wait_for_selector("#trouble:not([hidden])")
    check()
    visit.ask(QUESTION)
    visit.open_why()
    visit.page.select_option("#samples", "2")
    visit.page.wait_for_selector(".sample >> nth=1")
    visit.wait_for_end()
    visit.page.focus("#given button >> nth=0")
    assert visit.page.is_visible("#peek")
    check()
    visit.page.click(".asked-before")
    check()
    for opener, closer in (("#threads", "#threads-close"), ("#settings", "#settings-cancel")):
        visit.page.click(opener)
        check()
        visit.page.click(closer)
    show("document")
    check()
    visit.page.evaluate("document.querySelector('#all').click()")
    check()
    visit.page.click("#shelf-close")
    visit.page.click("#add")
    check()
    visit.page.click("#text-cancel")
    for _ in range(2):
        visit.page.locator("#names [aria-label^=Remove] >> nth=0").click()
    visit.page.wait_for_selector("#empty:not([hidden])")
    check()
    visit.page.evaluate("sessionStorage.setItem('relevance_gen.key', 'wrong')")
    visit.page.select_option("#scope", "index:harbour")
    visit.page.click("#ask button")
    visit.page.wait_for_selector("#key-dialog[open]")
    check()
    assert "401" in visit.errors.pop()
    visit.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_description_is_accessible(browser: Any, server: Server, scheme: str, width: int) -> None:
    """axe-core finds no violations in /docs; no overflow, links have valid targets, and the tab's key is used."""
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    options = {
        "color_scheme": scheme,
        "viewport": {"width": width, "height": 800},
        "bypass_csp": True,
    }
    visit = Visit(browser, server.url, **options)
    visit.page.goto(f"{server.url}/docs#search")
    visit.page.wait_for_selector("#search[open]")
    assert "a query word of 7 or more letters" in visit.page.inner_text("#search")
    assert visit.page.get_attribute("#key", "type") == "password"
    visit.page.click("#search button")
    visit.page.wait_for_selector("#search pre:has-text('200 OK')")
    visit.page.evaluate("location.hash = 'SearchRequest'")
    visit.page.wait_for_selector("#SearchRequest[open]")
    visit.page.evaluate(axe)
    found = visit.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") == width
    visit.close()


PROGRAMS = {
    "curl": ["bash", "-c"],
    "Python": [sys.executable, "-c"],
    "JavaScript": ["node", "--input-type=module", "-e"],
}


def test_description_copies_code_that_runs(browser: Any, server: Server) -> None:
    """The code of a request in the clipboard sends it, in each language whose program is installed.

    The key is read from a variable.
    """
    installed = [language for language in PROGRAMS if shutil.which(PROGRAMS[language][0])]
    visit = Visit(browser, server.url, permissions=["clipboard-read", "clipboard-write"])
    for path, body in (
        (
            "search",
            {"query": 'Where\'s "\\" the\nfähre?', "chunk_txts": ['It\'s "there".', "Fähre 😀"]},
        ),
        ("generate_stream", {"text": "x", "max_tokens": 5}),
        ("indexes", None),
    ):
        visit.page.goto(f"{server.url}/docs#{path}")
        visit.page.wait_for_selector(f"#{path}[open]")
        if body is not None:
            visit.page.fill(f"#{path} textarea", json.dumps(body, ensure_ascii=False, indent=2))
        method = "GET" if body is None else "POST"
        expected = server.call(method, f"/{path}", body, KEYED).body.decode()
        times = re.compile(r"\d+\.\d+(e-\d+)?")
        shown = visit.page.locator(f"#{path} pre >> nth=-1")
        for language in installed:
            before = clipboard(visit)
            visit.page.click(f"#{path} >> text=Copy as {language}")
            assert eventually(lambda before=before: clipboard(visit) != before)
            code = clipboard(visit)
            assert shown.inner_text() == code
            assert KEY not in code
            done = subprocess.run(
                [*PROGRAMS[language], code],
                env={**os.environ, "KEY": KEY},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert times.sub("", done.stdout) == times.sub("", expected), done.stderr
    visit.close()


def clipboard(visit: Visit) -> str:
    """Return the text in the clipboard."""
    text: str = visit.page.evaluate("navigator.clipboard.readText()")
    return text


def test_description_shows_responses(visit: Visit) -> None:
    """An operation has the fields of its response; names of objects lead to their fields."""
    visit.page.goto(visit.page.url.split("#")[0].rstrip("/") + "/docs#search")
    visit.page.wait_for_selector("#search[open]")
    shown = visit.page.inner_text("#search")
    assert "200: SearchResponse" in shown
    assert "X-Request-ID" in shown
    visit.page.click("#search summary:has-text('200: SearchResponse')")
    visit.page.click("#search a:text-is('SearchResult') >> nth=0")
    visit.page.wait_for_selector("#SearchResult[open]")
    assert "original_index" in visit.page.inner_text("#SearchResult")
    unnamed = visit.page.evaluate(
        """() => [...document.querySelectorAll("#main a[href^='#']")].map((link) => link.hash.slice(1))
          .filter((id) => !document.getElementById(id))"""
    )
    assert unnamed == []
    assert visit.page.title() == "API · relevance_gen"


def test_description_shows_stream_as_it_arrives(browser: Any, slow: Server) -> None:
    """A streamed answer grows, and stopping it keeps its text and ends the request."""
    visit = Visit(browser, slow.url)
    visit.page.goto(f"{slow.url}/docs#generate_stream")
    visit.page.wait_for_selector("#generate_stream[open]")
    visit.page.fill("#generate_stream textarea", '{"text": "x", "max_tokens": 1000}')
    visit.page.press("#generate_stream textarea", "Control+Enter")
    visit.page.wait_for_selector("#generate_stream pre:has-text('word3 ')")
    visit.page.click("#generate_stream button:text-is('Stop')")
    visit.page.wait_for_selector("#generate_stream pre:has-text('Stopped.')")
    visit.page.wait_for_selector("#generate_stream button:text-is('Try it')")
    shown = visit.page.inner_text("#generate_stream pre >> nth=0")
    assert shown.startswith("200 OK (")
    assert "content-type: text/event-stream" in shown
    assert "word3 " in shown
    assert eventually(lambda: slow.stats()["backlog"] == 0)
    visit.close()


def test_page_theme_can_be_chosen_and_stays(browser: Any, server: Server) -> None:
    """The button switches between light and dark, other than the system, and a reload keeps the choice."""
    visit = Visit(browser, server.url, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = visit.page.evaluate(paper)
    assert visit.page.inner_text("#theme") == "Light"
    visit.page.click("#theme")
    light = visit.page.evaluate(paper)
    assert light != dark
    visit.page.reload()
    assert visit.page.evaluate(paper) == light
    assert visit.page.inner_text("#theme") == "Dark"
    visit.page.click("#theme")
    assert visit.page.evaluate(paper) == dark
    visit.close()


def test_high_contrast_marks_the_displayed_view(browser: Any, server: Server) -> None:
    """With forced colors, which draw transparent borders, the hidden view has no line below it."""
    visit = Visit(
        browser, server.url, viewport={"width": 390, "height": 800}, forced_colors="active"
    )
    color = "(of, name) => getComputedStyle(document.querySelector(of))[name]"
    drawn = f"(of) => ({color})(of, 'borderBottomColor') !== ({color})('body', 'backgroundColor')"
    assert visit.page.evaluate(drawn, ".views [aria-pressed=true]")
    assert not visit.page.evaluate(drawn, ".views [aria-pressed=false]")
    visit.close()


def test_page_print_layout_has_one_edge(visit: Visit) -> None:
    """On paper the name above, the question and the passages begin at the same edge."""
    visit.ask(QUESTION)
    visit.wait_for_end()
    visit.page.emulate_media(media="print")
    edges = {
        visit.page.locator(of).bounding_box()["x"]
        for of in (".masthead h1", "#asked", "#found-title")
    }
    assert len(edges) == 1


def test_page_fits_phone(browser: Any, server: Server) -> None:
    """At 360 pixels nothing overflows, the first view offers to add files, and answer and documents are two views."""
    visit = Visit(browser, server.url, viewport={"width": 360, "height": 740}, has_touch=True)
    box = visit.page.locator("button:visible >> text=Add files").bounding_box()
    assert box["y"] + box["height"] < 740
    visit.ask(QUESTION)
    visit.open_why()
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    assert visit.page.evaluate(
        "document.querySelector('#right').scrollWidth <= document.querySelector('#right').clientWidth"
    )
    assert not visit.page.is_visible("#text")
    visit.page.click(".hit >> nth=0")
    assert visit.page.is_visible("#text")
    assert eventually(lambda: visit.page.evaluate(WHERE)["inView"])
    visit.page.go_back()
    visit.page.wait_for_selector("#found")
    visit.ask("What do words in a row mean?")
    visit.page.click("nav [data-view=document]")
    assert eventually(lambda: "Words in a row" in visit.page.evaluate(WHERE)["text"])
    assert eventually(lambda: visit.page.evaluate(WHERE)["inView"])
    visit.close()
