"""Constrained decoding: valid output, unchanged concurrent requests, and errors for grammars that cannot be compiled."""

import json
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import InvalidRequestError, OverloadedError
from relevance_gen.generation.constraints import grammar_compiler as grammars
from relevance_gen.generation.constraints import llguidance_backend as guidance
from relevance_gen.generation.constraints.token_constraint import (
    GrammarSource,
    MaskTimeBudget,
    grammar_source,
)
from relevance_gen.generation.queue.request import ANONYMOUS, RequestContext
from relevance_gen.generation.runner import Runner
from relevance_gen.quota import Quota
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, BIGRAM_TOKENS, END, LETTER_A, bigram_table
from tests.profiles import costly

SLOW = [{"type": "integer", "multipleOf": 999_983 + 2 * n} for n in range(36)]
"""Schemas that take more than three seconds to compile."""
CHAIN = "start: r0\n" + "".join(f'r{n}: "a" r{n + 1}\n' for n in range(9000)) + 'r9000: "z"'
"""A grammar whose compilation overflows a stack of 8 MiB."""


@pytest.fixture(scope="module")
def embedded():
    """A runner with the embedded model."""
    with Runner(n_slots=4, n_ctx=512, n_threads=1) as runner:
        yield runner


def samples_of(runner, **fields):
    """Return the completions of a request without top_k, so that all tokens can be sampled."""
    return runner.generate(
        {"text": "a", "max_tokens": 120, "top_k": 0, "return_tokens": True, **fields}
    ).responses


# ── Whatever is drawn parses ──────────────────────────────────────────────────────────────────────

scalars = st.one_of(
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        *[st.integers(0, 99)] * 2,
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 9)),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.integers(-(2**53), 2**53) | st.text(), min_size=1, max_size=3),
    ),
    st.just({"type": "string", "pattern": "^[a-f]{2,4}$"}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"ä": [1, "\n"]}}]),
)


def nested(inner):
    """Return schemas of arrays and objects that contain `inner`."""
    names = st.sampled_from(["a", "b", "name", 'with "quotes"', "ü"])
    return st.one_of(
        st.builds(
            lambda item, n: {"type": "array", "items": item, "maxItems": n},
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
        st.dictionaries(names, inner, max_size=3).map(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:2],
                "additionalProperties": False,
            }
        ),
    )


schemas = st.recursive(scalars, nested, max_leaves=5).filter(
    lambda schema: "type" in schema or "anyOf" in schema
)


@costly
@given(schema=schemas, seed=st.integers(0, 99))
@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_json_schema_sample_is_valid(request, model, schema, seed):
    """An independent validator accepts each complete sample; a truncated sample has max_tokens tokens."""
    for sample in samples_of(
        request.getfixturevalue(model), json_schema=schema, seed=seed, num_samples=2
    ):
        if sample.finish_reason == "eos":
            assert jsonschema_rs.is_valid(schema, json.loads(sample.text)), sample.text
        else:
            assert (sample.finish_reason, sample.generated_tokens) == ("length", 120)


expressions = st.recursive(
    st.sampled_from(
        ["a", "bc", "[a-e]", "[^a-y]", "[0-9]", "é", "."]
    ),  # not \d: Pythons know different digits
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.builds(
            lambda part, times: f"({part}){times}",
            inner,
            st.sampled_from(["?", "*", "+", "{2}", "{1,3}"]),
        ),
    ),
    max_leaves=6,
)


@costly
@given(expression=expressions, seed=st.integers(0, 99))
@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_regex_sample_matches_completely(request, model, expression, seed):
    """Anchors in the expression are optional."""
    for regex in (expression, f"^{expression}$"):
        for sample in samples_of(
            request.getfixturevalue(model), regex=regex, seed=seed, max_tokens=30
        ):
            if sample.finish_reason == "eos":
                assert re.fullmatch(expression, sample.text), sample.text


@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_grammar_sample_has_balanced_parentheses(request, model):
    """A recursive grammar produces balanced parentheses."""
    grammar = 'start: "(" start ")" | "(" /[a-z]/ ")"'
    samples = samples_of(request.getfixturevalue(model), grammar=grammar, num_samples=4, seed=3)
    assert {sample.finish_reason for sample in samples} == {"eos"}
    for sample in samples:
        n = sample.text.count("(")
        assert re.fullmatch(rf"\({{{n}}}[a-z]\){{{n}}}", sample.text)


