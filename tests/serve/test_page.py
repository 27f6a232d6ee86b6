"""The page at ``/`` in a real Chromium: search, highlights, generation, errors and security."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.types import SearchResponse
from tests.cli.documents import pdf
from tests.serve.harness import HALF_SCRIPTED, KEY, KEYED, REAL, Server, eventually

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("Chromium is not installed: apt-get install chromium", allow_module_level=True)
playwright: Any = pytest.importorskip("playwright.sync_api")

QUESTION = "How do desert ants know how far they have gone?"

WATCH = """
window.troubles = [];
addEventListener("securitypolicyviolation", (event) => troubles.push(event.violatedDirective));
window.longestTaskMs = 0;
new PerformanceObserver((tasks) => {
  for (const task of tasks.getEntries()) longestTaskMs = Math.max(longestTaskMs, task.duration);
}).observe({ type: "longtask" });
"""
"""Runs before the page's own script."""

PASTE = """(escaped) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", JSON.parse(escaped));
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""

DROP = """([name, bytes]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""

IDS = """async () => {
  const { documents } = await import("/static/documents.js");
  return [...documents.map(({ id }) => id), ...(documents.length ? [] : [1])];
}"""
"""The identifiers of the documents, [1] without documents."""

CHUNKS = "() => JSON.stringify([...document.querySelectorAll('.chunk')].map((chunk) => chunk.textContent))"
MARKS = """() => JSON.stringify(Object.fromEntries([...CSS.highlights].map(([name, ranges]) => [name, [...ranges]
  .filter((range) => range.startContainer.parentElement.closest(".chunk"))
  .map(({ startContainer, startOffset, endContainer, endOffset }) => {
    const read = document.createRange();
    read.setStart(startContainer, startOffset);
    read.setEnd(endContainer, endOffset);
    return read.toString();
  })])))"""
"""Written and read as JSON, for lone surrogates do not survive the way through playwright."""

WHERE = """() => {
  const [pane, chunk] = [document.querySelector("#text"), document.querySelector(".chunk.here")]
    .map((element) => element.getBoundingClientRect());
  const text = document.querySelector(".chunk.here").textContent;
  return { inView: chunk.top >= pane.top && chunk.top < pane.bottom, text };
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with real search and a folder of its own, that writes a word every 5 ms."""
    folder = tmp_path_factory.mktemp("harbour")
    (folder / "fees.md").write_text(
        "The fee for a boat is three crowns a night.\n\nShips pay by their length."
    )
    records = tmp_path_factory.mktemp("records") / "boats.index"
    ChunkIndex(
        [{"text": "Boats are painted in spring.", "title": "Paint"}, "Sails are mended in winter."]
    ).save(records)
    offered = ("--index", f"harbour={folder}", "--index", f"boats={records}")
    with Server("--rate-limit", "off", *offered, program=HALF_SCRIPTED) as started:
        assert eventually(started.is_healthy)
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


class Visit:
    """A fresh visit of the page, in a session of its own.

    Attributes:
        context: playwright's context.
        page: playwright's page.
        errors: what the browser has complained of.
    """

    def __init__(self, browser: Any, url: str, *, key: str | None = KEY, **options: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **options}
        )
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.add_init_script(WATCH)
        if key is not None:
            self.page.add_init_script(f"sessionStorage.setItem('relevance_gen.key', '{key}')")
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)
        self.page.wait_for_selector("#text:not([aria-busy])", state="attached")

    def close(self) -> None:
        """End the session: no policy was violated, and there are no errors except those that the test removed."""
        troubles = self.page.evaluate("troubles")
        self.context.close()
        assert (troubles, self.errors) == ([], [])

    def ask(self, question: str) -> None:
        """Submit a question, and wait for the results."""
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")
        self.page.wait_for_selector("#found li")

    def add(self, text: str) -> None:
        """Paste a document, and wait until it can be searched."""
        newest = max(self.page.evaluate(IDS))
        self.page.evaluate(PASTE, json.dumps(text))
        assert eventually(lambda: self._is_newest_later(newest))
        self.page.wait_for_selector("#text:not([aria-busy])", state="attached")

    def _is_newest_later(self, newest: int) -> bool:
        """Return whether a document newer than `newest` is listed, and the example is not."""
        ids = self.page.evaluate(IDS)
        return ids[-1] > newest and min(ids) > 0

    def own_example(self) -> None:
        """Add the text of the example as a document of the user, which stays when others are added."""
        self.page.evaluate(
            f"({DROP})(['example.txt', new TextEncoder().encode(document.querySelector('#example').textContent)])"
        )
        self.page.wait_for_selector("#names li:first-child [title='example.txt']", state="attached")

    def forget_example(self) -> None:
        """Remove the document of the first visit."""
        self.page.click("#names [aria-label^=Remove]")
        self.page.wait_for_selector("#names li", state="detached")

    def chunks(self) -> list[str]:
        """Return the chunks that the page has made of its documents."""
        texts: list[str] = json.loads(self.page.evaluate(CHUNKS))
        return texts

    def marks(self) -> dict[str, list[str]]:
        """Return the texts that are marked in the documents, by the name of the mark."""
        parsed: dict[str, list[str]] = json.loads(self.page.evaluate(MARKS))
        return parsed

    def open_why(self) -> None:
        """Ask why the best passage scored, once the answer above it is complete and moves it no more."""
        self.wait_for_end()
        self.page.click(".under summary >> nth=0")
        self.page.wait_for_selector("#found table")

    def wait_for_end(self) -> None:
        """Wait until the answer is complete, was stopped, or has failed."""
        over = "#answers:not([aria-busy])"
        self.page.wait_for_selector(
            f"{over}:not(:empty), {over} + .source .wrong", state="attached"
        )


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    """A visit with a key."""
    made = Visit(browser, server.url)
    yield made
    made.close()


# ── Finding ───────────────────────────────────────────────────────────────────────────────────────


def test_page_example_click_searches_and_answers(browser: Any, server: Server) -> None:
    """A first visit has a document and a question; one click asks for the key once, then finds and answers."""
    visit = Visit(browser, server.url, key=None)
    assert visit.page.input_value("#question") == QUESTION
    visit.page.click("#ask button")
    visit.page.fill("#key", KEY)
    visit.page.press("#key", "Enter")
    visit.page.wait_for_selector("#found li")
    assert "Desert ants" in visit.page.inner_text("#found li >> nth=0")
    assert re.fullmatch(r"\d+ of \d+ passages · \d+ ms", visit.page.inner_text("#status"))
    assert visit.page.inner_text("#verdict") == "Probably answered in these documents"
    assert re.fullmatch(r"Confidence [01]\.\d\d", visit.page.get_attribute("#verdict", "title"))
    visit.wait_for_end()
    assert "word0 word1 word2 " in visit.page.inner_text("#answers")
    assert re.search(r"\d+ tokens · \d+ tokens/s", visit.page.inner_text("#pace"))
    visit.page.click("#ask button")
    visit.wait_for_end()
    assert not visit.page.is_visible("#key-dialog")
    assert visit.page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]") == [
        0,
        "",
        1,
    ]
    visit.close()


def test_page_results_equal_search(visit: Visit) -> None:
    """The list has the scores of `search`, best first; results are marked on the strip, the best passage most strongly."""
    visit.ask(QUESTION)
    best = search(QUESTION, visit.chunks(), 30, true_order=False)
    assert visit.page.locator(".hit .score").all_inner_texts() == [
        f"{result.chunk_score:.2f}" for result in best
    ]
    assert visit.page.locator("#strip i").count() == len(best) > 2
    marks = visit.marks()
    (strongest,) = marks["shade-5"]
    assert strongest.startswith("Desert ants go out")
    assert strongest.endswith("too far away.")
    shaded = [text for name, texts in marks.items() if name.startswith("shade") for text in texts]
    assert all(any(text in result.chunk_txt for result in best) for text in shaded)


LONG_CHUNK = (
    "The lease of the offices was signed in spring. Dr. Ames and Dr. Bo prepared it. "
    "In the year that followed, the company also entered, together with two partners from the region and after long "
    "talks with the owner of the land and the council of the city, into a contract on a site in San Francisco for its "
    "new headquarters (the “Headquarters”). The headquarters consists of two towers. The canteen serves soup.\n"
    "Parking is free."
)


def test_page_marks_sentences_and_draws_a_line_for_the_chunk(visit: Visit) -> None:
    """Only the sentences of the best passage are marked; the chunk has a line at its margin until the next question."""
    visit.add(LONG_CHUNK)
    visit.ask("Where is the headquarters?")
    (marked,) = visit.marks()["shade-5"]
    assert marked.startswith("In the year that followed,")
    assert marked.endswith(("“Headquarters”).", "two towers.", "serves soup."))
    line = (
        "() => getComputedStyle(document.querySelector('.sheet:last-child .chunk')).borderLeftColor"
    )
    found_line = visit.page.evaluate(line)
    assert visit.page.locator(".chunk.hit-chunk").count() > 0
    visit.page.evaluate("document.querySelector('.chunk.here').classList.remove('here')")
    assert visit.page.evaluate(line) != "rgba(0, 0, 0, 0)", found_line
    visit.page.fill("#question", "zzyzx")
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector("text=Nothing found")
    assert visit.page.locator(".chunk.hit-chunk").count() == 0
    assert visit.page.evaluate(line) == "rgba(0, 0, 0, 0)"


