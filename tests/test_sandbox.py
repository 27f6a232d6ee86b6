"""A program in a process of its own: it answers, and whatever becomes of it is told in time."""

import time

import pytest

from relevance_gen.errors import GenerationError
from relevance_gen.sandbox import Sandbox

PROGRAM = """
import os, pathlib, threading, time

def work(processor_s, told):
    end_s = time.process_time() + processor_s
    while time.process_time() < end_s:
        pass
    pathlib.Path(told).touch()

def answer(question):
    match question["do"]:
        case "sleep":
            time.sleep(60)
        case "work":
            work(60, "never")
        case "work afterwards":
            threading.Thread(target=work, args=(2.5, question["told"])).start()
        case "die":
            os.abort()
        case "eat":
            bytearray(1 << 30)
    return {"did": question["do"], "pid": os.getpid()}
"""


@pytest.fixture
def sandbox(tmp_path):
    """A sandbox of 256 MiB and half a second."""
    (tmp_path / "program.py").write_text(PROGRAM)
    sandbox = Sandbox(tmp_path / "program.py", timeout_s=0.5, memory_bytes=256 << 20)
    sandbox.ask({"do": "start"})
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    ("what", "error"),
    [("sleep", TimeoutError), ("work", TimeoutError), ("die", EOFError), ("eat", EOFError)],
)
def test_what_overruns_is_an_error_and_the_next_question_has_a_new_process(sandbox, what, error):
    """Too long, dead or too much memory: each its error, and then another process answers."""
    before = sandbox.ask({"do": "answer"})
    assert before["did"] == "answer"
    with pytest.raises(error):
        sandbox.ask({"do": what})
    assert sandbox.ask({"do": "answer"})["pid"] != before["pid"]


def test_what_it_does_between_two_questions_takes_nothing_from_an_answers_time(sandbox, tmp_path):
    """The processor's time is limited while it answers, and not while it reads the next question, which may be long."""
    told = tmp_path / "told"
    before = sandbox.ask({"do": "work afterwards", "told": str(told)})
    process, end_s = sandbox._process.popen, time.monotonic() + 60
    while not told.exists() and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)
    assert told.exists()
    assert sandbox.ask({"do": "answer"})["pid"] == before["pid"]


def test_its_start_takes_nothing_from_the_answers_time(tmp_path):
    """A program that loads for longer than an answer may take is waited for."""
    (tmp_path / "program.py").write_text(
        "import time\ntime.sleep(1.1)\ndef answer(_):\n    return {}\n"
    )
    sandbox = Sandbox(tmp_path / "program.py", timeout_s=0.2, memory_bytes=256 << 20)
    assert sandbox.ask({}) == {}
    sandbox.close()


def test_it_knows_no_keys(monkeypatch, tmp_path):
    """What is in this package's variables, keys among it, is not in the process."""
    monkeypatch.setenv("RELEVANCE_GEN_API_KEYS", "secret")
    (tmp_path / "program.py").write_text("import os\ndef answer(_):\n    return dict(os.environ)\n")
    sandbox = Sandbox(tmp_path / "program.py", timeout_s=60, memory_bytes=256 << 20)
    seen = sandbox.ask({})
    sandbox.close()
    assert "PATH" in seen
    assert "secret" not in seen.values()


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch, sandbox):
    """Where there is no Python to run, the error says so."""
    sandbox.close()
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(GenerationError, match=r"program\.py cannot be started"):
        sandbox.ask({"do": "answer"})
