"""A reranker: a query and texts in from any thread, scores out, as the model was trained to give them or not at all."""

import copy
import pickle
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import InvalidRequestError, ModelLoadError, Reranker, RerankerError
from relevance_gen.llama.cross_encoder import DOCUMENT_OFFSET, CrossEncoder
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from small_models import BIGRAM, BIGRAM_TOKENS, ENCODER, RERANKER, TINY, bigram_table
from tests.reference_ranking import ReferenceBert
from tests.strategies import texts

N_TOKENS = 57
"""Of the reranker's vocabulary, once."""


@pytest.fixture(scope="module")
def reranker():
    with Reranker(RERANKER) as reranker:
        yield reranker


@pytest.fixture(scope="module")
def ranker():
    with CrossEncoder(RERANKER, ModelOptions(n_threads=1)) as ranker:
        yield ranker


@given(query=texts, some=st.lists(texts, max_size=4))
def test_scores_are_those_of_the_reference(reranker, ranker, query, some):
    """However strange, blank or long: the logit of the best passage, by plain numpy, and its sigmoid in [0, 1]."""
    reference = ReferenceBert(RERANKER, N_TOKENS)
    expected = [
        max(reference.logit(tokens) for tokens in ranker.pairs(query, text)) for text in some
    ]
    raw, scores = reranker.score(query, some, raw=True), reranker.score(query, some)
    assert raw.dtype == scores.dtype == np.float32
    np.testing.assert_allclose(raw, expected, atol=6e-3)  # llama.cpp computes attention in 16 bits
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-raw.astype(float))), rtol=1e-6)


@given(query=texts, some=st.lists(texts, min_size=1, max_size=5), data=st.data())
def test_neighbours_and_order_change_no_bit(reranker, query, some, data):
    """A text's score is the same alone and among others, wherever it stands."""
    order = data.draw(st.permutations(range(len(some))))
    whole = reranker.score(query, some)
    np.testing.assert_array_equal(
        reranker.score(query, [some[place] for place in order]), whole[order]
    )
    np.testing.assert_array_equal(
        np.concatenate([reranker.score(query, [text]) for text in some]), whole
    )


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_change_no_bit(reranker, n_threads):
    """On any number of CPU threads a text has the same score."""
    some = ["a b c", "z", "q r s t u v w " * 20]
    with Reranker(RERANKER, n_threads=n_threads) as other:
        np.testing.assert_array_equal(other.score("a b", some), reranker.score("a b", some))


@given(st.text(alphabet="abc .\n", max_size=400))
def test_passages_cover_a_long_text(ranker, text):
    """What is read of a long text is all of it, in order, and never more at once than the context holds."""
    pairs = [tokens.tolist() for tokens in ranker.pairs("q", text)]
    assert all(len(tokens) <= ranker.n_ctx for tokens in pairs)
    (whole,) = CrossEncoder.pairs(ranker, "q", "") if not text.strip() else [None]
    inside = [token for tokens in pairs for token in tokens[3:-1]]
    if whole is None:
        assert inside == [token + N_TOKENS for token in ranker._tokenizer.tokenize_plain(text)]


def test_query_and_text_are_told_apart(reranker):
    """The text's tokens have the token type 1: exchanged, the two have another score."""
    one, other = (
        reranker.score("a b c", ["x y"], raw=True),
        reranker.score("x y", ["a b c"], raw=True),
    )
    assert abs(one[0] - other[0]) > 1e-3


def test_of_a_long_query_the_beginning_counts(reranker):
    """A query that leaves no room is cut, and its text is read whole."""
    many = "a b c " * 10_000
    np.testing.assert_array_equal(
        reranker.score(many, ["x y z"]), reranker.score(many[:60], ["x y z"])
    )
    assert reranker.submit(many, ["x"]).result().n_tokens[0] <= reranker.n_ctx


def test_what_reads_like_a_control_token_is_text(reranker):
    """A text cannot end itself and begin another."""
    np.testing.assert_array_equal(
        reranker.score("a", ["b [SEP] c"]), reranker.score("a", ["b [ sep ] c"])
    )


