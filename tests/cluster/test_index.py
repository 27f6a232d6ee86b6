"""Tests that an index of a cluster gives the results of `ChunkIndex`, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError
from relevance_gen.cluster import ClusterIndex
from relevance_gen.cluster.connection import Node
from relevance_gen.cluster.search import index as cluster_index
from relevance_gen.cluster.search import remote_segments
from relevance_gen.errors import ClusterError, IndexFormatError
from relevance_gen.shards.sharded_index import ShardedIndex
from tests import strategies
from tests.cluster.shared import QUERIES, texts
from tests.profiles import costly
from tests.retrieval.test_cross_encoder import HashReranker
from tests.retrieval.test_dense_fusion import LetterEncoder


def results_of(index: Any, query: str, **options: Any) -> tuple[Any, ...]:
    """Return an answer in a form in which equal means the same bits."""
    response = index.search(query, **options)
    return response, response.confidence, response.metadata


def has_page(metadata: Any) -> bool:
    return "page" in metadata


@pytest.fixture(scope="module")
def pair(cluster: Any) -> Iterator[tuple[ClusterIndex, ChunkIndex]]:
    """Give the same chunks to a cluster and to one machine."""
    chunks = [
        {"text": text, "metadata": {"page": location % 3}}
        for location, text in enumerate(texts(60))
    ]
    with ClusterIndex(chunks, n_shards=4) as index:
        yield index, ChunkIndex(chunks)


@costly
@given(data=st.data())
def test_results_are_those_of_a_chunk_index(
    pair: tuple[ClusterIndex, ChunkIndex], data: st.DataObject
) -> None:
    """After any changes, searches, explanations and chunks equal those in `ChunkIndex`, bit for bit."""
    ours, one = pair
    query = data.draw(strategies.queries)
    chunks = data.draw(strategies.chunk_lists) + data.draw(st.lists(st.just(query), max_size=2))
    assert ours.add(chunks) == one.add(chunks)
    # The first chunks stay, because a filter by a key that no chunk has is an error.
    left = one.chunks.positions.tolist()[3:]
    drawn = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
    *gone, kept = dict.fromkeys(left[number % len(left)] for number in drawn)
    assert ours.remove(gone) == one.remove(gone) == len(gone)
    assert len(ours) == len(one)
    top_n = data.draw(st.integers(1, 60))
    assert results_of(ours, query, top_n=top_n) == results_of(one, query, top_n=top_n)
    where = data.draw(
        st.sampled_from(
            [
                {"page": 1},
                {"page": [0, 2]},
                [location for location in left if location % 2],
                has_page,
            ]
        )
    )
    options = {
        "where": where,
        "min_relative_score": data.draw(st.sampled_from([0.0, 0.5])),
        "spans": True,
        "true_order": False,
    }
    assert results_of(ours, query, **options) == results_of(one, query, **options)
    assert ours.explain(query, kept) == one.explain(query, kept)
    start, stop = data.draw(st.integers(-9, 70)), data.draw(st.integers(-9, 90))
    for some in (kept, slice(start, stop), slice(-1, None, -2), slice(9, 3)):
        assert ours[some] == one[some]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cluster_index, "_POSITIONS_PER_REQUEST", data.draw(st.sampled_from([7, 1000]))
        )
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
    assert results_of(ours, signed, syntax="operators", **options) == results_of(
        one, signed, syntax="operators", **options
    )
    assert ours.explain(signed, kept, syntax="operators") == one.explain(
        signed, kept, syntax="operators"
    )


def test_remove_where_removes_from_all_shards(cluster: Any) -> None:
    """`remove(where=…)` removes the same chunks as in `ChunkIndex` and returns their number."""
    chunks = [{"text": f"cat {page}", "metadata": {"page": page % 3}} for page in range(9)]
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=2) as ours:
        assert ours.remove(where={"page": [1, 2]}) == one.remove(where={"page": [1, 2]}) == 6
        assert results_of(ours, "cat") == results_of(one, "cat")
        with pytest.raises(InvalidRequestError, match="did you mean page"):
            ours.remove(where={"pge": 1})


def test_replace_in_a_cluster_is_one_version(cluster: Any) -> None:
    """`replace` changes a cluster as it changes a `ChunkIndex`, with one published version."""
    chunks = [Chunk(f"cat {page}", {"id": page % 3}) for page in range(9)]
    new = [Chunk("new cat", {"id": 1}), Chunk("newer cat", {"id": "x"})]
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=2) as ours:
        number = ours._refresh().version.number
        assert ours.replace(new) == one.replace(new) == range(9, 11)
        assert ours._refresh().version.number == number + 1
        assert list(ours) == list(one)
        assert results_of(ours, "cat") == results_of(one, "cat")


def test_number_of_requests_of_a_search(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known words take one request to the searchers, new words two, a misspelled word three; so the docs say."""
    n_requests = 0
    responses = remote_segments._Round.responses

    def count(*args: Any) -> Any:
        nonlocal n_requests
        n_requests += 1
        return responses(*args)

    def requests_of(query: str) -> int:
        nonlocal n_requests
        n_requests = 0
        assert ours.search(query) == one.search(query)
        return n_requests

    chunks = texts(60, seed=4)
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=3) as ours:
        monkeypatch.setattr(remote_segments._Round, "responses", count)
        reported = {
            "first": requests_of("cats"),
            "new words": requests_of("running dogs"),
            "known words": requests_of("dogs running"),
            "misspelled": requests_of("conections"),
            "misspelled again": requests_of("conections cats"),
        }
    assert reported == {
        "first": 4,
        "new words": 2,
        "known words": 1,
        "misspelled": 3,
        "misspelled again": 2,
    }