def test_page_excerpt_begins_with_the_sentence_that_answers(visit: Visit) -> None:
    """An excerpt begins with a sentence and contains the whole passage; a leading ellipsis marks an exception."""
    visit.add(LONG_CHUNK)
    visit.ask("Where is the headquarters?")
    excerpt = visit.page.inner_text(".hit .excerpt >> nth=0")
    assert excerpt.startswith("In the year that followed,")
    assert "in San Francisco for its new headquarters" in excerpt
    excerpts = visit.page.evaluate(
        """async (chunks) => {
          const { excerptOf } = await import("/static/passages.js");
          return chunks.map(([text, passage]) => {
            const { from, to, isCut } = excerptOf({ chunk: { text }, passage });
            return [text.slice(from, to), isCut];
          });
        }""",
        [
            ["One two. Mr. Ames, see Fig. 2, left at 3 p.m. on foot. Then it rained.", [34, 40]],
            [f"{'word ' * 150}answer here. End.", [750, 762]],
            ["Opening hours\n\nMonday to Friday, nine to five. Closed in May.", [0, 13]],
            ["x\n- first item\n- second item", [17, 20]],
            ["Long lines run on to the next line if they are wrapped\nby hand. End.", [60, 63]],
        ],
    )
    assert excerpts == [
        ["Mr. Ames, see Fig. 2, left at 3 p.m. on foot. Then it rained.", False],
        ["answer here. End.", True],
        ["Opening hours\n\nMonday to Friday, nine to five. Closed in May.", False],
        ["- second item", False],
        ["Long lines run on to the next line if they are wrapped\nby hand. End.", False],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "😀😀 The café 👩‍👩‍👧 near the harbour 🏴‍☠️ opens late. 𝔘nicode étude of the harbour café 😀 ends here.",
        "Ein Cafe\u0301 heißt Café, und der Hafen hat drei Cafe\u0301s. 🇪🇺 Im Cafe\u0301 am Hafen sitzt niemand.",
        "𠮷野家の café は港の近くにあります。😀 港の café は夜まで開いています。",
        "harbour\r\ncafé 😀\r\n\r\n\ud83d lone, and the café",
    ],
)
def test_page_highlights_code_point_spans(visit: Visit, text: str) -> None:
    """Words and passages are highlighted at the server's code points, although the browser counts UTF-16 units."""
    visit.forget_example()
    visit.add(text)
    question = "Where is the café at the harbour, im Hafen, 港?"
    visit.ask(question)
    response = search(question, visit.chunks(), 30, spans=True)
    marks = visit.marks()
    words = [
        result.chunk_txt[span.start : span.end] for result in response for span in result.words
    ]
    assert len(words) > 2
    assert sorted(marks["word"]) == sorted(words)
    assert _contain_passages(marks["passage"], response)


def _contain_passages(marked: list[str], response: SearchResponse) -> bool:
    """Return whether each marked text contains the best passage of another result, and is a part of its chunk."""
    results = [one for one in response if one.passage]
    passages = {
        result.chunk_txt[result.passage.start : result.passage.end].strip(): result.chunk_txt
        for result in results
        if result.passage
    }
    return len(marked) == len(results) and all(
        any(passage in text and text in chunk for text in marked)
        for passage, chunk in passages.items()
    )


def test_page_click_scrolls_to_passage(visit: Visit) -> None:
    """A click on a passage, on its mark at the scrollbar, or on its number under the answer brings it into view."""
    visit.own_example()
    visit.add("\n\n".join(f"Filler {number} about nothing at all. " * 8 for number in range(200)))
    visit.add("The ferry to the island leaves at noon.\n\n" + "More filler. " * 30)
    visit.ask("When does the ferry leave for the island, and how do ants find home?")
    n_hits = visit.page.locator(".hit").count()
    best = search(visit.page.input_value("#question"), visit.chunks(), 30, true_order=False)
    for number in (n_hits - 1, 0):
        for press in (f".hit >> nth={number}", f"#strip i >> nth={number}"):
            visit.page.evaluate("document.querySelector('#text').scrollTop = 3000")
            visit.page.locator(press).dispatch_event("click")
            assert eventually(lambda: visit.page.evaluate(WHERE)["inView"])
            assert visit.page.evaluate(WHERE)["text"] == best[number].chunk_txt
    visit.wait_for_end()
    visit.page.click("#given button >> nth=1")
    assert eventually(
        lambda: visit.page.evaluate(WHERE) == {"inView": True, "text": best[1].chunk_txt}
    )


def test_page_shows_explanation(visit: Visit) -> None:
    """On demand, the page shows the contributions to a score, largest first, as in the library."""
    visit.ask(QUESTION)
    visit.open_why()
    shown = [
        float(text) for text in visit.page.locator("tbody td.number:nth-child(3)").all_inner_texts()
    ]
    chunks = visit.chunks()
    position = next(place for place, chunk in enumerate(chunks) if "Desert ants" in chunk)
    explained = ChunkIndex(chunks).explain(QUESTION, position)
    assert shown == sorted(shown, reverse=True)
    assert sum(shown) == pytest.approx(explained.score, abs=0.006)
    names = visit.page.locator("#found tbody td:first-child").all_inner_texts()
    assert not any("similar" in name for name in names)
    largest = max(explained.terms, key=lambda term: term.contribution)
    others = explained.score - explained.top_similarity
    proximity = explained.bigrams + explained.coverage + explained.phrase
    expected = max(largest.contribution, proximity) * explained.score / others
    assert shown[0] == pytest.approx(expected, abs=0.001)
    sentence = visit.page.inner_text(".under p >> nth=0")
    assert sentence.startswith(f"Contains “desert” (in 1 of {len(chunks)} passages), “ants” (in 1)")
    assert "chunk" not in sentence


def test_page_explanation_distributes_the_similarity_to_top_results(visit: Visit) -> None:
    """The similarity is distributed in proportion, the sum stays exact, and a score of similarity alone is one row."""
    reasons = visit.page.evaluate(
        """async (explanations) => {
          const { reasonsOf } = await import("/static/passages.js");
          return explanations.map(reasonsOf);
        }""",
        [
            {
                "terms": [{"term": "far", "matches": ["far"], "df": 3, "contribution": 0.2}],
                **{
                    "score": 0.8,
                    "coverage": 0.05,
                    "phrase": 0.05,
                    "title": 0.1,
                    "top_similarity": 0.4,
                },
            },
            {"terms": [], "score": 0.5, "top_similarity": 0.5},
        ],
    )
    rows = [[(row["name"], round(row["points"], 9)) for row in rows] for rows in reasons]
    assert rows == [
        [("far", 0.4), ("words close together", 0.2), ("words in the title", 0.2)],
        [("similarity to the top passages", 0.5)],
    ]


def test_keys_do_it_all(visit: Visit) -> None:
    """A slash goes to the question, the arrows through the passages, each of which comes into view."""
    visit.page.keyboard.press("/")
    assert visit.page.evaluate("document.activeElement.id") == "question"
    visit.ask(QUESTION)
    for _ in range(3):
        visit.page.keyboard.press("ArrowDown")
    assert visit.page.evaluate("document.activeElement === document.querySelectorAll('.hit')[2]")
    assert visit.page.get_attribute(".hit >> nth=2", "aria-current") == "true"
    best = search(QUESTION, visit.chunks(), 30, true_order=False)
    assert eventually(
        lambda: visit.page.evaluate(WHERE) == {"inView": True, "text": best[2].chunk_txt}
    )


def test_page_reports_no_results(visit: Visit) -> None:
    """A question without an answer in the chunks, and a question without documents, get a plain sentence."""
    visit.page.fill("#question", "zzyzx")
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector("text=Nothing found")
    assert not visit.page.is_visible("#passages")
    visit.forget_example()
    visit.page.click("#ask button")
    assert visit.page.inner_text("#trouble") == "Add a document first."


def test_page_reports_low_confidence(visit: Visit) -> None:
    """If the confidence is low, the page reports that, results have a light shade, and words are not highlighted."""
    visit.ask("Who won the cup of the readers in Chile?")
    visit.wait_for_end()
    assert "No answer found" in visit.page.inner_text("#answers")
    assert visit.page.inner_text("#verdict") == "Probably not answered in these documents"
    assert visit.page.is_hidden("#answer-title")
    assert visit.page.is_hidden("#given")
    assert visit.page.is_hidden("#copy")
    assert visit.page.inner_text("#found-title").lower() == "closest passages"
    marks = visit.marks()
    assert any(marks.get(f"shade-{level}") for level in (1, 2))
    assert not any(marks.get(name) for name in ("shade-3", "shade-4", "shade-5", "passage", "word"))


