"""An encoder: texts in from any thread, vectors out, the same bits however they are asked for."""

import copy
import pickle
import subprocess
import sys
import threading
import traceback
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Encoder, EncoderError, InvalidRequestError, ModelLoadError
from relevance_gen.embedding import encoder as encoder_room
from relevance_gen.embedding.jobs import Job, Jobs
from relevance_gen.llama.embedder import Embedder
from relevance_gen.llama.options import ModelOptions
from small_models import BIGRAM, ENCODER, TINY, minilm
from tests.strategies import texts

PROSE = Path(__file__).parents[2] / "docs" / "ranking.md"


@given(st.lists(texts, max_size=6))
def test_any_text_has_a_vector_of_length_one(encoder, some):
    """However strange a text is, blank or broken, it has a finite vector, and its length is 1."""
    vectors = encoder.encode(some)
    assert vectors.shape == (len(some), encoder.n_dims)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


@given(st.lists(texts, min_size=1, max_size=6), st.data())
def test_neighbours_and_order_change_no_bit(encoder, some, data):
    """A text's vector is the same alone and among others, wherever it stands."""
    order = data.draw(st.permutations(range(len(some))))
    whole = encoder.encode(some)
    np.testing.assert_array_equal(encoder.encode([some[place] for place in order]), whole[order])
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in some]), whole)


@pytest.mark.parametrize("n_threads", [2, 3, 4])
def test_threads_change_no_bit(encoder, n_threads):
    """On any number of CPU threads a text has the same vector."""
    letters = ["a b c d e f g", "zebra", "the quick brown fox"]
    with Encoder(ENCODER, n_threads=n_threads) as other:
        np.testing.assert_array_equal(other.encode(letters), encoder.encode(letters))


def test_threads_change_no_bit_of_a_real_model(real_encoder, minilm_path):
    """On any number of CPU threads a passage has the same vector, by a model of six layers too."""
    passages = [PROSE.read_text()[:900], "short"]
    expected = real_encoder.encode(passages)
    for _ in range(8):  # by default it tries fewer threads now and then
        np.testing.assert_array_equal(real_encoder.encode(passages), expected)
    for n_threads in (1, 3):
        with Encoder(minilm_path, n_threads=n_threads) as other:
            np.testing.assert_array_equal(other.encode(passages), expected)


def test_of_a_long_text_the_beginning_counts(encoder):
    """More tokens than the model was trained on are left out, and the token that ends a text is not."""
    assert encoder.n_ctx == 32
    many = "a b c d " * 10_000
    np.testing.assert_array_equal(encoder.encode([many]), encoder.encode([many[: 2 * 30]]))
    assert not np.array_equal(encoder.encode([many]), encoder.encode([many[: 2 * 29]]))


def test_a_shorter_context_can_be_asked_for():
    """`n_ctx` bounds what is read, and the memory with it; it makes other vectors, so the fingerprint differs."""
    with Encoder(ENCODER, n_ctx=8) as short, Encoder(ENCODER) as long:
        assert short.n_ctx == 8
        np.testing.assert_array_equal(
            short.encode(["a b c d e f g h i"]), long.encode(["a b c d e f"])
        )
        assert short.fingerprint != long.fingerprint


def test_what_reads_like_a_control_token_is_text(encoder):
    """A text cannot smuggle in the token that ends a text."""
    assert not np.array_equal(encoder.encode(["a [SEP] b"]), encoder.encode(["a b"]))
    np.testing.assert_array_equal(encoder.encode(["a [SEP] b"]), encoder.encode(["a [ sep ] b"]))


def test_submit_tells_the_tokens_too(encoder):
    """The future has the vectors that `encode` returns, and of each text the number of tokens that were read."""
    vectors, n_tokens = encoder.submit(["a b c", "", "a " * 100]).result()
    np.testing.assert_array_equal(vectors, encoder.encode(["a b c", "", "a " * 100]))
    assert n_tokens.tolist() == [5, 2, encoder.n_ctx]


