"""Documents of the page in Chromium: adding, listing, removing, keeping."""

from __future__ import annotations

import time
from typing import Any

from tests.cli.documents import pdf
from tests.serve.harness import KEY, Server, eventually
from tests.serve.page.visit import DROP, QUESTION, Visit


def test_page_accepts_texts_by_paste_drop_and_dialog(visit: Visit) -> None:
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
    visit.wait_for_document("g.txt")
    visit.page.click("#add")
    visit.page.fill("#pasted", "Written by hand\n\nand added")
    visit.page.click("#text-dialog .main")
    visit.wait_for_document("Written by hand")
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
    visit.wait_for_document("report.pdf")
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
    """More than 12 documents are one button, whose dialog orders, filters, opens and removes them."""
    files_ = [
        {
            "name": f"notes-{number:02}.txt",
            "mimeType": "",
            "buffer": b"Notes about the harbour. " * (50 + 10 * (number == 4)),
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
    largest = visit.page.locator("#shelf-rows li >> nth=0")
    assert largest.inner_text().split() == ["notes-00.txt", "1,250", "characters"]
    visit.page.select_option("#shelf-order", "Size")
    assert largest.inner_text().split() == ["notes-04.txt", "1,500", "characters"]
    visit.page.select_option("#shelf-order", "Name")
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
    visit.wait_for_document("good.txt")
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
    visit.wait_for_document("How things are found")
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

    n_before = n_nodes(2)
    n_after = n_nodes(4)
    assert n_after < n_before + 4 * 40


def test_page_tabs_are_independent(visit: Visit) -> None:
    """Each tab has a conversation of its own; after a reload both are restored."""
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
    visit.page.wait_for_selector("#earlier-turns li")
    assert visit.page.locator(".asked-before").all_inner_texts() == [QUESTION]
    visit.page.click("#threads")
    names = visit.page.locator("#threads-rows button:first-child").all_inner_texts()
    assert names == ["How do salmon return?", QUESTION]


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
