"""``python -m relevance_gen``: the command line, as a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Run the command that the process was started with, and return its exit status.

    Ctrl-C ends the process with status 130 and without a traceback. While modules are loaded it does so at once, for
    numpy would call it a bad installation; later, once the command has cleaned up, but without waiting for threads.
    """
    interrupt = signal.signal(signal.SIGINT, _leave)
    if interrupt is not signal.default_int_handler:  # but ignored, as in a background job
        signal.signal(signal.SIGINT, interrupt)
    from relevance_gen.cli import main as run

    status = run(when_loaded=lambda: signal.signal(signal.SIGINT, interrupt))
    if status == _INTERRUPTED:
        os._exit(status)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)  # the interpreter's own end would show a traceback
    return status


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