@given(texts)
def test_tokens_are_counted_as_they_are_read(encoder, text):
    """A text has as many tokens as are read of it, but for the two around it, whatever may be read."""
    (n_read,) = encoder.submit([text]).result().n_tokens
    assert min(encoder.count_tokens(text) + 2, encoder.n_ctx) == n_read


def test_a_passage_has_room_for_its_prefix_and_the_tokens_around_it():
    """As many tokens as the context holds, or 256; a prefix that leaves no room still leaves a token."""
    for prefix, left in (("", 30), ("a b c ", 27), ("a " * 100, 1)):
        with Encoder(ENCODER, passage_prefix=prefix) as encoder:
            assert encoder.passage_tokens == left


def test_tokens_are_not_counted_once_it_is_closed():
    """A thread that counts while another closes the encoder gets the number or the error."""
    encoder = Encoder(ENCODER)

    def count(_):
        try:
            return encoder.count_tokens("a b c " * 1000)
        except EncoderError:
            return None

    with ThreadPoolExecutor(4) as threads:
        pluralize = threads.map(count, range(400))
        encoder.close()
    assert set(pluralize) <= {3000, None}
    with pytest.raises(EncoderError, match="closed"):
        encoder.count_tokens("a")


def test_many_threads_share_an_encoder(encoder):
    """Each of many threads gets the vectors of its own texts."""
    letters = [chr(ord("a") + n) * 3 for n in range(26)]
    expected = encoder.encode(letters)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: encoder.encode([letters[n % 26]] * 5), range(52)))
    for n, vectors in enumerate(found):
        np.testing.assert_array_equal(vectors, np.repeat(expected[n % 26 : n % 26 + 1], 5, axis=0))


def test_who_wants_little_does_not_wait_for_who_wants_much():
    """Jobs are served in turn, a text of each: of two, the short one ends when the long one has done as many texts."""

    def read(n):
        return lambda _: iter(range(1, n + 1))

    jobs = Jobs("encoder", EncoderError)
    long, short = Job(["long"] * 100, None, read(100)), Job(["short"] * 3, None, read(3))
    jobs.put(long)
    jobs.put(short)
    while not short.future.done():
        job = jobs.take()
        job.step(None)
        jobs.put_back(job)
    assert (long.n_done, short.n_done) == (3, 3)


def test_a_cancelled_job_is_dropped_before_its_next_text(encoder):
    """Cancelling the future of 100,000 texts frees the encoder at once."""
    future = encoder.submit(["a b c d e f g h"] * 100_000)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert encoder.encode(["a"]).shape == (1, 32)
    assert not encoder._jobs._waiting


def test_an_error_of_the_progress_function_ends_the_work(encoder):
    """What a caller's function raises comes out of `encode`, and the texts that are left are dropped."""

    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoder.encode(["a b c d"] * 100_000, progress=fail)
    assert encoder.encode(["a"]).shape == (1, 32)


def test_progress_ends_with_all(encoder):
    """Progress is told in the thread that asked, ascending, and at the end it is all."""
    told = []
    encoder.encode(
        ["a b c d"] * 3000, progress=lambda *both: told.append((*both, threading.current_thread()))
    )
    done = [one for one, _, _ in told]
    assert done == sorted(done)
    assert told[-1] == (3000, 3000, threading.current_thread())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a text", "texts must be a list of strings, got 'a text'; put a single text in a list"),
        ([b"a"], r"texts\[0\] must be a string, got bytes"),
        (["a", None], r"texts\[1\] must be a string, got None"),
        (3, "texts must be a list of strings, got 3"),
    ],
)
def test_what_is_no_list_of_strings_is_refused(encoder, texts, message):
    """The error names the argument, or the text by its place."""
    with pytest.raises(InvalidRequestError, match=message):
        encoder.encode(texts)


