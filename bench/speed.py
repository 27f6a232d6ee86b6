"""Measure search against its peers in one run: ``python -m bench.speed [--books FILE] [--ngrams FILE…]``.

The whole job each time: from strings to the ten best chunks. All take turns, round after round, and
what is reported is the median over the rounds; the ratio is the median of the rounds' ratios, so
that noise that lasts hits both alike.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import itertools
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.recording import Record, add_quick
from bench.texts import cut, read_text
from relevance_gen import ChunkIndex, search, token_counter
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.answer import rank
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.retrieval.weighting import weighting_named

QUERY = "What did the captain say about the white whale and the sea?"
QUERIES = [
    QUERY,
    "Who was the father of the young lady at the ball?",
    "How does the doctor explain the strange death in the locked room?",
    "a letter from London about money",
    "the ship was lost in the storm",
    "Why did he leave the army and go home?",
    "river boat at night",
    "What is the colour of the horse?",
]
SIZES = "From strings to the ten best, by the number of chunks"
Job = Callable[[list[str], str], object]


def without_counts(chunks: list[str], query: str) -> object:
    """Search without counting tokens."""
    weighting = weighting_named("pivoted")
    asked = parse(query, inflects=weighting.inflects)
    segment = build(
        Chunks(chunks, {}),
        np.arange(len(chunks)),
        keep_occurrences=False,
        prefix_bucket_filter=asked.prefix_buckets,
    )
    return rank(asked, 10, LocalSegments([segment], weighting))


def scikit_learn(chunks: list[str], query: str) -> object:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer()
    matrix = vectorizer.fit_transform(chunks)
    scores = (matrix @ vectorizer.transform([query]).T).toarray().ravel()
    return np.argsort(-scores, kind="stable")[:10]


def scikit_learn_bigrams(chunks: list[str], query: str) -> object:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(2, 2))
    matrix = vectorizer.fit_transform(chunks)
    scores = (matrix @ vectorizer.transform([query]).T).toarray().ravel()
    return np.argsort(-scores, kind="stable")[:10]


def bm25s(chunks: list[str], query: str) -> object:
    import bm25s as library

    index = library.BM25()
    index.index(library.tokenize(chunks, show_progress=False), show_progress=False)
    return index.retrieve(library.tokenize(query, show_progress=False), k=10, show_progress=False)


def tantivy(chunks: list[str], query: str) -> object:
    import tantivy as library

    schema = library.SchemaBuilder()
    schema.add_text_field("text", stored=False, tokenizer_name="en_stem")
    schema.add_unsigned_field("place", stored=True)
    index = library.Index(schema.build())
    writer = index.writer(heap_size=200_000_000, num_threads=2)
    for place, text in enumerate(chunks):
        writer.add_document(library.Document(text=text, place=place))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index.searcher().search(index.parse_query(query.strip("?"), ["text"]), 10).hits


def seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def compare(record: Record, title: str, jobs: dict[str, Callable[[], object]], rounds: int) -> None:
    """Record the median time of each job, and its ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(seconds(job))
    first, *_ = times.values()
    for name, taken in times.items():
        record.add(title, name, statistics.median(taken) * 1e3, "ms")
        record.add(
            title,
            name,
            statistics.median(t / own for t, own in zip(taken, first, strict=True)),
            "×",
        )


PEERS = {"scikit-learn": scikit_learn, "bm25s": bm25s, "tantivy, 2 threads": tantivy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, help="a text of 8 MB or so, gzipped or not")
    parser.add_argument(
        "--ngrams", type=Path, nargs="*", default=[], help="texts in Chinese, Thai …"
    )
    parser.add_argument("--rounds", type=int, default=7)
    add_quick(parser)
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    chunks = cut(read_text(args.books))
    with Record("speed", args) as record:
        compare_processes(record, chunks, rounds, (1,) if args.quick else (1, 4, 16))
        compare_starts(record, chunks, 2 if args.quick else 11)
        compare_peers(record, chunks, rounds)
        compare_sizes(record, chunks[:2000] if args.quick else chunks, rounds)
        for path in args.ngrams:
            compare_pairs(record, path)
        compare_changes(record, chunks, rounds)
        sizes = (240, len(chunks)) if args.quick else (240, len(chunks), 100_000, 1_000_000)
        for n_chunks in sizes:
            texts = chunks[:n_chunks] if n_chunks <= len(chunks) else mixed(chunks, n_chunks)
            compare_queries(record, texts, 60 * rounds)


