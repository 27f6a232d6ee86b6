"""The child process of `Sandbox`: answer requests within limits of memory and CPU time.

The system kills the process when an answer exceeds its CPU time. The module imports nothing of this
package, so that the child starts fast.

Arguments are the path of a program that defines ``answer``, and the maximum address space in bytes.
After the program is loaded, the process writes an empty line. Each request is a line with the
maximum CPU seconds, the number of content bytes (-1 for none) and the request as JSON, followed by
the content. Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import math
import runpy
import sys
import time
from contextlib import suppress

try:
    import resource
except ModuleNotFoundError:  # on Windows, only the time limit of the parent process applies
    HAS_LIMITS = False
else:
    HAS_LIMITS = True


def main() -> None:
    """Load the program, and answer requests from standard input until it ends."""
    program, memory_bytes = sys.argv[1], int(sys.argv[2])
    answer = runpy.run_path(program)["answer"]
    if HAS_LIMITS:
        with suppress(ValueError, OSError):  # macOS does not limit the address space
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    _write_line(b"")  # the program is loaded: from now on the parent waits only for an answer
    for line in sys.stdin.buffer:
        seconds, n_bytes, text = line.split(b" ", 2)
        content = sys.stdin.buffer.read(int(n_bytes)) if int(n_bytes) >= 0 else None
        _limit_cpu_time(float(seconds))
        request = json.loads(text)
        if content is not None:
            request["content"] = content
        _write_line(json.dumps(answer(request)).encode())
        # The CPU time of reading the next request, which may be long, is not limited.
        _limit_cpu_time(math.inf)


def _limit_cpu_time(seconds: float) -> None:
    """Let the system kill this process after `seconds` of CPU time; infinity is no limit."""
    if not HAS_LIMITS:
        return
    hard_limit = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft_limit = hard_limit
    if seconds != math.inf:
        soft_limit = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (soft_limit, hard_limit))


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
