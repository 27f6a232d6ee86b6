"""Prefix cache: longest match, memory limit and eviction order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.queue.request import ANONYMOUS
from relevance_gen.lru import _ENTRY_BYTES

prompts = st.lists(st.integers(0, 2), max_size=8).map(lambda tokens: np.array(tokens, np.int32))


def state(n_bytes=10):
    return np.zeros(n_bytes, np.uint8)


@given(stored=st.lists(prompts, max_size=8), wanted=prompts)
def test_longest_match_finds_longest_common_prefix(stored, wanted):
    """If all prompts fit, the match is the longest prefix that any cached prompt shares."""
    cache = PrefixCache(10**6)
    for prompt in stored:
        cache.put(prompt, state())
    match = cache.longest_match(wanted)
    n_common, entry = match.n_tokens, match.cached
    shared = [
        next(
            (i for i in range(min(len(p), len(wanted))) if p[i] != wanted[i]),
            min(len(p), len(wanted)),
        )
        for p in stored
    ]
    assert n_common == max(shared, default=0)
    if entry is not None:
        np.testing.assert_array_equal(entry.tokens[:n_common], wanted[:n_common])


@given(
    puts=st.lists(st.tuples(prompts, st.integers(0, 60)), max_size=12),
    max_bytes=st.integers(0, 4 * _ENTRY_BYTES),
)
def test_put_stays_within_max_bytes(puts, max_bytes):
    """After each put the bytes are counted correctly and are within the limit."""
    cache = PrefixCache(max_bytes)
    for prompt, n_bytes in puts:
        cache.put(prompt, state(n_bytes))
        assert 0 <= cache.size_bytes <= max_bytes
    if len(cache) == 0:
        assert cache.size_bytes == 0


def test_put_evicts_least_recently_used():
    """A prompt that was matched recently stays; an unused prompt is evicted."""
    a, b, c = (np.full(4, token, np.int32) for token in range(3))
    cache = PrefixCache(2 * (16 + 10 + _ENTRY_BYTES))
    cache.put(a, state())
    cache.put(b, state())
    cache.longest_match(a)
    cache.put(c, state())
    assert [cache.longest_match(prompt).n_tokens for prompt in (a, b, c)] == [4, 0, 4]


def test_put_longer_prompt_replaces_its_prefix():
    """A prompt that is a prefix of a new prompt is dropped."""
    cache = PrefixCache(10_000)
    cache.put(np.zeros(3, np.int32), state())
    cache.put(np.zeros(5, np.int32), state())
    assert len(cache) == 1


@given(
    stored=prompts,
    own=st.sampled_from([None, "", "a"]),
    other=st.sampled_from([None, "", "a", "b"]),
)
def test_longest_match_ignores_prompts_of_other_clients(stored, own, other):
    """A client finds only its own prompts, so response times reveal nothing about other clients."""
    cache = PrefixCache(10**6)
    cache.put(stored, state(), own)
    assert cache.longest_match(stored, other).n_tokens == (len(stored) if own == other else 0)


def test_put_evicts_anonymous_prompts_first():
    """Prompts of anonymous clients are evicted first, then the oldest prompts of the client with the most memory."""
    cache = PrefixCache(4 * (_ENTRY_BYTES + 60))
    ours, *others = (np.full(5, number, np.int32) for number in range(9))
    cache.put(ours, state(), "ours")
    for other in others[:4]:
        cache.put(other, state(), ANONYMOUS)
    assert cache.longest_match(ours, "ours").n_tokens == 5
    for other in others[4:]:
        cache.put(other, state(), "greedy")
    assert cache.longest_match(ours, "ours").n_tokens == 5
    assert cache.longest_match(others[-1], "greedy").n_tokens == 5
    assert [cache.longest_match(other, ANONYMOUS).n_tokens for other in others[:4]] == [0, 0, 0, 0]
