"""Tests of the folder cache: reuse, repair, size limit, permissions."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from relevance_gen import InvalidRequestError
from relevance_gen.folders import files as files_module
from relevance_gen.folders.cache import Cache, default_folder
from relevance_gen.folders.folder_index import FolderIndex

_LATER_NS = 3_000_000_000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("a.txt", "b.txt"):
        (root / name).write_text(f"apple {name}")
    later = (root / "b.txt").stat().st_ctime_ns + _LATER_NS
    monkeypatch.setattr("time.time_ns", lambda: later)
    return root


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that are read."""
    read: list[str] = []
    real = files_module.read_file
    monkeypatch.setattr(
        files_module, "read_file", lambda path, **how: (read.append(path), real(path, **how))[1]
    )
    return read


def search(root: Path, cache: Path, **options: object) -> list[tuple[str, float]]:
    response = FolderIndex(root, cache=cache, **options).search("apple")  # type: ignore[arg-type]
    return [(result.metadata["path"], result.chunk_score) for result in response]


def test_cache_second_process_reads_no_files(root: Path, tmp_path: Path, read: list[str]) -> None:
    """A second index with equal options reads no files; other options create a separate entry."""
    expected = search(root, tmp_path / "cache")
    assert len(read) == 2
    assert search(root, tmp_path / "cache") == expected
    assert len(read) == 2
    assert search(root, tmp_path / "cache", max_chars=5) != expected
    assert len(read) == 4


def test_cache_is_private_to_owner(root: Path, tmp_path: Path) -> None:
    """Cache files are readable only by their owner; a cache writable by others is ignored."""
    cache = tmp_path / "cache"
    expected = search(root, cache)
    kept = [cache, *cache.iterdir()]
    assert len(kept) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in kept)
    cache.chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in kept}
    assert search(root, cache) == expected
    assert {path: path.stat().st_mtime_ns for path in kept} == before


def test_cache_that_cannot_be_written_raises(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, a path below a file and a folder without permission are refused by name."""
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(
            InvalidRequestError, match=r"cache must be a folder .*, got '.*file.*; name another"
        ):
            FolderIndex(root, cache=path)
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    with pytest.raises(InvalidRequestError, match="cache must be a folder that this process can"):
        FolderIndex(root, cache=tmp_path)


@pytest.mark.parametrize("suffix", ["index", "files"])
@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "foreign", "gone", "folder"])
def test_damaged_cache_is_rebuilt(
    suffix: str, damage: str, root: Path, tmp_path: Path, read: list[str]
) -> None:
    """With a damaged cache the answer is correct and the next process finds a repaired cache."""
    cache = tmp_path / "cache"
    expected = search(root, cache)
    (kept,) = cache.glob(f"*.{suffix}")
    content = kept.read_bytes()
    if damage in ("gone", "folder"):
        kept.unlink()
    if damage == "folder":
        kept.mkdir()
    changed = {
        "cut": content[:-9],
        "bit": content[:-99] + b"?" + content[-98:],
        "empty": b"",
        "foreign": b"{}" * 999,
    }
    if damage in changed:
        kept.write_bytes(changed[damage])
    read.clear()
    assert search(root, cache) == expected
    assert len(read) == 2
    if damage != "folder":
        assert search(root, cache) == expected
        assert len(read) == 2


def test_cache_ignores_index_of_other_state(root: Path, tmp_path: Path) -> None:
    """An index file and a state file from different versions are not combined."""
    cache, old = tmp_path / "cache", tmp_path / "old"
    search(root, cache)
    shutil.copytree(cache, old)
    (root / "a.txt").write_text("pear")
    (root / "c.txt").write_text("apple")
    expected = search(root, cache)
    (kept,) = cache.glob("*.index")
    shutil.copy(old / kept.name, kept)
    assert search(root, cache) == expected == search(root, tmp_path / "none")


def test_cache_over_limit_removes_oldest(root: Path, tmp_path: Path) -> None:
    """Above the size limit the least recently used indexes and unfinished files are removed."""
    cache = tmp_path / "cache"
    search(root, cache)
    size = sum(path.stat().st_size for path in cache.iterdir())
    left = cache / f".{'0a' * 8}.unfinished"
    others = [cache / name for name in ("novel.unfinished", "mine.index", f"{'0a' * 8}.txt")]
    for path in (left, *others):
        path.write_text("x" * size)
    for number in (1, 2):
        search(root, cache, max_chars=100 + number)
    ages = sorted(cache.glob("*.files"), key=lambda path: path.stat().st_mtime_ns)
    for age, path in enumerate(ages):
        os.utime(path, ns=(age, age))
    kept = FolderIndex(root, cache=False, max_chars=99).snapshot()
    files = FolderIndex(root, cache=cache, max_chars=99)
    assert isinstance(files._cache, Cache)
    files._cache = Cache(cache, ["another"], max_bytes=size * 5 // 2)
    assert len(files.search("apple")) == len(kept.search("apple"))
    assert len(list(cache.glob("*.index"))) - 1 == len(list(cache.glob("*.files"))) == 2
    assert ages[2].exists()
    assert not ages[0].exists()
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_default_folder_follows_environment(
    monkeypatch: pytest.MonkeyPatch, root: Path, tmp_path: Path
) -> None:
    """The environment moves or disables the cache; the default is the user's cache folder."""
    assert default_folder({"RELEVANCE_GEN_CACHE": "/x"}) == Path("/x")
    assert default_folder({"RELEVANCE_GEN_CACHE": "off"}) is None
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_folder({"XDG_CACHE_HOME": "/y"}) == Path("/y/relevance_gen/folders")
    assert default_folder({}) == Path.home() / ".cache" / "relevance_gen" / "folders"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert (
        default_folder({"XDG_CACHE_HOME": "/y"})
        == Path.home() / "Library" / "Caches" / "relevance_gen" / "folders"
    )
    monkeypatch.setattr("os.environ", {**os.environ, "RELEVANCE_GEN_CACHE": str(tmp_path / "file")})
    (tmp_path / "file").write_text("no folder")
    assert FolderIndex(root).search("apple")


_PROCESS = """
import sys
from relevance_gen.folders.folder_index import FolderIndex
for number in range(8):
    found = FolderIndex(sys.argv[1], cache=sys.argv[2], max_chars=1000 + number % 2).search("apple", 50)
    assert len(found) == 40, len(found)
"""


def test_concurrent_processes_share_cache(tmp_path: Path) -> None:
    """Processes that use one cache concurrently all answer correctly and leave it intact."""
    root, cache = tmp_path / "root", tmp_path / "cache"
    root.mkdir()
    for number in range(40):
        (root / f"{number}.txt").write_text(f"apple {number}")
    command = [sys.executable, "-c", _PROCESS, str(root), str(cache)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(process.communicate(timeout=120)[1], process.returncode) for process in processes] == [
        (b"", 0)
    ] * 3
    assert sorted(path.suffix for path in cache.iterdir()) == [
        "",
        ".files",
        ".files",
        ".index",
        ".index",
    ]
