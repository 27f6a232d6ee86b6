"""The law of segments, over the nodes of a cluster: results are those of one index on one machine, bit for bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError
from relevance_gen.cluster import ClusterIndex, connection
from relevance_gen.cluster import index as cluster_index
from relevance_gen.cluster import saved_folder as folder
from relevance_gen.errors import ClusterError, IndexConflictError, IndexFormatError
from tests import strategies
from tests.cluster.shared import QUERIES, answers, kill_process, texts, until
from tests.profiles import costly
from tests.retrieval.test_cross_encoder import HashReranker
from tests.retrieval.test_dense_fusion import LetterEncoder


def told(index: Any, query: str, **options: Any) -> tuple[Any, ...]:
    """Return an answer in a form in which equal means the same bits."""
    response = index.search(query, **options)
    return response, response.confidence, response.metadata


def has_page(metadata: Any) -> bool:
    return "page" in metadata


@pytest.fixture(scope="module")
def pair(cluster: Any) -> Iterator[tuple[ClusterIndex, ChunkIndex]]:
    """Give the same chunks to a cluster and to one machine."""
    chunks = [
        {"text": text, "metadata": {"page": place % 3}} for place, text in enumerate(texts(60))
    ]
    with ClusterIndex(chunks, n_shards=4) as index:
        yield index, ChunkIndex(chunks)


def test_shards_are_spread(pair: tuple[ClusterIndex, ChunkIndex]) -> None:
    """Every node gets its share of the shards."""
    stats = pair[0].stats()
    assert stats.num_shards == 4
    assert len({node for shard in stats.shards for node in shard.nodes}) == 3
    assert stats.num_missing_chunks == 0
    assert all(shard.size_bytes > 0 for shard in stats.shards)
    assert pair[0].nbytes >= sum(shard.size_bytes for shard in stats.shards) > 0
    assert pair[0].metadata_keys == pair[1].metadata_keys == {"page"}


@costly
@given(data=st.data())
def test_the_law_of_segments_over_nodes(
    pair: tuple[ClusterIndex, ChunkIndex], data: st.DataObject
) -> None:
    """However chunks come and go, all that an index tells is what one on one machine tells."""
    ours, one = pair
    query = data.draw(strategies.queries)
    chunks = data.draw(strategies.chunk_lists) + data.draw(st.lists(st.just(query), max_size=2))
    assert ours.add(chunks) == one.add(chunks)
    left = [
        place
        for place in range(one._state.n_positions)
        if one._state.collection.holds(np.array([place]))[0]
    ]
    drawn = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
    *gone, kept = dict.fromkeys(left[number % len(left)] for number in drawn)
    assert ours.remove(gone) == one.remove(gone) == len(gone)
    assert len(ours) == len(one)
    top_n = data.draw(st.integers(1, 60))
    assert told(ours, query, top_n=top_n) == told(one, query, top_n=top_n)
    where = data.draw(
        st.sampled_from(
            [{"page": 1}, {"page": [0, 2]}, [place for place in left if place % 2], has_page]
        )
    )
    options = {
        "where": where,
        "min_relative_score": data.draw(st.sampled_from([0.0, 0.5])),
        "spans": True,
        "true_order": False,
    }
    assert told(ours, query, **options) == told(one, query, **options)
    assert ours.explain(query, kept) == one.explain(query, kept)
    start, stop = data.draw(st.integers(-9, 70)), data.draw(st.integers(-9, 90))
    for some in (kept, slice(start, stop), slice(-1, None, -2), slice(9, 3)):
        assert ours[some] == one[some]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_index, "_STEP", data.draw(st.sampled_from([7, 1000])))
        assert list(ours) == list(one)
        found = one[kept]
        for what in (
            found,
            Chunk(found.text, found.metadata),
            evolve(found, title="other"),
            found.text,
            "nothing",
            7,
        ):
            assert (what in ours) == (what in one)
    sign = data.draw(
        st.sampled_from(["+cat", "-cats", "-猫", '"the cat"', "-the +zebra", '-"of a"'])
    )
    signed = f"{query} {sign}"
    assert told(ours, signed, syntax="operators", **options) == told(
        one, signed, syntax="operators", **options
    )
    assert ours.explain(signed, kept, syntax="operators") == one.explain(
        signed, kept, syntax="operators"
    )


def test_chunks_are_removed_by_what_they_have(cluster: Any) -> None:
    """`remove(where=…)` removes from all shards what it removes on one machine, and says how many."""
    chunks = [{"text": f"cat {page}", "metadata": {"page": page % 3}} for page in range(9)]
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=2) as ours:
        assert ours.remove(where={"page": [1, 2]}) == one.remove(where={"page": [1, 2]}) == 6
        assert told(ours, "cat") == told(one, "cat")
        with pytest.raises(InvalidRequestError, match="did you mean page"):
            ours.remove(where={"pge": 1})


def test_the_other_weighting(cluster: Any) -> None:
    """By cosine, too, the bits are those of one machine, and of several questions at once those of each alone."""
    chunks = texts(50, seed=2)
    one = ChunkIndex(chunks, weighting="cosine")
    with ClusterIndex(chunks, n_shards=2, weighting="cosine") as ours:
        assert ours.search(QUERIES) == one.search(QUERIES)
        assert repr(ours).startswith("<ClusterIndex of 50 chunks in 2 shards, cosine weighting")


def test_a_reranker_reads_where_it_is(pair: tuple[ClusterIndex, ChunkIndex]) -> None:
    """It reads the same texts for an index of a cluster, long ones too, and answers and explanations are the same."""
    ours, one = pair
    for query in (QUERIES[0], [*QUERIES]):
        read, read_here = HashReranker(), HashReranker()
        assert ours.search(query, reranker=read, rerank_top_n=5) == one.search(
            query, reranker=read_here, rerank_top_n=5
        )
        assert sorted(read.read) == sorted(read_here.read)
    best = one.search(QUERIES[0], 1)[0].original_index
    told = ours.explain(QUERIES[0], best, reranker=HashReranker())
    assert told == one.explain(QUERIES[0], best, reranker=HashReranker())
    assert told.relevance is not None


def test_saved_and_loaded(cluster: Any, tmp_path: Path) -> None:
    """A saved index comes back with the same bits, by a path as by an address, and its positions are kept."""
    chunks = texts(40, seed=9)
    one = ChunkIndex(chunks)
    one.remove([3, 39])
    with ClusterIndex(chunks, n_shards=2) as ours:
        ours.remove([3, 39])
        ours.save(tmp_path / "kept")
        ours.save(f"file://{tmp_path}/kept")
        names = {path.name for path in (tmp_path / "kept").iterdir()}
        assert len(names - {".lock", "index.json"}) == 2
    with ClusterIndex.load(tmp_path / "kept") as loaded:
        assert loaded.search(QUERIES) == one.search(QUERIES)
        assert loaded.add(["one more"]) == range(40, 41)
        other = ClusterIndex.load(tmp_path / "kept")
        loaded.save(f"file://{tmp_path}/kept")
        assert (
            len({path.name for path in (tmp_path / "kept").iterdir()} - names) == 1
        )  # the shard that has changed
        (lost, _) = loaded._fresh().state.shards
        connection.ray.kill(lost.hosts[0].handle)
        until(
            lambda: loaded.search("more", allow_partial=True).metadata.num_missing_chunks == 0,
            "it is back",
        )
        assert loaded.search("one more").results[-1].original_index == 40
        with other, pytest.raises(IndexConflictError, match="was changed by another writer"):
            other.save(tmp_path / "kept")
        assert len(folder.read_manifest(f"{tmp_path}/kept").shards) == 2


def test_a_folder_that_nodes_do_not_share(cluster: Any) -> None:
    """Saving where nodes would not find each other's files is refused, and shards come back from where they did."""
    with ClusterIndex(["cats purr", "dogs bark"], n_shards=2) as index:
        with pytest.raises(InvalidRequestError, match="folder must be the same for all nodes"):
            index.save("memory://kept")  # of each process its own
        kill_process(index._fresh().state.shards[0].hosts[0].handle)
        assert answers(index, ChunkIndex(["cats purr", "dogs bark"]).search(QUERIES)) >= 0