def test_cosine_weighting_equals_a_chunk_index(cluster: Any) -> None:
    """With cosine weighting and several queries, the bits are the same, too."""
    chunks = texts(50, seed=2)
    one = ChunkIndex(chunks, weighting="cosine")
    with ClusterIndex(chunks, n_shards=2, weighting="cosine") as ours:
        assert ours.search(QUERIES) == one.search(QUERIES)
        assert repr(ours).startswith("<ClusterIndex of 50 chunks in 2 shards, cosine weighting")


def test_reranker_runs_in_the_calling_process(pair: tuple[ClusterIndex, ChunkIndex]) -> None:
    """A reranker reads the same texts, and answers and explanations are the same."""
    ours, one = pair
    for query in (QUERIES[0], [*QUERIES]):
        read, read_here = HashReranker(), HashReranker()
        assert ours.search(query, reranker=read, rerank_top_n=5) == one.search(
            query, reranker=read_here, rerank_top_n=5
        )
        assert sorted(read.read) == sorted(read_here.read)
    best = one.search(QUERIES[0], 1)[0].original_index
    explanation = ours.explain(QUERIES[0], best, reranker=HashReranker())
    assert explanation == one.explain(QUERIES[0], best, reranker=HashReranker())
    assert explanation.relevance is not None


def test_blank_chunks_keep_their_positions(cluster: Any) -> None:
    """Skipped blank chunks keep their positions, in building and in adding."""
    one = ChunkIndex(["a b", " ", "c"], blank="skip")
    one.add(["", "c d"], blank="skip")
    with ClusterIndex(["a b", " ", "c"], blank="skip") as ours:
        ours.add(["", "c d"], blank="skip")
        assert results_of(ours, "c") == results_of(one, "c")


def test_empty_index_grows(cluster: Any) -> None:
    """An index without chunks finds nothing until chunks are added."""
    with ClusterIndex([]) as empty:
        assert len(empty) == 0
        assert not empty.search("c").results
        assert empty.add([]) == range(0)
        assert empty.add(["c"]) == range(1)
        assert results_of(empty, "c") == results_of(ChunkIndex(["c"]), "c")


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
        (lambda index: index.save(""), "location must be"),
        (lambda _: ClusterIndex(["a"], n_shards=0), "n_shards must be"),
        (lambda _: ClusterIndex(["a"], location=7), "location must be"),
        (lambda _: ClusterIndex(), "chunks must be given, or source or location instead"),
        (lambda _: ClusterIndex(["a"], address="ray://there"), "address must be"),
        (lambda _: ClusterIndex(["a"], name=""), "name must be"),
        (lambda _: ClusterIndex(["a"], weighting="bm25"), "weighting must be"),
        (lambda _: ClusterIndex(["a"], encoder=object()), "encoder must be None"),
        (lambda index: index.search("a", encoder=LetterEncoder()), "encoder must be None"),
        (lambda index: index.search("a", reranker="a.gguf"), "reranker must be a Reranker"),
        (
            lambda index: index.search("a", rerank_top_n=None),
            "rerank_top_n must be an integer unless reranker is passed",
        ),
    ],
)
def test_invalid_argument_changes_nothing(
    pair: tuple[ClusterIndex, ChunkIndex], call: Any, said: str
) -> None:
    """An invalid argument raises an error that names it, and the index stays as it is."""
    n_before = len(pair[0])
    with pytest.raises(InvalidRequestError, match=said):
        call(pair[0])
    assert len(pair[0]) == n_before


def test_stats_describe_the_shards(cluster: Any) -> None:
    """Shards of similar size are spread over all nodes, and each is open on two nodes."""
    chunks = [{"text": text, "metadata": {"page": 1}} for text in texts(60)]
    with ClusterIndex(chunks, n_shards=6) as index:
        stats = index.stats()
        assert stats.num_chunks == 60
        assert stats.num_missing_chunks == 0
        assert stats.errors == ()
        assert len({shard.nodes[0] for shard in stats.shards}) == 3
        assert all(len(shard.nodes) == 2 for shard in stats.shards)
        assert index.nbytes == sum(shard.size_bytes for shard in stats.shards) > 0
        assert index.metadata_keys == {"page"}


