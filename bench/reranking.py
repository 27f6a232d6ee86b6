"""Measure a reranker against CrossEncoder: ``python -m bench.reranking [--books FILE]``.

Both have the same model in the shape of ms-marco-MiniLM-L6-v2, with random weights: the time equals
that of trained weights, and the scores are meaningless. It needs the dependency group
``crossencoder`` (sentence-transformers). The ranking quality of a real reranker is measured by
``python -m bench.quality --reranker FILE DIR…``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.memory import status_bytes
from bench.recording import Record, add_quick
from bench.speed import QUERY
from bench.texts import cut, read_text
from relevance_gen import ChunkIndex, Reranker
from relevance_gen.machine import usable_cores
from tools.convert_bert import convert

KINDS = {"F16": "f16", "Q8_0": "q8_0"}
PEER = "sentence-transformers"
N_PAIRS = 20
N_VOCAB = 30_522
N_QUESTIONS = 3
Score = Callable[[str, Sequence[str]], Any]


def write_model(folder: Path, text: str) -> None:
    """Write a cross-encoder of random weights whose vocabulary has the words of a text, and all forms of it as GGUF."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    letters = sorted(
        {
            char
            for char in text.lower()
            if char.isascii() and char.isprintable() and not char.isspace()
        }
    )
    words = [
        word for word, _ in Counter(re.findall("[a-z]{2,}", text.lower())).most_common(N_VOCAB // 2)
    ]
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        *words,
    ]
    tokens += [f"[unused{n}]" for n in range(N_VOCAB - len(tokens))]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    BertTokenizer(vocab={token: n for n, token in enumerate(tokens)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=N_VOCAB, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    for kind in ("f32", *KINDS.values()):
        convert(folder, folder / f"{kind}.gguf", kind=kind)


def cross_encoder(folder: Path, n_threads: int) -> Score:
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(n_threads)
    model = CrossEncoder(str(folder), device="cpu", max_length=512)
    return lambda query, texts: model.predict(
        [(query, text) for text in texts], show_progress_bar=False
    )


def reranker(folder: Path, kind: str, n_threads: int) -> Score:
    return Reranker(folder / f"{kind}.gguf", n_threads=n_threads).score


def rivals(folder: Path, n_threads: int) -> dict[str, Callable[[], Score]]:
    """Return what loads each rival."""
    ours = {name: partial(reranker, folder, kind, n_threads) for name, kind in KINDS.items()}
    return {**ours, PEER: partial(cross_encoder, folder, n_threads)}


def measure_speed(
    record: Record, folder: Path, chunks: list[str], n_threads: int, rounds: int
) -> None:
    """Score fresh texts by turns; a ratio is the median of ratios within one round."""
    scorers = {name: load() for name, load in rivals(folder, n_threads).items()}
    for score in scorers.values():
        score(QUERY, chunks[:1])
    walls: dict[str, list[float]] = {name: [] for name in scorers}
    works: dict[str, list[float]] = {name: [] for name in scorers}
    for number in range(rounds):
        some = chunks[number * N_PAIRS : (number + 1) * N_PAIRS]
        for name, score in scorers.items():
            started, begun = time.perf_counter(), time.process_time()
            score(QUERY, some)
            walls[name].append(time.perf_counter() - started)
            works[name].append(time.process_time() - begun)
    group = f"A question with {N_PAIRS} texts of 1,000 characters, threads: {n_threads}"
    for name in scorers:
        record.add(group, name, statistics.median(walls[name]), "s")
        record.add(
            group, name, N_PAIRS / statistics.median(walls[name]), "pairs a second", places=1
        )
        record.add(group, name, statistics.median(works[name]), "processor s")
        ratio = statistics.median(
            own / other for own, other in zip(works[name], works[PEER], strict=True)
        )
        record.add(group, name, ratio, "processor time, ×", at_most=1.3 if name == "Q8_0" else None)
    exact = cross_encoder(folder, n_threads)(QUERY, chunks[:N_PAIRS])
    for kind in ("f32", *KINDS.values()):
        with Reranker(folder / f"{kind}.gguf", n_threads=n_threads) as ours:
            error = float(np.abs(ours.score(QUERY, chunks[:N_PAIRS]) - exact).max())
        bar = 1e-3 if kind == "f32" else None
        record.add(
            f"Greatest difference from {PEER}' scores",
            kind.upper(),
            error,
            "score",
            at_most=bar,
            places=5,
        )


def peak_bytes(folder: Path, name: str, chunks: list[str], n_threads: int) -> int:
    """Return the bytes that loading a rival and one question take at their peak; meant for a process of its own."""
    before = status_bytes("VmRSS")
    rivals(folder, n_threads)[name]()(QUERY, chunks)
    return status_bytes("VmHWM") - before


def measure_memory(record: Record, folder: Path, chunks: list[str], n_threads: int) -> None:
    for name in rivals(folder, n_threads):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            taken = pool.apply(peak_bytes, (folder, name, chunks, n_threads))
        record.add(
            "Peak of loading and one question, libraries included",
            name,
            taken / 1e6,
            "MB",
            places=0,
        )


def measure_questions(record: Record, folder: Path, chunks: list[str], n_threads: int) -> None:
    """Ask ever new questions of an index, by words alone and with the reranker, by turns."""
    index = ChunkIndex(chunks)
    times: dict[str, list[float]] = {"words alone": [], "with the reranker": []}
    with Reranker(folder / "q8_0.gguf", n_threads=n_threads) as ours:
        for number in range(-1, N_QUESTIONS):
            for name, options in (("words alone", {}), ("with the reranker", {"reranker": ours})):
                started = time.perf_counter()
                index.search(f"{QUERY} {number} {len(options)}", **options)
                times[name].append(time.perf_counter() - started)
    for name, values in times.items():
        group = (
            f"A new question to an index of {len(chunks):,} chunks, Q8_0 reading the best {N_PAIRS}"
        )
        record.add(
            group, name, statistics.median(values[1:]) * 1e3, "ms", places=1
        )  # the first one warms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, help="a text of 8 MB or so, gzipped or not")
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), metavar="N", help="that compute"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of scoring by turns")
    add_quick(parser)
    args = parser.parse_args()
    text = read_text(args.books)
    chunks = cut(text)[: 200 if args.quick else 8000]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            write_model(folder, text)
        except ImportError as missing:
            parser.exit(
                message=f"nothing is measured, {missing.name} is missing: pip install --group crossencoder\n"
            )
        with Record("reranking", args) as record:
            measure_speed(record, folder, chunks, args.threads, 1 if args.quick else args.rounds)
            measure_memory(record, folder, chunks[:N_PAIRS], args.threads)
            measure_questions(record, folder, chunks, args.threads)


if __name__ == "__main__":
    main()