def test_other_wrong_arguments_are_refused(encoder):
    """So are a kind that there is not, a prefix that is no text, and a model that is no path."""
    with pytest.raises(
        InvalidRequestError, match=r'kind must be "query", "passage" or None, got \'question\''
    ):
        encoder.encode(["a"], kind="question")
    with pytest.raises(InvalidRequestError, match="query_prefix must be a string or None, got 3"):
        Encoder(ENCODER, query_prefix=3)
    with pytest.raises(InvalidRequestError, match="model must be the path of a GGUF file"):
        Encoder(None)
    with pytest.raises(
        InvalidRequestError, match=r"n_threads must be an integer in \[1, 512\], got 0"
    ):
        Encoder(ENCODER, n_threads=0)


@pytest.mark.parametrize("model", [TINY, BIGRAM])
def test_a_model_that_generates_is_refused_and_told_where_it_belongs(model):
    """A generator has no pooling; the error names `Runner`."""
    with pytest.raises(
        ModelLoadError, match="holds a model that generates text: pass it to Runner"
    ):
        Encoder(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"PK", "is not a GGUF file"), (b"GGUF" + bytes(99), "be loaded")],
)
def test_what_is_no_model_is_an_error_that_says_why(tmp_path, content, message):
    """No file, no GGUF, a damaged one: `ModelLoadError`, with the reason."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        Encoder(path)


def test_prefixes_are_put_in_front(encoder):
    """The kind of a text chooses the prefix; without a kind there is none."""
    with Encoder(ENCODER, query_prefix="query: ", passage_prefix="passage: ") as other:
        np.testing.assert_array_equal(
            other.encode(["cat"], kind="query"), encoder.encode(["query: cat"])
        )
        np.testing.assert_array_equal(
            other.encode(["cat"], kind="passage"), encoder.encode(["passage: cat"])
        )
        np.testing.assert_array_equal(other.encode(["cat"]), encoder.encode(["cat"]))
        assert other.fingerprint != encoder.fingerprint


def test_prefixes_of_known_models_go_by_name(tmp_path):
    """Where the name of the file, of its folder or of the repository is known, its prefixes are the defaults."""
    folder = tmp_path / "e5-small-v2"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(ENCODER.read_bytes())
    with (
        Encoder(folder / "model.gguf") as known,
        Encoder(folder / "model.gguf", query_prefix="") as told,
    ):
        assert (known.query_prefix, known.passage_prefix) == ("query: ", "passage: ")
        assert (told.query_prefix, told.passage_prefix) == ("", "passage: ")


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("intfloat/multilingual-e5-large", "query: ", "passage: "),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("bge-m3-Q8_0.gguf", "", ""),
        ("nomic-embed-text-v1.5.f16.gguf", "search_query: ", "search_document: "),
        ("all-MiniLM-L6-v2", "", ""),
        ("thenlper/gte-small", "", ""),
    ],
)
def test_known_prefixes(name, query, passage):
    """The prefixes are those that the models' cards ask for."""
    assert encoder_room.known_prefixes(name) == (query, passage)


def test_a_closed_encoder_keeps_nothing_of_whom_it_refuses():
    """However many callers are refused, each gets an error of its own, which does not hold what the others do."""
    encoder = Encoder(ENCODER, n_threads=1)
    encoder.close()
    depths = set()
    for _ in range(3):
        with pytest.raises(EncoderError, match="the encoder is closed") as caught:
            encoder.encode(["a text"])
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1


def test_a_closed_encoder_says_so():
    """Whoever waits, and whoever comes later, is told; closing twice is no error."""
    with Encoder(ENCODER) as encoder:
        waiting = encoder.submit(["a b c d e f"] * 100_000)
    with pytest.raises(EncoderError, match="the encoder is closed"):
        waiting.result(timeout=60)
    with pytest.raises(EncoderError, match="the encoder is closed"):
        encoder.encode(["a"])
    encoder.close()
    assert encoder.closed
    assert repr(encoder) == "<Encoder encoder.gguf, 32 dimensions, closed>"


