"""Programs in a child process: answers, limits of time and memory, and environment."""

import time

import pytest

from relevance_gen.errors import GenerationError
from relevance_gen.sandbox import Sandbox

PROGRAM = """
import os, pathlib, threading, time

def work(cpu_s, path):
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass
    pathlib.Path(path).touch()

def answer(request):
    match request["do"]:
        case "sleep":
            time.sleep(60)
        case "work":
            work(60, "never")
        case "work afterwards":
            threading.Thread(target=work, args=(2.5, request["path"])).start()
        case "die":
            os.abort()
        case "allocate":
            bytearray(1 << 30)
    return {"did": request["do"], "pid": os.getpid(), "n_bytes": len(request.get("content", b""))}
"""


@pytest.fixture
def sandbox(tmp_path):
    """A sandbox of 256 MiB and half a CPU second."""
    (tmp_path / "program.py").write_text(PROGRAM)
    sandbox = Sandbox(tmp_path / "program.py", timeout_s=0.5, memory_bytes=256 << 20)
    sandbox.call({"do": "start"})
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    ("action", "error"),
    [("sleep", TimeoutError), ("work", TimeoutError), ("die", EOFError), ("allocate", EOFError)],
)
def test_call_above_limit_raises_and_next_call_has_new_process(sandbox, action, error):
    """A timeout, a crash and too much memory raise their errors; after that another process answers."""
    before = sandbox.call({"do": "answer"})
    assert before["did"] == "answer"
    with pytest.raises(error):
        sandbox.call({"do": action})
    assert sandbox.call({"do": "answer"})["pid"] != before["pid"]


@pytest.mark.parametrize("n_bytes", [0, 1, 5 << 20])
def test_call_with_content_passes_bytes(sandbox, n_bytes):
    """The program gets the bytes of the content, line ends and NULs among them, and answers the next call."""
    content = (b"\n\0 a" * (n_bytes // 4 + 1))[:n_bytes]
    assert sandbox.call({"do": "answer"}, content)["n_bytes"] == n_bytes
    assert sandbox.call({"do": "answer"})["did"] == "answer"


def test_work_between_calls_does_not_count(sandbox, tmp_path):
    """CPU time is limited while the program answers, not while it reads the next request, which may be long."""
    path = tmp_path / "done"
    before = sandbox.call({"do": "work afterwards", "path": str(path)})
    process, end_s = sandbox._process.popen, time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)
    assert path.exists()
    assert sandbox.call({"do": "answer"})["pid"] == before["pid"]


def test_start_does_not_count_as_answer(tmp_path):
    """A program that takes longer to load than an answer may take is waited for."""
    (tmp_path / "program.py").write_text(
        "import time\ntime.sleep(1.1)\ndef answer(_):\n    return {}\n"
    )
    sandbox = Sandbox(tmp_path / "program.py", timeout_s=0.2, memory_bytes=256 << 20)
    assert sandbox.call({}) == {}
    sandbox.close()


@pytest.mark.parametrize(
    "name",
    [
        "RELEVANCE_GEN_API_KEYS",
        "AWS_SECRET_ACCESS_KEY",
        "OPENAI_API_KEY",
        "DATABASE_URL",
        "SSH_AUTH_SOCK",
    ],
)
def test_child_does_not_inherit_secrets(monkeypatch, tmp_path, name):
    """Variables that may hold secrets are not in the environment of the child; PATH is."""
    monkeypatch.setenv(name, "secret")
    (tmp_path / "program.py").write_text("import os\ndef answer(_):\n    return dict(os.environ)\n")
    sandbox = Sandbox(tmp_path / "program.py", timeout_s=60, memory_bytes=256 << 20)
    environment = sandbox.call({})
    sandbox.close()
    assert "PATH" in environment
    assert "secret" not in environment.values()


def test_call_without_python_raises(monkeypatch, sandbox):
    """If the interpreter does not exist, the error names the program that cannot be started."""
    sandbox.close()
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(GenerationError, match=r"program\.py cannot be started"):
        sandbox.call({"do": "answer"})
