"""Constrained output: whatever is drawn parses, nobody else notices, and what cannot be followed is an error."""

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


def made(runner, **fields):
    """Return the completions of a request without top_k, so that every token has its chance."""
    return runner.generate(
        {"text": "a", "max_tokens": 120, "top_k": 0, "return_tokens": True, **fields}
    ).responses


# ── Whatever is drawn parses ─────────────────────────────────────────────────────────────────────────────────────────

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
    """Return schemas of arrays and objects of what `inner` describes."""
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
def test_json_fits_its_schema(request, model, schema, seed):
    """A complete sample is JSON that an independent validator accepts; a cut one is as long as it may be."""
    for sample in made(
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
def test_text_matches_its_regular_expression(request, model, expression, seed):
    """A complete sample is matched as a whole, with the anchors that some write and without."""
    for regex in (expression, f"^{expression}$"):
        for sample in made(request.getfixturevalue(model), regex=regex, seed=seed, max_tokens=30):
            if sample.finish_reason == "eos":
                assert re.fullmatch(expression, sample.text), sample.text


@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_text_belongs_to_its_grammar(request, model):
    """Balanced parentheses come out balanced."""
    grammar = 'start: "(" start ")" | "(" /[a-z]/ ")"'
    samples = made(request.getfixturevalue(model), grammar=grammar, num_samples=4, seed=3)
    assert {sample.finish_reason for sample in samples} == {"eos"}
    for sample in samples:
        n = sample.text.count("(")
        assert re.fullmatch(rf"\({{{n}}}[a-z]\){{{n}}}", sample.text)


@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_a_grammar_may_be_gbnf(request, model):
    """llama.cpp's grammars are followed as they are written."""
    grammar = 'root ::= "(" root ")" | "(" [a-z] ")" # balanced\n'
    samples = made(request.getfixturevalue(model), grammar=grammar, num_samples=4, seed=3)
    assert {sample.finish_reason for sample in samples} == {"eos"}
    for sample in samples:
        n = sample.text.count("(")
        assert re.fullmatch(rf"\({{{n}}}[a-z]\){{{n}}}", sample.text)


# ── Where it ends ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_that_nothing_may_follow_ends_without_an_end_token(bigram):
    """It ends with the token that completes it, whatever min_tokens says."""
    (sample,) = made(bigram, regex="z", min_tokens=5)
    assert (sample.text, sample.finish_reason, sample.tokens) == ("z", "eos", (LETTER_A + 25,))


def test_a_text_that_could_go_on_ends_with_an_end_token_of_the_model_or_the_request(bigram):
    """Either ends it, where it is complete and nowhere else; min_tokens holds both back."""
    five = BIGRAM_TOKENS.index(b"05")
    samples = made(
        bigram, regex="(aa)+", eos_token_ids=[five], num_samples=40, seed=1, temperature=3
    )
    assert {sample.tokens[-1] for sample in samples} == {END, five}
    assert all(
        sample.finish_reason == "eos" and re.fullmatch("(aa)+", sample.text) for sample in samples
    )
    long = made(bigram, regex="a+", min_tokens=9, num_samples=8, seed=1)
    assert all(len(sample.text) >= 9 for sample in long)


def test_a_token_that_ends_a_sample_does_not_come_before_its_end(bigram):
    """An end token whose text the grammar could use is not drawn for that."""
    b = LETTER_A + 1
    samples = made(bigram, regex="[abc]{6}", eos_token_ids=[b], num_samples=8)
    assert all(re.fullmatch("[ac]{6}", sample.text) for sample in samples)


def test_max_tokens_and_stop_strings_cut(bigram):
    """What is cut says so: "length" and "stop"."""
    (sample,) = made(bigram, regex="[a-c]{9}", max_tokens=4)
    assert (len(sample.text), sample.finish_reason) == (4, "length")
    (sample,) = made(bigram, regex="a{4}z{4}", stop=["z"])
    assert (sample.text, sample.finish_reason) == ("aaaa", "stop")


def test_where_the_model_has_no_token_for_what_must_come_the_request_fails(bigram):
    """A dead end is an error of that request; its neighbour goes on."""
    neighbour = bigram.submit({"text": "z", "max_tokens": 50, "temperature": 0})
    with pytest.raises(
        InvalidRequestError, match="regex allows no token of this model at this position"
    ):
        bigram.generate({"text": "a", "regex": "abQ", "num_samples": 3})
    assert neighbour.result().responses[0].generated_tokens == 50
    assert bigram.stats().backlog == 0


# ── Nobody else notices ──────────────────────────────────────────────────────────────────────────────────────────────


@costly
@given(seed=st.integers(0, 10**6))
def test_a_neighbour_has_the_same_bits(tiny, seed):
    """Requests without a constraint get the same tokens and log probabilities beside constrained ones as without."""
    fields = {"max_tokens": 20, "seed": seed, "logprobs": True, "return_tokens": True}
    requests = [GenerationRequest(text, **fields) for text in ("one", "two", "three")]

    def outcomes(futures):
        return [
            [(one.tokens, one.logprobs) for one in future.result().responses] for future in futures
        ]

    alone = outcomes([tiny.submit(request) for request in requests])
    constrained = [GenerationRequest("x", regex="[a-z]{5,30}!", seed=seed, num_samples=2)]
    mixed = [tiny.submit(request) for request in (constrained + requests)]
    assert outcomes(mixed[1:]) == alone


def test_log_probabilities_stay_the_models_own(bigram):
    """They are those of the whole vocabulary, as without a constraint; so are the alternatives."""
    (sample,) = made(bigram, text="z", regex="[a-m]{5}", logprobs=True, top_logprobs=2)
    table = bigram_table().astype(np.float64)
    own = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    before = (LETTER_A + 25, *sample.tokens)
    expected = [
        own[current, following] for current, following in zip(before, sample.tokens, strict=False)
    ]
    np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)
    assert [place[0].token for place in sample.top_logprobs] == [
        int(own[current].argmax()) for current in before[:-1]
    ]