@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_gbnf_grammar_is_followed(request, model):
    """Grammars in llama.cpp's format are accepted unchanged."""
    grammar = 'root ::= "(" root ")" | "(" [a-z] ")" # balanced\n'
    samples = samples_of(request.getfixturevalue(model), grammar=grammar, num_samples=4, seed=3)
    assert {sample.finish_reason for sample in samples} == {"eos"}
    for sample in samples:
        n = sample.text.count("(")
        assert re.fullmatch(rf"\({{{n}}}[a-z]\){{{n}}}", sample.text)


# ── Where it ends ─────────────────────────────────────────────────────────────────────────────────


def test_complete_text_ends_without_end_token(bigram):
    """The sample ends with the token that completes the text, regardless of min_tokens."""
    (sample,) = samples_of(bigram, regex="z", min_tokens=5)
    assert (sample.text, sample.finish_reason, sample.tokens) == ("z", "eos", (LETTER_A + 25,))


def test_extendable_text_ends_with_an_end_token(bigram):
    """End tokens of the model and of the request are allowed only after a complete text, and delayed by min_tokens."""
    five = BIGRAM_TOKENS.index(b"05")
    samples = samples_of(
        bigram, regex="(aa)+", eos_token_ids=[five], num_samples=40, seed=1, temperature=3
    )
    assert {sample.tokens[-1] for sample in samples} == {END, five}
    assert all(
        sample.finish_reason == "eos" and re.fullmatch("(aa)+", sample.text) for sample in samples
    )
    long = samples_of(bigram, regex="a+", min_tokens=9, num_samples=8, seed=1)
    assert all(len(sample.text) >= 9 for sample in long)


def test_end_token_is_not_sampled_for_its_text(bigram):
    """An end token is not used to write its text, even if the grammar allows that text."""
    b = LETTER_A + 1
    samples = samples_of(bigram, regex="[abc]{6}", eos_token_ids=[b], num_samples=8)
    assert all(re.fullmatch("[ac]{6}", sample.text) for sample in samples)


def test_max_tokens_and_stop_strings_truncate_constrained_samples(bigram):
    """The finish reasons are "length" and "stop"."""
    (sample,) = samples_of(bigram, regex="[a-c]{9}", max_tokens=4)
    assert (len(sample.text), sample.finish_reason) == (4, "length")
    (sample,) = samples_of(bigram, regex="a{4}z{4}", stop=["z"])
    assert (sample.text, sample.finish_reason) == ("aaaa", "stop")


def test_position_without_allowed_token_fails_the_request(bigram):
    """Only this request fails; a concurrent request continues."""
    neighbor = bigram.submit({"text": "z", "max_tokens": 50, "temperature": 0})
    with pytest.raises(
        InvalidRequestError, match="regex allows no token of this model at this position"
    ):
        bigram.generate({"text": "a", "regex": "abQ", "num_samples": 3})
    assert neighbor.result().responses[0].generated_tokens == 50
    assert bigram.stats().backlog == 0


# ── Nobody else notices ───────────────────────────────────────────────────────────────────────────


@costly
@given(seed=st.integers(0, 10**6))
def test_constraint_does_not_change_concurrent_requests(tiny, seed):
    """Requests without a constraint have the same tokens and log probabilities as alone."""
    fields = {"max_tokens": 20, "seed": seed, "logprobs": True, "return_tokens": True}
    requests = [GenerationRequest(text, **fields) for text in ("one", "two", "three")]

    def outcomes(futures):
        return [
            [(response.tokens, response.logprobs) for response in future.result().responses]
            for future in futures
        ]

    alone = outcomes([tiny.submit(request) for request in requests])
    constrained = [GenerationRequest("x", regex="[a-z]{5,30}!", seed=seed, num_samples=2)]
    mixed = [tiny.submit(request) for request in (constrained + requests)]
    assert outcomes(mixed[1:]) == alone


