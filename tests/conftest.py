"""Test-wide settings: hypothesis profiles, chosen by ``HYPOTHESIS_PROFILE``, and that ^C is heard."""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

_slow_is_fine = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_slow_is_fine)
settings.register_profile("ci", max_examples=100, derandomize=True, **_slow_is_fine)
settings.register_profile("soak", max_examples=300, **_slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

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
