"""Measure what bodies made to be expensive cost: ``python -m bench.attack [--mib 4]``. Linux only.

For each shape a server of its own gets one body, whose size counts after decompression, over loopback. Told are its
processor seconds and the memory that it grew by at its peak, for each MiB of the body. The bars are 2 seconds and 12
bytes a byte.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.serve_load import body_of, make_chunks, ours, processor_s, request, _pids

CYRILLIC = [chr(0x430 + place) for place in range(32)]


def _search(query: str, chunks: list[object]) -> bytes:
    return json.dumps({"query": query, "chunk_txts": chunks}, ensure_ascii=False).encode()


def _words(n_words: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(CYRILLIC, k=8)) for _ in range(n_words)]


def prose(n_bytes: int) -> bytes:
    return body_of(make_chunks(n_bytes // 650, 100, 1))


def few_chars(n_bytes: int) -> bytes:
    return _search("a", ["a"] * min(200_000, n_bytes // 5))


def repeated_question(n_bytes: int) -> bytes:
    question = " ".join(make_chunks(1, 32, 2))
    return _search(question, [f"{question} " * (n_bytes // len(question))])


def one_beginning(n_bytes: int) -> bytes:
    """Match many words of the question with many words that begin alike."""
    words = ["пере" + word for word in _words(n_bytes // 30, 3)]
    return _search(" ".join("пере" + word[:2] for word in _words(256, 4)), list(words))


def long_question(n_bytes: int) -> bytes:
    return _search(" ".join(_words(n_bytes // 17, 5)), ["one chunk"])


def one_word(n_bytes: int) -> bytes:
    return _search("x", ["x" * n_bytes])


def ideographs(n_bytes: int) -> bytes:
    chance = random.Random(6)
    return _search("天地玄黃", ["".join(chr(chance.randrange(0x4E00, 0x9FA5)) for _ in range(n_bytes // 3))])


def combining(n_bytes: int) -> bytes:
    return _search("e", ["e" + "\u0301" * (n_bytes // 2)])


def metadata(n_bytes: int) -> bytes:
    n_fields = min(2_000_000, n_bytes // 12)
    return _search("x", [{"text": "x", "metadata": {f"{number:x}": 1 for number in range(n_fields)}}])


def empty_lists(n_bytes: int) -> bytes:
    return b'{"query":"x","chunk_txts":[' + b"[]," * (n_bytes // 3) + b"[]]}"


def brackets(n_bytes: int) -> bytes:
    return b"[" * n_bytes


def backslashes(n_bytes: int) -> bytes:
    return b'{"query":"x","chunk_txts":["' + b"\\\\" * (n_bytes // 2) + b'"]}'


SHAPES: tuple[Callable[[int], bytes], ...] = (
    *(prose, few_chars, repeated_question, one_beginning, long_question, one_word, ideographs, combining),
    *(metadata, empty_lists, brackets, backslashes),
)


def memory_mib(port: int, field: str) -> float:
    status = Path(f"/proc/{_pids[port]}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=4.0, help="size of each body")
    parser.add_argument("--shape", nargs="+", help="only these")
    args = parser.parse_args()
    print(f"{'shape':18} {'MiB sent':>8} {'status':>6} {'s':>7} {'CPU s/MiB':>9} {'MiB/MiB':>8}")
    for shape in SHAPES:
        if args.shape and shape.__name__ not in args.shape:
            continue
        body = shape(int(args.mib * (1 << 20)))
        mib = len(body) / (1 << 20)
        with ours("--max-buffered-bytes", "4GiB") as port:
            Path(f"/proc/{_pids[port]}/clear_refs").write_text("5")  # begin a new peak
            before_mib, before_s, started_s = memory_mib(port, "VmRSS"), processor_s(port), time.perf_counter()
            status = 0
            with suppress(OSError):
                status, _ = request(port, "POST", "/search", body)
            seconds = time.perf_counter() - started_s
            cpu_s, grown_mib = processor_s(port) - before_s, memory_mib(port, "VmHWM") - before_mib
        print(
            f"{shape.__name__:18} {mib:8.2f} {status:6} {seconds:7.2f} {cpu_s / mib:9.3f} {grown_mib / mib:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
