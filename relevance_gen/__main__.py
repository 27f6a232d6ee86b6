"""``python -m relevance_gen``: the process of the command line."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_EXIT_INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Run the command that the arguments of this process name, and return its exit status.

    Ctrl-C ends the process with status 130 and without a traceback. While modules are imported, it
    ends the process immediately: a `KeyboardInterrupt` inside the import of numpy would cause numpy
    to report a broken installation. While the command runs, the command first cleans up; then the
    process ends without waiting for other threads.
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