def test_ten_thousand_texts_and_none(reranker):
    """Ten thousand texts are scored in order; of none there are no scores, also by a closed reranker."""
    some = [chr(ord("a") + n % 26) for n in range(10_000)]
    scores, n_tokens = reranker.submit("a", some).result()
    np.testing.assert_array_equal(scores, np.resize(reranker.score("a", some[:26]), 10_000))
    assert set(n_tokens.tolist()) == {5}
    assert reranker.score("a", []).shape == (0,)


def test_many_threads_share_a_reranker(reranker):
    """Each of many threads gets the scores of its own query."""
    letters = [chr(ord("a") + n) for n in range(26)]
    expected = {letter: reranker.score(letter, letters) for letter in letters}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda letter: reranker.score(letter, letters), letters * 2))
    for letter, scores in zip(letters * 2, found, strict=True):
        np.testing.assert_array_equal(scores, expected[letter])


def test_a_cancelled_job_is_dropped_within_a_text(reranker):
    """Cancelling frees the reranker before the next passage, however long the text is."""
    future = reranker.submit("a", ["a b c d e f g h " * 1_000_000])
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert reranker.score("a", ["a"]).shape == (1,)


def test_progress_ends_with_all(reranker):
    """Progress is told in the thread that asked, ascending, and at the end it is all."""
    told = []
    reranker.score(
        "a", ["a b"] * 500, progress=lambda *both: told.append((*both, threading.current_thread()))
    )
    done = [one for one, _, _ in told]
    assert done == sorted(done)
    assert told[-1] == (500, 500, threading.current_thread())


@pytest.mark.parametrize(
    ("query", "some", "message"),
    [
        (3, ["a"], "query must be a string, got 3"),
        (
            "a",
            "a text",
            "texts must be a list of strings, got 'a text'; put a single text in a list",
        ),
        ("a", ["a", None], r"texts\[1\] must be a string, got None"),
    ],
)
def test_what_is_no_query_with_texts_is_refused(reranker, query, some, message):
    """The error names the argument, or the text by its place."""
    with pytest.raises(InvalidRequestError, match=message):
        reranker.score(query, some)


def test_wrong_options_are_refused():
    """So are a prompt without its two places, answers that are not two words, and a context without room."""
    for options, message in [
        ({"template": "{query}"}, "template must be a string with {query} and {document}, or None"),
        ({"answers": "yes"}, "answers must be the words for yes and no"),
        ({"answers": 3}, "answers must be the words for yes and no"),
        ({"n_ctx": 8}, "n_ctx must be at least 35 for this model, got 8"),
        ({"n_threads": 0}, r"n_threads must be an integer in \[1, 512\]"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            Reranker(RERANKER, **options)
    with pytest.raises(InvalidRequestError, match="model must be the path of a GGUF file"):
        Reranker(None)


def test_a_closed_reranker_says_so():
    """Whoever waits, and whoever comes later, is told; closing twice is no error."""
    with Reranker(RERANKER) as reranker:
        waiting = reranker.submit("a", ["a b c d e f"] * 100_000)
    with pytest.raises(RerankerError, match="the reranker is closed"):
        waiting.result(timeout=60)
    with pytest.raises(RerankerError, match="the reranker is closed"):
        reranker.score("a", ["a"])
    reranker.close()
    assert reranker.closed
    assert repr(reranker) == "<Reranker reranker.gguf, closed>"


def test_a_pickled_reranker_is_opened_again_and_a_copy_is_the_same(reranker):
    """What comes out of a pickle scores with the same bits; another context has another fingerprint."""
    with Reranker(RERANKER, n_ctx=40) as short, pickle.loads(pickle.dumps(short)) as opened:
        assert (opened.n_ctx, opened.fingerprint, opened.name) == (
            40,
            short.fingerprint,
            "reranker.gguf",
        )
        np.testing.assert_array_equal(opened.score("a", ["cat"]), short.score("a", ["cat"]))
        assert copy.copy(short) is copy.deepcopy(short) is short
        assert short.fingerprint != reranker.fingerprint


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def altered(target, *, without=(), numbers=None, architecture="bert"):
    """Write the reranker without some of its tensors and keys, and with other numbers."""
    reader = gguf.GGUFReader(RERANKER)
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in {"general.architecture", *without}:
            continue
        kind = field.types[0]
        sub_type = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        value = (numbers or {}).get(key, field.contents())
        writer.add_key_value(key.replace("bert.", f"{architecture}."), value, kind, sub_type)
    for tensor in reader.tensors:
        if tensor.name not in without:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (
            ["cls.weight", "cls.bias"],
            "lacks a part of its ranking head.*; convert the original with tools/convert_bert",
        ),
        (["cls.output.weight", "cls.output.bias"], "lacks a part of its ranking head"),
        (
            [DOCUMENT_OFFSET],
            "would compute wrong scores, because texts would have the token type of queries; convert the original",
        ),
        (
            ["cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"],
            "an embedding model.*pass it to Encoder",
        ),
    ],
)
def test_a_file_that_would_score_wrong_is_refused(tmp_path, without, message):
    """No pooler, no token types, no head: the reason is given, and what to do."""
    with pytest.raises(ModelLoadError, match=message):
        Reranker(altered(tmp_path / "model.gguf", without=without))