def test_page_searches_one_document_and_steps_through_marks(visit: Visit) -> None:
    """A question may be put to one document; `n` and `p` go through the marks in the order of the text."""
    visit.own_example()
    visit.add("The ants of the second document eat leaves.\n\n" + "Filler. " * 40)
    visit.ask("What do ants eat?")
    assert visit.page.locator(".from").all_inner_texts()[0].startswith("The ants of the second")
    places = visit.page.evaluate(
        "[...document.querySelectorAll('#strip i')].map((mark) => parseFloat(mark.style.top))"
    )
    assert len(places) > 1
    visit.page.evaluate("document.activeElement.blur()")
    here = "() => document.querySelector('#step').textContent"
    last = f"Mark {len(places)} of {len(places)}"
    assert visit.page.evaluate(here) == last
    for key, reported in (
        ("n", f"Mark 1 of {len(places)}"),
        ("p", last),
        ("p", f"Mark {len(places) - 1} of {len(places)}"),
    ):
        visit.page.keyboard.press(key)
        assert visit.page.evaluate(here) == reported
    visit.page.select_option("#scope", index=1)
    visit.ask("What do ants eat?")
    visit.page.wait_for_selector("#earlier-turns li")
    assert set(visit.page.locator(".from").all_inner_texts()) == {"example.txt"}


def test_page_searches_server_index(visit: Visit) -> None:
    """The server's indexes can be selected; their results are shown, explained and highlighted like documents."""
    visit.page.select_option("#scope", "index:harbour")
    visit.ask("What is the fee for a boat?")
    visit.wait_for_end()
    assert visit.page.inner_text(".from >> nth=0") == "fees.md"
    assert re.search(r"of [1-9]\d* passage", visit.page.inner_text("#status"))
    assert any("fee" in text for text in visit.marks()["word"])
    assert visit.page.inner_text(".sheet:last-child h2").lower() == "harbour: results"
    visit.open_why()
    visit.page.select_option("#scope", "all")
    visit.ask(QUESTION)
    visit.page.wait_for_selector("#earlier-turns li")
    assert "Desert ants" in visit.page.inner_text("#found li >> nth=0")


def test_page_address_restores_index(visit: Visit) -> None:
    """Back and reload restore the results with title and status, and select the same index."""

    def assert_shown(question: str, scope: str, source: str) -> None:
        visit.page.wait_for_selector(f".from:text-is('{source}')" if source else "#found li")
        assert visit.page.inner_text("#asked") == visit.page.input_value("#question") == question
        assert visit.page.input_value("#scope") == scope
        assert re.match(r"\d+ of \d+ passages", visit.page.inner_text("#status"))
        assert visit.page.is_hidden("#nothing")

    visit.page.select_option("#scope", "index:boats")
    visit.ask("When are boats painted?")
    visit.wait_for_end()
    assert visit.page.url.endswith("&in=index%3Aboats")
    visit.page.select_option("#scope", "all")
    visit.ask(QUESTION)
    visit.page.wait_for_selector("#earlier-turns li")
    visit.wait_for_end()
    visit.page.go_back()
    assert_shown("When are boats painted?", "index:boats", "Paint")
    visit.page.reload()
    assert_shown("When are boats painted?", "index:boats", "Paint")
    assert visit.page.inner_text(".sample")
    visit.page.go_forward()
    assert_shown(QUESTION, "all", "")
    visit.page.go_back()
    assert_shown("When are boats painted?", "index:boats", "Paint")


def test_page_link_with_a_question_asks_an_index(browser: Any, server: Server) -> None:
    """A link with a question and an index asks in a fresh browser, after a key was entered; its title is the question."""
    visit = Visit(
        browser, f"{server.url}/#q=When%20are%20boats%20painted%3F&in=index%3Aboats", key=None
    )
    visit.page.fill("#key", KEY)
    visit.page.press("#key", "Enter")
    visit.page.wait_for_selector(".from:text-is('Paint')")
    assert visit.page.title() == "When are boats painted? – relevance_gen"
    visit.wait_for_end()
    visit.page.evaluate("location.hash = '#q=What%20is%20mended%20in%20winter%3F&in=index%3Aboats'")
    visit.page.wait_for_selector("#asked:text('mended')")
    visit.page.wait_for_selector(".excerpt >> text=Sails are")
    visit.wait_for_end()
    visit.page.go_back()
    visit.page.wait_for_selector("#asked:text('painted')")
    assert visit.page.title() == "When are boats painted? – relevance_gen"
    visit.close()


def test_chunks_end_with_sentences_and_code_stays_whole(visit: Visit) -> None:
    """A long paragraph ends with a sentence though its lines are broken; blocks of code are not cut at blank lines."""
    cut = """async ([text, options]) => {
      const { chunksOf, isHeading } = await import("/static/chunking.js");
      return [[...chunksOf(text, options)].map(([start, end]) => text.slice(start, end)), isHeading(text)];
    }"""
    lines = "\n".join(
        f"The keeper of light {n} wrote that the\nweather was fair. He had soup." for n in range(40)
    )
    (chunks, _) = visit.page.evaluate(cut, [lines, {}])
    assert len(chunks) > 2
    assert all(chunk.endswith(".") for chunk in chunks)
    block = "```python\nfirst()\n\n# a comment\n\nsecond()\n```"
    (chunks, _) = visit.page.evaluate(
        cut, [f"{'Before. ' * 40}\n\n{block}\n\n{'After. ' * 40}", {}]
    )
    assert chunks[1] == block
    for text, reported in (
        *(
            ("# A head", True),
            ("Fees and tolls", True),
            ("2.1 Fees", True),
            ("name,fee,toll", False),
        ),
        *((">>> print(1)", False), ("x = 3", False), ("It rains.", False), ("วันนี้ฝนตก", False)),
    ):
        assert visit.page.evaluate(cut, [text, {}])[1] is reported, text


HANDBOOK = """---
title: Harbour
---

# The *harbour* handbook

[![build](b.svg)](https://x.y) Fees are **paid at
the [office](fees.md#when_paid "Fees")**, by `ship_length`; 2 * 3 \\* 4 <!-- not yet -->

Fees ##
----

- Boats: three crowns
  a night
  1. in `winter`: none

> Ships pay more
> by length.

| Vessel | Fee |
|--------|----:|
| boat   | *3* |

```python
fee = 3  # **kept**

```
"""

HANDBOOK_SHOWN = [
    *("---", "title: Harbour", "---", "The harbour handbook"),
    *("build Fees are paid at the office, by ship_length; 2 * 3 * 4", "Fees"),
    *("Boats: three crowns a night", "1. in winter: none", "Ships pay more by length."),
    *("Vessel\tFee", "boat\t3", "fee = 3  # **kept**"),
]


def test_markdown_is_shown_as_it_is_meant(visit: Visit) -> None:
    """Signs of Markdown are hidden and lines run on; the text is searched, and marked, as it was written."""
    visit.forget_example()
    visit.page.evaluate(DROP, ["handbook.md", list(HANDBOOK.encode())])
    visit.page.wait_for_selector("#names >> text=handbook.md")
    chunks = visit.chunks()
    assert "\n\n".join(chunks) == HANDBOOK.strip()
    assert [
        line.rstrip() for line in visit.page.inner_text(".sheet").splitlines() if line.strip()
    ] == HANDBOOK_SHOWN
    question = "What do boats and ships pay at the office, and is there a fee in winter?"
    visit.ask(question)
    response = search(question, chunks, 30, spans=True)
    marks = visit.marks()
    assert sorted(marks["word"]) == sorted(
        result.chunk_txt[span.start : span.end] for result in response for span in result.words
    )
    assert _contain_passages(marks["passage"], response)
    assert "[office]" not in visit.page.inner_text("#found")


def test_page_shows_csv_as_table(visit: Visit) -> None:
    """A CSV file is a table; each chunk has whole rows, and shows the column names once above them."""
    rows = "".join(f"B{number:03},City {number % 7},Manager {number}\n" for number in range(60))
    visit.forget_example()
    visit.page.evaluate(DROP, ["branches.csv", list(f"branch,city,manager\n{rows}".encode())])
    visit.page.wait_for_selector("#names >> text=branches.csv")
    chunks = visit.chunks()
    assert (
        "\n".join(chunks).splitlines()[18]
        == "| branch: B017 | city: City 3 | manager: Manager 17 |"
    )
    assert len(chunks) > 2
    assert visit.page.inner_text(".chunk >> nth=0").splitlines()[:2] == [
        "branch\tcity\tmanager",
        "B000\tCity 0\tManager 0",
    ]
    shown = visit.page.evaluate(
        """() => [...document.querySelectorAll(".chunk .row:first-child .cell")].map(
          (cell) => getComputedStyle(cell, "::before").content)"""
    )
    names = ['"branch"', '"city"', '"manager"']
    assert shown == ["none"] * 3 + names * (len(chunks) - 1)
    visit.ask("Who is the manager of branch B017?")
    assert "Manager 17" in visit.marks()["passage"][0]
    excerpt = visit.page.inner_text(".excerpt >> nth=0")
    assert "| manager: Manager 17\n" in f"{excerpt}\n"
    assert not any(line.strip().startswith("|") for line in excerpt.splitlines())


def test_lines_of_prose_run_on(visit: Visit) -> None:
    """A wrapped line is joined with the next line; verse, lists and logs keep their lines."""
    prose = (
        "The keeper of the light had seen the ship go down\n"
        "with all her sails, and rowed to where he had seen\nMary"
    )
    kept = ["Shall I compare thee to a summer's day?", "Thou art more lovely and more temperate:"]
    kept += [
        f"2026-11-23 08:{minute} INFO the server answered request number {minute}"
        for minute in (10, 11)
    ]
    visit.forget_example()
    visit.add("\n".join([f"{prose} was.", *kept]))
    shown = visit.page.inner_text(".sheet")
    assert shown.splitlines() == [f"{prose.replace(chr(10), ' ')} was.", *kept]


