"""Load a model while the server serves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from relevance_gen.errors import RelevanceGenError

_log = logging.getLogger(__name__)

Model = TypeVar("Model")


def load_in_thread(load: Callable[[], Model], adopt: Callable[[Model | None], None], what: str) -> None:
    """Load in a thread, and then call `adopt` in the event loop with what was loaded, or with None if that failed.

    Args:
        load: loads, and may take its time.
        adopt: called once, unless the server ends before.
        what: names what is loaded, for the log.
    """
    loop = asyncio.get_running_loop()

    def work() -> None:
        model = None
        try:
            model = load()
        except RelevanceGenError as error:
            _log.error("%s could not be loaded: %s", what, error)
        except Exception:
            _log.exception("%s could not be loaded", what)
        with suppress(RuntimeError):  # the loop is closed: the server ended meanwhile
            loop.call_soon_threadsafe(adopt, model)

    threading.Thread(target=work, name=f"load {what}", daemon=True).start()