def test_what_a_killed_process_left_of_a_save(cluster: Any, tmp_path: Path) -> None:
    """Files that a process wrote when it was killed are gone when an index was saved there, and others are not."""
    killed = """
import os, pathlib, signal, sys
from fsspec.implementations.local import LocalFileSystem
from relevance_gen import ChunkIndex
from relevance_gen.cluster import saved_folder as folder
LocalFileSystem.mv = pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "shard":
    ChunkIndex(["cats"]).save(f"{sys.argv[1]}/0123456789abcdef-00000.shard")
else:
    manifest = folder.Manifest("cosine", "", "", 1, {"0123456789abcdef-00000.shard": folder.SavedShard(1, 1, "0" * 64)})
    folder.publish(sys.argv[1], manifest, folder.begin(sys.argv[1]))
"""
    for what in ("shard", "manifest"):
        done = subprocess.run([sys.executable, "-c", killed, tmp_path, what], check=False)
        assert done.returncode == -signal.SIGKILL
    (tmp_path / "fedcba9876543210-00001.shard").touch()
    (tmp_path / "notes.txt").touch()
    assert len(list(tmp_path.glob("*unfinished"))) == 2
    with ClusterIndex(["cats purr"]) as index:
        index.save(tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rpartition(".")[2] for name in kept] == ["lock", "shard", "json", "txt"]