def test_page_markdown_keeps_text(visit: Visit) -> None:
    """For any characters in a text, its elements contain all of it, ranges find each part, and no step is slow."""
    pieces = [
        "a",
        "b c",
        " ",
        "  ",
        "\n",
        "\n\n",
        "*",
        "**",
        "_",
        "__",
        "`",
        "```",
        "[",
        "](",
        ")",
        "![",
        "#",
        "# ",
        "- ",
    ]
    pieces += ["| a |\n| a: b |\n", "| a: b | c: d |\n", "a: "]
    pieces += ["1. ", "> ", "|", "|-|", "---", "===", "\\", "<!--", "-->", "---\nt: x\n", "😀"]
    draw = random.Random(3)  # noqa: S311 texts, no secrets
    texts = ["".join(draw.choices(pieces, k=draw.randint(1, 40))) for _ in range(400)]
    texts += [piece * (4000 // len(piece)) for piece in (*pieces, "-a: b\n", "[a](", "`a``a```a")]
    broken, seconds = visit.page.evaluate(
        """async (texts) => {
          const { reading } = await import("/static/reading.js");
          const { range } = await import("/static/marks.js");
          const started = performance.now();
          const broken = texts.filter((text) => {
            const made = document.createElement("p"), read = document.createRange();
            made.append(...reading(text, ["markdown", "text", "headings"][text.length % 3]));
            const [start, end] = [Math.floor(text.length / 3), Math.ceil(text.length / 2)];
            const found = range(made, start, end);
            read.setStart(found.startContainer, found.startOffset);
            read.setEnd(found.endContainer, found.endOffset);
            return made.textContent !== text || read.toString() !== text.slice(start, end);
          });
          return [broken, (performance.now() - started) / 1000];
        }""",
        texts,
    )
    assert broken == []
    assert seconds < 60


def test_page_says_which_conditions_no_passage_meets(visit: Visit) -> None:
    """A question with operators that excludes everything is not reported as words that do not occur."""
    visit.page.fill("#question", '"Milky Way" -moon')
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector("text=No passage meets the conditions of this question.")


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────


def test_texts_come_in_by_every_way(visit: Visit) -> None:
    """Files are dropped or selected, texts pasted or typed, PDFs read by the server; binary files are rejected."""
    visit.forget_example()
    for name, content in (
        ("a.md", "# Größe\n\nÄpfel".encode()),
        ("b.txt", "Öl 😀".encode("utf-16")),
        ("c.txt", "Süd".encode("cp1252")),
        ("d.pdf", pdf("Apples are red", "Pears are green")),
    ):
        visit.page.evaluate(DROP, [name, list(content)])
        visit.page.wait_for_selector(f"#names >> text={name}")
    assert visit.chunks() == [
        "# Größe\n\nÄpfel",
        "Öl 😀",
        "Süd",
        "Apples are red",
        "Pears are green",
    ]
    for name, content in (("e.bin", b"\0\1\2"), ("f.pdf", b"%PDF-1.7")):
        visit.page.evaluate(DROP, [name, list(content)])
        visit.page.wait_for_selector(f"#trouble >> text={name}")
        assert "Error" not in visit.page.inner_text("#trouble")
    assert "400" in visit.errors.pop()
    visit.page.set_input_files("#files", [{"name": "g.txt", "mimeType": "", "buffer": b"chosen"}])
    visit.page.wait_for_selector("#names >> text=g.txt")
    visit.page.click("#add")
    visit.page.fill("#pasted", "Written by hand\n\nand added")
    visit.page.click("#text-dialog .main")
    visit.page.wait_for_selector("#names >> text=Written by hand")
    assert visit.chunks()[5:] == ["chosen", "Written by hand\n\nand added"]


def test_page_example_leaves_when_the_first_document_arrives(visit: Visit) -> None:
    """The example, its question and its results go with the first document of the user; other text stays."""
    visit.ask(QUESTION)
    visit.wait_for_end()
    visit.add("The ferry to the island leaves at noon.")
    assert visit.page.locator("#names .name").all_text_contents() == [
        "The ferry to the island leaves at noon."
    ]
    assert visit.page.input_value("#question") == ""
    assert visit.page.is_visible("#hint")
    assert visit.page.is_hidden("#earlier")
    visit.page.fill("#question", "When does it leave?")
    visit.add("The bus leaves at one.")
    assert visit.page.locator("#names li").count() == 2
    assert visit.page.input_value("#question") == "When does it leave?"
    visit.page.reload()
    visit.page.wait_for_selector("#names li >> nth=1")
    assert visit.page.is_hidden("#earlier")
    assert visit.page.input_value("#question") == ""


def test_page_links_pdf_pages(visit: Visit) -> None:
    """Passages show their page, which opens the file at that page; an empty file is named, and then removed."""
    visit.forget_example()
    visit.page.evaluate(DROP, ["empty.txt", []])
    visit.page.wait_for_selector("text=empty.txt is empty.")
    visit.page.evaluate(
        DROP, ["report.pdf", list(pdf("Apples are red", "Pears are green and sweet"))]
    )
    visit.page.wait_for_selector("#names >> text=report.pdf")
    assert not visit.page.is_visible("#trouble")
    visit.ask("Which fruit is sweet, pears or apples?")
    visit.page.locator(".where button >> text=page 2").click()
    frame = visit.page.wait_for_selector("#file iframe")
    assert frame.get_attribute("src").endswith(
        "#page=2&navpanes=0&view=FitH:~:text=Pears%20are%20green%20and%20sweet"
    )
    assert visit.page.inner_text("#viewer-name") == "report.pdf, page 2"
    visit.page.click("#viewer-close")
    assert visit.page.is_visible("#text")
    visit.errors[:] = [
        error for error in visit.errors if "sessionStorage" not in error and "setItem" not in error
    ]


def test_page_marks_passage_in_pdf_by_its_first_and_last_words(visit: Visit) -> None:
    """The directive has the first and last words without signs at their ends, and no sign of its own syntax."""
    directives = visit.page.evaluate(
        """async (passages) => {
          const { directiveOf } = await import("/static/viewer.js");
          return passages.map(directiveOf);
        }""",
        [
            "",
            "“Well-known” fees, & tolls.",
            "In late 2016 we\nlearned that two outside actors downloaded the (personal) data of “Drivers”.",
        ],
    )
    assert directives == [
        "",
        ":~:text=Well%2Dknown%E2%80%9D%20fees%2C%20%26%20tolls",
        ":~:text=In%20late%202016%20we%20learned,the%20(personal)%20data%20of%20%E2%80%9CDrivers",
    ]


def test_page_lists_many_documents_in_a_dialog(visit: Visit) -> None:
    """More than 12 documents are one button, whose dialog filters, opens and removes them."""
    files_ = [
        {
            "name": f"notes-{number:02}.txt",
            "mimeType": "",
            "buffer": b"Notes about the harbour. " * 50,
        }
        for number in range(14)
    ]
    visit.page.set_input_files("#files", files_)
    visit.page.wait_for_selector("#all >> text=14 documents")
    assert visit.page.is_hidden("#names")
    visit.page.click("#all")
    visit.page.click("#shelf-rows button >> text=notes-13.txt")
    assert visit.page.is_hidden("#shelf-dialog")
    assert eventually(
        lambda: visit.page.evaluate("document.querySelector('#text').scrollTop") > 100
    )
    visit.page.click("#all")
    visit.page.fill("#shelf-filter", "NOTES-0")
    assert visit.page.locator("#shelf-rows li:visible").count() == 10
    assert visit.page.is_disabled("#shelf-remove")
    visit.page.check("#shelf-all")
    visit.page.uncheck("[aria-label='Select notes-03.txt']")
    assert not visit.page.is_checked("#shelf-all")
    visit.page.click("#shelf-remove >> text=Remove 9 documents")
    visit.page.click("#shelf-close")
    names = ["notes-03.txt", *(f"notes-{number}.txt" for number in range(10, 14))]
    assert visit.page.locator("#names .name").all_text_contents() == names
    assert visit.page.is_hidden("#all")


def test_page_reports_each_file_that_cannot_be_read(visit: Visit) -> None:
    """Of several files the good one is added, and each bad one is named with its reason."""
    bad = [("picture.png", b"\x89PNG\0"), ("empty.txt", b""), ("broken.pdf", b"%PDF-1.7")]
    files_ = [
        {"name": name, "mimeType": "", "buffer": content}
        for name, content in (*bad, ("good.txt", b"The ferry leaves at noon."))
    ]
    visit.page.set_input_files("#files", files_)
    visit.page.wait_for_selector("#names >> text=good.txt")
    shown = visit.page.locator("#trouble > span").all_inner_texts()
    assert [text.split()[0] for text in shown] == [name for name, _ in bad]
    assert shown[:2] == ["picture.png is not a text file.", "empty.txt is empty."]
    assert "400" in visit.errors.pop()


def test_page_offers_to_repeat_a_failed_search(visit: Visit) -> None:
    """After a failed search the question stays, the hint does not return, and Try again asks again."""
    error = {"error": {"type": "unavailable", "message": "the server is restarting"}}
    visit.page.route("**/search", lambda route: route.fulfill(status=503, json=error))
    visit.page.fill("#question", QUESTION)
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector("#again:not([hidden])")
    assert visit.page.inner_text("#trouble") == "The server is restarting."
    assert visit.page.inner_text("#asked") == QUESTION
    assert visit.page.is_hidden("#hint")
    assert "503" in visit.errors.pop()
    visit.page.unroute("**/search")
    visit.page.fill("#question", "another")
    visit.page.click("#again")
    visit.page.wait_for_selector("#found li")
    assert visit.page.inner_text("#asked") == QUESTION
    assert visit.page.is_hidden("#again")
    assert visit.page.is_hidden("#trouble")
    visit.wait_for_end()


def test_page_reload_restores_and_clear_removes_all(browser: Any, server: Server) -> None:
    """Documents, questions and answers are there after a reload, and Back leads to the question before."""
    visit = Visit(browser, server.url)
    visit.own_example()
    visit.add("The ferry to the island leaves at noon.\n\n" + "More filler. " * 30)
    for question in (QUESTION, "When does the ferry leave?"):
        visit.ask(question)
        visit.page.wait_for_function(
            "([asked]) => document.querySelector('#asked').innerText === asked", arg=[question]
        )
        visit.wait_for_end()
    visit.page.reload()
    visit.page.wait_for_selector("#asked:text('ferry')")
    assert visit.page.locator("#names li").count() == 2
    assert "q=When%20does" in visit.page.url
    assert "word0 word1 " in visit.page.inner_text("#answers")
    assert any("ferry" in text for text in visit.marks()["word"])
    visit.open_why()
    assert "“ferry”" in visit.page.inner_text(".under p >> nth=0")
    with visit.page.expect_download() as saved:
        visit.page.click("#save")
    text = saved.value.path().read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {QUESTION}",
        "## When does the ferry leave?",
    ]
    assert "> The ferry to the island leaves at noon." in text
    visit.page.click(".asked-before")
    visit.page.click("text=Show passages")
    assert visit.page.inner_text("#asked") == QUESTION
    assert "Desert ants" in visit.page.inner_text("#found li >> nth=0")
    visit.page.click("#names [aria-label^=Remove] >> nth=1")
    visit.page.wait_for_selector("#names li >> nth=1", state="detached")
    assert "Desert ants" in visit.page.inner_text("#found li >> nth=0")
    visit.page.click("#forget")
    visit.page.click("#forget-dialog .main")
    visit.page.wait_for_selector("#empty")
    assert eventually(
        lambda: visit.page.evaluate("indexedDB.databases !== undefined && !location.hash")
    )
    visit.page.reload()
    visit.page.wait_for_selector("#names >> text=How things are found")
    assert visit.page.inner_text("#asked") == ""
    visit.close()


def test_page_releases_elements_of_earlier_questions(visit: Visit) -> None:
    """Few elements of a question stay in memory after the next question."""
    visit.forget_example()
    visit.add("\n\n".join(f"{'The ferry leaves. ' * 12}Boat {number}." for number in range(40)))
    session = visit.context.new_cdp_session(visit.page)

    def n_nodes(n_questions: int) -> int:
        for number in range(n_questions):
            visit.ask(f"When does the ferry with boat {number} leave?")
            visit.wait_for_end()
        visit.page.locator("#earlier-turns summary >> nth=0").click()
        visit.page.locator("#earlier-turns summary >> nth=0").click()
        session.send("HeapProfiler.collectGarbage")
        return int(session.send("Memory.getDOMCounters")["nodes"])

    n_before = n_nodes(3)
    n_after = n_nodes(6)
    assert n_after < n_before + 6 * 40


def test_page_tabs_are_independent(visit: Visit) -> None:
    """A question in one tab does not change a second tab: after a reload both are restored."""
    other = visit.context.new_page()
    other.add_init_script(f"sessionStorage.setItem('relevance_gen.key', '{KEY}')")
    other.goto(visit.page.url)
    for page, question in (
        (visit.page, QUESTION),
        (other, "How do salmon return?"),
        (visit.page, "Who buries seeds?"),
    ):
        page.fill("#question", question)
        page.press("#question", "Enter")
        page.wait_for_function(
            "([asked]) => document.querySelector('#asked').innerText === asked", arg=[question]
        )
        page.wait_for_selector("#answers:not([aria-busy]) .sample")
    assert eventually(lambda: visit.page.evaluate("indexedDB.databases !== undefined"))
    visit.page.reload()
    visit.page.wait_for_selector("#earlier-turns li >> nth=1")
    assert visit.page.locator(".asked-before").all_inner_texts() == [
        "How do salmon return?",
        QUESTION,
    ]


def test_page_names_pasted_text_by_first_line(visit: Visit) -> None:
    """A line of at most 60 characters is the name; a longer line is truncated after a word if possible."""
    names = {
        "Heavy rain flooded parts of Lisbon on Tuesday, closing two metro stations.\nMore.": (
            "Heavy rain flooded parts of Lisbon on Tuesday, closing two…"
        ),
        "x" * 60: "x" * 60,
        "😀" * 80: "😀" * 59 + "…",
    }
    for text, name in names.items():
        visit.add(text)
        assert visit.page.text_content("#names button.name >> nth=-1") == name


def test_page_scrolls_to_added_document(visit: Visit) -> None:
    """An added document scrolls into view; its name, and the names of the rest, are links to the documents."""
    top = """name => {
      const [pane, sheet] = ["#text", name].map((one) => document.querySelector(one).getBoundingClientRect());
      return sheet.top - pane.top;
    }"""
    visit.own_example()
    visit.add("Zebras have stripes.\n\n" + "They live in herds.\n\n" * 40)
    assert eventually(lambda: abs(visit.page.evaluate(top, ".sheet:last-child")) < 2)
    visit.page.click("#names button.name >> nth=0")
    assert eventually(lambda: abs(visit.page.evaluate(top, ".sheet")) < 2)
    visit.page.click("#names button.name >> nth=1")
    assert eventually(lambda: abs(visit.page.evaluate(top, ".sheet:last-child")) < 2)


def test_page_aligns_paragraph_by_script(visit: Visit) -> None:
    """Hebrew is aligned right and English left, in one document and in either order."""
    edges = """() => {
      const [chunk] = document.querySelectorAll(".sheet:last-child .chunk"), all = chunk.getBoundingClientRect();
      const start = chunk.textContent.indexOf("\\n\\n"), range = document.createRange();
      return [[0, start], [start + 2, chunk.textContent.length]].map(([first, end]) => {
        range.setStart(chunk.firstChild, first);
        range.setEnd(chunk.firstChild, end);
        const { left, right } = range.getBoundingClientRect();
        return left - all.left < all.right - right ? "left" : "right";
      });
    }"""
    english, hebrew = "The ferry leaves.", "המעבורת יוצאת."
    for first, second, reported in (
        (english, hebrew, ["left", "right"]),
        (hebrew, english, ["right", "left"]),
    ):
        visit.add(f"{first}\n\n{second}")
        assert visit.page.evaluate(edges) == reported


def test_page_splits_long_name_in_script_order(visit: Visit) -> None:
    """A right-to-left name begins on the right; a short name is not split."""
    names = {
        "תקציר-של-הדוח-על-הנמל-ועל-הסירות-בשנה.txt": -1,
        "A long report on the harbour and its boats.txt": 1,
    }
    for name in names:
        visit.page.evaluate(DROP, [name, list(b"The fee for a boat.")])
        visit.page.wait_for_selector(f'#names [title="{name}"]')
    for name, order in names.items():
        halves = [
            visit.page.locator(f'#names [title="{name}"] span >> nth={number}')
            for number in range(2)
        ]
        assert "".join(half.inner_text() for half in halves) == name
        first, second = (half.bounding_box()["x"] for half in halves)
        assert (second - first) * order > 0
    visit.page.evaluate(DROP, ["تقرير الميناء.txt", list(b"The fee for a ship.")])
    assert (
        visit.page.inner_text('#names [title="تقرير الميناء.txt"] span >> nth=0')
        == "تقرير الميناء.txt"
    )


def test_white_space_makes_no_chunk_and_takes_no_time(visit: Visit) -> None:
    """Blank paragraphs of any kind make no chunk, and a million blanks in a row do not stop the page."""
    visit.forget_example()
    text = (
        "one"
        + " " * 1_000_000
        + "two\n\n \t\n\n\x1c\x85\n\n\u3000\f\f"
        + "\n \n" * 100_000
        + "three\n\n"
        + "\n" * 100_000
    )
    started_s = time.monotonic()
    visit.add(text)
    assert time.monotonic() - started_s < 60
    assert visit.chunks() == ["one", "two", "three"]
    visit.ask("two")


def test_markup_stays_text(visit: Visit) -> None:
    """Nothing that users write becomes markup, and the browser would refuse a script that tried."""
    visit.own_example()
    attack = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
    visit.page.evaluate(
        DROP, [f"{attack}.md".replace("/", "∕"), list(f"# {attack} ants\n\n{attack}".encode())]
    )
    visit.page.wait_for_selector("#names li >> nth=1")
    visit.ask(f"ants {attack}")
    visit.open_why()
    assert visit.page.locator("img, main script").count() == 0
    assert visit.page.title() == f"ants {attack} – relevance_gen"
    refused = visit.page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } }"
    )
    assert refused == "TypeError"
    assert visit.page.evaluate("troubles.splice(0).length") == 1
    assert "TrustedHTML" in visit.errors.pop()


