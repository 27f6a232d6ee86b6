"""The spin time of llama.cpp's threads, as libgomp prints it when it is loaded."""

import os
import subprocess
import sys

import pytest

LOAD = """
import logging, os, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s: %(message)s")
{before}
from relevance_gen.llama.runtime import library
print("in the environment:", os.environ.get("GOMP_SPINCOUNT"))
"""


def load(before="", **environment):
    """Load llama.cpp in a separate process; return the output of Python and libgomp."""
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(before=before)],
        env=own | {"OMP_DISPLAY_ENV": "verbose"} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this build of llama.cpp has no libgomp")
    return done.stdout, done.stderr


def test_default_spin_count_is_10000():
    """Without a setting of the user it is 10,000, and the environment of subprocesses is unchanged."""
    reported, libgomp = load()
    assert "GOMP_SPINCOUNT = '10000'" in libgomp
    assert "in the environment: None" in reported
    assert "libgomp" not in reported


@pytest.mark.parametrize(
    "choice", [{"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "PASSIVE"}], ids=str
)
def test_spin_settings_of_the_user_are_kept(choice):
    """Both variables of libgomp are respected: passive waiting does not spin."""
    reported, libgomp = load(**choice)
    assert f"GOMP_SPINCOUNT = '{choice.get('GOMP_SPINCOUNT', 0)}'" in libgomp
    assert f"in the environment: {choice.get('GOMP_SPINCOUNT')}" in reported


def test_libgomp_loaded_before_is_logged():
    """If libgomp is already loaded, the log has a remedy."""
    reported, libgomp = load("import ctypes; ctypes.CDLL('libgomp.so.1')")
    assert "GOMP_SPINCOUNT = '10000'" not in libgomp
    assert (
        "relevance_gen.llama.runtime.openmp: another library has already loaded libgomp" in reported
    )
    assert "set GOMP_SPINCOUNT=10000" in reported