def compare_starts(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare a complete process that searches twenty small files with a process of each peer."""
    with tempfile.TemporaryDirectory() as folder:
        for number, chunk in enumerate(chunks[:20]):
            Path(folder, f"{number}.txt").write_text(chunk, encoding="utf-8")
        read = f"from pathlib import Path\ntexts = [path.read_text() for path in Path({folder!r}).iterdir()]\n"
        programs = {
            "relevance-gen search, over a folder": ["-m", "relevance_gen", "search", QUERY, folder],
            "search()": ["-c", f"{read}from relevance_gen import search\nsearch({QUERY!r}, texts)"],
            **{
                peer: [
                    "-c",
                    f"{read}import numpy as np\n{inspect.getsource(job)}{job.__name__}(texts, {QUERY!r})",
                ]
                for peer, job in PEERS.items()
            },
            "numpy, imported": ["-c", "import numpy"],
            "nothing": ["-c", "pass"],
        }
        env = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        start = functools.partial(
            subprocess.run,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        jobs = {
            name: functools.partial(start, [sys.executable, *program])
            for name, program in programs.items()
        }
        for job in jobs.values():  # its modules are compiled once and for all
            job()
        compare(record, "A first search, from the start of the process to its end", jobs, rounds)


def compare_peers(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare the complete job, from strings to the ten best chunks, with the peers."""
    folded = [chunk.encode("ascii", "replace").decode() for chunk in chunks]
    tiktoken = token_counter(backend="tiktoken")
    for name, texts in (("ASCII copy", folded), ("original", chunks)):
        jobs: dict[str, Callable[[], object]] = {
            f"search(), counts by {token_counter().backend}": lambda texts=texts: search(
                QUERY, texts
            ),
            "search, nothing counted": lambda texts=texts: without_counts(texts, QUERY),
            "tiktoken's counts alone": lambda texts=texts: tiktoken.count_all(texts),
            "ChunkIndex()": lambda texts=texts: ChunkIndex(texts),
            **{peer: lambda texts=texts, job=job: job(texts, QUERY) for peer, job in PEERS.items()},
        }
        compare(record, f"From strings to the ten best of {len(texts):,}, {name}", jobs, rounds)
    jobs = {"ASCII copy": lambda: search(QUERY, folded), "original": lambda: search(QUERY, chunks)}
    compare(record, "Original against ASCII copy", jobs, 2 * rounds)


def compare_sizes(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare the whole job at several numbers of chunks, each four times the one before."""
    for n_chunks in (len(chunks) // 64, len(chunks) // 16, len(chunks) // 4, len(chunks)):
        texts = chunks[:n_chunks]
        jobs: dict[str, Callable[[], object]] = {
            "search()": lambda texts=texts: search(QUERY, texts),
            **{peer: lambda texts=texts, job=job: job(texts, QUERY) for peer, job in PEERS.items()},
        }
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(rounds):
            for name, job in jobs.items():
                times[name].append(seconds(job))
        for name, taken in times.items():
            record.add(SIZES, f"{n_chunks:,} chunks", statistics.median(taken) * 1e3, f"{name}, ms")


def compare_pairs(record: Record, path: Path) -> None:
    """Compare a search in a script without spaces with scikit-learn's character bigrams."""
    texts = cut(read_text(path))
    query = max(re.findall(r"\w+", texts[0]), key=len)[:20]
    jobs = {
        "search()": lambda: search(query, texts),
        "scikit-learn, character pairs": lambda: scikit_learn_bigrams(texts, query),
    }
    compare(
        record, f"{path.name}: {len(texts):,} chunks, {sum(map(len, texts)):,} characters", jobs, 3
    )


def compare_changes(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare adding chunks to an index with rebuilding it; each round adds to the same index."""
    new = itertools.cycle([chunks[start : start + 250] for start in range(0, len(chunks), 250)])
    index = ChunkIndex(chunks)
    jobs = {
        "ChunkIndex.add, 250 chunks": lambda: index.add(next(new)),
        "ChunkIndex(), all of them": lambda: ChunkIndex(chunks),
    }
    compare(record, f"250 chunks more for {len(chunks):,}", jobs, rounds)


def compare_processes(
    record: Record, chunks: list[str], rounds: int, all_times: Sequence[int]
) -> None:
    """Compare building in one process with building in several forked or, if a thread runs, spawned processes.

    Must run before a peer starts a thread, as tqdm does.
    """
    for times in all_times:
        texts = chunks * times
        jobs = {
            f"ChunkIndex(), n_jobs={n_jobs}": lambda texts=texts, n_jobs=n_jobs: ChunkIndex(
                texts, n_jobs=n_jobs
            )
            for n_jobs in (1, 2, 4)
        }
        compare(record, f"Building an index of {len(texts):,} chunks in processes", jobs, rounds)
        with a_thread():
            compare(
                record,
                f"Building an index of {len(texts):,} chunks in processes, beside a thread",
                jobs,
                rounds,
            )


@contextmanager
def a_thread() -> Iterator[None]:
    """Let another thread wait meanwhile."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def mixed(chunks: list[str], n_chunks: int) -> list[str]:
    """Return chunks of 90 words, about 500 characters: half are excerpts of a text, half are drawn from it."""
    rng = random.Random(0)
    words = " ".join(chunks).split()
    starts = [rng.randrange(len(words) - 45) for _ in range(n_chunks)]
    return [" ".join(words[start : start + 45] + rng.choices(words, k=45)) for start in starts]


def eight_words(chunks: list[str], n: int) -> list[str]:
    """Return distinct queries: eight consecutive words of a chunk."""
    rng = random.Random(0)
    queries: dict[str, None] = {}
    while len(queries) < n:
        words = rng.choice(chunks).split()
        at = rng.randrange(max(len(words) - 8, 1))
        queries[" ".join(words[at : at + 8])] = None
    return list(queries)


def compare_queries(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare queries of an existing index: all distinct, and a few repeated.

    The peer is bm25s as its documentation recommends it: English stop words, and stems by
    PyStemmer.
    """
    import bm25s as library
    import Stemmer

    cutter = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    peer = library.BM25()
    peer.index(library.tokenize(chunks, **cutter), show_progress=False)
    index = ChunkIndex(chunks)

    def ask_peer(query: str) -> object:
        return peer.retrieve(library.tokenize(query, **cutter), k=10, show_progress=False)

    for title, queries in (
        ("ever new questions of eight words", eight_words(chunks, rounds + 20)),
        ("eight questions, again and again", QUERIES),
    ):
        turn, peer_turn = itertools.cycle(queries), itertools.cycle(queries)
        for _ in range(20):  # data that is created on first use
            index.search(next(turn))
            ask_peer(next(peer_turn))
        jobs = {
            "ChunkIndex.search": lambda turn=turn: index.search(next(turn)),
            "bm25s with stems, tokenize and retrieve": lambda turn=peer_turn: ask_peer(next(turn)),
        }
        compare(record, f"{len(chunks):,} indexed chunks, {title}", jobs, rounds)


if __name__ == "__main__":
    main()
