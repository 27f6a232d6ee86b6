"""An index of chunks, kept: build it once, ask it often, add to it and take from it.

The file is long because it documents every method of the one public class; what the methods do is in other rooms.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from typing import Any, Final, overload

import numpy as np
from attrs import define, evolve, field

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
from relevance_gen.retrieval.answer import answer, metadata_keys
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.explanation import explain
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.positions import (
    ChunkList,
    check_position,
    check_positions,
    chunks_by_index,
    positions_to_remove,
)
from relevance_gen.retrieval.query.filters import Where
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
    Explanation,
    Metadata,
    SearchMetadata,
    SearchResponse,
    WeightingName,
)

_STEMMED_AT_ONCE: Final = 1 << 16
"""Most terms of a segment whose stems are made when an index is built; of more, those that a question asks for."""


@define(eq=False)
class _State:
    """What an index holds between two changes: its chunks, and the number of positions assigned so far.

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
        """Return the number of tokens of all chunks, each counted alone; the first call counts them."""
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
        """Return the state of other segments, given the texts that differ."""
        n_tokens = self._n_tokens
        if n_tokens is not None:
            n_tokens += self.counter.count_all(added) - self.counter.count_all(removed)
        local = LocalSegments(segments, self.segments.weighting, before=self.segments)
        return _State(local, n_positions, self.counter, n_tokens)


