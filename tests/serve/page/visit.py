"""A visit of the page in a real Chromium."""

from __future__ import annotations

import json
from typing import Any

from tests.serve.harness import KEY, eventually

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
"""A Markdown document with front matter, a table, code and a list."""


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
        assert (troubles, self.errors) == ([], []), (troubles, self.errors)

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

    def wait_for_document(self, name: str) -> None:
        """Wait until a document is listed and all of its text is laid out."""
        self.page.wait_for_selector(f"#names >> text={name}", state="attached")
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
        self.wait_for_document("example.txt")

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
