"""``python -m relevance_gen``: the command line."""

import sys

from relevance_gen.cli import main

if __name__ == "__main__":
    sys.exit(main())