def test_a_seed_repeats_the_samples(tiny):
    """Of one request and of several at once."""
    fields = {
        "json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
        "seed": 5,
    }
    once = [sample.text for sample in made(tiny, num_samples=4, **fields)]
    futures = [
        tiny.submit({"text": "a", "max_tokens": 120, "top_k": 0, "num_samples": 4, **fields})
        for _ in range(6)
    ]
    assert [[sample.text for sample in future.result().responses] for future in futures] == [
        once
    ] * 6


def test_cancelling_frees_the_slots_at_once(bigram):
    """While the grammar is compiled and while the sample grows."""
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


# ── What cannot be followed ──────────────────────────────────────────────────────────────────────────────────────────


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
        ({"regex": "("}, "unclosed group|invalid regex"),
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
def test_what_cannot_be_compiled_is_refused_in_time(bigram, fields, says):
    """The error names the field and the reason, comes within seconds, and hurts nobody."""
    neighbour = bigram.submit({"text": "z", "max_tokens": 100, "temperature": 0})
    started = time.monotonic()
    with pytest.raises(InvalidRequestError, match=says) as caught:
        bigram.generate({"text": "a", **fields})
    assert caught.value.field in fields
    assert str(caught.value).startswith(caught.value.field)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - started < 20
    assert neighbour.result(60).responses[0].generated_tokens == 100


def test_schemas_are_taken_as_python_has_them(bigram):
    """A format that nobody knows is a note, as the standard says; a class or a text may stand for a schema."""

    class Account:
        """As a model of pydantic's."""

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


def test_a_schema_that_cannot_be_followed_says_where_and_what_to_do(bigram):
    """The error has the key, its place in the schema and a way out, and no place in a text that nobody wrote."""
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
def test_a_bomb_is_followed_or_refused_in_time(bigram, fields):
    """What is small and means much costs no more than its tokens."""
    started = time.monotonic()
    try:
        bigram.generate({"text": "a", "max_tokens": 40, **fields})
    except InvalidRequestError as error:
        assert error.field in fields
    assert time.monotonic() - started < 20


