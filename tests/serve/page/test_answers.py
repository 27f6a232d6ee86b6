"""Answers of the page in Chromium: streams, chat models, sources, export."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.serve.harness import HALF_SCRIPTED, REAL, Server, eventually
from tests.serve.page.visit import DROP, QUESTION, WHERE, Visit


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
        visit.page.click("#settings")
        visit.page.fill("#max_tokens", "48")
        visit.page.click("#settings-dialog .main")
        visit.page.wait_for_selector("text=96 tokens")
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
        assert eventually(lambda: _last_roles(visit, bodies) == ["user", "assistant", "user"])
        visit.wait_for_end()
        chats = [body["messages"] for body in bodies if "messages" in body]
        assert chats[-1][0]["content"] == QUESTION
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


def test_page_sends_settings_with_answers(browser: Any) -> None:
    """Settings are stored, sent with each answer and applied at once; empty fields are not sent."""
    with Server("--rate-limit", "off", "--model", "chat", program=HALF_SCRIPTED) as chatty:
        assert eventually(chatty.is_healthy)
        visit = Visit(browser, chatty.url)
        bodies: list[dict[str, Any]] = []
        visit.page.on(
            "request", lambda request: bodies.append(json.loads(request.post_data or "{}"))
        )
        visit.ask(QUESTION)
        visit.page.wait_for_selector("text=word5 ")
        visit.page.click("#settings")
        visit.page.fill("#temperature", "3")
        visit.page.click("#settings-dialog .main")
        assert visit.page.is_visible("#settings-dialog")  # the browser reports the wrong value
        visit.page.fill("#temperature", "0.4")
        visit.page.fill("#max_tokens", "7")
        visit.page.fill("#instructions", "Answer in French.")
        visit.page.click("#settings-dialog .main")
        visit.page.wait_for_selector("text=7 tokens")
        chats = [body for body in bodies if "messages" in body]
        system = {"role": "system", "content": "Answer in French."}
        assert [body["messages"][0] == system for body in chats] == [False, True]
        assert [body["max_tokens"] for body in chats] == [512, 7]
        assert [body["temperature"] for body in chats] == [0, 0.4]
        visit.page.reload()
        visit.page.wait_for_selector("#settings")
        visit.page.click("#settings")
        assert visit.page.input_value("#max_tokens") == "7"
        for name in ("temperature", "max_tokens", "instructions"):
            visit.page.fill(f"#{name}", "")
        visit.page.click("#settings-dialog .main")
        visit.page.wait_for_selector("text=word8 ")
        chats = [body for body in bodies if "messages" in body]
        assert (chats[-1]["max_tokens"], chats[-1]["messages"][0]["role"]) == (512, "user")
        visit.close()


def test_page_keeps_conversations_apart(visit: Visit) -> None:
    """A new conversation begins without earlier questions; each is opened, renamed, filtered and deleted by itself."""
    earlier = visit.page.locator("#earlier-turns li")
    rows = visit.page.locator("#threads-rows li:visible")
    assert visit.page.is_hidden("#threads")
    visit.ask(QUESTION)
    visit.wait_for_end()
    visit.ask("How do salmon return?")
    visit.wait_for_end()
    assert earlier.count() == 1
    visit.page.click("#threads")
    visit.page.click("#thread-new")
    assert visit.page.is_visible("#hint")
    visit.ask("Why is that?")
    visit.wait_for_end()
    assert visit.page.is_hidden("#searched")  # the questions of the other conversation are not used
    assert earlier.count() == 0
    visit.page.click("#threads")
    assert rows.locator("button:first-child").all_inner_texts() == ["Why is that?", QUESTION]
    assert rows.locator("span").all_inner_texts() == ["1 question", "2 questions"]
    visit.page.fill("#threads-filter", "salmon")
    assert rows.count() == 1
    visit.page.click(f"[aria-label='Rename {QUESTION}']")
    visit.page.fill("#threads-rows input", "Animals")
    visit.page.press("#threads-rows input", "Enter")
    visit.page.click("#threads-rows >> text=Animals")
    visit.page.wait_for_selector("#asked >> text=How do salmon return?")
    assert earlier.count() == 1
    visit.page.reload()
    visit.page.wait_for_selector("#threads")
    visit.page.click("#threads")
    assert rows.locator("button:first-child").all_inner_texts() == ["Why is that?", "Animals"]
    visit.page.click("[aria-label='Delete Animals']")
    visit.page.click("#threads-close")
    visit.page.reload()
    visit.page.wait_for_selector("#threads")
    visit.page.click("#threads")
    assert rows.locator("button:first-child").all_inner_texts() == ["Why is that?"]
    visit.page.click("[aria-label='Delete Why is that?']")
    assert visit.page.is_visible("#threads-none")
    visit.page.click("#threads-close")
    assert visit.page.is_hidden("#threads")
    assert visit.page.is_visible("#hint")


def _last_roles(visit: Visit, bodies: list[dict[str, Any]]) -> list[str]:
    """Return the roles of the messages of the last chat request; lets the browser report requests first."""
    visit.page.evaluate("1")
    chats = [body["messages"] for body in bodies if "messages" in body]
    return [message["role"] for message in chats[-1]] if chats else []


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


def test_page_stream_keeps_scroll_position(browser: Any, slow: Server) -> None:
    """While text comes, the reader's place in the answer's pane stays where it is."""
    visit = Visit(browser, slow.url, viewport={"width": 1280, "height": 400})
    visit.ask(QUESTION)
    visit.page.wait_for_selector("text=word5 ")
    visit.page.evaluate("document.querySelector('#right').scrollTop = 40")
    visit.page.wait_for_selector("text=word60 ")
    assert visit.page.evaluate("document.querySelector('#right').scrollTop") == 40
    visit.page.click("#stop")
    visit.wait_for_end()
    assert visit.page.evaluate("document.querySelector('#right').scrollTop") == 40
    visit.close()
