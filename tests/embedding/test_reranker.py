"""Reranker: scores equal to a numpy reference, shared by threads, and errors."""

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
def test_scores_equal_the_numpy_reference(reranker, ranker, query, some):
    """For any text: the logit of the best passage, and its sigmoid in [0, 1]."""
    reference = ReferenceBert(RERANKER, N_TOKENS)
    expected = [
        max(reference.logit(tokens) for tokens in ranker.pairs(query, text)) for text in some
    ]
    raw, scores = reranker.score(query, some, raw=True), reranker.score(query, some)
    assert raw.dtype == scores.dtype == np.float32
    np.testing.assert_allclose(raw, expected, atol=6e-3)  # llama.cpp computes attention in 16 bits
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-raw.astype(float))), rtol=1e-6)


@given(query=texts, some=st.lists(texts, min_size=1, max_size=5), data=st.data())
def test_score_does_not_depend_on_other_texts_or_order(reranker, query, some, data):
    """The score of a text is the same alone and in any list."""
    order = data.draw(st.permutations(range(len(some))))
    whole = reranker.score(query, some)
    np.testing.assert_array_equal(
        reranker.score(query, [some[place] for place in order]), whole[order]
    )
    np.testing.assert_array_equal(
        np.concatenate([reranker.score(query, [text]) for text in some]), whole
    )


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_score_does_not_depend_on_threads(reranker, n_threads):
    """On any number of CPU threads a text has the same score."""
    some = ["a b c", "z", "q r s t u v w " * 20]
    with Reranker(RERANKER, n_threads=n_threads) as other:
        np.testing.assert_array_equal(other.score("a b", some), reranker.score("a b", some))


@given(st.text(alphabet="abc .\n", max_size=400))
def test_pairs_cover_a_long_text(ranker, text):
    """The passages contain the text in order, each within the context."""
    pairs = [tokens.tolist() for tokens in ranker.pairs("q", text)]
    assert all(len(tokens) <= ranker.n_ctx for tokens in pairs)
    (whole,) = CrossEncoder.pairs(ranker, "q", "") if not text.strip() else [None]
    inside = [token for tokens in pairs for token in tokens[3:-1]]
    if whole is None:
        assert inside == [token + N_TOKENS for token in ranker._tokenizer.tokenize_plain(text)]


def test_exchanged_query_and_text_have_a_different_score(reranker):
    """The tokens of the text have token type 1."""
    one, other = (
        reranker.score("a b c", ["x y"], raw=True),
        reranker.score("x y", ["a b c"], raw=True),
    )
    assert abs(one[0] - other[0]) > 1e-3


def test_long_query_is_truncated(reranker):
    """The text is still read completely."""
    many = "a b c " * 10_000
    np.testing.assert_array_equal(
        reranker.score(many, ["x y z"]), reranker.score(many[:60], ["x y z"])
    )
    assert reranker.submit(many, ["x"]).result().n_tokens[0] <= reranker.n_ctx


def test_control_token_text_is_plain_text(reranker):
    """A text cannot contain the separator."""
    np.testing.assert_array_equal(
        reranker.score("a", ["b [SEP] c"]), reranker.score("a", ["b [ sep ] c"])
    )


def test_score_of_many_and_of_no_texts(reranker):
    """Ten thousand texts are scored in order; no texts give no scores, also with a closed reranker."""
    some = [chr(ord("a") + n % 26) for n in range(10_000)]
    scores, n_tokens = reranker.submit("a", some).result()
    np.testing.assert_array_equal(scores, np.resize(reranker.score("a", some[:26]), 10_000))
    assert set(n_tokens.tolist()) == {5}
    assert reranker.score("a", []).shape == (0,)


def test_threads_get_scores_of_their_own_query(reranker):
    """Concurrent calls return the right scores."""
    letters = [chr(ord("a") + n) for n in range(26)]
    expected = {letter: reranker.score(letter, letters) for letter in letters}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda letter: reranker.score(letter, letters), letters * 2))
    for letter, scores in zip(letters * 2, found, strict=True):
        np.testing.assert_array_equal(scores, expected[letter])


def test_cancelled_job_is_dropped_before_its_next_passage(reranker):
    """A job is also cancelled inside a long text."""
    future = reranker.submit("a", ["a b c d e f g h " * 1_000_000])
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert reranker.score("a", ["a"]).shape == (1,)


