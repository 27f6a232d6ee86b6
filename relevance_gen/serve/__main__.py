"""``python -m relevance_gen.serve``: start the server."""

from __future__ import annotations

import importlib
import os
import sys

from relevance_gen.errors import to_install

_EXIT_FAILED = 2
_POSIX_MODULES = {"fcntl", "resource"}


def main(arguments: list[str]) -> int:
    """Run the server until it receives a signal that stops it, and return the exit status.

    If a package that the server needs is missing, write the command that installs it to standard
    error, and return 2. On a system other than Linux and macOS, write that the server runs only on
    these systems, and return 2.
    """
    try:
        command = importlib.import_module("relevance_gen.serve.processes.command")
    except ModuleNotFoundError as error:
        if error.name in _POSIX_MODULES:
            sys.stderr.write("relevance-gen serve: the server runs on Linux and macOS only\n")
            return _EXIT_FAILED
        sys.stderr.write(f"relevance-gen serve: {error}; install it with: {to_install('server')}\n")
        return _EXIT_FAILED
    return int(command.main(arguments, os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