def test_logprobs_with_constraint_are_unconstrained(bigram):
    """Log probabilities and top log probabilities are those of the complete vocabulary."""
    (sample,) = samples_of(bigram, text="z", regex="[a-m]{5}", logprobs=True, top_logprobs=2)
    table = bigram_table().astype(np.float64)
    own = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    before = (LETTER_A + 25, *sample.tokens)
    expected = [
        own[current, following] for current, following in zip(before, sample.tokens, strict=False)
    ]
    np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)
    assert [top_logprob[0].token for top_logprob in sample.top_logprobs] == [
        int(own[current].argmax()) for current in before[:-1]
    ]


def test_seed_repeats_constrained_samples(tiny):
    """A repeated request and concurrent equal requests have the same samples."""
    fields = {
        "json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
        "seed": 5,
    }
    once = [sample.text for sample in samples_of(tiny, num_samples=4, **fields)]
    futures = [
        tiny.submit({"text": "a", "max_tokens": 120, "top_k": 0, "num_samples": 4, **fields})
        for _ in range(6)
    ]
    assert [[sample.text for sample in future.result().responses] for future in futures] == [
        once
    ] * 6


def test_cancelled_constrained_request_frees_its_slots(bigram):
    """Both during compilation and during decoding."""
    grows = threading.Event()
    fields = {
        "text": "a",
        "regex": "[a-y]+",
        "max_tokens": 200,
        "num_samples": 8,
        "min_tokens": 200,
    }
    growing = bigram.submit(fields, on_text=lambda *_: grows.set())
    compiled = bigram.submit({"text": "a", "json_schema": SLOW[0]})
    assert grows.wait(60)
    assert growing.cancel()
    assert compiled.cancel()
    n_before = bigram.counters().generated_tokens
    assert bigram.generate({"text": "z", "max_tokens": 2, "num_samples": 16}).num_samples == 16
    assert bigram.counters().generated_tokens - n_before < 8 * 200
    assert bigram.stats().backlog == 0


