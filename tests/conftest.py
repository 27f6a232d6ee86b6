"""What holds for all tests: how often laws are tried, and that ^C is heard."""

import signal
import sys

import pytest

import tests.profiles  # noqa: F401 - loads the profile that the settings of all laws come from

# A job in the background ignores ^C, and one under nohup its terminal's end; so would all that the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _close_what_llama_cpp_leaves_open():
    """Close the two files that importing llama_cpp opens for good: unclosed files are warnings here."""
    yield
    if (utils := sys.modules.get("llama_cpp._utils")) is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()