def test_a_pickled_encoder_is_opened_again_and_a_copy_is_the_same():
    """What comes out of a pickle encodes with the same bits, prefixes and all."""
    with (
        Encoder(ENCODER, query_prefix="q ", n_ctx=16) as encoder,
        pickle.loads(pickle.dumps(encoder)) as opened,
    ):
        assert (opened.query_prefix, opened.n_ctx, opened.fingerprint) == (
            "q ",
            16,
            encoder.fingerprint,
        )
        np.testing.assert_array_equal(
            opened.encode(["cat"], kind="query"), encoder.encode(["cat"], kind="query")
        )
        assert copy.copy(encoder) is copy.deepcopy(encoder) is encoder


def test_an_encoder_that_nobody_holds_ends_its_thread():
    """Dropping the last reference frees the model."""
    encoder = Encoder(ENCODER)
    thread = encoder._thread.thread
    del encoder
    thread.join(60)
    assert not thread.is_alive()


def test_a_failure_of_the_thread_reaches_everybody(monkeypatch):
    """If the model raises what nobody expected, those who wait get an `EncoderError`, and so does who comes later."""

    class Broken:
        n_ctx, n_dims, n_around, pooling = 8, 2, 2, "mean"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def count_tokens(self, text):
            return len(text)

        def embed(self, text):
            raise ZeroDivisionError(text)

    monkeypatch.setattr(encoder_room, "_load", lambda *_: Broken())
    encoder = Encoder(ENCODER)
    with pytest.raises(EncoderError, match="the encoder's thread failed: ZeroDivisionError"):
        encoder.encode(["a"])
    encoder._thread.join(60)
    with pytest.raises(EncoderError, match="the encoder's thread failed"):
        encoder.encode(["a"])


FORKED = f"""
import os
from relevance_gen import Encoder, EncoderError
encoder = Encoder({str(ENCODER)!r})
if (child := os.fork()) == 0:
    try:
        encoder.encode(["a"])
    except EncoderError as error:
        encoder.close()
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_is_told_that_the_thread_did_not_come_along():
    """An encoder used after a fork raises and does not wait for ever; the process ends as it should."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], timeout=300, check=False)
    assert ended.returncode == 0


def test_a_process_ends_while_an_encoder_works():
    """At the interpreter's end the thread is stopped before llama.cpp is unloaded under it."""
    code = f"from relevance_gen import Encoder; Encoder({str(ENCODER)!r}).submit(['a b c'] * 1_000_000)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_real_model_knows_what_is_meant(real_encoder):
    """Of three sentences, the one that says the same in other words is nearest."""
    said = [
        "A doctor treats the sick.",
        "Physicians care for patients.",
        "The train leaves at noon.",
    ]
    one, same, other = real_encoder.encode(said)
    assert one @ same > 0.5 > 0.3 > one @ other


def test_vectors_are_those_of_sentence_transformers(real_encoder, minilm_path):
    """On 50 texts whose tokens agree, every cosine with sentence-transformers' vector is at least .99999."""
    reference = pytest.importorskip("sentence_transformers")
    model = reference.SentenceTransformer(str(minilm.layout()), device="cpu")
    model.max_seq_length = real_encoder.n_ctx
    prose = " ".join(PROSE.read_text().split())
    some = [prose[start : start + 40 + start % 700] for start in range(0, 60 * 300, 300)]
    with Embedder(minilm_path, ModelOptions()) as embedder:
        own = [embedder.tokenize(text).tolist() for text in some]
    agreed = [
        text
        for text, tokens in zip(some, own, strict=True)
        if model.tokenizer(text)["input_ids"] == tokens
    ]
    assert len(agreed) >= 50
    cosines = (real_encoder.encode(agreed) * model.encode(agreed)).sum(axis=1)
    assert cosines.min() >= 0.99999
