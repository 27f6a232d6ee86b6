"""`ChunkIndex`: chunks indexed once and searched repeatedly; changes, saving, loading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from typing import Final, TypeVar

import numpy as np
from attrs import define, evolve, field

from relevance_gen import forks
from relevance_gen.arrays import Offsets, concat, unique
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index import storage
from relevance_gen.index.builder import build, merge, merge_tiered, remove_chunks
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.passages import Passages, TextEncoder
from relevance_gen.index.records.sources import Records, Source
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.index.segment import Segment
from relevance_gen.index.spill import Spill
from relevance_gen.progress import Progress, reporting
from relevance_gen.retrieval.answer import answer
from relevance_gen.retrieval.base_index import (
    ChunkList,
    FindPositions,
    MutableIndex,
    check_positions,
)
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.ports import Segments
from relevance_gen.retrieval.ranking.stage import RerankStage
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.text.token_counting import (
    Encoding,
    TokenCounter,
    counter_of_saved,
    token_counter,
)
from relevance_gen.types import (
    Chunk,
    Metadata,
    SearchMetadata,
    SearchResponse,
    WeightingName,
)

T = TypeVar("T")

_STEMMED_AT_ONCE: Final = 1 << 16
"""If a segment has at most this number of terms, all are stemmed when the index is built; otherwise
searches stem the terms that they need."""


@define(eq=False)
class _State:
    """The state of an index between two changes: its chunks and the number of assigned positions.

    A search uses one state from beginning to end.
    """

    segments: LocalSegments = field(repr=False)
    n_positions: int
    counter: TokenCounter = field(repr=False)
    _n_tokens: int | None = None  # tokens of all chunks; None until they are counted

    @property
    def is_counted(self) -> bool:
        """Whether the tokens of the chunks have been counted."""
        return self._n_tokens is not None

    def n_tokens(self) -> int:
        """Return the number of tokens of all chunks, each counted alone.

        The first call counts them.
        """
        if self._n_tokens is None:
            self._n_tokens = sum(
                self.counter.count_all(segment.live_texts()) for segment in self.segments.segments
            )
        return self._n_tokens

    def replace(
        self,
        segments: Sequence[Segment],
        n_positions: int,
        *,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
    ) -> _State:
        """Return the state after a change; this state is not changed.

        If the tokens have been counted, the number is updated by the added and the removed texts.

        Args:
            segments: the segments after the change.
            n_positions: number of positions assigned after the change.
            added: texts of the added chunks.
            removed: texts of the removed chunks.
        """
        n_tokens = self._n_tokens
        if n_tokens is not None:
            n_tokens += self.counter.count_all(added) - self.counter.count_all(removed)
        local = LocalSegments(segments, self.segments.weighting, previous=self.segments)
        return _State(local, n_positions, self.counter, n_tokens)


class ChunkIndex(MutableIndex):
    """An index of chunks, in memory or in a memory-mapped file.

    Chunks can be added and removed. A chunk keeps its position: results contain it as
    `original_index`, and the position of a removed chunk is not assigned again. The results are
    bit-identical to those of a new index of the remaining chunks, and to those of the function
    `relevance_gen.search`.

    Thread-safe: a search uses the state of the index before or after a change, never a state during
    a change. Pickling and copying use the format of `save`.

    Args:
        chunks: strings, mappings with ``text`` and optional ``metadata``, or `Chunk` objects,
            mixed, in any iterable; or a table, such as those of Arrow, pandas and Polars, with a
            chunk in each row (needs the extra ``data``). The index stores their metadata without a
            copy: do not change it afterwards. Results and `Chunk` objects have copies of it.
        text: the field of mappings, or the column of a table, that contains the text. With it, and
            in a table, ``title`` is the title and all other fields are metadata. None means
            ``text``.
        blank: ``"error"`` rejects a blank or missing chunk; ``"skip"`` leaves it out, and the
            others keep their positions. Missing are None and NaN.
        weighting: ``"pivoted"`` for the best ranking, ``"cosine"`` for the textbook's; formulas in
            `relevance_gen.retrieval.weighting`.
        encoder: an `Encoder`, which raises the scores of chunks whose meaning is similar to a
            query's. The index stores the vectors of all passages, two bytes for each component, so
            that a query costs one encoding. None ranks by terms only.
        encoding: the encoding in which tokens are counted: None for the embedded encoding, the name
            of a tiktoken encoding, the path of a rank file, or a `tiktoken.Encoding`.
        n_jobs: number of processes that build the index, at most 4, and fewer for little text; -1
            means the number of cores. On platforms that start processes by spawning, a script needs
            ``if __name__ == "__main__":``.
        progress: called with (chunks done, all chunks) while the index is built; with an encoder,
            while it encodes, which takes most of the time. True shows a bar.

    Raises:
        InvalidRequestError: an argument is invalid; the error names it.
        EncoderError: the encoder failed.

    >>> index = ChunkIndex(["Cats purr.", "Dogs bark.", "A cat and a dog."])
    >>> [result.chunk_txt for result in index.search("cats").results]
    ['Cats purr.', 'A cat and a dog.']
    """

    def __init__(
        self,
        chunks: Iterable[str | Metadata | Chunk],
        *,
        text: str | None = None,
        blank: Blank = "error",
        weighting: WeightingName = "pivoted",
        encoder: TextEncoder | None = None,
        encoding: Encoding | None = None,
        n_jobs: int | None = 1,
        progress: Progress | bool | None = None,
    ) -> None:
        validated = read_chunks(chunks, blank=blank, text=text)
        non_blank, positions = validated.without_blank()
        weigher = weighting_named(weighting)
        encoder = SearchModels(encoder).encoder
        counter = token_counter(encoding)
        with reporting(progress) as report:
            segments = _segments_of(non_blank, positions, encoder, n_jobs, report)
        for lexicon in [segment.postings.lexicon for segment in segments if weigher.inflects]:
            if lexicon.size <= _STEMMED_AT_ONCE:
                lexicon.cache_stems()
        local = LocalSegments(segments, weigher)
        self._initialize(_State(local, len(validated.texts), counter), encoder)

    def _initialize(self, state: _State, encoder: TextEncoder | None) -> None:
        self._state, self._counter, self._encoder = state, state.counter, encoder
        self._change_lock = threading.Lock()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Replace the lock that changes hold, in a forked process.

        A change that another thread of the parent process had begun is not in the forked process's
        index.
        """
        self._change_lock = threading.Lock()

    def __len__(self) -> int:
        return self._state.segments.statistics.n_chunks

    def __repr__(self) -> str:
        local = self._state.segments
        return (
            f"<ChunkIndex of {len(self):,} chunks, {local.n_terms:,} terms, "
            f"{local.weighting.name} weighting, {self._counter.name} tokens>"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (storage.to_bytes(self._saved()), self._counter, self._encoder)

    def __contains__(self, chunk: object) -> bool:
        """Return whether a chunk at any position has this text.

        A `Chunk` must have the same text, metadata and title.
        """
        text = chunk.text if isinstance(chunk, Chunk) else chunk
        for segment in self._state.segments.segments:
            chunks = segment.chunks
            for chunk_ord, chunk_text in enumerate(chunks.texts):
                if chunk_text == text and segment.live[chunk_ord]:
                    if not isinstance(chunk, Chunk):
                        return True
                    fields = chunks.title_of(chunk_ord), chunks.metadata_of(chunk_ord)
                    if fields == (chunk.title, chunk.metadata):
                        return True
        return False

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    @property
    def chunks(self) -> ChunkList:
        """The current chunks by position: a read-only sequence without copies of texts.

        >>> [chunk.text for chunk in ChunkIndex(["Cats purr.", "Dogs bark."]).chunks]
        ['Cats purr.', 'Dogs bark.']
        """
        return ChunkList(self._state.segments)

    def _read(self, work: Callable[[int, Segments], T]) -> T:
        state = self._state
        return work(state.n_positions, state.segments)

    @property
    def nbytes(self) -> int:
        """Size of texts, arrays and caches in bytes, without metadata."""
        return self._state.segments.nbytes

    # ── Search ────────────────────────────────────────────────────────────────────────────────────

    def answer_all(
        self,
        searches: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
        rerankings: Sequence[RerankStage] = (),
    ) -> list[SearchResponse]:
        """Return the response to each of several searches; no change of the index is between them.

        Args:
            searches: as for `BaseIndex.answer_all`.
            models: as for `BaseIndex.answer_all`.
            allow_partial: as for `BaseIndex.answer_all`.
            rerankings: further stages, which run after the encoder and before the reranker.
        """
        del allow_partial
        state, models = self._state, self._with_own_models(models)
        responses = []
        for params in searches:
            rerank_stages = models.rerank_stages(params, rerankings)
            count_query = partial(self._counter.count, params.query)
            if state.is_counted and self._counter.is_loaded:
                token_counts = SearchMetadata(count_query(), state.n_tokens())
            else:
                token_counts = SearchMetadata.lazy(
                    num_query_tokens=count_query, num_context_tokens=state.n_tokens
                )
            response = answer(
                params, state.segments, state.n_positions, token_counts, rerank_stages
            )
            responses.append(response)
        return responses

    def _with_own_models(self, models: SearchModels) -> SearchModels:
        """Return the models of a search, with the index's own encoder if the search has none.

        Raises:
            InvalidRequestError: the search has another encoder than the index.
        """
        encoder, own_encoder = models.encoder, self._encoder
        if own_encoder is None or encoder is own_encoder:
            return models
        if encoder is None:
            return evolve(models, encoder=own_encoder)
        if encoder.fingerprint != own_encoder.fingerprint:
            raise InvalidRequestError(
                "must be the encoder that the index was built with, or None", "encoder"
            )
        return models

    # ── Changes ───────────────────────────────────────────────────────────────────────────────────

    def _add(self, chunks: Chunks, find_replaced: FindPositions | None = None) -> range:
        non_blank, positions = chunks.without_blank()
        (new,) = _segments_of(non_blank, positions, self._encoder, n_jobs=None, progress=None)
        with self._change_lock:
            state = self._state
            segments: Sequence[Segment] = state.segments.segments
            removed_texts: Sequence[str] = ()
            if find_replaced is not None:
                replaced = find_replaced(state.n_positions, state.segments)
                removal = remove_chunks(segments, replaced)
                segments, removed_texts = removal.segments, removal.texts
            added = range(state.n_positions, state.n_positions + len(chunks.texts))
            new = evolve(new, positions=added.start + positions)
            segments = merge_tiered([*segments, new])
            self._state = state.replace(
                segments, added.stop, added=non_blank.texts, removed=removed_texts
            )
        return added

    def _remove(self, find_positions: FindPositions) -> int:
        with self._change_lock:
            state = self._state
            removed_positions = find_positions(state.n_positions, state.segments)
            removal = remove_chunks(state.segments.segments, removed_positions)
            self._state = state.replace(removal.segments, state.n_positions, removed=removal.texts)
        return removed_positions.size

    def with_changes(
        self,
        removed: Iterable[int],
        chunks: Iterable[str | Metadata | Chunk],
        at: Iterable[int],
    ) -> ChunkIndex:
        """Return an index without some of the chunks and with other chunks inserted.

        This index is not changed. The returned index has the same positions and results as an index
        that is built from its chunks without an encoder: the encoder and its vectors are left out.
        The cost depends on the chunks added and removed, and is some nanoseconds for each other
        chunk.

        Args:
            removed: positions of chunks to leave out.
            chunks: as for the class, none of them blank.
            at: the position of each of `chunks` in the new index, ascending; the other chunks keep
                their order.

        Raises:
            InvalidRequestError: a chunk is invalid, a position in `removed` has no chunk, or `at`
                is not one ascending position in the new index for each chunk.
        """
        state, validated = self._state, read_chunks(chunks)
        removed_positions = check_positions(removed, state.n_positions, state.segments)
        removal = remove_chunks(state.segments.segments, removed_positions)
        segments = removal.segments
        before = np.sort(
            concat((segment.positions[segment.live] for segment in segments), np.int64)
        )
        new_positions = np.fromiter(at, np.int64)
        n_positions = before.size + new_positions.size
        if len(validated.texts) != new_positions.size or not np.array_equal(
            new_positions,
            unique(new_positions[(new_positions >= 0) & (new_positions < n_positions)]),
        ):
            allowed = f"a position in [0, {n_positions}) for each chunk, ascending"
            raise InvalidRequestError.must_be("at", allowed, new_positions.tolist())
        unchanged = np.delete(np.arange(n_positions), new_positions)
        after = np.concatenate(([-1], unchanged))
        # A removed chunk gets the position of the chunk before it, and is not found at that
        # position.
        moved = [
            evolve(
                segment,
                positions=after[before.searchsorted(segment.positions, "right")],
                passages=None,
            )
            for segment in segments
        ]
        new = evolve(build(validated, np.arange(new_positions.size)), positions=new_positions)
        index = ChunkIndex.__new__(ChunkIndex)
        segments = merge_tiered([*moved, new]) if new_positions.size else moved
        index._initialize(
            state.replace(segments, n_positions, added=validated.texts, removed=removal.texts), None
        )
        return index

    # ── Files ─────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index to a file atomically; `load` opens it.

        Args:
            path: a new file, or a file to replace: a saved index, or an empty file.
            overwrite: replace any other file, too.

        Raises:
            OSError: the file cannot be written.
            InvalidRequestError: metadata is not JSON, the path is invalid, or its file is not an
                index.
        """
        storage.write(path, self._saved(), overwrite=overwrite)

    def _saved(self) -> storage.SavedIndex:
        state = self._state
        return storage.SavedIndex(
            merge(state.segments.segments),
            state.segments.weighting.name,
            self._counter.name,
            self._counter.fingerprint,
            None if self._encoder is None else self._encoder.fingerprint,
            state.n_positions,
            state.n_tokens(),
        )

    @classmethod
    def build(
        cls,
        source: Source,
        path: str | PathLike[str],
        *,
        text: str = "text",
        title: str = "title",
        blank: Blank = "error",
        weighting: WeightingName = "pivoted",
        encoder: TextEncoder | None = None,
        encoding: Encoding | None = None,
        n_jobs: int | None = 1,
        memory_bytes: int = 256 << 20,
        progress: Progress | bool | None = None,
        overwrite: bool = False,
    ) -> ChunkIndex:
        """Build an index of more text than fits into memory, in a file like `save`'s, and open it.

        Chunks are indexed in blocks that fit into memory; each block is written next to `path`, and
        all blocks are merged at the end. Results are those of an index built of all chunks at once.
        The folder of `path` needs space for two such files.

        Args:
            source: a file of JSON lines (``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst``) or
                Parquet (``.parquet``), a folder of documents, a table, or an iterable of strings,
                mappings and `Chunk` objects. A ``pathlib.Path`` in an iterable is such a file or
                folder, too; a string is a text. Parquet, tables and ``.zst`` need the extra
                ``data``.
            path: as for `save`. The file is created or replaced at the end.
            text: the field of a record that contains the text.
            title: the field that contains the title, if any; "" for none. All other fields are
                metadata, and so are the fields of ``metadata``.
            blank: as for the class.
            weighting: as for the class.
            encoder: as for the class.
            encoding: as for the class.
            n_jobs: as for the class.
            memory_bytes: approximate memory of all processes together while the index is built, at
                least 16 MiB. The memory of an encoder and some bytes for each chunk are additional.
                A line of the source must not have more than 1/64 of this number of bytes, and a
                text, with its overhead, not more than 1/5. Parquet is read page by page; a page
                that is longer needs additional memory.
            progress: as for the class. The number of all chunks is estimated.
            overwrite: as for `save`.

        Raises:
            InvalidRequestError: an argument is invalid; or a record of the source is not a chunk,
                in which case the error contains the file and the line; or no record has the field
                that `title` names.
            EncoderError: the encoder failed.
            OSError: the source cannot be read, or the file cannot be written.
        """
        weigher = weighting_named(weighting)
        counter = token_counter(encoding)
        encoder = SearchModels(encoder).encoder
        target = storage.check_target(path, overwrite=overwrite)
        records = Records(source, text, title, blank, memory_bytes)
        n_chunks = n_tokens = 0

        def report_progress(done: int, _: int) -> None:
            if report is not None:
                n_estimated = round(records.n_read / records.read_fraction)
                report(n_chunks + done, max(n_chunks + done, n_estimated))

        with (
            reporting(progress) as report,
            storage.replacing(target) as file,
            closing(Spill(target.parent)) as spill,
        ):
            for chunks, positions in records.blocks(spill.content):
                segments = _segments_of(chunks, positions, encoder, n_jobs, report_progress)
                for segment in segments:
                    spill.add(segment)
                n_chunks += positions.size
                n_tokens += counter.count_all(chunks.texts)
                del chunks, segment, segments  # before the next block is read
            settings = {
                "weighting": weigher.name,
                "encoding": counter.name,
                "fingerprint": counter.fingerprint,
                "encoder": encoder and encoder.fingerprint,
                "n_positions": records.n_read,
                "n_context_tokens": n_tokens,
            }
            spill.merge(file, settings)
        return cls.load(target, encoding=encoding, encoder=encoder, check=False)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        encoding: Encoding | None = None,
        encoder: TextEncoder | None = None,
        check: bool = True,
    ) -> ChunkIndex:
        """Open a saved index; its arrays and texts remain in the file, which is memory-mapped.

        Args:
            path: a file that `save` wrote.
            encoding: the encoding that the index was saved with; None is sufficient if that is the
                encoding in this package or a published encoding.
            encoder: as for the saved index; None ranks by terms only, and discards the vectors.
            check: compare the file's checksum, which reads the whole file; False if the file is
                known to be undamaged.

        Raises:
            IndexFormatError: the file is damaged, not an index, or of another format version.
            InvalidRequestError: the encoding or the encoder is not the one that the index was saved
                with, or an encoder was passed and the index was saved without one.
            OSError: the file cannot be read.
        """
        saved = storage.read(path, check=check)
        counter = counter_of_saved(saved.encoding, saved.fingerprint, encoding, path)
        encoder = SearchModels(encoder).encoder
        if encoder is not None and encoder.fingerprint != saved.encoder:
            problem = (
                "holds no vectors"
                if saved.encoder is None
                else "holds the vectors of another model or prefix"
            )
            raise InvalidRequestError(
                f"must be the encoder that {path} was built with: the file {problem}",
                "encoder",
                remedy="build it again, or pass none",
            )
        return _open_saved(saved, counter, encoder)


def _segments_of(
    chunks: Chunks,
    positions: Offsets,
    encoder: TextEncoder | None,
    n_jobs: int | None,
    progress: Progress | None,
) -> list[Segment]:
    """Build the segments of chunks in at most `n_jobs` processes, one in each, and return them.

    Args:
        chunks: the chunks, N of them, none blank.
        positions: position of each chunk in the index, ascending, shape (N,).
        encoder: as for `ChunkIndex`.
        n_jobs: as for `ChunkIndex`.
        progress: as for `ChunkIndex`.
    """
    build_progress = progress if encoder is None else None
    n_processes = 1
    if n_jobs is not None:
        # Imports multiprocessing, which takes a twentieth of a first search.
        from relevance_gen.index import parallel_build

        n_processes = parallel_build.n_processes(n_jobs, chunks)
    if n_processes > 1:
        segments = [
            evolve(segment, positions=positions[segment.positions])
            for segment in parallel_build.build_segments(chunks, n_processes, build_progress)
        ]
    else:
        segments = [build(chunks, positions, progress=build_progress)]
    if encoder is not None:
        passages = Passages.encode(chunks.texts, encoder, progress, titles=chunks.titles)
        segments = [
            evolve(segment, passages=passages.take(np.searchsorted(positions, segment.positions)))
            for segment in segments
        ]
    return segments


def _unpickled(content: bytes, counter: TokenCounter, encoder: TextEncoder | None) -> ChunkIndex:
    array = np.frombuffer(content, np.uint8)
    saved = storage.from_content(array, "the pickled index", check=True)
    return _open_saved(saved, counter, encoder)


def _open_saved(
    saved: storage.SavedIndex, counter: TokenCounter, encoder: TextEncoder | None
) -> ChunkIndex:
    segment = saved.segment if encoder is not None else evolve(saved.segment, passages=None)
    return index_of_segments(
        [segment], saved.weighting, saved.n_positions, saved.n_context_tokens, counter, encoder
    )


def index_of_segments(
    segments: Sequence[Segment],
    weighting: WeightingName,
    n_positions: int,
    n_tokens: int,
    counter: TokenCounter,
    encoder: TextEncoder | None = None,
) -> ChunkIndex:
    """Return an index of all chunks in several segments, each chunk at its position.

    Args:
        segments: the segments, with disjoint positions.
        weighting: as for `ChunkIndex`.
        n_positions: number of positions assigned so far.
        n_tokens: number of tokens of all chunks.
        counter: counts tokens in the encoding of the index.
        encoder: the encoder of the segments' vectors; None if they have none.
    """
    index = ChunkIndex.__new__(ChunkIndex)
    local = LocalSegments(segments, weighting_named(weighting))
    index._initialize(_State(local, n_positions, counter, n_tokens), encoder)
    return index