def test_a_name_is_found_by_others(cluster: Any) -> None:
    """A named index is the same for whoever knows the name, and has the same versions, until it is closed."""
    with ClusterIndex(["Cats purr.", "Dogs bark."], name="pets") as ours:
        other = ClusterIndex.named("pets")
        other.add(["Cows moo."])
        assert len(ours.search("cows")) <= 1
        ours._known_s = 0.0
        assert [result.chunk_txt for result in ours.search("cows")] == ["Cows moo."]
        with pytest.raises(ClusterError, match="has the name 'pets'"):
            ClusterIndex(["x"], name="pets")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("relevance_gen.__version__", "9.9")
            told = r"node \w+ has relevance_gen 0.*, and this process relevance_gen 9\.9, numpy"
            with pytest.raises(ClusterError, match=told):
                ClusterIndex.named("pets")
    with pytest.raises(ClusterError, match="no index of the cluster has the name 'pets'"):
        ClusterIndex.named("pets")
    for call in (lambda: other.search("cows"), lambda: ours.search(["cows"]), ours.stats):
        with pytest.raises(ClusterError, match="was closed"):
            call()


def test_a_full_shard_takes_no_more(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all shards are full, chunks that are added become a shard of their own, and the bits are the same."""
    monkeypatch.setattr("relevance_gen.cluster.balance._MOST_TOKENS", 20)
    one = ChunkIndex(texts(20))
    with ClusterIndex(texts(20), n_shards=2, replicas=2) as ours:
        for index in (one, ours):
            index.add(texts(9, seed=3))
            index.remove([3, 22])
        assert [len(shard.nodes) for shard in ours.stats().shards] == [2, 2, 2]
        assert ours.search(QUERIES) == one.search(QUERIES)


def test_chunks_go_where_there_is_room(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that would make the smallest shard too large become one of their own, but not where it is empty."""
    monkeypatch.setattr("relevance_gen.cluster.balance._MOST_TOKENS", 1000)
    large = "dogs bark " * 500
    one = ChunkIndex(texts(4))
    with ClusterIndex(texts(4), n_shards=2) as ours, ClusterIndex([]) as empty:
        for text, n_shards in (("cats", 2), (large, 3), (large, 4), ("cows", 4)):
            for index in (one, ours):
                index.add([text])
            assert ours.stats().num_shards == n_shards
        assert ours.search([*QUERIES, "dogs"]) == one.search([*QUERIES, "dogs"])
        for _ in range(2):
            empty.add([large])
        assert empty.stats().num_shards == 2


def test_blank_chunks_keep_their_place(cluster: Any) -> None:
    """Blank chunks are left out and the others keep their positions, in building as in adding; none at all is fine."""
    one = ChunkIndex(["a b", " ", "c"], blank="skip")
    one.add(["", "c d"], blank="skip")
    with ClusterIndex(["a b", " ", "c"], blank="skip") as ours:
        ours.add(["", "c d"], blank="skip")
        assert told(ours, "c") == told(one, "c")


def test_an_empty_index_can_grow(cluster: Any) -> None:
    """An index of no chunks finds nothing until some are added."""
    with ClusterIndex([]) as empty:
        assert len(empty) == 0
        assert not empty.search("c").results
        assert empty.add([]) == range(0)
        assert empty.add(["c"]) == range(1)
        assert told(empty, "c") == told(ChunkIndex(["c"]), "c")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda index: index.search(" "), "query must be"),
        (lambda index: index.search(["a", ""]), r"query\[1\] must be"),
        (lambda index: index.search("a", where=[10**6]), r"where\[0\] must be"),
        (
            lambda index: index.search("a", where={"pages": 1}),
            "where must name keys that chunks have, got 'pages'",
        ),
        (lambda index: index.search("a", min_relative_score=2), "min_relative_score must be"),
        (lambda index: index.add(["fine", " "]), r"chunks\[1\]"),
        (lambda index: index.remove([0, -1]), r"positions\[1\] must be"),
        (lambda index: index.remove(3), "positions must be a list"),
        (lambda index: index.explain("a", 10**6), "chunk must be"),
        (lambda index: index[10**6], "position must be an integer in"),
        (lambda index: index["a"], "position must be an integer in"),
        (lambda index: index.save(""), "folder must be"),
        (lambda _: ClusterIndex(["a"], n_shards=0), "n_shards must be"),
        (lambda _: ClusterIndex(["a"], replicas=0), "replicas must be"),
        (lambda _: ClusterIndex(["a"], address="ray://there"), "address must be"),
        (lambda _: ClusterIndex(["a"], name=""), "name must be"),
        (lambda _: ClusterIndex(["a"], weighting="bm25"), "weighting must be"),
        (lambda _: ClusterIndex(["a"], encoder=object()), "encoder must be None"),
        (lambda index: index.search("a", encoder=LetterEncoder()), "encoder must be None"),
        (lambda index: index.search("a", reranker="a.gguf"), "reranker must be a Reranker"),
        (
            lambda index: index.search("a", rerank_top_n=None),
            "rerank_top_n must be an integer where there is no reranker",
        ),
    ],
)
def test_bad_input_is_named(pair: tuple[ClusterIndex, ChunkIndex], call: Any, said: str) -> None:
    """What is not allowed is named as the caller knows it, and changes nothing."""
    n_before = len(pair[0])
    with pytest.raises(InvalidRequestError, match=said):
        call(pair[0])
    assert len(pair[0]) == n_before


def test_a_foreign_folder_is_refused(cluster: Any, tmp_path: Path) -> None:
    """Whatever is no saved index is told from one, and so is one whose files were changed."""
    with pytest.raises(IndexFormatError, match="holds no saved index"):
        ClusterIndex.load(tmp_path)
    for content in ("no JSON", "[]", '{"format": 1}', '{"format": 2}'):
        (tmp_path / "index.json").write_text(content)
        with pytest.raises(IndexFormatError):
            ClusterIndex.load(tmp_path)
