"""Errors and limits of the page in Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.serve.harness import HALF_SCRIPTED, KEY, Server, eventually
from tests.serve.page.visit import DROP, QUESTION, WHERE, Visit


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
    brief = ("--rate-limit", "off", "--model", "brief")
    with Server(*brief, *flags, program=HALF_SCRIPTED) as narrow:
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