# ── What cannot be followed ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "Unimplemented keys"),
        ({"json_schema": {"type": "string", "minLength": 3, "maxLength": 2}}, "nsatisfiable"),
        ({"json_schema": {"$ref": "#"}}, "no text matches it"),
        ({"json_schema": {"$ref": "file:///etc/passwd"}}, "not present in a registry"),
        ({"json_schema": SLOW[0]}, "takes more than 3 seconds"),
        (
            {
                "json_schema": {
                    "allOf": [{"anyOf": [{"minimum": a}, {"minimum": -a}]} for a in range(40)]
                }
            },
            "json_schema",
        ),
        ({"json_schema": {"x-guidance": 3}}, "cannot be compiled"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": "[z-a]"}, "the start must be <= the end"),
        ({"grammar": "start: /a{2,1}/"}, "invalid repetition count range"),
        ({"regex": "(?=a)b"}, "look-around|invalid regex"),
        ({"regex": r"[^\s\S]"}, "no text matches it"),
        ({"regex": "a\\"}, "single backslash"),
        ({"regex": "\ud800"}, "lone surrogates"),
        ({"regex": "(" * 100_000 + "a" + ")" * 100_000}, "invalid regex|nest"),
        ({"regex": "a" * 300_000}, "at most 262,144 characters"),
        ({"grammar": "start: nothing"}, "unknown name"),
        ({"grammar": ""}, "no start rule"),
        ({"grammar": 'start: "x"\nstart: "y"'}, "cannot be compiled"),
        ({"grammar": CHAIN}, "too much memory or nests too deeply"),
        ({"grammar": "start: <|im_end|>"}, "cannot be compiled"),
        ({"grammar": "root ::= other"}, "'other' not found"),
        ({"grammar": 'root ::= "a' + chr(92)}, "in GBNF"),
        ({"grammar": "root ::= " + "(" * 50_000}, "in GBNF"),
        ({"grammar": "root ::= root"}, "no text matches it"),
        ({"grammar": "start: /a/", "regex": "a"}, "cannot be combined with regex"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_uncompilable_grammar_is_rejected_within_seconds(bigram, fields, says):
    """The error names the field and the reason, and other requests are not affected."""
    neighbor = bigram.submit({"text": "z", "max_tokens": 100, "temperature": 0})
    started = time.monotonic()
    with pytest.raises(InvalidRequestError, match=says) as caught:
        bigram.generate({"text": "a", **fields})
    assert caught.value.field in fields
    assert str(caught.value).startswith(caught.value.field)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - started < 20
    assert neighbor.result(60).responses[0].generated_tokens == 100


def test_json_schema_accepts_unknown_formats_classes_and_strings(bigram):
    """An unknown format is an annotation; a class or a JSON string may replace the schema."""

    class Account:
        """A class with a JSON schema, as pydantic defines them."""

        @staticmethod
        def model_json_schema():
            return {
                "type": "object",
                "properties": {"key": {"type": "string", "format": "password", "maxLength": 3}},
            }

    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    for schema in (Account, json.dumps(Account.model_json_schema())):
        request = GenerationRequest("a", json_schema=schema)
        assert request.json_schema == Account.model_json_schema()
        assert compiler.compile(grammar_source(request)).result(60)
    compiler.close()
    assert GenerationRequest("a", stop="b").stop == ("b",)
    with pytest.raises(InvalidRequestError, match="json_schema must be an object"):
        GenerationRequest("a", json_schema="no JSON")


def test_unsupported_schema_key_error_has_path_and_remedy(bigram):
    """The error has the key, its path in the schema and a remedy, but no position in generated text."""
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with pytest.raises(InvalidRequestError) as caught:
        bigram.generate("a", json_schema={"type": "object", "properties": {"names": names}})
    assert str(caught.value) == (
        'json_schema cannot be compiled: Unimplemented keys: ["uniqueItems"] at properties.names.uniqueItems; omit it, '
        'or add "x-guidance": {"lenient": true} to the schema to ignore unsupported keys'
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(a*)*b"},
        {"regex": "((((a{1,100}){1,100}){1,100}){1,100})"},
        {"regex": ".*a.{20}b"},
        {"regex": "a{1000000}"},
        {"json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000}},
        {"json_schema": {"const": "x" * 200_000}},
        {
            "json_schema": {
                "$ref": "#/$defs/a25",
                "$defs": {"a0": {"type": "string"}}
                | {
                    f"a{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{n - 1}"}] * 10}
                    for n in range(1, 26)
                },
            }
        },
        {
            "grammar": 'start: r25\nr0: "a"\n'
            + "".join(f"r{n}: r{n - 1} r{n - 1}\n" for n in range(1, 26))
        },
        {"grammar": 'start: (a | b)*\na: "x"*\nb: "x"* a'},
    ],
    ids=lambda value: str(value)[:40],
)
def test_exploding_grammar_is_followed_or_rejected_in_time(bigram, fields):
    """A small grammar with a huge expansion takes time in proportion to its tokens, or is rejected."""
    started = time.monotonic()
    try:
        bigram.generate({"text": "a", "max_tokens": 40, **fields})
    except InvalidRequestError as error:
        assert error.field in fields
    assert time.monotonic() - started < 20


def test_slow_masks_fail_their_request(tiny):
    """A grammar that compiles quickly and becomes slow later is an error at that time."""
    words = " & ".join(f"/.*{a}.{{35}}{b}.*/" for a, b in ("ab", "bc", "de", "fg"))
    neighbor = tiny.submit({"text": "z", "max_tokens": 50})
    with pytest.raises(InvalidRequestError, match="grammar is too expensive to follow"):
        tiny.generate(
            {
                "text": "a",
                "grammar": f"start: B A\nB: /[a-z]{{9}}/\nA: {words} & ~/.*cd.{{30}}.*/",
                "seed": 1,
            }
        )
    assert neighbor.result().responses[0].generated_tokens == 50


AMBIGUOUS = {
    "text": "Once upon a time",
    "grammar": "start: start start | /[a-z ]/ |",
    "max_tokens": 400,
    "seed": 1,
}
"""Compiles in a millisecond, and each token takes longer to follow than the one before."""


