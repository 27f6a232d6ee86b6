"""The child of `Sandbox`, run by its path: answer line by line as a program does, within limits of memory and time.

It is killed by whoever started it when it takes too long, and may die of what it is asked. It imports nothing of this
package, so that it starts fast.

Arguments: the path of a program that defines ``answer``, and the bytes of memory that this process may have.
"""

from __future__ import annotations

import json
import resource
import runpy
import sys
from contextlib import suppress

MAX_CPU_S = 20
"""Ends this process where nobody is left to kill it."""


def main() -> None:
    """Answer line by line until standard input ends."""
    program, memory_bytes = sys.argv[1], int(sys.argv[2])
    answer = runpy.run_path(program)["answer"]
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    sys.stdout.buffer.write(b"\n")  # the program is loaded: the time of the first answer begins
    sys.stdout.buffer.flush()
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    for line in sys.stdin.buffer:
        used_s = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used_s.ru_utime + used_s.ru_stime) + MAX_CPU_S, hard))
        reply = json.dumps(answer(json.loads(line)))
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
