"""The AMX probe, through its inputs: what the CPU says, and a command that lives or dies."""

import subprocess
import sys

import pytest

from relevance_gen.llama.runtime.probe import extra_buffers_are_safe

AMX = "CPU : AVX512 = 1 | AMX_INT8 = 1 | "
LIVES = (sys.executable, "-c", "")
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
CRASHES = (sys.executable, "-c", CRASH)


def counting(tmp_path, ending):
    """Make a command that leaves a mark each time it runs."""
    return (sys.executable, "-c", f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); {ending}")


def test_without_amx_nothing_is_probed(tmp_path):
    """A CPU without AMX needs no probe: the layouts are safe."""
    command = counting(tmp_path, "raise SystemExit(1)")
    assert extra_buffers_are_safe(
        "CPU : AVX512 = 1 | ", "build", command=command, cache_dir=tmp_path
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "safe"), [(LIVES, True), (CRASHES, False), (("/does/not/exist",), False)]
)
def test_the_answer_is_whether_the_probe_lives(tmp_path, command, safe):
    """A segfault in the subprocess is an answer, not the end of this process."""
    assert extra_buffers_are_safe(AMX, "build", command=command, cache_dir=tmp_path) is safe


@pytest.mark.parametrize("ending", ["", CRASH], ids=["lives", "dies"])
def test_the_answer_is_remembered_for_a_build(tmp_path, ending):
    """The same build and CPU are probed once; another build is probed anew."""
    command = counting(tmp_path, ending)
    answers = {
        extra_buffers_are_safe(AMX, "build", command=command, cache_dir=tmp_path) for _ in range(3)
    }
    assert answers == {ending == ""}
    assert (tmp_path / "runs").read_text() == "x"
    extra_buffers_are_safe(AMX, "another build", command=command, cache_dir=tmp_path)
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_failure_that_is_no_crash_is_not_remembered(tmp_path):
    """A probe that could not do its work says nothing of the build: the layouts are off, and it is tried again."""
    command = counting(tmp_path, "raise SystemExit(1)")
    for runs in ("x", "xx"):
        assert not extra_buffers_are_safe(AMX, "build", command=command, cache_dir=tmp_path)
        assert (tmp_path / "runs").read_text() == runs


def test_a_cache_that_cannot_be_written_only_means_probing_again(tmp_path):
    """A file in the place of the cache directory is no error."""
    (tmp_path / "file").touch()
    assert extra_buffers_are_safe(AMX, "build", command=LIVES, cache_dir=tmp_path / "file")


def test_the_remedy_is_logged(tmp_path, caplog):
    """Where the layouts are unsafe, a warning says how to rebuild."""
    extra_buffers_are_safe(AMX, "build", command=CRASHES, cache_dir=tmp_path)
    assert "-fno-tree-dse" in caplog.text


def test_the_real_probe_runs():
    """The probe's own command decodes with the shipped model and ends well on this machine."""
    ended = subprocess.run(
        [sys.executable, "-m", "relevance_gen.llama.trial"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
