"""``python -m relevance_gen.serve``: start the server."""

from __future__ import annotations

import os
import sys

from relevance_gen.serve.processes.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
