"""Measure peak memory above the input: ``python -m bench.memory [--books FILE]``.

Linux only: the kernel keeps the peak, and sets it back.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Callable
from pathlib import Path

from bench.recording import Record, add_quick
from bench.speed import QUERY
from bench.texts import cut, read_text
from relevance_gen import ChunkIndex, search

SIZES_MB = (8, 200)
GROUP = "Peak above the input"


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def peak_above_input(chunks: list[str], job: Callable[[list[str]], object]) -> int:
    """Return the peak memory of a job in bytes, above the memory at its start."""
    job(chunks[:1200])  # tables, libraries, encodings
    Path("/proc/self/clear_refs").write_text("5")  # begin a new peak
    before = status_bytes("VmRSS")
    job(chunks)
    return status_bytes("VmHWM") - before


JOBS: dict[str, Callable[[list[str]], object]] = {
    "search()": lambda chunks: search(QUERY, chunks),
    "ChunkIndex()": ChunkIndex,
}


def measure(path: Path | None, name: str, megabytes: int) -> tuple[int, int]:
    """Return the bytes of the text and of the peak above it; meant for a process of its own."""
    pages = cut(read_text(path))
    # Copies of their own, every one a little different: nothing is shared and the vocabulary grows.
    source = itertools.cycle(range(len(pages)))
    n_chunks = megabytes * 1_000_000 // 1000
    chunks = [f"{pages[next(source)][:992]} w{number}" for number in range(n_chunks)]
    n_bytes = sum(len(chunk.encode()) for chunk in chunks)
    return n_bytes, peak_above_input(chunks, JOBS[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, help="a text of 8 MB or so, gzipped or not")
    parser.add_argument("--megabytes", type=int, nargs="+", default=SIZES_MB)
    add_quick(parser)
    args = parser.parse_args()
    with Record("memory", args) as record:
        for megabytes, name in itertools.product(
            SIZES_MB[:1] if args.quick else args.megabytes, JOBS
        ):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                n_bytes, taken = pool.apply(measure, (args.books, name, megabytes))
            group = f"{GROUP}, {megabytes} MB of text"
            record.add(group, name, taken / 1e6, "MB", places=1)
            record.add(group, name, taken / n_bytes, "bytes a byte")


if __name__ == "__main__":
    main()
