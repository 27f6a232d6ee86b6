"""The AMX probe with simulated CPU descriptions and commands."""

import subprocess
import sys

import pytest

from relevance_gen.llama.runtime.probe import extra_buffers_are_safe

AMX = "CPU : AVX512 = 1 | AMX_INT8 = 1 | "
LIVES = (sys.executable, "-c", "")
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
CRASHES = (sys.executable, "-c", CRASH)


def counting(tmp_path, ending):
    """Return a command that appends to a file on each run."""
    return (sys.executable, "-c", f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); {ending}")


def test_cpu_without_amx_is_safe_without_probe(tmp_path):
    """The command is not run."""
    command = counting(tmp_path, "raise SystemExit(1)")
    assert extra_buffers_are_safe(
        "CPU : AVX512 = 1 | ", "build", command=command, cache_dir=tmp_path
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "safe"), [(LIVES, True), (CRASHES, False), (("/does/not/exist",), False)]
)
def test_crash_of_the_command_means_unsafe(tmp_path, command, safe):
    """A segmentation fault in the subprocess does not end this process."""
    assert extra_buffers_are_safe(AMX, "build", command=command, cache_dir=tmp_path) is safe


@pytest.mark.parametrize("ending", ["", CRASH], ids=["lives", "dies"])
def test_result_is_cached_by_build(tmp_path, ending):
    """An equal build and CPU are probed once; a different build is probed again."""
    command = counting(tmp_path, ending)
    answers = {
        extra_buffers_are_safe(AMX, "build", command=command, cache_dir=tmp_path) for _ in range(3)
    }
    assert answers == {ending == ""}
    assert (tmp_path / "runs").read_text() == "x"
    extra_buffers_are_safe(AMX, "another build", command=command, cache_dir=tmp_path)
    assert (tmp_path / "runs").read_text() == "xx"


def test_failure_without_crash_is_not_cached(tmp_path):
    """The layouts are disabled, and the next process probes again."""
    command = counting(tmp_path, "raise SystemExit(1)")
    for runs in ("x", "xx"):
        assert not extra_buffers_are_safe(AMX, "build", command=command, cache_dir=tmp_path)
        assert (tmp_path / "runs").read_text() == runs


def test_unwritable_cache_is_not_an_error(tmp_path):
    """A file in place of the cache directory only prevents caching."""
    (tmp_path / "file").touch()
    assert extra_buffers_are_safe(AMX, "build", command=LIVES, cache_dir=tmp_path / "file")


def test_unsafe_layouts_log_a_remedy(tmp_path, caplog):
    """A warning explains how to rebuild llama.cpp."""
    extra_buffers_are_safe(AMX, "build", command=CRASHES, cache_dir=tmp_path)
    assert "-fno-tree-dse" in caplog.text


def test_real_command_succeeds_on_this_machine():
    """The default command decodes with the included model and exits with status 0."""
    ended = subprocess.run(
        [sys.executable, "-m", "relevance_gen.llama.trial"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