def test_mask_time_counts_towards_the_budget_of_the_request(embedded):
    """The CPU time of masks counts in addition to compilation; above the limit the request fails."""
    with pytest.raises(
        InvalidRequestError,
        match=r"grammar is too expensive to follow: .* CPU seconds|items",
    ):
        embedded.generate(AMBIGUOUS)
    with pytest.raises(
        InvalidRequestError,
        match=r"grammar is too expensive to follow: 9\.00 CPU seconds for 3 tokens",
    ):
        raise overdrawn(9.0)
    assert overdrawn(0.2) is None


def overdrawn(seconds):
    """Return the error after masks took the given seconds for three tokens; None if there is none."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    effort = MaskTimeBudget()
    constraint = (
        compiler.compile(GrammarSource("grammar", 'start: "abcdef"'), None)
        .result(60)
        .begin((), effort)
    )
    for token in b"abc":
        assert constraint.mask(may_end=True).any()
        constraint.accept(token)
    effort.seconds = seconds
    goes_on = constraint.mask(may_end=True).any()
    compiler.close()
    return None if goes_on else constraint.no_valid_token_error()


def test_discarded_grammar_is_charged_to_its_client():
    """The grammar is no longer cached, and its client must wait before it is compiled again."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    source = GrammarSource("regex", "abc")
    assert compiler.compile(source, "slow").result(60)
    compiler.discard(source, "slow", 6.0)
    with pytest.raises(OverloadedError, match="too long to compile or to follow"):
        compiler.compile(source, "slow")
    assert compiler.compile(source, "other").result(60)
    compiler.close()


def test_slow_grammars_do_not_delay_requests_without_grammar():
    """A request without a grammar is served at once, and a request with a grammar in its turn."""
    with Runner(BIGRAM, n_slots=2, n_ctx=64, n_threads=1) as runner:
        slow = [
            runner.submit({"text": "a", "json_schema": schema, "num_samples": 3})
            for schema in SLOW[:12]
        ]
        started = time.monotonic()
        for n_samples in (1, 2, 3):
            runner.generate({"text": "z", "max_tokens": 3, "num_samples": n_samples})
        assert time.monotonic() - started < 15
        assert not any(future.done() for future in slow[1:])
        for future in slow:
            future.cancel()
        wait(slow)
        assert runner.generate({"text": "z", "regex": "abc"}).responses[0].text == "abc"


def test_slow_grammars_of_anonymous_clients_do_not_delay_authenticated_clients():
    """Cached grammars are not delayed either.

    Above the limit, anonymous requests are rejected with a retry time.
    """
    known = {"text": "z", "regex": "abc"}
    with Runner(BIGRAM, n_slots=2, n_ctx=64, n_threads=1) as runner:
        runner.submit(known, context=RequestContext(client=ANONYMOUS)).result(60)
        slow = [
            runner.submit(
                {"text": "a", "json_schema": schema}, context=RequestContext(client=ANONYMOUS)
            )
            for schema in SLOW
        ]
        at_hand = runner.submit(known, context=RequestContext(client=ANONYMOUS))
        named = runner.submit({"text": "z", "regex": "abcd"}, context=RequestContext(client="me"))
        assert at_hand.result(60).responses[0].text == "abc"
        assert named.result(60).responses[0].text == "abcd"
        assert not any(
            future.done() for future in slow[3:32]
        )  # they have not waited for the slow ones
        with pytest.raises(OverloadedError, match="this client has 32 grammars waiting"):
            slow[-1].result(60)
        for future in slow:
            future.cancel()


