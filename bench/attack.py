"""Measure the cost of hostile bodies: ``python -m bench.attack [--mib 4]``. Linux only.

For each attack a separate server gets one body over loopback; the size of a body counts after
decompression. Recorded are the processor seconds per MiB of the body, and the growth of the peak
memory without the words that the token counter caches: that cache is shared by all requests, and
bounded (docs/operations.md). The limits are 2 seconds, and 12 bytes per byte plus `FLOOR_MIB`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from pydoc_data.topics import topics

from attrs import frozen

from bench.recording import Record, add_quick

MOST_CHUNKS = 200_000
FLOOR_MIB = 48
"""Memory allowed in addition to 12 bytes per byte: a block's arrays, and 160 bytes for each of
200,000 chunks."""
CYRILLIC = [chr(0x430 + place) for place in range(32)]


def _search(query: str, chunks: list[object]) -> bytes:
    return json.dumps({"query": query, "chunk_txts": chunks}, ensure_ascii=False).encode()


def _words(n_words: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(CYRILLIC, k=8)) for _ in range(n_words)]


WORDS = " ".join(topics.values()).split()


def _prose(n_words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def prose(n_bytes: int) -> bytes:
    return _search(_prose(8, 0), [_prose(100, seed) for seed in range(n_bytes // 650)])


def few_chars(n_bytes: int) -> bytes:
    return _search("a", ["a"] * min(MOST_CHUNKS, n_bytes // 5))


def repeated_question(n_bytes: int) -> bytes:
    question = _prose(32, 2)
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
    return _search(
        "天地玄黃", ["".join(chr(chance.randrange(0x4E00, 0x9FA5)) for _ in range(n_bytes // 3))]
    )


def combining(n_bytes: int) -> bytes:
    return _search("e", ["e" + "\u0301" * (n_bytes // 2)])


def metadata(n_bytes: int) -> bytes:
    n_fields = min(2_000_000, n_bytes // 12)
    return _search(
        "x", [{"text": "x", "metadata": {f"{number:x}": 1 for number in range(n_fields)}}]
    )


def empty_lists(n_bytes: int) -> bytes:
    return b'{"query":"x","chunk_txts":[' + b"[]," * (n_bytes // 3) + b"[]]}"


def brackets(n_bytes: int) -> bytes:
    return b"[" * n_bytes


def backslashes(n_bytes: int) -> bytes:
    return b'{"query":"x","chunk_txts":["' + b"\\\\" * (n_bytes // 2) + b'"]}'


def ties(n_bytes: int) -> bytes:
    """Return the maximum number of chunks with equal scores."""
    return _search("red apple", ["a red apple pie"] * min(MOST_CHUNKS, n_bytes // 19))


def letters(n_bytes: int) -> bytes:
    chance = random.Random(7)
    return _search(
        "a b",
        [
            chance.choice("abcdefghijklmnopqrstuvwxyz")
            for _ in range(min(MOST_CHUNKS, n_bytes // 5))
        ],
    )


def camel_words(n_bytes: int) -> bytes:
    return _search("aB bA", ["aB bA " * 100] * (n_bytes // 604))


def one_camel_word(n_bytes: int) -> bytes:
    return _search("aBcD", ["aBcD" * (n_bytes // 4)])


def emoji(n_bytes: int) -> bytes:
    chance = random.Random(8)
    return _search(
        "😀 😁", ["".join(chr(chance.randrange(0x1F600, 0x1F640)) for _ in range(n_bytes // 4))]
    )


def thai(n_bytes: int) -> bytes:
    chance = random.Random(9)
    return _search(
        "กขค งจ", ["".join(chr(chance.randrange(0xE01, 0xE2F)) for _ in range(n_bytes // 3))]
    )


def many_words(n_bytes: int) -> bytes:
    """Return one chunk with the maximum number of distinct words."""
    return _search("w1 w2 w3", [" ".join(f"w{number:x}" for number in range(n_bytes // 7))])


def question_of_3000(n_bytes: int) -> bytes:
    """Ask for 3,000 words, all of which every chunk has."""
    words = [f"{number:x}" for number in range(4096, 7096)]
    return _search(" ".join(words), [" ".join(words)] * (n_bytes // 15_004))


def short_words_question(n_bytes: int) -> bytes:
    return _search(
        " ".join(random.Random(10).choices([f"{n:x}" for n in range(4096)], k=n_bytes // 4)),
        ["one chunk"],
    )


def words_in_both(n_bytes: int) -> bytes:
    words = " ".join(f"w{number:x}" for number in range(n_bytes // 14))
    return _search(words, [words])


def one_beginning_small(n_bytes: int) -> bytes:
    return one_beginning(min(n_bytes, 370_000))


SHAPES: tuple[Callable[[int], bytes], ...] = (
    *(
        prose,
        few_chars,
        repeated_question,
        one_beginning,
        long_question,
        one_word,
        ideographs,
        combining,
    ),
    *(
        metadata,
        empty_lists,
        brackets,
        backslashes,
        ties,
        letters,
        camel_words,
        one_camel_word,
        emoji,
        thai,
    ),
    *(many_words, question_of_3000, short_words_question, words_in_both, one_beginning_small),
)


COUNTING = """
import json, sys
from pathlib import Path
from relevance_gen import token_counter
def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256
counter = token_counter()
counter.count_all(["a text to begin with " * 60_000])
body = json.load(sys.stdin)
texts = [body["query"], *(one if isinstance(one, str) else one["text"] for one in body["chunk_txts"])]
before_mib = resident_mib()
counter.count_all(texts)
print(resident_mib() - before_mib)
"""


# ── The server ────────────────────────────────────────────────────────────────────────────────────


@frozen
class Served:
    """A server that searches, in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    @classmethod
    def start(cls) -> Served:
        """Start a server and wait until it has warmed up."""
        flags = [
            "--port",
            "0",
            "--model",
            "none",
            "--max-buffered-bytes",
            "4GiB",
            "--log-level",
            "error",
        ]
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "relevance_gen.serve", *flags],
            env={**os.environ, "RELEVANCE_GEN_API_KEYS": "bench"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        served = cls(process, int(process.stdout.readline().rsplit(":", 1)[1]))
        for _ in range(2):  # more than one thread has something to load
            served.search(prose(1 << 16))
        time.sleep(1.0)
        return served

    def search(self, body: bytes) -> int:
        """Return the status of a search; 0 if the connection was lost."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with suppress(OSError):
            headers = {"Content-Type": "application/json", "X-API-Key": "bench"}
            connection.request("POST", "/search", body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        return 0

    def new_peak(self) -> None:
        """Reset the kernel's record of the peak memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def memory_mib(self, field: str) -> float:
        """Return a size from the kernel's status."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

    def processor_s(self) -> float:
        """Return the processor time had so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=4.0, help="size of each body")
    parser.add_argument("--shape", nargs="+", help="only these")
    add_quick(parser)
    args = parser.parse_args()
    size = 2.0 if args.quick else args.mib
    with Record("attack", args, is_whole=not args.shape) as record:
        for shape in SHAPES[:: 3 if args.quick else 1]:
            if not args.shape or shape.__name__ in args.shape:
                measure(record, shape, int(size * (1 << 20)))


