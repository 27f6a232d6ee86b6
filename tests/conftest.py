"""What holds for all tests: how often laws are tried, that ^C is heard, and where indexes of folders are kept."""

import os
import shutil
import signal
import sys
import tempfile

import pytest

import tests.profiles  # noqa: F401 - loads the profile that the settings of all laws come from

# A job in the background ignores ^C, and one under nohup its terminal's end; so would all that the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

os.environ["RELEVANCE_GEN_CACHE"] = tempfile.mkdtemp()  # before any test copies the environment for a process


@pytest.fixture(scope="session", autouse=True)
def _remove_kept_indexes():
    """Leave no indexes behind."""
    yield
    shutil.rmtree(os.environ["RELEVANCE_GEN_CACHE"], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _close_what_llama_cpp_leaves_open():
    """Close the two files that importing llama_cpp opens for good: unclosed files are warnings here."""
    yield
    if (utils := sys.modules.get("llama_cpp._utils")) is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()
