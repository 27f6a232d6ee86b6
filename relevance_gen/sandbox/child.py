"""The child of `Sandbox`, run by its path: answer line by line as a program does, within limits of memory and time.

The system ends it where an answer takes the processor too long, and it may die of what it is asked. It imports nothing
of this package, so that it starts fast.

Arguments: the path of a program that defines ``answer``, and the bytes of memory that this process may have. A line
holds the seconds that the answer may take the processor, and the question.
"""

from __future__ import annotations

import json
import math
import resource
import runpy
import sys
import time
from contextlib import suppress


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
        seconds, _, question = line.partition(b" ")
        resource.setrlimit(
            resource.RLIMIT_CPU, (math.ceil(time.process_time() + float(seconds)), hard)
        )
        reply = json.dumps(answer(json.loads(question)))
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()
        resource.setrlimit(
            resource.RLIMIT_CPU, (hard, hard)
        )  # reading a long question is no part of this answer


if __name__ == "__main__":
    main()
