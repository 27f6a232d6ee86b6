"""``python -m relevance_gen``: the process of the command line."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_EXIT_INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Run the command of the process's arguments, and return its exit status.

    Ctrl-C ends the process with status 130 and without a traceback: immediately while modules are
    loaded, because numpy would report a broken installation; afterwards when the command has
    cleaned up, without waiting for threads.
    """
    handler = signal.signal(signal.SIGINT, _exit_interrupted)
    if handler is not signal.default_int_handler:  # SIGINT is ignored, as in a background job
        signal.signal(signal.SIGINT, handler)
    from relevance_gen.cli import main as run

    status = run(when_loaded=lambda: signal.signal(signal.SIGINT, handler))
    if status == _EXIT_INTERRUPTED:
        os._exit(status)
    if handler is signal.default_int_handler:
        # During its shutdown the interpreter would print a traceback.
        signal.signal(signal.SIGINT, _exit_interrupted)
    return status


def _exit_interrupted(_signal: int, _frame: FrameType | None) -> None:
    os._exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
