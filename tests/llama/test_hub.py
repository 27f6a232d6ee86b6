"""Models on the Hugging Face hub, with a local server instead of the hub: names, selection, download, cache."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.model_files.hub import HubModel, choose_file
from relevance_gen.llama.model_files.resolve import resolve
from small_models import BIGRAM, STORY, TINY
from tests.cli.conftest import ENVIRONMENT

RESOLVE = "import sys; from relevance_gen.llama.model_files.resolve import resolve; print(resolve(sys.argv[1]))"


class Hub(ThreadingHTTPServer):
    """Serves repositories like the hub; `asked` lists the requested paths."""

    files = {  # noqa: RUF012
        "README.md": b"none of ours",
        "mmproj-m-Q4_K_M.gguf": b"a projector",
        "m-Q4_K_M.gguf": BIGRAM.read_bytes(),
        "m-Q8_0.gguf": TINY.read_bytes(),
        "large-F16-00001-of-00002.gguf": b"GGUF one",
        "large-F16-00002-of-00002.gguf": b"GGUF two",
    }

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and body."""
        self.asked.append(path)
        if path.startswith("/api/models/owner/name/tree/"):
            tree = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": hashlib.sha1(content).hexdigest(),  # noqa: S324
                }
                for name, content in self.files.items()
            ]
            return 200, json.dumps(tree).encode()
        if path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, json.dumps(
                {"id": "owner/name", "sha": "a" * 40, "siblings": siblings}
            ).encode()
        if path.startswith("/owner/name/resolve/main/"):
            return 200, self.files[path.removeprefix("/owner/name/resolve/main/")]
        return (503 if path.endswith("/busy") else 404), b""

    def stop(self) -> None:
        """Stop the server."""
        self.shutdown()
        self.thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD and GET requests."""

    server: Hub

    def do_GET(self) -> None:
        """Answer as `Hub` defines."""
        status, body = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    yield server
    if server.thread.is_alive():
        server.stop()


def run(hub: Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this server as the hub, whose address is read on import."""
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_fetch_downloads_a_repository_once(hub: Hub, tmp_path: Path) -> None:
    """The default file is Q4_K_M; afterwards neither the network nor the hub is needed."""
    command = [
        "-m",
        "relevance_gen",
        "generate",
        "z",
        "--temperature",
        "0",
        "--max-tokens",
        "12",
        "--n-threads",
        "1",
    ]
    done = run(hub, tmp_path, *command, "--model", "owner/name")
    assert (done.returncode, done.stdout) == (0, STORY + "\n"), done.stderr
    named = run(hub, tmp_path, "-c", RESOLVE, "owner/name:q8_0")
    assert Path(named.stdout.strip()).read_bytes() == TINY.read_bytes()
    hub.stop()
    completed = run(hub, tmp_path, *command, "--model", "owner/name")
    assert (completed.stdout, completed.stderr) == (STORY + "\n", "")
    assert run(hub, tmp_path, "-c", RESOLVE, "owner/name:Q8_0").stdout == named.stdout


def test_fetch_downloads_all_parts_of_a_file(hub: Hub, tmp_path: Path) -> None:
    """The first part is returned, and the other parts are in the same folder."""
    first = Path(run(hub, tmp_path, "-c", RESOLVE, "owner/name:F16").stdout.strip())
    assert first.name == "large-F16-00001-of-00002.gguf"
    assert first.with_name("large-F16-00002-of-00002.gguf").read_bytes() == b"GGUF two"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "owner/name:Q2_K",
            "owner/name: the repository holds no 'Q2_K', but large-F16-00001-of-00002.gguf, m-Q4_K_M",
        ),
        (
            "owner/other",
            "the model owner/other is not a local file and cannot be downloaded from the Hugging Face hub: ",
        ),
    ],
)
def test_fetch_missing_file_or_repository_is_an_error_in_one_line(
    hub: Hub, tmp_path: Path, model: str, message: str
) -> None:
    """A missing quantization lists the available files; a missing repository has the hub's reason."""
    done = run(hub, tmp_path, "-m", "relevance_gen", "generate", "z", "--model", model)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"relevance-gen: {message}")
    assert done.stderr.count("\n") == 1
    assert "404" in done.stderr or model != "owner/other"


def test_fetch_from_failing_hub_fails_without_retries(hub: Hub, tmp_path: Path) -> None:
    """The error has the reason and a remedy; five retries would take half a minute."""
    done = run(hub, tmp_path, "-m", "relevance_gen", "generate", "z", "--model", "owner/busy")
    assert hub.asked.count("/api/models/owner/busy") == 1
    assert done.stderr.startswith(
        "relevance-gen: the model owner/busy is not a local file and cannot be downloaded from the Hugging"
    )
    assert "503" in done.stderr
    assert (
        "pass the path of a GGUF file (a model that was downloaded before needs no network)"
        in done.stderr
    )


def test_fetch_without_hub_client_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without huggingface_hub the error names the package to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelLoadError, match=r"pip install 'huggingface-hub>="):
        resolve("owner/name")


@pytest.mark.parametrize(
    ("text", "repository", "wanted"),
    [
        ("owner/name", "owner/name", None),
        ("owner/na.me-1_2:Q4_K_M", "owner/na.me-1_2", "Q4_K_M"),
        ("owner/name:m-q8_0.gguf", "owner/name", "m-q8_0.gguf"),
        ("owner/name/BF16/m.gguf", "owner/name", "BF16/m.gguf"),
    ],
)
def test_read_parses_repository_and_selection(
    text: str, repository: str, wanted: str | None
) -> None:
    """The forms are those of llama-server's -hf option."""
    assert HubModel.read(text) == HubModel(repository, wanted)


@pytest.mark.parametrize(
    "text", ["name", "/no/such/model.gguf", "owner/name:", "a/b/c", "owner/name:Q4 K", "", "ö/n"]
)
def test_read_path_returns_none(text: str) -> None:
    """A path is not looked up on the hub."""
    assert HubModel.read(text) is None


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (["README.md", "m-q8_0.gguf", "m-Q4_K_M.gguf"], None, "m-Q4_K_M.gguf"),
        (["m-f16.gguf", "m.Q8_0.gguf"], None, "m.Q8_0.gguf"),
        (["b.gguf", "a.gguf"], None, "a.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-IQ4_XS.gguf", "m-Q4_K.gguf"], "q4_k", "m-Q4_K.gguf"),
        (["m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf"], "Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (["BF16/m.gguf", "Q8_0/m.gguf"], "Q8_0", "Q8_0/m.gguf"),
        (["m.gguf", "m-large.gguf"], "m", "m.gguf"),
        (
            ["m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"],
            "Q8_0",
            "m-Q8_0-00001-of-00002.gguf",
        ),
        (["mmproj-Q8_0.gguf", "m-Q8_0.gguf"], "Q8_0", "m-Q8_0.gguf"),
    ],
)
def test_choose_file_selects_by_name_then_default(
    names: list[str], wanted: str | None, chosen: str
) -> None:
    """A selection matches in any case; the default is Q4_K_M, then Q8_0, then the first name."""
    assert choose_file(names, wanted) == chosen


@pytest.mark.parametrize(
    ("names", "wanted", "message"),
    [
        (["model.safetensors"], None, "no GGUF file"),
        (["a-Q8_0.gguf"], "8_0", "no '8_0', but a-Q8_0.gguf"),
    ],
)
def test_choose_file_missing_selection_is_an_error(
    names: list[str], wanted: str | None, message: str
) -> None:
    """The error lists the available files."""
    with pytest.raises(ModelLoadError, match=message):
        choose_file(names, wanted)
