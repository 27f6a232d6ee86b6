"""Measure peak memory above the input: ``python -m bench.memory [--books FILE]``.

Linux only: the kernel keeps the peak, and sets it back.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Callable
from pathlib import Path

from bench.speed import QUERY
from bench.texts import cut, read_text
from relevance_gen import ChunkIndex, search

SIZES_MB = (8, 200)


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def peak_above_input(chunks: list[str], job: Callable[[list[str]], object]) -> int:
    """Return the bytes that a job takes at its peak, above what stands when it begins."""
    job(chunks[:1200])  # tables, libraries, encodings
    Path("/proc/self/clear_refs").write_text("5")  # begin a new peak
    before = status_bytes("VmRSS")
    job(chunks)
    return status_bytes("VmHWM") - before


JOBS: dict[str, Callable[[list[str]], object]] = {
    "search()": lambda chunks: search(QUERY, chunks),
    "ChunkIndex()": ChunkIndex,
}


def measure(path: Path | None, name: str, megabytes: int) -> None:
    """Print one figure; meant for a process of its own."""
    pages = cut(read_text(path))
    # Copies of their own, every one a little different: nothing is shared and the vocabulary grows.
    source = itertools.cycle(range(len(pages)))
    n_chunks = megabytes * 1_000_000 // 1000
    chunks = [f"{pages[next(source)][:992]} w{number}" for number in range(n_chunks)]
    n_bytes = sum(len(chunk.encode()) for chunk in chunks)
    taken = peak_above_input(chunks, JOBS[name])
    ratio = taken / n_bytes
    print(f"{name:14} {n_bytes / 1e6:7.1f} MB of text, peak {taken / 1e6:8.1f} MB above it, {ratio:5.2f} bytes a byte")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, help="a text of 8 MB or so, gzipped or not")
    parser.add_argument("--megabytes", type=int, nargs="+", default=SIZES_MB)
    args = parser.parse_args()
    for megabytes, name in itertools.product(args.megabytes, JOBS):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(args.books, name, megabytes))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
