"""What holds for all tests: how often laws are tried, and that ^C is heard."""

import signal
import sys

import pytest

import tests.profiles  # noqa: F401 - loads the profile that the settings of all laws come from

# A shell starts jobs in the background, as `make soak` does, so that they ignore ^C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _close_what_llama_cpp_leaves_open():
    """Close the two files that importing llama_cpp opens for good: unclosed files are warnings here."""
    yield
    if (utils := sys.modules.get("llama_cpp._utils")) is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()
