"""Tests that the library works without modules and functions that Windows lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relevance_gen import read_documents, split
from relevance_gen.documents.globs import parse_globs

ROOT = Path(__file__).parents[1]

SITE = """
import os, signal, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())

OS_NAMES = (
    "fork geteuid getuid O_NONBLOCK O_NOFOLLOW O_CLOEXEC sched_getaffinity memfd_create pread"
    " register_at_fork getpgid killpg setsid sysconf statvfs"
)
for name in OS_NAMES.split():
    if hasattr(os, name):
        delattr(os, name)
for name in ("setitimer", "pthread_sigmask", "SIGKILL", "SIGXCPU", "SIGPROF", "SIGHUP", "SIGBUS"):
    if hasattr(signal, name):
        delattr(signal, name)
"""


@pytest.fixture
def windows_like(tmp_path):
    """Return a function that runs code in a process without the modules and functions of POSIX."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    cache = tmp_path / "cache"

    def run(code, *arguments):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
            "RELEVANCE_GEN_CACHE": str(cache),
        }
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def output_of(done):
    """Return the output of a process that ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_site_blocks_modules(windows_like):
    """The modules are missing in the process of these tests."""
    done = windows_like("import fcntl")
    assert "No module named 'fcntl'" in done.stderr


def test_index_is_saved_and_loaded(windows_like, tmp_path):
    """`ChunkIndex` builds, saves, loads, adds and builds on disk."""
    code = """
import sys
from relevance_gen import ChunkIndex
path = sys.argv[1]
index = ChunkIndex(["Cats purr.", "Dogs bark."])
index.save(path)
index = ChunkIndex.load(path)
index.add(["A cat sleeps."])
index.save(path, overwrite=True)
built = ChunkIndex.build(["Cats purr.", "Dogs bark."], path + ".built")
print([result.chunk_txt for result in ChunkIndex.load(path).search("cat", true_order=False)])
print(len(built))
"""
    output = output_of(windows_like(code, tmp_path / "saved.index"))
    assert "Cats purr." in output
    assert "A cat sleeps." in output
    assert output.splitlines()[1] == "2"
    assert not list(tmp_path.glob("*.unfinished"))


def test_folder_is_searched_and_cached(windows_like, tmp_path):
    """`FolderIndex` reads text and documents in the sandbox, and a second process uses its cache."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "cats.md").write_text("Cats purr.\n\nDogs bark.\n")
    (folder / "page.html").write_text("<h1>Ferry</h1><p>The ferry leaves at seven.</p>")
    code = """
import sys
from relevance_gen import FolderIndex
index = FolderIndex(sys.argv[1])
for query in ("cats", "When does the ferry leave?"):
    print(index.search(query).best[0].metadata["path"])
"""
    for _ in range(2):
        output = output_of(windows_like(code, folder))
        assert [Path(line).name for line in output.splitlines()] == ["cats.md", "page.html"]
    assert list((tmp_path / "cache").rglob("*.index"))


def test_documents_are_read(windows_like, tmp_path):
    """`read_documents` reads an HTML file."""
    page = tmp_path / "page.html"
    page.write_text("<h1>Ferry</h1><p>The ferry leaves at seven.</p>")
    code = """
import sys
from relevance_gen import read_documents
print([chunk.text for chunk in read_documents([sys.argv[1]])])
"""
    assert "The ferry leaves at seven." in output_of(windows_like(code, page))


def test_text_is_generated(windows_like):
    """`generate` and `ask` run the embedded model."""
    code = """
from relevance_gen import Runner, ask, generate
with Runner(n_slots=1) as runner:
    print(generate("Once", max_tokens=2, runner=runner).responses[0].generated_tokens)
    print(ask("When does the ferry leave?", ["The ferry leaves at seven."], runner=runner).text)
"""
    assert output_of(windows_like(code)).split("\n", 1) == ["2", "The ferry leaves at seven.\n"]


def test_mcp_server_starts(windows_like, tmp_path):
    """`relevance-gen mcp` can be imported and prints its help."""
    code = """
from relevance_gen.__main__ import main
import sys
sys.argv = ["relevance-gen", "mcp", "--help"]
try:
    main()
except SystemExit as error:
    sys.exit(error.code)
"""
    assert "mcp" in output_of(windows_like(code))


def test_server_names_required_systems(windows_like):
    """`relevance-gen serve` names the systems that it runs on, without a traceback."""
    done = windows_like("from relevance_gen.serve.__main__ import main; raise SystemExit(main([]))")
    assert done.returncode == 2
    assert "the server runs on Linux and macOS only" in done.stderr
    assert "Traceback" not in done.stderr


def test_line_ends_of_windows_split_like_those_of_posix():
    """Text with CRLF has the same chunks as with LF, apart from the line ends."""
    text = "Cats purr.\n\nDogs bark. They also howl.\n\n" * 20
    windows = [
        chunk.replace("\r\n", "\n") for chunk in split(text.replace("\n", "\r\n"), max_chars=60)
    ]
    assert windows == split(text, max_chars=60)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "cp1252"])
def test_encodings_of_windows_are_decoded(encoding, tmp_path):
    """Files in encodings that are usual on Windows are decoded, without a byte order mark."""
    path = tmp_path / "timetable.txt"
    path.write_bytes("Die Fähre fährt um sieben.\r\nDas Café öffnet später.".encode(encoding))
    text = "\n".join(chunk.text for chunk in read_documents([path]))
    assert text.startswith("Die Fähre")
    assert "Café" in text


def test_glob_matches_path_with_forward_slashes():
    """Globs and paths have forward slashes on every system, as those of git do."""
    globs = parse_globs(["docs/*.md"])
    assert globs.decide("docs/guide.md", is_folder=False) is False  # it is not excluded
    assert globs.decide("docs\\guide.md", is_folder=False) is None