def test_progress_is_called_in_the_calling_thread_up_to_all_texts(reranker):
    """The numbers ascend, and the last is the number of texts."""
    reported = []
    reranker.score(
        "a",
        ["a b"] * 500,
        progress=lambda *both: reported.append((*both, threading.current_thread())),
    )
    done = [one for one, _, _ in reported]
    assert done == sorted(done)
    assert reported[-1] == (500, 500, threading.current_thread())


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
def test_invalid_query_or_texts_are_rejected(reranker, query, some, message):
    """The error names the argument, or the text by its index."""
    with pytest.raises(InvalidRequestError, match=message):
        reranker.score(query, some)


def test_raw_that_is_not_a_boolean_is_rejected(reranker):
    """A string such as "no" does not count as true."""
    with pytest.raises(InvalidRequestError, match="raw must be True or False, got 'no'"):
        reranker.score("a", ["a"], raw="no")


def test_invalid_options_are_rejected():
    """A prompt without its two fields, answers that are not two words, and a context that is too small."""
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


def test_closed_reranker_fails_waiting_and_later_calls():
    """Closing twice is allowed."""
    with Reranker(RERANKER) as reranker:
        waiting = reranker.submit("a", ["a b c d e f"] * 100_000)
    with pytest.raises(RerankerError, match="the reranker is closed"):
        waiting.result(timeout=60)
    with pytest.raises(RerankerError, match="the reranker is closed"):
        reranker.score("a", ["a"])
    reranker.close()
    assert reranker.closed
    assert repr(reranker) == "<Reranker reranker.gguf, closed>"


def test_unpickled_reranker_gives_identical_scores(reranker):
    """A different context has a different fingerprint."""
    with Reranker(RERANKER, n_ctx=40) as short, pickle.loads(pickle.dumps(short)) as opened:
        assert (opened.n_ctx, opened.fingerprint, opened.name) == (
            40,
            short.fingerprint,
            "reranker.gguf",
        )
        np.testing.assert_array_equal(opened.score("a", ["cat"]), short.score("a", ["cat"]))
        assert copy.copy(short) is copy.deepcopy(short) is short
        assert short.fingerprint != reranker.fingerprint


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────


def altered(target, *, without=(), numbers=None, architecture="bert"):
    """Write the reranker without the given tensors and keys, and with changed numbers."""
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
def test_file_with_wrong_scores_is_rejected(tmp_path, without, message):
    """A missing pooler, token type or head is an error with reason and remedy."""
    with pytest.raises(ModelLoadError, match=message):
        Reranker(altered(tmp_path / "model.gguf", without=without))


def test_ranking_head_without_pooling_type_is_used(tmp_path, reranker):
    """Converters do not always write the pooling type."""
    with Reranker(altered(tmp_path / "model.gguf", without=["bert.pooling_type"])) as other:
        np.testing.assert_array_equal(other.score("a", ["b", "c"]), reranker.score("a", ["b", "c"]))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ENCODER, "an embedding model, which does not rank: pass it to Encoder"),
        (TINY, "without a prompt for reranking"),
    ],
)
def test_other_models_are_rejected(model, message):
    """Embedding models, and generative models without a prompt."""
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
def test_invalid_model_file_raises_with_reason(tmp_path, content, message):
    """A missing, damaged or truncated file, or a file in another format, raises `ModelLoadError`."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        Reranker(path)


# ── Judges ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("yes", "no"), [("b", "c"), ("c", "b"), (".", "z")])
def test_generative_score_is_the_odds_of_yes_to_no(yes, no):
    """The logits of the bigram model after the last token of the prompt are known."""
    numbers = {piece.decode(errors="replace"): at for at, piece in enumerate(BIGRAM_TOKENS)}
    row = bigram_table()[numbers["a"]]
    with Reranker(BIGRAM, template="{query}.{document}\na", answers=(yes, no)) as judge:
        found = judge.score("q", ["x", "y", ""], raw=True)
    np.testing.assert_allclose(found, np.repeat(row[numbers[yes]] - row[numbers[no]], 3), atol=1e-3)


def test_template_with_repeated_query_limits_its_tokens():
    """The query takes at most half of the context, and each passage ends with the prompt."""
    template = "{query}.{document}.{query}\nz"
    with CrossEncoder(
        BIGRAM, ModelOptions(n_ctx=64, n_threads=1), template=template, answers=("y", "n")
    ) as ranker:
        pairs = list(ranker.pairs("q" * 40, "d" * 300))
        assert len(pairs) < 40
        assert len({tokens[-1] for tokens in pairs}) == 1


def test_control_tokens_are_parsed_in_the_template_only():
    """Query and text are plain text, also if they contain control tokens or fields."""
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


def test_answers_of_several_tokens_are_rejected():
    """A word of several tokens has no single logit."""
    with pytest.raises(
        InvalidRequestError, match="answers must be words of one token each for this model"
    ):
        Reranker(TINY, template="{query}{document}", answers=("yes", "no"))