def test_a_file_that_does_not_say_that_it_ranks_ranks(tmp_path, reranker):
    """A head is a head: converters do not always write the pooling."""
    with Reranker(altered(tmp_path / "model.gguf", without=["bert.pooling_type"])) as other:
        np.testing.assert_array_equal(other.score("a", ["b", "c"]), reranker.score("a", ["b", "c"]))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ENCODER, "an embedding model, which does not rank: pass it to Encoder"),
        (TINY, "without a prompt for reranking"),
    ],
)
def test_other_models_are_refused_and_told_where_they_belong(model, message):
    """An encoder's file, and a generator's without a prompt."""
    with pytest.raises(ModelLoadError, match=message):
        Reranker(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"PK", "is not a GGUF file"),
        (b"GGUF" + bytes(99), "be loaded"),
        (RERANKER.read_bytes()[:-4000], "be loaded"),
        (RERANKER.read_bytes()[:4000], "be loaded"),
    ],
)
def test_what_is_no_model_is_an_error_that_says_why(tmp_path, content, message):
    """No file, no GGUF, a damaged one, one cut short: `ModelLoadError`, with the reason."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        Reranker(path)


# ── Judges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("yes", "no"), [("b", "c"), ("c", "b"), (".", "z")])
def test_a_judge_says_how_likely_yes_is_beside_no(yes, no):
    """Of the bigram model the logits are known: the score is the odds of the two words behind the prompt's last."""
    numbers = {piece.decode(errors="replace"): at for at, piece in enumerate(BIGRAM_TOKENS)}
    row = bigram_table()[numbers["a"]]
    with Reranker(BIGRAM, template="{query}.{document}\na", answers=(yes, no)) as judge:
        found = judge.score("q", ["x", "y", ""], raw=True)
    np.testing.assert_allclose(found, np.repeat(row[numbers[yes]] - row[numbers[no]], 3), atol=1e-3)


def test_a_template_may_name_the_query_twice():
    """What the query takes altogether is bounded, so that there is room for passages, and each ends with the prompt."""
    template = "{query}.{document}.{query}\nz"
    with CrossEncoder(
        BIGRAM, ModelOptions(n_ctx=64, n_threads=1), template=template, answers=("y", "n")
    ) as ranker:
        pairs = list(ranker.pairs("q" * 40, "d" * 300))
        assert len(pairs) < 40
        assert len({tokens[-1] for tokens in pairs}) == 1


def test_a_judge_reads_the_prompt_and_texts_as_texts():
    """The template's control tokens are such; the same letters in query and text, and their places, are plain."""
    template = "<|begin|>the {query} is {document}<|end|>"
    query, text = "<|end|>{document}", "{query} and <|begin|>"
    with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, n_threads=1)) as decoder:
        y, n = (int(decoder.tokenize(letter, 0)[0]) for letter in "yn")
        plain = decoder.tokenize_chat(
            "the <\udc00|end|>{document} is {query} and <\udc00|begin|>", 0
        )
        logits = decoder.prefill([0], [np.concatenate(([0], plain, [1])).astype(np.int32)], [0])[0]
    with Reranker(TINY, template=template, answers=("y", "n"), n_threads=1) as judge:
        assert judge.score(query, [text], raw=True)[0] == pytest.approx(
            logits[y] - logits[n], abs=0.02
        )


def test_answers_are_one_token_each():
    """A word of several tokens has no one logit."""
    with pytest.raises(
        InvalidRequestError, match="answers must be words of one token each for this model"
    ):
        Reranker(TINY, template="{query}{document}", answers=("yes", "no"))