def measure(record: Record, shape: Callable[[int], bytes], n_bytes: int) -> None:
    """Send one body to a server of its own."""
    body = shape(n_bytes)
    mib = len(body) / (1 << 20)
    served = Served.start()
    served.new_peak()
    before_mib, before_s, started_s = (
        served.memory_mib("VmRSS"),
        served.processor_s(),
        time.perf_counter(),
    )
    status = served.search(body)
    seconds = time.perf_counter() - started_s
    cpu_s, grown_mib = served.processor_s() - before_s, served.memory_mib("VmHWM") - before_mib
    served.stop()
    counter_mib = kept_by_the_counter_mib(body) if status == HTTPStatus.OK else 0.0
    own_mib = grown_mib - counter_mib
    group = f"Bodies of about {n_bytes / (1 << 20):g} MiB"
    record.add(group, shape.__name__, status, "status", places=0)
    record.add(group, shape.__name__, seconds, "s")
    record.add(group, shape.__name__, cpu_s / mib, "CPU s a MiB", at_most=2)
    record.add(group, shape.__name__, own_mib, "MiB", places=1)
    record.add(group, shape.__name__, counter_mib, "MiB of words", places=1)
    record.add(
        group,
        shape.__name__,
        max(own_mib - FLOOR_MIB, 0.0) / mib,
        "MiB a MiB above the floor",
        places=1,
        at_most=12,
    )


def kept_by_the_counter_mib(body: bytes) -> float:
    """Return the token counter's cache size for the words of a body, measured in a separate process."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", COUNTING], input=body, stdout=subprocess.PIPE, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
