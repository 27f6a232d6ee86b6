"""Measure ranking quality on judged collections: ``python -m bench.quality DIR… [--peers] [--encoder] [--reranker]``.

A DIR is a folder or file in one of the layouts of `bench.layouts`: BEIR's, SQuAD's or NPL's. Its
kind is the part of its name before the first hyphen or dot; a language other than English is at the
end: ``jsquad-ja.json``, ``xquad.ar.json``. Chunks have titles; peers read ``title + " " + text``.
Blank chunks are dropped, as are queries without a positive judgment. Means are also reported by
kind. The measures are computed by ir_measures, which calls trec_eval.

With ``--encoder`` search uses an encoder too: a GGUF file, or all-MiniLM-L6-v2 if it is installed.
Vectors are cached in the folder of ``--vectors``. With ``--reranker`` a reranker reads the 20 best
lexical results.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from attrs import frozen
from ir_measures import Recall, ScoredDoc, nDCG

from bench import layouts
from bench.recording import Record, add_quick
from bench.vectors import KeptEncoder
from relevance_gen import Chunk, ChunkIndex, Encoder, Reranker
from small_models import minilm

MEASURES = [nDCG @ 10, Recall @ 10]
KINDS = dict.fromkeys(("cranfield", "cisi", "med", "cacm", "npl"), "abstracts") | {
    "covidqa": "chunks of papers",
    "xquad": "paragraphs",
    "codechunks": "code",
    "limit": "made-up",
}
CrossEncoder = Callable[[list[Chunk | str]], Callable[[str], list[tuple[int, float]]]]


def ours(
    weighting: str, encoder: KeptEncoder | None = None, reranker: Reranker | None = None
) -> CrossEncoder:
    """Rank with this library."""

    def build(chunks: list[Chunk | str]) -> Callable[[str], list[tuple[int, float]]]:
        index = ChunkIndex(chunks, weighting=weighting, encoder=encoder)
        options = {} if reranker is None else {"reranker": reranker}
        return lambda query: [
            (result.original_index, result.chunk_score)
            for result in index.search(query, **options).results
        ]

    return build


def in_one_text(chunk: Chunk | str) -> str:
    """Return the text of a chunk for a peer."""
    return f"{chunk.title} {chunk.text}" if isinstance(chunk, Chunk) else chunk


def scikit_learn(chunks: list[Chunk | str]) -> Callable[[str], list[tuple[int, float]]]:
    """Rank with scikit-learn's defaults."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer()
    matrix = vectorizer.fit_transform(map(in_one_text, chunks))

    def rank(query: str) -> list[tuple[int, float]]:
        scores = (matrix @ vectorizer.transform([query]).T).toarray().ravel()
        return [
            (int(place), float(scores[place])) for place in np.argsort(-scores, kind="stable")[:10]
        ]

    return rank


def bm25s_stemmed(chunks: list[Chunk | str]) -> Callable[[str], list[tuple[int, float]]]:
    """Rank with bm25s, English stop words and the Snowball stemmer."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    index = bm25s.BM25()
    texts = list(map(in_one_text, chunks))
    index.index(
        bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False),
        show_progress=False,
    )

    def rank(query: str) -> list[tuple[int, float]]:
        terms = bm25s.tokenize(
            [query], stopwords="en", stemmer=stemmer, show_progress=False, return_ids=False
        )
        if not terms[0]:
            return []
        places, scores = index.retrieve(terms, k=min(10, len(chunks)), show_progress=False)
        return list(zip(places[0].tolist(), scores[0].tolist(), strict=True))

    return rank


@frozen
class Collection:
    """A judged collection: chunks, queries with a positive judgment, and judgments.

    Attributes:
        chunks: title and text in one.
        titled: the chunks that are not blank, with separate titles.
        queries: the texts.
        qrels: by query and chunk.
    """

    chunks: dict[str, str]
    titled: dict[str, Chunk | str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


def read_collection(folder: Path) -> Collection:
    chunks: dict[str, str] = {}
    titled: dict[str, Chunk | str] = {}
    records = layouts.read(folder)
    for record in records.chunks:
        title, text = record["title"], record["text"]
        chunks[record["_id"]] = f"{title} {text}"
        if (title + text).strip():
            titled[record["_id"]] = Chunk(text, title=title) if text.strip() else title
    qrels = {
        name: judged
        for name, judged in records.qrels.items()
        if any(score > 0 for score in judged.values())
    }
    return Collection(
        chunks,
        titled,
        {name: text for name, text in records.queries.items() if name in qrels},
        qrels,
    )


def measure(folder: Path, ranker: CrossEncoder) -> dict[Any, float]:
    """Return the value of each measure, the mean over all judged queries of one collection."""
    collection = read_collection(folder)
    ids = list(collection.titled)
    rank = ranker(list(collection.titled.values()))
    run = [
        # By rank, not by score: trec_eval breaks ties by name.
        ScoredDoc(query_id, ids[place], -rank_number)
        for query_id, query in collection.queries.items()
        for rank_number, (place, _) in enumerate(
            sorted(rank(query), key=lambda pair: (-pair[1], pair[0]))
        )
    ]
    return ir_measures.calc_aggregate(MEASURES, collection.qrels, run)


def is_english(name: str) -> bool:
    """Return whether a collection is English by its name; other names end in a language code."""
    return re.search(r"[-.](?!en)[a-z]{2}(\.json)?$", name) is None


def kind_of(name: str) -> str:
    """Return the kind of texts of a collection, by its name."""
    return KINDS.get(re.split("[-.]", name)[0], "others") if is_english(name) else "other languages"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--peers", action="store_true", help="measure scikit-learn and bm25s, too")
    parser.add_argument(
        "--encoder", nargs="?", const="", metavar="FILE", help="measure with an encoder, too"
    )
    parser.add_argument("--reranker", metavar="FILE", help="measure with a reranker, too")
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("bench/models"),
        metavar="DIR",
        help="where to keep vectors",
    )
    add_quick(parser)
    args = parser.parse_args()
    rankers: dict[str, CrossEncoder] = {"pivoted": ours("pivoted"), "cosine": ours("cosine")}
    if args.encoder is not None:
        args.vectors.mkdir(parents=True, exist_ok=True)
        model = args.encoder or minilm.converted(args.vectors)
        if model is None:
            parser.error(minilm.MISSING)
        rankers["with encoder"] = ours("pivoted", KeptEncoder(Encoder(model), args.vectors))
    if args.reranker is not None:
        rankers["with reranker"] = ours("pivoted", reranker=Reranker(args.reranker))
    if args.peers:
        rankers |= {"scikit-learn": scikit_learn, "bm25s, stems": bm25s_stemmed}
    with Record("quality", args, is_whole=args.peers) as record:
        for name, ranker in rankers.items():
            values = {folder.name: measure(folder, ranker) for folder in args.folders}
            for measured in MEASURES:
                for folder, value in values.items():
                    record.add(str(measured), name, value[measured], folder, places=3)
                groups = {"mean": [*values], "mean, English": [*filter(is_english, values)]}
                for folder in values:
                    groups.setdefault(f"mean, {kind_of(folder)}", []).append(folder)
                for title, folders in groups.items():
                    mean = float(np.mean([values[folder][measured] for folder in folders]))
                    record.add(str(measured), name, mean, title, places=3)


if __name__ == "__main__":
    main()