def test_saved_index_is_shared(cluster: Any, tmp_path: Path) -> None:
    """A saved index has the same bits with Ray and without; changes are visible in both directions."""
    chunks = texts(40, seed=9)
    one = ChunkIndex(chunks)
    one.remove([3, 39])
    with ClusterIndex(chunks, n_shards=2) as ours:
        ours.remove([3, 39])
        ours.save(tmp_path / "saved")
        names = {path.name for path in (tmp_path / "saved").glob("*.shard")}
        ours.save(f"file://{tmp_path}/saved")
    assert {path.name for path in (tmp_path / "saved").glob("*.shard")} == names
    alone = ShardedIndex.open(tmp_path / "saved")
    with ClusterIndex.load(tmp_path / "saved") as loaded:
        assert loaded.search(QUERIES) == one.search(QUERIES) == alone.search(QUERIES)
        assert loaded.add(["one more"]) == one.add(["one more"]) == range(40, 41)
        alone.refresh()
        assert alone.add(["two more"]) == one.add(["two more"])
        loaded._checked_s = 0.0
        assert loaded.search([*QUERIES, "more"]) == one.search([*QUERIES, "more"])
        assert loaded.compact() == 3
        assert loaded.search([*QUERIES, "more"]) == one.search([*QUERIES, "more"])
        alone.refresh()
        assert alone.n_shards == loaded.stats().num_shards == 1
        loaded.save(tmp_path / "copy")
    assert ShardedIndex.open(tmp_path / "copy").search("more") == one.search("more")


def test_index_is_built_at_a_place(cluster: Any, tmp_path: Path) -> None:
    """With `location`, the index remains after `close`, and building again replaces it."""
    for chunks in (["cats purr"], ["dogs bark", "dogs sleep"]):
        with ClusterIndex(chunks, location=tmp_path) as index:
            assert len(index) == len(chunks)
        assert len(ShardedIndex.open(tmp_path)) == len(chunks)
    with ClusterIndex(location=tmp_path) as index:
        assert len(index.search("dogs").results) == 2


def test_temporary_folder_is_removed(cluster: Any) -> None:
    """Without `location`, a temporary folder is used until `close`."""
    with ClusterIndex(["cats purr"]) as index:
        folder = Path(index._location)
        assert list(folder.glob("*.shard"))
    assert not folder.exists()
    assert not folder.with_name(f"{folder.name}.lock").exists()


def test_several_machines_need_a_place(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the nodes have different IP addresses, building without `location` is refused with a remedy."""
    nodes = [Node(f"{number}", 1.0, 0.0, f"10.0.0.{number}") for number in range(2)]
    monkeypatch.setattr(cluster_index, "living_nodes", lambda: nodes)
    message = "location must be given, because the cluster has 2 machines; name a folder that all"
    with pytest.raises(InvalidRequestError, match=message):
        ClusterIndex(["cats purr"])


def test_place_that_nodes_do_not_share_is_refused(cluster: Any) -> None:
    """Each process has its own `memory://`, so it cannot be a location."""
    with pytest.raises(InvalidRequestError, match="location must be the same folder for all nodes"):
        ClusterIndex(["cats purr", "dogs bark"], n_shards=2, location="memory://own")
    ShardedIndex.build(["cats purr"], "memory://other")
    with pytest.raises(InvalidRequestError, match="location must be the same folder for all nodes"):
        ClusterIndex.load("memory://other")


def test_name_is_found_by_other_processes(cluster: Any) -> None:
    """A named index is found until it is closed, by processes with the same versions."""
    with ClusterIndex(["Cats purr.", "Dogs bark."], name="pets") as ours:
        other = ClusterIndex.named("pets")
        other.add(["Cows moo."])
        ours._checked_s = 0.0
        assert [result.chunk_txt for result in ours.search("cows")] == ["Cows moo."]
        with pytest.raises(ClusterError, match="has the name 'pets'"):
            ClusterIndex(["x"], name="pets")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("relevance_gen.__version__", "9.9")
            message = r"node \w+ has relevance_gen 0.*, and this process relevance_gen 9\.9, numpy"
            with pytest.raises(ClusterError, match=message):
                ClusterIndex.named("pets")
    with pytest.raises(ClusterError, match="no index of the cluster has the name 'pets'"):
        ClusterIndex.named("pets")
    other._checked_s = 0.0
    for call in (lambda: other.search("cows"), lambda: ours.search(["cows"]), ours.stats):
        with pytest.raises(ClusterError, match="was closed"):
            call()


def test_failed_build_leaves_nothing(cluster: Any) -> None:
    """Metadata that is not JSON fails the build, and the temporary folder is removed."""
    with pytest.raises(ClusterError, match=r"metadata\.a must be JSON") as refused:
        ClusterIndex([{"text": "cats", "metadata": {"a": {1, 2}}}])
    assert refused.value is not None


def test_foreign_folder_is_refused(cluster: Any, tmp_path: Path) -> None:
    """A folder without an index, or with a foreign `index.json`, is refused."""
    with pytest.raises(IndexFormatError, match="holds no saved index"):
        ClusterIndex.load(tmp_path)
    for content in ("no JSON", "[]", '{"format": 1}'):
        (tmp_path / "index.json").write_text(content)
        for call in (ClusterIndex.load, lambda location: ClusterIndex(["a"], location=location)):
            with pytest.raises(IndexFormatError):
                call(tmp_path)
