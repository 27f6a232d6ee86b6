"""Settings of all tests: hypothesis profile, distribution to processes, signals, cache folder."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

import pytest

import tests.profiles  # noqa: F401 - loads the profile that the settings of all laws come from
from relevance_gen.machine import usable_cpus

CLUSTER = "tests/cluster/"
"""The folder whose tests share three nodes, which are started once."""
FIRST = (CLUSTER, "tests/serve/page/")
"""Folders with tests that take the longest: other tests fill the time while these wait."""

# A job in the background ignores ^C, and one under nohup its terminal's end; so would all that the
# tests start.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

os.environ["RELEVANCE_GEN_CACHE"] = (
    tempfile.mkdtemp()
)  # before any test copies the environment for a process


gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests and their modules from garbage collection, which then takes a fifth of the time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Remove the cached indexes."""
    shutil.rmtree(os.environ["RELEVANCE_GEN_CACHE"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of `FIRST` before all others."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Have one process more than processors, as tests often wait; of many, each starts what tests share again."""
    return min(usable_cpus() + 1, 4)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of one file, and all tests of the cluster, in one process each."""
    # xdist's own groups are lost: it writes them into a name that pytest 9 has no more.
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER if nodeid.startswith(CLUSTER) else nodeid.split("::")[0]

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _end_preloaded_process():
    """End the process from which servers were forked, after all servers."""
    yield
    if (preloaded := sys.modules.get("tests.serve.preloaded")) is not None:
        preloaded.close_preloaded()


@pytest.fixture(scope="session", autouse=True)
def _close_what_llama_cpp_leaves_open():
    """Close the two files that importing llama_cpp opens for good: unclosed files are warnings here."""
    yield
    if (utils := sys.modules.get("llama_cpp._utils")) is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()
