"""Measure search with words and an encoder: ``python -m bench.encoder DIR…``.

A DIR holds a judged collection, as `bench.quality` reads it. Only English collections are used,
because the encoder is English: all-MiniLM-L6-v2, of the dependency group ``encoder``, as F16 and as
Q8_0. One core encodes about ten passages per second, so a collection takes several minutes; vectors
are cached between runs in the folder of ``--vectors``. If sentence-transformers is installed, it
encodes the same passages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ir_measures import nDCG

from bench.quality import is_english, measure, ours, read_collection
from bench.recording import Record, add_quick
from bench.vectors import KeptEncoder
from relevance_gen import ChunkIndex, Encoder
from relevance_gen.machine import usable_cores
from small_models import minilm

KINDS = {"F16": "f16", "Q8_0": "q8_0"}
BARS = {"cranfield": 0.58, "med": 0.79, "cisi": 0.44, "codechunks": 0.745, "xquad-en": 0.975}
"""Minimum results of F16."""
N_PASSAGES, PASSAGE_CHARS = 50, 1000
N_QUESTIONS = 40
Encode = Callable[[Sequence[str]], Any]


def measure_quality(
    record: Record, folders: Sequence[Path], encoders: dict[str, KeptEncoder]
) -> None:
    rankers = {"words alone": ours("pivoted")}
    rankers |= {f"with {name}": ours("pivoted", encoder) for name, encoder in encoders.items()}
    values: dict[str, dict[str, float]] = {}
    for name, ranker in rankers.items():
        found = values[name] = {
            folder.name: measure(folder, ranker)[nDCG @ 10] for folder in folders
        }
        for collection, value in found.items():
            bar = BARS.get(collection) if name == "with F16" else None
            record.add("nDCG@10", name, value, collection, at_least=bar, places=3)
        record.add("nDCG@10", name, statistics.fmean(found.values()), "mean", places=3)
    for name in rankers.keys() - {"words alone"}:
        least = min(value - values["words alone"][one] for one, value in values[name].items())
        record.add(
            "nDCG@10 above words alone",
            name,
            least,
            "in the worst collection",
            at_least=-0.005,
            places=3,
        )


def measure_speed(
    record: Record, texts: Iterator[str], rivals: dict[str, Encode], n_threads: int, rounds: int
) -> None:
    """Encode fresh passages by turns; a ratio is the median of ratios within one round."""
    walls: dict[str, list[float]] = {name: [] for name in rivals}
    works: dict[str, list[float]] = {name: [] for name in rivals}
    for encode in rivals.values():
        encode(["warm"])
    for _ in range(rounds):
        some = [next(texts) for _ in range(N_PASSAGES)]
        for name, encode in rivals.items():
            started, begun = time.perf_counter(), time.process_time()
            encode(some)
            walls[name].append(time.perf_counter() - started)
            works[name].append(time.process_time() - begun)
    group = f"{N_PASSAGES} fresh passages of {PASSAGE_CHARS:,} characters, threads: {n_threads}"
    for name in rivals:
        record.add(group, name, statistics.median(walls[name]), "s")
        record.add(group, name, statistics.median(works[name]), "processor s")
        if peer := works.get("sentence-transformers"):
            ratio = statistics.median(
                own / other for own, other in zip(works[name], peer, strict=True)
            )
            record.add(
                group, name, ratio, "processor time, ×", at_most=1.2 if name in KINDS else None
            )


def measure_questions(
    record: Record, chunks: list[str], questions: Sequence[str], encoder: KeptEncoder
) -> None:
    """Ask ever new questions of an index with vectors, by words alone and with the encoder, by turns."""
    index = ChunkIndex(chunks, encoder=encoder)
    index.search("warm")
    times: dict[str, list[float]] = {"words alone": [], "one encoding": [], "with the encoder": []}
    for number, question in enumerate(questions):
        asked = f"{question} {number}"  # new to the index, and to what keeps vectors
        for name, do in (
            ("words alone", lambda asked=asked: index.search(f"{asked} w", num_candidates=0)),
            ("one encoding", lambda asked=asked: encoder.encoder.encode([asked], kind="query")),
            ("with the encoder", lambda asked=asked: index.search(asked)),
        ):
            started = time.perf_counter()
            do()
            times[name].append((time.perf_counter() - started) * 1e3)
    group = f"A new question to an index of {len(chunks):,} chunks with vectors, F16"
    for name, values in times.items():
        record.add(group, name, statistics.median(values), "ms")


def sentence_transformers(n_threads: int) -> Encode | None:
    """Return the same model in PyTorch; None where that is not installed."""
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    torch.set_num_threads(n_threads)
    model = SentenceTransformer(str(minilm.layout()), device="cpu")
    model.max_seq_length = 512  # as much as we read
    return lambda texts: model.encode(list(texts), show_progress_bar=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("bench/models"),
        metavar="DIR",
        help="where to keep them",
    )
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), metavar="N", help="that encode"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of encoding by turns")
    add_quick(parser)
    args = parser.parse_args()
    args.folders = [folder for folder in args.folders if is_english(folder.name)] or args.folders
    args.vectors.mkdir(parents=True, exist_ok=True)
    encoders = {}
    for name, kind in KINDS.items():
        model = minilm.converted(args.vectors, kind)
        if model is None:
            parser.error(minilm.MISSING)
        encoders[name] = KeptEncoder(Encoder(model, n_threads=args.threads), args.vectors)
    by_size = sorted(args.folders, key=lambda folder: (folder / "corpus.jsonl.gz").stat().st_size)
    if args.quick:
        args.folders = by_size[:1]
    largest = read_collection(by_size[0 if args.quick else -1])
    collections = map(read_collection, args.folders)
    long = (
        text[:PASSAGE_CHARS]
        for collection in collections
        for text in collection.chunks.values()
        if len(text) >= PASSAGE_CHARS
    )
    rivals: dict[str, Encode] = {name: encoder.encoder.encode for name, encoder in encoders.items()}
    if (peer := sentence_transformers(args.threads)) is not None:
        rivals["sentence-transformers"] = peer
    with Record("encoder", args) as record:
        measure_speed(record, long, rivals, args.threads, 1 if args.quick else args.rounds)
        chunks = [text for text in largest.chunks.values() if text.strip()]
        measure_questions(
            record, chunks, list(largest.queries.values())[:N_QUESTIONS], encoders["F16"]
        )
        measure_quality(record, args.folders, encoders)


if __name__ == "__main__":
    main()