# ── The answer ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """A server that writes a word every 50 ms, so that there is time to do something meanwhile."""
    with Server("--rate-limit", "off", "--model", "slow", program=HALF_SCRIPTED) as started:
        assert eventually(started.is_healthy)
        yield started


def test_page_streams_stops_and_retries(browser: Any, slow: Server) -> None:
    """The answer grows; stopping keeps its text and frees the server's slot; retry generates again."""
    visit = Visit(browser, slow.url)
    visit.ask(QUESTION)
    for word in ("word0 ", "word10 ", "word20 "):
        visit.page.wait_for_selector(f"text={word}")
    visit.page.click("#stop")
    visit.wait_for_end()
    assert visit.page.inner_text("#pace") == "Stopped"
    written = visit.page.inner_text(".sample")
    assert "word20 " in written
    assert "word120 " not in written
    assert eventually(lambda: slow.stats()["backlog"] == 0)
    visit.page.click("#retry")
    visit.page.wait_for_selector("#answers[aria-busy]")
    visit.page.keyboard.press("Escape")
    visit.wait_for_end()
    assert len(visit.page.inner_text(".sample")) < len(written)
    visit.close()


def test_page_uses_chat_api_with_chat_model(browser: Any) -> None:
    """With a chat model on the server, the answer streams from the chat API, and can be stopped as well."""
    with Server("--rate-limit", "off", "--model", "chat", program=HALF_SCRIPTED) as chatty:
        assert eventually(chatty.is_healthy)
        visit = Visit(browser, chatty.url)
        asked = []
        visit.page.on("request", lambda request: asked.append(request.url.removeprefix(chatty.url)))
        visit.ask(QUESTION)
        visit.page.wait_for_selector("text=word20 ")
        carets = "(of) => document.querySelector(of) && getComputedStyle(document.querySelector(of), '::after').content"
        assert [visit.page.evaluate(carets, of) for of in (".running", ".running > p")] == [
            "none",
            '"▍"',
        ]
        visit.page.click("#stop")
        visit.wait_for_end()
        assert visit.page.inner_text("#pace") == "Stopped"
        assert visit.page.locator("#given button").count() > 2
        visit.page.select_option("#samples", "2")
        visit.page.wait_for_selector(".sample >> nth=1")
        visit.wait_for_end()
        assert [text[:12] for text in visit.page.locator(".sample").all_inner_texts()] == [
            "word0 word1 "
        ] * 2
        assert re.search(
            r"1,024 tokens · \d+ tokens/s · stopped at the length limit",
            visit.page.inner_text("#pace"),
        )
        answered = ["/prompt", "/v1/models", "/v1/chat/completions"]
        assert asked == ["/search", *answered, *answered, "/cite", "/cite"]
        bodies: list[dict[str, Any]] = []
        visit.page.on(
            "request", lambda request: bodies.append(json.loads(request.post_data or "{}"))
        )
        visit.page.select_option("#samples", "1")
        assert eventually(lambda: visit.page.locator(".sample").count() < 2)
        visit.wait_for_end()
        visit.page.fill("#question", "And who found that out about the ants?")
        visit.page.press("#question", "Enter")
        visit.page.wait_for_selector("#earlier-turns li")
        visit.wait_for_end()
        assert {body["index"][:6] for body in bodies if "query" in body or "question" in body} == {
            "cache:"
        }
        reported = [body["messages"] for body in bodies if "messages" in body][-1]
        assert [one["role"] for one in reported] == ["user", "assistant", "user"]
        assert reported[0]["content"] == QUESTION
        visit.close()