def test_masks_that_take_too_long_end_their_request(tiny):
    """A grammar that compiles, and explodes later, is an error when it does."""
    words = " & ".join(f"/.*{a}.{{35}}{b}.*/" for a, b in ("ab", "bc", "de", "fg"))
    neighbour = tiny.submit({"text": "z", "max_tokens": 50})
    with pytest.raises(InvalidRequestError, match="grammar is too expensive to follow"):
        tiny.generate(
            {
                "text": "a",
                "grammar": f"start: B A\nB: /[a-z]{{9}}/\nA: {words} & ~/.*cd.{{30}}.*/",
                "seed": 1,
            }
        )
    assert neighbour.result().responses[0].generated_tokens == 50


AMBIGUOUS = {
    "text": "Once upon a time",
    "grammar": "start: start start | /[a-z ]/ |",
    "max_tokens": 400,
    "seed": 1,
}
"""Compiles in a millisecond, and each token takes longer to follow than the one before."""


def test_what_takes_long_to_follow_is_in_its_requests_account(embedded):
    """Masks and tokens count, not compiling alone: over its share the request ends with an error that says so."""
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
    """Return the error of a sample whose request has taken so long for three tokens, if there is one."""
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


def test_a_grammar_that_took_too_long_to_follow_is_in_its_clients_account():
    """It is no longer at hand, and its client may not have it compiled again before the time has passed."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    source = GrammarSource("regex", "abc")
    assert compiler.compile(source, "slow").result(60)
    compiler.discard(source, "slow", 6.0)
    with pytest.raises(OverloadedError, match="too long to compile or to follow"):
        compiler.compile(source, "slow")
    assert compiler.compile(source, "other").result(60)
    compiler.close()


def test_others_do_not_wait_for_slow_grammars():
    """However many slow grammars come first, a request without one is served at once, and one with in its turn."""
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


def test_strangers_with_slow_grammars_delay_nobody_with_a_name():
    """Nor anybody whose grammar is known; they are refused once theirs have taken too long, with when to come again."""
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


def test_a_client_whose_grammars_took_too_long_is_told_when_to_come_again():
    """What is at hand still goes, and other clients and this process itself are not meant."""
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


def test_one_grammar_for_many_requests_waits_once():
    """However many requests of a client come with one grammar before it is compiled, none is refused."""
    compiler = grammars.Grammars([bytes([byte]) for byte in range(256)])
    source = GrammarSource("regex", "abc")
    futures = [compiler.compile(source, "busy") for _ in range(100)]
    assert len({id(future.result(60)) for future in futures}) == 1  # and it is compiled once
    lane = compiler._authenticated
    lane.thread.submit(int).result(60)
    assert not lane._waiting
    assert lane._slots.held == 0
    compiler.close()


def test_a_cancelled_grammar_keeps_its_place_until_its_turn():
    """Until then its text is held, so cancelling makes no room for more; closing ends what still waits."""
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


def test_a_grammar_is_at_hand_for_its_own_client_alone():
    """Nobody's time tells what others asked for, and nobody's grammars or errors take away those of others."""
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


def test_many_grammars_at_once_are_all_served(bigram):
    """However many this process asks for itself."""
    futures = [bigram.submit({"text": "a", "regex": f"a{{{n}}}b"}) for n in range(1, 40)]
    for n, future in enumerate(futures, 1):
        assert future.result(60).responses[0].text == "a" * n + "b"


def test_without_the_extra_the_error_names_it(monkeypatch):
    """Where llguidance is not installed, the error says what to install."""
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
def test_a_panic_of_the_compiler_is_not_shown(grammar):
    """What a grammar has gone wrong inside the compiler tells nothing of that, or of this machine's files."""
    why = guidance.error_of(
        guidance.compile_grammar(
            guidance.create_tokenizer([bytes([byte]) for byte in range(256)]), grammar
        )
    )
    assert why == "it uses an unsupported feature"


def test_where_no_thread_can_begin_a_mask_it_is_computed(bigram, monkeypatch):
    """As while the interpreter ends: the sample is what it would have been."""
    (expected,) = made(bigram, json_schema={"type": "boolean"}, seed=1)

    def refuse(*_, **__):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert [one.text for one in made(bigram, json_schema={"type": "boolean"}, seed=1)] == [
        expected.text
    ]
