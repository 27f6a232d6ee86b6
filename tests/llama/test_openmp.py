"""How llama.cpp's threads wait, as libgomp itself says when it is loaded."""

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
    """Load llama.cpp in a process of its own; return what Python and what libgomp printed."""
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


def test_threads_spin_briefly():
    """Without a choice of the user's it is 10,000 rounds, and the environment of other programs is left alone."""
    told, libgomp = load()
    assert "GOMP_SPINCOUNT = '10000'" in libgomp
    assert "in the environment: None" in told
    assert "libgomp" not in told


@pytest.mark.parametrize(
    "choice", [{"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "PASSIVE"}], ids=str
)
def test_the_users_own_choice_stays(choice):
    """With either of its variables set, libgomp does what it says: passive waiting does not spin at all."""
    told, libgomp = load(**choice)
    assert f"GOMP_SPINCOUNT = '{choice.get('GOMP_SPINCOUNT', 0)}'" in libgomp
    assert f"in the environment: {choice.get('GOMP_SPINCOUNT')}" in told


def test_it_says_where_it_comes_too_late():
    """Where another library has already loaded libgomp, that is logged, with the remedy."""
    told, libgomp = load("import ctypes; ctypes.CDLL('libgomp.so.1')")
    assert "GOMP_SPINCOUNT = '10000'" not in libgomp
    assert "relevance_gen.llama.runtime.openmp: another library has already loaded libgomp" in told
    assert "set GOMP_SPINCOUNT=10000" in told
