"""Results, marks and explanations of the page in Chromium."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.types import SearchResponse
from tests.serve.harness import KEY, Server, eventually
from tests.serve.page.visit import DROP, HANDBOOK, QUESTION, WHERE, Visit


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
    assert eventually(lambda: bool(visit.marks().get("shade-5")))
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


HARBOUR_CAFES = [
    "😀😀 The café 👩‍👩‍👧 near the harbour 🏴‍☠️ opens late. 𝔘nicode étude of the harbour café 😀 ends here.",
    "Ein Cafe\u0301 heißt Café, und der Hafen hat drei Cafe\u0301s. 🇪🇺 Im Cafe\u0301 am Hafen sitzt niemand.",
    "𠮷野家の café は港の近くにあります。😀 港の café は夜まで開いています。",
    "harbour\r\ncafé 😀\r\n\r\n\ud83d lone, and the café",
]


def test_page_highlights_code_point_spans(visit: Visit) -> None:
    """Words and passages are highlighted at the server's code points, although the browser counts UTF-16 units."""
    question = "Where is the café at the harbour, im Hafen, 港?"
    for text in HARBOUR_CAFES:
        visit.page.click("#names [aria-label^=Remove]")
        visit.page.wait_for_selector("#names li", state="detached")
        visit.add(text)
        visit.ask(question)
        response = search(question, visit.chunks(), 30, spans=True)
        words = [
            result.chunk_txt[span.start : span.end] for result in response for span in result.words
        ]
        assert len(words) > 2
        assert eventually(lambda words=words: sorted(visit.marks()["word"]) == sorted(words))
        assert _contain_passages(visit.marks()["passage"], response)


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


def test_page_explanation_distributes_the_similarity_to_top_results(scripts: Visit) -> None:
    """The similarity is distributed in proportion, the sum stays exact, and a score of similarity alone is one row."""
    reasons = scripts.page.evaluate(
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


def test_page_is_controlled_by_keyboard(visit: Visit) -> None:
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


def test_chunks_end_with_sentences_and_code_stays_whole(scripts: Visit) -> None:
    """A long paragraph ends with a sentence though its lines are broken; blocks of code are not cut at blank lines."""
    cut = """async ([text, options]) => {
      const { chunksOf, isHeading } = await import("/static/chunking.js");
      return [[...chunksOf(text, options)].map(([start, end]) => text.slice(start, end)), isHeading(text)];
    }"""
    lines = "\n".join(
        f"The keeper of light {n} wrote that the\nweather was fair. He had soup." for n in range(40)
    )
    (chunks, _) = scripts.page.evaluate(cut, [lines, {}])
    assert len(chunks) > 2
    assert all(chunk.endswith(".") for chunk in chunks)
    block = "```python\nfirst()\n\n# a comment\n\nsecond()\n```"
    (chunks, _) = scripts.page.evaluate(
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
        assert scripts.page.evaluate(cut, [text, {}])[1] is reported, text


HANDBOOK_SHOWN = [
    *("---", "title: Harbour", "---", "The harbour handbook"),
    *("build Fees are paid at the office, by ship_length; 2 * 3 * 4", "Fees"),
    *("Boats: three crowns a night", "1. in winter: none", "Ships pay more by length."),
    *("Vessel\tFee", "boat\t3", "fee = 3  # **kept**"),
]


def test_page_hides_markdown_signs_and_searches_the_source(visit: Visit) -> None:
    """Signs of Markdown are hidden and lines run on; the text is searched, and marked, as it was written."""
    visit.forget_example()
    visit.page.evaluate(DROP, ["handbook.md", list(HANDBOOK.encode())])
    visit.wait_for_document("handbook.md")
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
    visit.wait_for_document("branches.csv")
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


def test_page_markdown_keeps_text(scripts: Visit) -> None:
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
    broken, seconds = scripts.page.evaluate(
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


def test_page_reports_conditions_that_no_passage_meets(visit: Visit) -> None:
    """A question with operators that excludes everything is not reported as words that do not occur."""
    visit.page.fill("#question", '"Milky Way" -moon')
    visit.page.press("#question", "Enter")
    visit.page.wait_for_selector("text=No passage meets the conditions of this question.")