def test_page_shows_the_quoted_passage_large_without_an_answer(browser: Any) -> None:
    """A model that only copies gets no answer area: the first passage is large, and its sentences are marked."""
    with Server("--rate-limit", "off", program=REAL) as copying:
        assert eventually(copying.is_healthy)
        visit = Visit(browser, copying.url)
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        asked: list[str] = []
        visit.page.on(
            "request", lambda request: asked.append(request.url.removeprefix(copying.url))
        )
        visit.ask(QUESTION)
        visit.page.wait_for_selector("#found.quoted")
        assert visit.page.is_hidden("#answer")
        sizes = "(place) => parseFloat(getComputedStyle(document.querySelectorAll('.excerpt')[place]).fontSize)"
        assert visit.page.evaluate(sizes, 0) > visit.page.evaluate(sizes, 1)
        ranges = """() => [...CSS.highlights.get("quote")].filter(({ startContainer }) =>
          startContainer.parentElement.closest("#found > li:first-child")).length"""
        assert visit.page.evaluate(ranges) == 1
        visit.page.wait_for_selector("#model-name >> text=Quoted from your documents")
        assert asked == ["/search", "/prompt", "/v1/models"]
        visit.page.click("#copy")
        visit.page.wait_for_selector("text=Copied")
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert "searched for it too far away. [1]\n\n### Sources" in copied
        visit.page.reload()
        visit.page.wait_for_selector("#found.quoted")
        assert visit.page.is_hidden("#answer")
        visit.ask("Who won the cup of the readers in Chile?")
        visit.page.wait_for_selector("#answers >> text=No answer found")
        assert visit.page.is_hidden("#answer-title")
        assert not visit.page.locator("#found.quoted").count()
        visit.close()


def test_page_of_a_server_without_a_model_has_no_answer(browser: Any) -> None:
    """A server that only searches is no failure: passages are shown, and neither an answer nor an error."""
    with Server("--rate-limit", "off", "--model", "none", program=HALF_SCRIPTED) as searching:
        visit = Visit(browser, searching.url)
        for question in (QUESTION, "How do salmon return?"):
            visit.ask(question)
            visit.page.wait_for_selector("#stop", state="hidden")
            assert visit.page.is_visible("#passages")
            assert visit.page.is_hidden("#answer")
            assert visit.page.is_hidden("#trouble")
        assert all("503" in error for error in visit.errors)
        visit.errors.clear()
        visit.close()


def test_page_answers_or_summarizes_on_request_below_the_least_confidence(browser: Any) -> None:
    """Where a chat model would not be asked, Answer anyway asks it, and Summarize requests a summary of the passages."""
    with Server("--rate-limit", "off", "--model", "chat", program=HALF_SCRIPTED) as chatty:
        assert eventually(chatty.is_healthy)
        visit = Visit(browser, chatty.url)
        bodies: list[dict[str, Any]] = []
        visit.page.on(
            "request", lambda request: bodies.append(json.loads(request.post_data or "{}"))
        )
        contents = []
        for button, title in (("#anyway", "answer"), ("#summarize", "summary")):
            visit.ask("Who won the cup of the readers in Chile?")
            visit.page.wait_for_selector("#answers >> text=No answer found")
            visit.page.click(button)
            visit.page.wait_for_selector("text=word20 ")
            assert visit.page.is_hidden("#instead")
            visit.page.click("#stop")
            visit.wait_for_end()
            assert visit.page.inner_text("#answer-title").lower() == title
            assert visit.page.is_visible("#given")
            contents += [body["messages"][-1]["content"] for body in bodies if "messages" in body]
            bodies.clear()
        assert contents[0].endswith("Question: Who won the cup of the readers in Chile?")
        assert contents[1].startswith("Summarize the sources below")
        assert "Chile" not in contents[1]
        assert "\n\n[1] " in contents[1]
        visit.close()


def test_page_shows_seconds_until_the_first_word(browser: Any) -> None:
    """While the model processes the prompt the page counts seconds; the pace counts from the first token."""
    with Server("--rate-limit", "off", "--model", "chat", program=HALF_SCRIPTED) as chatty:
        assert eventually(chatty.is_healthy)
        visit = Visit(browser, chatty.url)
        held: list[Any] = []
        visit.page.route("**/v1/chat/completions", lambda route: held.append(route))
        visit.ask(QUESTION)
        visit.page.wait_for_selector(r"#waiting >> text=/^Reading \d+ passages … [1-9]\d* s$/")
        held[0].continue_()
        visit.page.wait_for_selector("text=word1 ")
        assert visit.page.is_hidden("#waiting")
        visit.page.click("#stop")
        visit.wait_for_end()
        paces = visit.page.evaluate(
            """async () => {
              const { paceOf } = await import("/static/answering.js");
              return [[101, false, 2000], [1, false, 0], [3, true, 1000]].map(
                ([nTokens, isLong, ms]) => paceOf({ nTokens, isLong }, ms));
            }"""
        )
        assert paces == [
            "101 tokens · 50 tokens/s",
            "1 token",
            "3 tokens · 2 tokens/s · stopped at the length limit",
        ]
        visit.close()


