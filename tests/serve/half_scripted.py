"""A server whose search is real and whose generation is scripted: what is found is right, what is written is known.

Run as a script it takes the flags of ``python -m relevance_gen.serve``.
"""

from __future__ import annotations

import os
import sys

from relevance_gen.serve.processes import process
from relevance_gen.serve.processes.command import main
from relevance_gen.serve.processes.process import ProcessSpec
from tests.serve.scripted import load


def run(spec: ProcessSpec) -> None:
    """Be one process of the server."""
    process.run(spec, load)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ, run))