def test_client_over_its_compile_time_is_rejected_with_retry_time():
    """Cached grammars, other clients and this process itself are not affected."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    known, new = GrammarSource("regex", "abc"), GrammarSource("regex", "abcd")
    now_s = 100.0
    lane = compiler._authenticated
    lane._cpu_seconds = Quota(client_limit=5.0, refill_per_s=0.2, clock=lambda: now_s)
    assert compiler.compile(known, "slow").result(60).source == known
    lane._cpu_seconds.charge(4.0, "slow")
    assert compiler.compile(GrammarSource("regex", "ab"), "slow").result(60)
    lane._cpu_seconds.charge(3.0, "slow")
    with pytest.raises(OverloadedError, match="too long to compile") as caught:
        compiler.compile(new, "slow")
    assert 10 <= caught.value.retry_after_s <= 15  # two seconds, and what the two have taken
    assert compiler.compile(known, "slow").done()
    for client in ("other", "", None):
        assert compiler.compile(new, client).result(60).source == new
    now_s += caught.value.retry_after_s
    assert compiler.compile(GrammarSource("regex", "abce"), "slow").result(60)
    compiler.close()


def test_equal_grammars_of_a_client_take_one_slot():
    """Requests with the same grammar before its compilation are all accepted."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    source = GrammarSource("regex", "abc")
    futures = [compiler.compile(source, "busy") for _ in range(100)]
    assert len({id(future.result(60)) for future in futures}) == 1  # and it is compiled once
    lane = compiler._authenticated
    lane.thread.submit(int).result(60)
    assert not lane._waiting
    assert lane._slots.held == 0
    compiler.close()


def test_cancelled_grammar_keeps_its_slot_until_its_turn():
    """Cancelling does not allow further grammars; closing cancels the waiting grammars."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    lane, goes_on = compiler._authenticated, threading.Event()
    lane.thread.submit(goes_on.wait)
    for n in range(1, 33):
        assert compiler.compile(GrammarSource("regex", f"a{{{n}}}"), "hasty").cancel()
    with pytest.raises(OverloadedError, match="this client has 32 grammars waiting"):
        compiler.compile(GrammarSource("regex", "b"), "hasty")
    goes_on.set()
    lane.thread.submit(int).result(60)
    assert compiler.compile(GrammarSource("regex", "b"), "hasty").result(60)
    goes_on.clear()
    lane.thread.submit(goes_on.wait)
    left = compiler.compile(GrammarSource("regex", "c"), "hasty")
    compiler.close()
    goes_on.set()
    assert left.cancelled()
    assert lane._slots.held == 0


def test_grammar_cache_is_separate_for_each_client():
    """Timing does not reveal grammars of other clients, and clients cannot evict or discard each other's grammars."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    source = GrammarSource("regex", "abc")
    own, other = (compiler.compile(source, client).result(60) for client in ("a", "b"))
    assert own is not other
    for n in range(1, 20):
        compiler.compile(GrammarSource("regex", f"a{{{n}}}"), "b").result(60)
    compiler.discard(source, "b", 0.0)
    assert compiler.compile(source, "a").result(60) is own
    assert compiler.compile(source, "b").result(60) is not other
    compiler.close()


def test_many_grammars_without_client_are_all_compiled(bigram):
    """Requests of this process itself are not limited."""
    futures = [bigram.submit({"text": "a", "regex": f"a{{{n}}}b"}) for n in range(1, 40)]
    for n, future in enumerate(futures, 1):
        assert future.result(60).responses[0].text == "a" * n + "b"


def test_missing_llguidance_error_names_the_extra(monkeypatch):
    """The error names the package to install."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(
        sys.modules, "relevance_gen.generation.constraints.llguidance_backend", raising=False
    )
    with Runner(BIGRAM, n_slots=2, n_ctx=64, n_threads=1) as runner:
        with pytest.raises(InvalidRequestError, match=r"pip install 'llguidance>=") as caught:
            runner.generate({"text": "a", "json_schema": {}})
        assert caught.value.field == "json_schema"
        assert runner.generate({"text": "z", "max_tokens": 3}).num_samples == 1


@pytest.mark.parametrize("grammar", ['start[temperature=9]: "a"', "start: <|x|>", "start: /^a$/"])
def test_panic_of_the_compiler_is_not_shown(grammar):
    """The error contains no internals of the compiler and no file names of this machine."""
    why = guidance.error_of(
        guidance.compile_grammar(
            guidance.create_tokenizer([bytes([byte]) for byte in range(256)]), grammar
        )
    )
    assert why == "it uses an unsupported feature"


def test_mask_is_computed_without_threads(bigram, monkeypatch):
    """While the interpreter exits no thread can start; the sample is unchanged."""
    (expected,) = samples_of(bigram, json_schema={"type": "boolean"}, seed=1)

    def refuse(*_, **__):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert [one.text for one in samples_of(bigram, json_schema={"type": "boolean"}, seed=1)] == [
        expected.text
    ]