def test_page_searches_a_follow_up_with_the_question_before(visit: Visit) -> None:
    """A question without content words is searched with the previous query, which the page shows; others are not."""
    visit.ask(QUESTION)
    visit.wait_for_end()
    assert visit.page.is_hidden("#searched")
    visit.page.fill("#question", "Why is that?")
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector(f"text=Searched for: {QUESTION} Why is that?")
    visit.page.wait_for_selector("#found li")
    assert "Desert ants" in visit.page.inner_text("#found li >> nth=0")
    visit.open_why()
    queries = visit.page.evaluate(
        """async (questions) => {
          const { queryOf } = await import("/static/following.js");
          return questions.map((question) => queryOf(question, "Before."));
        }""",
        [
            "Tell me more about the second one",
            "And in 2022?",
            "2022",
            "Who is Ames?",
            "なぜ",
            "B017",
        ],
    )
    assert queries == [
        *("Before. Tell me more about the second one", "Before. And in 2022?"),
        *("2022", "Who is Ames?", "なぜ", "B017"),
    ]


def _answered_by(visit: Visit, bodies: list[dict[str, Any]]) -> str | None:
    """Return the model that the last chat request names; lets the browser report requests first."""
    visit.page.evaluate("1")
    chats = [body for body in bodies if "messages" in body]
    return chats[-1].get("model") if chats else None


def test_page_offers_models_and_uses_the_chosen_one(browser: Any) -> None:
    """With two models the first answers, a choice appears, and another choice answers the question again."""
    models = ("--model", "first=chat", "--model", "second=chat")
    with Server("--rate-limit", "off", *models, program=HALF_SCRIPTED) as two:
        assert eventually(two.is_healthy)
        visit = Visit(browser, two.url)
        bodies: list[dict[str, Any]] = []
        visit.page.on(
            "request", lambda request: bodies.append(json.loads(request.post_data or "{}"))
        )
        visit.ask(QUESTION)
        visit.page.wait_for_selector("text=word20 ")
        visit.page.click("#stop")
        visit.wait_for_end()
        assert "model" not in next(body for body in bodies if "messages" in body)
        assert visit.page.locator("#model-choice option").all_inner_texts() == ["first", "second"]
        visit.page.select_option("#model-choice", "second")
        assert eventually(lambda: _answered_by(visit, bodies) == "second")
        visit.page.click("#stop")
        visit.wait_for_end()
        assert "second" in visit.page.inner_text("#model-name")
        visit.close()


def test_page_reports_that_a_document_with_results_was_removed(visit: Visit) -> None:
    """The status names the removed document, also after a reload, and nothing claims that no passage matches."""
    visit.forget_example()
    visit.add("The harbour fee is three crowns.")
    visit.ask("harbour fee")
    visit.wait_for_end()
    visit.page.click("#names [aria-label^=Remove]")
    visit.page.wait_for_selector("#names li", state="detached")
    assert "was removed" in visit.page.inner_text("#status")
    assert visit.page.is_hidden("#verdict")
    assert visit.page.is_hidden("#nothing")
    assert visit.page.is_hidden("#passages")


def test_page_waits_for_the_rate_limit_and_tries_again(browser: Any) -> None:
    """After too many requests the page shows the remaining time, and then the results."""
    with Server("--rate-limit", "1/2second", "--model", "none", program=HALF_SCRIPTED) as limited:
        visit = Visit(browser, limited.url)
        statuses: list[str] = []
        visit.page.expose_function("recordStatus", lambda status: statuses.append(status))
        visit.page.evaluate(
            """new MutationObserver(() => recordStatus(document.querySelector("#status").textContent))
                .observe(document.querySelector("#status"), {childList: true, characterData: true, subtree: true})"""
        )
        visit.ask(QUESTION)
        assert eventually(lambda: any("tries again in" in status for status in statuses))
        visit.ask("ants")
        assert visit.page.is_hidden("#trouble")
        assert all("429" in error for error in visit.errors)
        visit.errors.clear()
        visit.close()


def test_page_export_escapes_names_and_html(visit: Visit) -> None:
    """Saved Markdown shows names, questions and passages as text: no link, heading or HTML is created."""
    name = "[a](b)_c_ # d.txt"
    text = "A tag <b>bold</b> in the harbour."
    visit.page.evaluate(DROP, [name, list(text.encode())])
    visit.page.wait_for_selector(f'#names [title="{name}"]')
    visit.ask("harbour <b> tag")
    visit.wait_for_end()
    markdown = visit.page.evaluate(
        """async () => {
            const [{ markdownOf }, { current }] = await Promise.all(
                [import("./static/exporting.js"), import("./static/asking.js")]);
            return markdownOf(current);
        }"""
    )
    assert markdown.startswith("## harbour &lt;b> tag\n")
    assert "\\[a\\](b)\\_c\\_ \\# d.txt" in markdown
    assert "> A tag &lt;b>bold&lt;/b> in the harbour." in markdown
    assert "<b>" not in markdown


def test_markdown_becomes_elements_and_nothing_else(visit: Visit) -> None:
    """A small part of Markdown is shown, numbers of sources lead there, and markup stays text."""
    written = visit.page.evaluate(
        """async (text) => {
          const { markdown } = await import("/static/markdown.js");
          const made = document.createElement("div");
          const sup = (number) => Object.assign(document.createElement("sup"), { textContent: number });
          const cite = { source: (number) => number < 3 ? sup(number) : null, mark: () => sup("?") };
          made.append(...markdown(text, cite));
          return made.innerHTML;
        }""",
        "# Ants\nThey **count** `a_b_c` *steps* [1, 2] and [3]; 2 * 3 * 4.\n\n- one\n- two <b>x</b>\n\n3. third\n\n"
        "```py\n**a**\n\nb\n```\nend",
    )
    assert written == (
        "<p><strong>Ants</strong></p><p>They <strong>count</strong> <code>a_b_c</code> <em>steps</em> "
        "<sup>1</sup><sup>2</sup> and [3]; 2 * 3 * 4.</p><ul><li>one</li><li>two &lt;b&gt;x&lt;/b&gt;</li></ul>"
        '<ol start="3"><li>third</li></ol><pre><code>**a**\n\nb</code></pre><p>end</p>'
    )


def test_page_sentences_link_sources(visit: Visit) -> None:
    """A sentence is followed by the numbers of its sources, which are links and show them; or it is marked as unsupported."""
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    said = "They count their steps, the desert ants. Cows moo at night."
    end = {
        "created": 1,
        "finished": 2,
        "responses": [{"generated_tokens": 9, "finish_reason": "eos"}],
    }
    events = (("text", {"sample": 0, "text": said}), ("response", end))
    stream = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    visit.page.route(
        "**/generate_stream",
        lambda route: route.fulfill(body=stream, content_type="text/event-stream"),
    )
    visit.ask(QUESTION)
    visit.wait_for_end()
    assert (
        visit.page.inner_text(".sample")
        == "They count their steps, the desert ants.1 Cows moo at night.?"
    )
    visit.page.hover(".sample .cite")
    assert "they count their steps" in visit.page.inner_text("#peek")
    visit.page.click(".sample .cite")
    assert not visit.page.is_visible("#peek")
    assert "Desert ants" in visit.page.evaluate(WHERE)["text"]
    visit.page.click("#copy")
    visit.page.wait_for_selector("text=Copied")
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert "the desert ants. [1] Cows moo at night. [not found in the passages]" in copied
    assert "[1] How things are found\n\n> Desert ants go out" in copied


