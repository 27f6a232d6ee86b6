"""Hosts in this process: however shards are divided among them, they tell what one index tells, in a round or two."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.cluster import host as hosts
from relevance_gen.cluster.calls import Pace
from relevance_gen.cluster.collection import ClusterCollection
from relevance_gen.cluster.host import Host
from relevance_gen.cluster.parts import Recipe
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import HostState, IndexState, ShardState
from relevance_gen.errors import BusyError
from relevance_gen.index.segment import Statistics
from relevance_gen.retrieval.answer import answer
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.text.token_counting import token_counter
from relevance_gen.types import SearchMetadata
from tests import strategies
from tests.cluster.shared import texts
from tests.cluster.test_shard import Texts

COUNTS = SearchMetadata(1, 1)


class Called(ClusterCollection):
    """Calls the hosts of one node in this process, and notes what for."""

    def __init__(self, state: IndexState, called: Sequence[Host]) -> None:
        super().__init__(state, Pace())
        self.asked: list[str] = []
        self._hosts = called

    def _call(
        self, shards: Sequence[ShardState], merge: Any, function: Any, *args: Any, **kwargs: Any
    ) -> Any:
        method = args[0] if function.__name__ == "ask" else function
        self.asked.append(method.__name__)
        told = []
        for number, host in enumerate(self._hosts):
            if some := [shard.number for shard in shards if shard.hosts[0].number == number]:
                question = hosts.pickle.dumps((function, args, kwargs, merge))
                told.append(
                    hosts.whole(host.ask(hosts.pickle.dumps((0, {number: some})), question))
                )
        return told[0] if len(told) == 1 else merge(told)

    def answer(self, query: str, **options: Any) -> Any:
        """Return the answer to a question, and what was asked for it."""
        self.asked.clear()
        return answer(SearchParams(query, **options), self, self.state.n_positions, COUNTS), [
            *self.asked
        ]


def spread(
    chunks: Sequence[str], n_shards: int, n_hosts: int, weighting: Any = "pivoted"
) -> Called:
    """Return an index of chunks, cut into shards that are divided among hosts."""
    counter = token_counter()
    called = [Host(number, weighting, counter) for number in range(n_hosts)]
    states = [HostState(number, None, "node") for number in range(n_hosts)]
    cuts = [len(chunks) * number // n_shards for number in range(n_shards + 1)]
    told = [
        called[number % n_hosts].build(number, Recipe.of(Texts(list(chunks[start:stop])), start))
        for number, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]
    statistics = sum((one.statistics for one in told), Statistics())
    for number, host in enumerate(called):
        host.adopt(range(number, n_shards, n_hosts), 0, statistics)
    shards = tuple(
        ShardState(number, one.runs, one.statistics.n_chunks, (states[number % n_hosts],), 0, None)
        for number, one in enumerate(told)
    )
    whole = statistics.scalars, len(chunks), 1, weighting, counter
    return Called(IndexState(0, 0, shards, *whole), called)


@given(
    chunks=strategies.chunk_lists,
    query=strategies.queries,
    n_shards=st.integers(1, 5),
    n_hosts=st.integers(1, 3),
    weighting=st.sampled_from(["pivoted", "cosine"]),
    where=st.sampled_from([None, [0, 2]]),
)
def test_however_shards_are_divided(
    chunks: list[str], query: str, n_shards: int, n_hosts: int, weighting: Any, where: Any
) -> None:
    """Shards tell the same bits however many there are, and however they are divided among hosts."""
    where = where if len(chunks) > 2 else None
    ours = spread([*chunks, query], n_shards, n_hosts, weighting)
    one = ChunkIndex([*chunks, query], weighting=weighting)._state
    expected = answer(SearchParams(query, where=where), one.collection, one.n_positions, COUNTS)
    for _ in range(2):
        found, _ = ours.answer(query, where=where)
        assert (found, found.confidence) == (expected, expected.confidence)


def test_a_question_is_one_round() -> None:
    """A question of words that were asked for is one round, texts included; new words, or long texts, take one more."""
    draw = random.Random(1)  # noqa: S311
    chunks = [" ".join(draw.choices(strategies.ENGLISH, k=9)) for _ in range(400)]
    ours = spread(chunks, 8, 3)
    ours._sample  # noqa: B018 is asked for once in an epoch
    for options in ({}, {"spans": True}, {"where": [*range(90)]}):
        for query in ("what do cats do", "connections of zebras"):
            ours._terms.clear()
            ours._rankings.clear()
            assert ours.answer(query, **options)[1] == ["look_up", "leaders"], options
            ours._rankings.clear()
            assert ours.answer(query, **options)[1] == ["leaders"], options
    long = spread([f"{text} {'on and on ' * 4000}" for text in chunks[:40]], 4, 2)
    long._sample  # noqa: B018
    assert long.answer("cats")[1] == ["look_up", "leaders", "tell"]


def test_the_best_may_all_be_in_one_shard() -> None:
    """Where one host has more of the best than it told of, it is asked for the others, and the bits are the same."""
    chunks = [f"cats {text}" for text in texts(60, 1)] + texts(600, 2)
    ours = spread(chunks, 12, 12)
    ours._sample  # noqa: B018
    assert ours.n_told < 50
    one = ChunkIndex(chunks)._state
    found, asked = ours.answer("cats")
    assert asked == ["look_up", "leaders", "tell"]
    assert found == answer(SearchParams("cats"), one.collection, one.n_positions, COUNTS)


def test_what_a_host_refuses() -> None:
    """What it does not have, a state, a shard or a host of its node, is outdated; more than it can do is refused."""
    (host,) = spread(texts(3), 1, 1)._hosts
    question = hosts.pickle.dumps((hosts.Scorers.ask, (hosts.Scorers.ask,), {}, max))
    for epoch, shards in ((7, {0: [0]}), (0, {0: [5]}), (0, {0: [0], 9: [1]})):
        with pytest.raises(OutdatedError):
            hosts.whole(host.ask(hosts.pickle.dumps((epoch, shards)), question))
    host._asked.charge(64)
    with pytest.raises(BusyError, match="works at 64 questions already"):
        hosts.whole(host.ask(hosts.pickle.dumps((0, {0: [0]})), question))


def test_what_only_cloudpickle_can_pickle_is_told() -> None:
    """An answer may hold what no module has by its name, such as metadata of a class that a caller's program made."""
    told = hosts.whole([hosts._pickled([lambda: 7])])
    assert told[0]() == 7


def test_a_host_imports_nothing_that_reads_documents() -> None:
    """Actors start sooner without what only a few of them need."""
    code = "import sys, relevance_gen.cluster.host; print(*(one for one in sys.modules if 'relevance_gen.doc' in one))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"