class ChunkIndex(BaseIndex):
    """Chunks made ready to be searched; `search` and this give the same results, bit for bit.

    Chunks can be added and removed. A chunk keeps its position for life: results name it as `original_index`, and a
    removed chunk's position is not given again. Answers are those of an index built anew of the chunks that are left.

    Safe to share between threads: a search sees all of a change or nothing of it. Pickled and copied as what `save`
    writes.

    Args:
        chunks: strings, mappings with ``text`` and optional ``metadata``, or `Chunk` objects, mixed, in any iterable;
            or a table, as Arrow, pandas and Polars have them, each row a chunk (needs the extra ``data``).
        text: the field of mappings, or the column of a table, that has the text. Where it is given, and in a table,
            ``title`` is the title and all other fields are metadata. None stands for ``text``.
        blank: ``"error"`` refuses a blank or missing chunk; ``"skip"`` leaves it out, and the others keep their
            positions. Missing are None and NaN.
        weighting: ``"pivoted"`` to answer questions, ``"cosine"`` for the textbook's; formulas in
            `relevance_gen.retrieval.weighting`.
        encoder: an `Encoder`, which lifts chunks that say in other words what a query asks. The index keeps the vectors
            of all its passages, two bytes a component, so that a query costs one encoding. None goes by words alone.
        encoding: what tokens are counted in: None for the embedded encoding, a tiktoken encoding's name, the path of a
            rank file, or a `tiktoken.Encoding`.
        n_jobs: processes to build with, at most 4 and only as many as there is text enough for; -1 means as
            many as there are cores. Where Python starts processes anew, a script needs
            ``if __name__ == "__main__":``.
        progress: called with (chunks done, all chunks) while the index is built; with an encoder, while it encodes,
            which takes nearly all of the time. True shows a bar.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.
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
        checked = read_chunks(chunks, blank=blank, text=text)
        kept, positions = checked.without_blank()
        weigher = weighting_named(weighting)
        encoder = SearchModels(encoder).encoder
        counter = token_counter(encoding)
        with reporting(progress) as report:
            segments = _segments_of(kept, positions, encoder, n_jobs, report)
        for lexicon in [segment.postings.lexicon for segment in segments if weigher.inflects]:
            if lexicon.size <= _STEMMED_AT_ONCE:
                lexicon.cache_stems()
        local = LocalSegments(segments, weigher)
        self._keep(_State(local, len(checked.texts), counter), encoder)

    def _keep(self, state: _State, encoder: TextEncoder | None) -> None:
        self._state, self._counter, self._encoder = state, state.counter, encoder
        self._changing = threading.Lock()

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

    @overload
    def __getitem__(self, position: int) -> Chunk: ...
    @overload
    def __getitem__(self, position: slice) -> list[Chunk]: ...
    def __getitem__(self, position: int | slice) -> Chunk | list[Chunk]:
        """Return the chunk at a position, of which -1 is the last that was given, or those in a slice of positions.

        Raises:
            InvalidRequestError: no chunk is there; a slice leaves out those that were removed.
        """
        state = self._state
        return chunks_by_index(state.segments, state.n_positions, position)

    def __contains__(self, chunk: object) -> bool:
        """Tell whether a chunk has this text or, as a `Chunk`, this text, metadata and title, wherever it stands."""
        text, rest = (
            (chunk.text, (chunk.metadata, chunk.title))
            if isinstance(chunk, Chunk)
            else (chunk, None)
        )
        return any(
            one == text
            and live
            and rest
            in (None, (segment.chunks.metadata_of(number), segment.chunks.title_of(number)))
            for segment in self._state.segments.segments
            for number, (one, live) in enumerate(
                zip(segment.chunks.texts, segment.live, strict=True)
            )
        )

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    @property
    def chunks(self) -> ChunkList:
        """The chunks by position, as they are now: a read-only sequence that copies no texts.

        >>> [chunk.text for chunk in ChunkIndex(["Cats purr.", "Dogs bark."]).chunks]
        ['Cats purr.', 'Dogs bark.']
        """
        return ChunkList(self._state.segments)

    @property
    def metadata_keys(self) -> set[str]:
        """The keys under which any chunk has metadata.

        >>> ChunkIndex([{"text": "Cats purr.", "metadata": {"page": 2}}, "Dogs bark."]).metadata_keys
        {'page'}
        """
        return set(metadata_keys(self._state.segments) or ())

    @property
    def nbytes(self) -> int:
        """Memory of the texts, of what is kept of them and of what is remembered, in bytes; not of metadata."""
        return self._state.segments.nbytes

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer_all(
        self,
        asked: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
        rerankings: Sequence[RerankStage] = (),
    ) -> list[SearchResponse]:
        """Answer questions from one state of the index, which always has all its chunks.

        `rerankings` come behind the encoder and before the reranker.
        """
        del allow_partial
        state, models = self._state, self._with_encoder(models)
        return [self._answer(state, one, models.rerank_stages(one, rerankings)) for one in asked]

    def _answer(
        self, state: _State, question: SearchParams, rerankings: Sequence[RerankStage]
    ) -> SearchResponse:
        of_query = partial(self._counter.count, question.query)
        if state.is_counted and self._counter.is_loaded:
            token_counts = SearchMetadata(of_query(), state.n_tokens())
        else:
            of_chunks = state.n_tokens().__int__ if state.is_counted else state.n_tokens
            token_counts = SearchMetadata.lazy(
                num_query_tokens=of_query, num_context_tokens=of_chunks
            )
        return answer(question, state.segments, state.n_positions, token_counts, rerankings)

    def explain_one(
        self,
        question: SearchParams,
        chunk: int,
        models: SearchModels = NO_MODELS,
        *,
        rerankings: Sequence[RerankStage] = (),
    ) -> Explanation:
        """Show what each term of the query, an encoder and a reranker gave to the score of a chunk."""
        state = self._state
        rerankings = self._with_encoder(models).rerank_stages(question, rerankings)
        at = check_position("chunk", chunk, state.n_positions, state.segments)
        return explain(question, at, state.segments, rerankings)

    def _with_encoder(self, models: SearchModels) -> SearchModels:
        """Return the models of a search: with the encoder that it brings, or the index's own."""
        encoder, own = models.encoder, self._encoder
        if (
            encoder is None
            or own is None
            or encoder is own
            or encoder.fingerprint == own.fingerprint
        ):
            return evolve(models, encoder=own) if encoder is None else models
        raise InvalidRequestError(
            "must be the one that the index was made with, or None", "encoder"
        )

    # ── Changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, chunks: Iterable[str | Metadata | Chunk], *, blank: Blank = "error") -> range:
        """Add chunks, and return their positions. It costs what is added, not what is there.

        Args:
            chunks: as for the class.
            blank: ``"error"`` refuses a blank chunk; ``"skip"`` leaves it out, and its position is given all the same.

        Raises:
            InvalidRequestError: a chunk is not allowed; none was added.
            EncoderError: the encoder failed; none was added.
        """
        checked = read_chunks(chunks, blank=blank)
        kept, numbers = checked.without_blank()
        passages = (
            None
            if self._encoder is None
            else Passages.encode(kept.texts, self._encoder, titles=kept.titles)
        )
        new = evolve(build(kept, numbers), passages=passages)
        with self._changing:
            state = self._state
            added = range(state.n_positions, state.n_positions + len(checked.texts))
            if added:
                new = evolve(new, positions=added.start + numbers)
                segments = merge_tiered([*state.segments.segments, new])
                self._state = state.replace(segments, added.stop, added=kept.texts)
        return added

    def remove(self, positions: Iterable[int] | None = None, *, where: Where | None = None) -> int:
        """Remove the chunks at some positions, or all that `where` allows, and return how many these were.

        Args:
            positions: the positions.
            where: as in `search`, instead of them: ``index.remove(where={"source": "a.txt"})``.

        Raises:
            InvalidRequestError: no chunk is at one of the positions, or `where` is not allowed; none was removed.
        """
        with self._changing:
            state = self._state
            at = positions_to_remove(positions, where, state.n_positions, state.segments)
            removal = remove_chunks(state.segments.segments, at)
            self._state = state.replace(removal.segments, state.n_positions, removed=removal.texts)
        return at.size

    def with_changes(
        self, removed: Iterable[int], chunks: Iterable[str | Metadata | Chunk], at: Iterable[int]
    ) -> ChunkIndex:
        """Return an index without some of the chunks and with others in between; this one stays as it is.

        Its positions are those of an index that is built anew of what it holds, and so are its answers. It costs what
        is added and removed, and some nanoseconds for each chunk. An encoder's vectors are not kept.

        Args:
            removed: positions of chunks to leave out.
            chunks: as for the class, none of them blank.
            at: the position that each of `chunks` has in the new index, ascending; the others keep their order.

        Raises:
            InvalidRequestError: a chunk is not allowed, or no chunk is at one of the positions.
        """
        state, checked = self._state, read_chunks(chunks)
        gone = check_positions(removed, state.n_positions, state.segments)
        removal = remove_chunks(state.segments.segments, gone)
        segments = removal.segments
        before = np.sort(
            concat((segment.positions[segment.live] for segment in segments), np.int64)
        )
        places = np.fromiter(at, np.int64)
        n_positions = before.size + places.size
        if len(checked.texts) != places.size or not np.array_equal(
            places, unique(places[(places >= 0) & (places < n_positions)])
        ):
            allowed = f"a position in [0, {n_positions}) for each chunk, ascending"
            raise InvalidRequestError.must_be("at", allowed, places.tolist())
        after = np.concatenate(([-1], np.delete(np.arange(n_positions), places)))
        # What was taken out of a segment stands where the chunk before it does, and is not found there.
        moved = [
            evolve(
                segment,
                positions=after[before.searchsorted(segment.positions, "right")],
                passages=None,
            )
            for segment in segments
        ]
        new = evolve(build(checked, np.arange(places.size)), positions=places)
        index = ChunkIndex.__new__(ChunkIndex)
        segments = merge_tiered([*moved, new]) if places.size else moved
        index._keep(
            state.replace(segments, n_positions, added=checked.texts, removed=removal.texts), None
        )
        return index

    # ── Keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index to a file, whole or not at all; `load` reads it back.

        Args:
            path: a new file, or one to replace: a saved index, or an empty file.
            overwrite: whether to replace any other file, too.

        Raises:
            OSError: the file cannot be written.
            InvalidRequestError: metadata that is not JSON, a path that is none, or one of a file that is no index.
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
        """Build an index of more text than memory holds, in the file that `save` would write, and open it.

        As many chunks as memory allows are made searchable and written out beside `path`; at the end all that was
        written is merged. Answers are those of an index built of all chunks at once. Meanwhile the folder of `path`
        must have room for two such files.

        Args:
            source: a file of JSON lines (``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst``) or Parquet
                (``.parquet``), a folder of documents, a table, or an iterable of strings, mappings and `Chunk` objects.
                What is a ``pathlib.Path`` in an iterable is such a file or folder, too; a string is a text. Parquet,
                tables and ``.zst`` need the extra ``data``.
            path: as for `save`. Until all is done nothing is there, or what was there before.
            text: the field that has a record's text.
            title: the field that has its title, where it has one; "" for none. All other fields are metadata, and so is
                what a field ``metadata`` has.
            blank: as for the class.
            weighting: as for the class.
            encoder: as for the class.
            encoding: as for the class.
            n_jobs: as for the class.
            memory_bytes: about how much memory may be taken while the index is built, by all processes together, at
                least 16 MiB; an encoder comes on top, and so do some bytes for each chunk. A line of the source may be
                a 64th as long, and a text a fifth; Parquet is read by its pages, which come on top if they are longer.
            progress: as for the class. How many chunks there are is estimated from what was read.
            overwrite: as for `save`.

        Raises:
            InvalidRequestError: an argument is not allowed, or something in the source is no chunk; the error names
                file and line. Or no record has the field that `title` names.
            EncoderError: the encoder failed.
            OSError: the source cannot be read, or the file not be written.
        """
        weigher, counter, encoder = (
            weighting_named(weighting),
            token_counter(encoding),
            SearchModels(encoder).encoder,
        )
        target = storage.check_target(path, overwrite=overwrite)
        records = Records(source, text, title, blank, memory_bytes)
        n_chunks = n_tokens = 0

        def told(done: int, _: int) -> None:
            if report is not None:
                report(
                    n_chunks + done,
                    max(n_chunks + done, round(records.n_read / records.read_fraction)),
                )

        with (
            reporting(progress) as report,
            storage.replacing(target) as file,
            closing(Spill(target.parent)) as spill,
        ):
            for chunks, positions in records.blocks(spill.content):
                segments = _segments_of(chunks, positions, encoder, n_jobs, told)
                for segment in segments:
                    spill.add(segment)
                n_chunks += positions.size
                n_tokens += counter.count_all(chunks.texts)
                del chunks, segment, segments  # before the next block is read
            settings: dict[str, Any] = {"weighting": weigher.name, "encoding": counter.name}
            settings |= {
                "fingerprint": counter.fingerprint,
                "encoder": encoder and encoder.fingerprint,
            }
            spill.merge(
                file, {**settings, "n_positions": records.n_read, "n_context_tokens": n_tokens}
            )
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
        """Open a saved index; its arrays and texts stay in the file, mapped into memory, until they are needed.

        Args:
            path: a file that `save` wrote.
            encoding: as for the index that was saved; may be left out if that was the embedded encoding or a
                published one.
            encoder: as for the index that was saved; without it the index goes by words alone and forgets its vectors.
            check: whether to compare the file's checksum, for which all of it is read; False where it is known to be as
                it was written.

        Raises:
            IndexFormatError: the file is damaged, foreign, or of another format version.
            InvalidRequestError: encoding or encoder is not the one that was saved, or no encoder was.
            OSError: the file cannot be read.
        """
        saved = storage.read(path, check=check)
        counter = counter_of_saved(saved.encoding, saved.fingerprint, encoding, path)
        encoder = SearchModels(encoder).encoder
        if encoder is not None and encoder.fingerprint != saved.encoder:
            what = (
                "holds no vectors"
                if saved.encoder is None
                else "holds the vectors of another model or prefix"
            )
            rule, remedy = (
                f"must be the one that {path} was saved with, and it {what}",
                "build it again, or pass none",
            )
            raise InvalidRequestError(rule, "encoder", remedy=remedy)
        return opened([saved], counter, encoder)


def _segments_of(
    chunks: Chunks,
    positions: Offsets,
    encoder: TextEncoder | None,
    n_jobs: int | None,
    progress: Progress | None,
) -> list[Segment]:
    """Build the segments of chunks: one, or one for each process that builds."""
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
    return opened([storage.from_bytes(content)], counter, encoder)


def opened(
    parts: Sequence[storage.SavedIndex], counter: TokenCounter, encoder: TextEncoder | None = None
) -> ChunkIndex:
    """Return the index of what was saved, in one file or more, each chunk at the position that it was saved with."""
    index = ChunkIndex.__new__(ChunkIndex)
    segments = [
        one.segment if encoder is not None else evolve(one.segment, passages=None) for one in parts
    ]
    n_positions, n_tokens = (
        max(one.n_positions for one in parts),
        sum(one.n_context_tokens for one in parts),
    )
    local = LocalSegments(segments, weighting_named(parts[0].weighting))
    index._keep(_State(local, n_positions, counter, n_tokens), encoder)
    return index