def test_page_shows_samples_in_columns(visit: Visit) -> None:
    """Several samples are generated at once, in columns; copying copies all of them."""
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.ask(QUESTION)
    visit.page.select_option("#samples", "2")
    visit.page.wait_for_selector(".sample >> nth=1")
    visit.wait_for_end()
    boxes = [visit.page.locator(f".sample >> nth={number}").bounding_box() for number in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    visit.page.click("#copy")
    visit.page.wait_for_selector("text=Copied")
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert copied.count("word0 word1 ") == 2


def test_page_shows_four_samples_in_two_rows(visit: Visit) -> None:
    """If a row fits three columns, a fourth column does not have a row of its own."""
    visit.page.set_viewport_size({"width": 1920, "height": 1080})
    visit.ask(QUESTION)
    visit.page.select_option("#samples", "4")
    visit.page.wait_for_selector(".sample >> nth=3")
    visit.wait_for_end()
    boxes = [visit.page.locator(f".sample >> nth={number}").bounding_box() for number in range(4)]
    assert [len({round(box[edge]) for box in boxes}) for edge in "xy"] == [2, 2]


def test_page_stream_keeps_scroll_position(visit: Visit) -> None:
    """While text comes, the reader's place in the answer's pane stays where it is."""
    visit.page.set_viewport_size({"width": 1280, "height": 400})
    visit.ask(QUESTION)
    visit.page.wait_for_timeout(200)
    visit.page.evaluate("document.querySelector('#right').scrollTop = 40")
    visit.wait_for_end()
    assert visit.page.evaluate("document.querySelector('#right').scrollTop") == 40


# ── What goes wrong ───────────────────────────────────────────────────────────────────────────────


def test_page_requests_key_again(browser: Any, server: Server) -> None:
    """An invalid key is requested again, and the search then continues; without a key it ends."""
    visit = Visit(browser, server.url, key=None)
    visit.page.click("#ask button")
    for key in ("wrong", KEY):
        visit.page.wait_for_selector("#key-dialog[open]")
        visit.page.fill("#key", key)
        visit.page.press("#key", "Enter")
        if key == "wrong":
            visit.page.wait_for_selector("#key-reason.wrong >> text=This key is not valid")
    visit.wait_for_end()
    assert visit.errors
    assert all("401" in error for error in visit.errors)
    visit.errors.clear()
    visit.page.evaluate("sessionStorage.clear()")
    visit.page.click("#ask button")
    visit.page.click("#key-cancel")
    visit.page.wait_for_selector("#status:empty", state="attached")
    assert not visit.page.is_visible("#trouble")
    visit.close()


def test_page_reads_key_from_address(browser: Any, server: Server) -> None:
    """The link that the server prints opens the page with the key, which does not stay in the address."""
    visit = Visit(browser, f"{server.url}/#key={KEY}", key=None)
    assert visit.page.url == f"{server.url}/"
    visit.ask(QUESTION)
    assert not visit.page.is_visible("#key-dialog")
    visit.page.hover("#given button >> nth=0")
    assert "Desert ants go out" in visit.page.inner_text("#peek")
    visit.wait_for_end()
    visit.close()


def test_page_reports_lost_server(browser: Any) -> None:
    """A server that ends during an answer, and a server that does not respond, are reported in plain words; texts are kept."""
    with Server("--rate-limit", "off", "--model", "slow", program=HALF_SCRIPTED) as mortal:
        assert eventually(mortal.is_healthy)
        visit = Visit(browser, mortal.url)
        visit.ask(QUESTION)
        visit.page.wait_for_selector("text=word9 ")
        mortal.process.kill()
        visit.page.wait_for_selector(
            "text=The connection was closed before the answer was complete."
        )
        assert "word9 " in visit.page.inner_text(".sample")
        visit.page.click("#ask button")
        visit.page.wait_for_selector("text=The server does not answer. Is it still running?")
        visit.page.click(".asked-before")
        visit.page.wait_for_selector("#earlier-turns .sample")
        assert "word9 " in visit.page.inner_text("#earlier-turns")
        assert all(error.startswith("Failed to load resource") for error in visit.errors)
        visit.errors.clear()
        visit.close()


def test_page_failed_answer_can_be_retried(visit: Visit) -> None:
    """An error is shown in place of the answer, without a gap, and Retry repeats the request."""
    error = {"error": {"type": "unavailable", "message": "the model is being loaded"}}
    visit.page.route("**/prompt", lambda route: route.fulfill(status=503, json=error))
    visit.ask(QUESTION)
    visit.page.wait_for_selector("#pace.wrong")
    assert visit.page.inner_text("#pace") == "The model is being loaded."
    assert not visit.page.is_visible(".sample")
    assert "503" in visit.errors.pop()
    visit.page.unroute("**/prompt")
    visit.page.click("#retry")
    visit.page.wait_for_selector("text=word20 ")
    assert not visit.page.locator("#pace.wrong").count()
    visit.wait_for_end()


@pytest.mark.parametrize("flags", [("--max-chunks", "40"), ("--max-body-bytes", "50KiB")])
def test_page_rejects_document_above_limit(browser: Any, flags: tuple[str, str]) -> None:
    """A document with which all would be above the server's limits is not added, and the others can be asked."""
    text = "\n\n".join(
        f"Entry {number} of the log tells of wind.{' And of “rain”.' * 50}" for number in range(60)
    )
    with Server("--rate-limit", "off", *flags, program=HALF_SCRIPTED) as narrow:
        visit = Visit(browser, narrow.url)
        chunks = visit.chunks()
        visit.page.evaluate(DROP, ["log.txt", list(text.encode())])
        visit.page.wait_for_selector(
            "text=log.txt was not added: together with the others it is more than this server"
        )
        reported = visit.page.inner_text("#trouble")
        assert (
            "(40 passages, 64 MiB)" if "40" in flags else "(200,000 passages, 0.0488 MiB)"
        ) in reported
        assert "Use fewer or smaller documents" in reported
        assert "relevance-gen serve --index" in reported
        assert visit.page.locator("#names li").count() == 1
        assert visit.chunks() == chunks
        visit.own_example()
        visit.add(text[:5000])
        visit.ask(QUESTION)
        assert "Desert ants" in visit.page.inner_text("#found li >> nth=0")
        assert not visit.page.is_visible("#trouble")
        visit.wait_for_end()
        visit.close()


def test_page_shows_server_rejection_at_question(browser: Any) -> None:
    """A page that could not load the limits gets them from the error of a request, and shows what to do."""
    with Server("--rate-limit", "off", "--max-chunks", "40", program=HALF_SCRIPTED) as narrow:
        visit = Visit(browser, narrow.url)
        visit.page.route(
            f"{narrow.url}/",
            lambda route: (
                route.abort() if route.request.resource_type == "fetch" else route.continue_()
            ),
        )
        visit.page.reload()
        visit.page.wait_for_selector("#text:not([aria-busy])", state="attached")
        visit.add(
            "\n\n".join(
                f"Entry {number} of the log. {'Wind and weather. ' * 50}" for number in range(60)
            )
        )
        visit.page.fill("#question", QUESTION)
        visit.page.click("#ask button")
        visit.page.wait_for_selector(
            "text=These documents are together more than this server searches at once. Use"
        )
        assert all(error.startswith("Failed to load resource") for error in visit.errors)
        visit.errors.clear()
        visit.close()


def test_page_draws_distant_chunks_lazily(visit: Visit) -> None:
    """For a long document few chunks are drawn; the browser's search finds the rest, and scrolling draws them."""
    entries = [
        f"Entry {number} of the log: {'wind and weather ' * 12}and **no** ship."
        for number in range(4000)
    ]
    visit.forget_example()
    visit.add("# Log\n\n" + "\n\n".join(entries))
    text = visit.page.text_content("#text")
    assert all(entry in text for entry in entries)
    n_drawn = len(visit.chunks())
    assert 1000 < n_drawn < 2100
    visit.page.evaluate("document.querySelector('#text').scrollTop = 1e9")
    drawn = ".group:last-child > .chunk:last-child strong"
    assert eventually(lambda: visit.page.locator(drawn).count() == 1)
    assert eventually(lambda: entries[-1] in visit.chunks()[-1])
    assert len(visit.chunks()) < n_drawn + 500
    assert visit.page.text_content("#text").count("Entry 3999 ") == 1


@pytest.mark.parametrize("n_tokens", [300_000, pytest.param(2_000_000, marks=pytest.mark.soak)])
def test_many_tokens_stay_responsive(visit: Visit, tmp_path: Path, n_tokens: int) -> None:
    """With 2 million tokens no task of the page takes a second, and results at the end scroll into view."""
    filler = "\n\n".join(
        f"Entry {number} of the log was written by hand, and tells of wind {number % 97} and of weather {number % 89}, "
        f"of {number % 13} ships that passed and of what the keeper of the light had for supper that evening."
        for number in range(n_tokens // 42)
    )
    file = tmp_path / "log.txt"
    file.write_text(f"{filler}\n\nOn the last page a zeppelin is drawn in blue ink.")
    visit.page.set_input_files("#files", file)
    visit.page.wait_for_selector("#names li >> nth=1")
    visit.page.wait_for_selector("#text:not([aria-busy])", state="attached")
    visit.ask("Where is a zeppelin drawn?")
    (counted,) = re.findall(r"of ([\d,]+) passages", visit.page.inner_text("#status"))
    assert int(counted.replace(",", "")) > len(filler) / 1000
    assert eventually(lambda: visit.page.evaluate(WHERE)["inView"])
    assert "zeppelin" in visit.page.evaluate(WHERE)["text"]
    assert "zeppelin" in visit.marks()["word"]
    assert visit.page.evaluate("longestTaskMs") < 1000


# ── For everybody ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_use_it(browser: Any, server: Server, scheme: str, width: int) -> None:
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
    visit.page.wait_for_selector("#names >> text=handbook.md", state="attached")
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
def test_everybody_can_use_the_description(
    browser: Any, server: Server, scheme: str, width: int
) -> None:
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


@pytest.mark.parametrize("language", PROGRAMS)
def test_description_copies_code_that_runs(browser: Any, server: Server, language: str) -> None:
    """The code of a request in the clipboard sends it; the key is read from a variable."""
    program = shutil.which(PROGRAMS[language][0])
    if program is None:
        pytest.skip(f"{PROGRAMS[language][0]} is not installed")
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
        visit.page.click(f"#{path} >> text=Copy as {language}")
        code = visit.page.evaluate("navigator.clipboard.readText()")
        assert visit.page.inner_text(f"#{path} pre >> nth=-1") == code
        assert KEY not in code
        command = [program, *PROGRAMS[language][1:], code]
        done = subprocess.run(
            command,
            env={**os.environ, "KEY": KEY},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        method = "GET" if body is None else "POST"
        expected = server.call(method, f"/{path}", body, KEYED).body.decode()
        times = re.compile(r"\d+\.\d+(e-\d+)?")
        assert times.sub("", done.stdout) == times.sub("", expected), done.stderr
    visit.close()


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


def test_high_contrast_tells_which_view_is_shown(browser: Any, server: Server) -> None:
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
