"""Take the picture of the page: the real server, a real Chromium, the example of a first visit, one click."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.serve.harness import KEY, REAL, Server, eventually

PICTURE = Path(__file__).with_suffix(".png")


def main() -> None:
    """Write the picture beside this file."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with Server(program=REAL) as server, sync_playwright() as driver:
        eventually(lambda: server.call("GET", "/health").status == 200)
        for body in ({"text": "warm up", "max_tokens": 64}, {"text": "again", "max_tokens": 64}):
            server.generate(body)
        server.search({"query": "warm up", "chunk_txts": ["warm"], "spans": True})
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1360, "height": 850})
        page.add_init_script(f"sessionStorage.setItem('relevance_gen.key', '{KEY}')")
        page.goto(server.url)
        page.click("#ask button")
        page.wait_for_selector("#found.quoted")
        page.click(".under summary >> nth=0")
        page.wait_for_selector("#found table")
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(0, 0)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
