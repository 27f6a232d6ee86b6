"""Encoder: bit-identical vectors, shared by threads, and errors."""

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
from relevance_gen.embedding.shared import Job, Jobs
from relevance_gen.llama.embedder import Embedder
from relevance_gen.llama.options import ModelOptions
from small_models import BIGRAM, ENCODER, TINY, minilm
from tests.strategies import texts

PROSE = Path(__file__).parents[2] / "docs" / "ranking.md"


@given(st.lists(texts, max_size=6))
def test_encode_any_text_has_a_finite_vector_of_length_1(encoder, some):
    """Also for blank texts and lone surrogates."""
    vectors = encoder.encode(some)
    assert vectors.shape == (len(some), encoder.n_dims)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


@given(st.lists(texts, min_size=1, max_size=6), st.data())
def test_encode_does_not_depend_on_other_texts_or_order(encoder, some, data):
    """The vector of a text is the same alone and in any list."""
    order = data.draw(st.permutations(range(len(some))))
    whole = encoder.encode(some)
    np.testing.assert_array_equal(encoder.encode([some[place] for place in order]), whole[order])
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in some]), whole)


@pytest.mark.parametrize("n_threads", [2, 3, 4])
def test_encode_does_not_depend_on_threads(encoder, n_threads):
    """On any number of CPU threads a text has the same vector."""
    letters = ["a b c d e f g", "zebra", "the quick brown fox"]
    with Encoder(ENCODER, n_threads=n_threads) as other:
        np.testing.assert_array_equal(other.encode(letters), encoder.encode(letters))


def test_encode_with_real_model_does_not_depend_on_threads(real_encoder, minilm_path):
    """The same with a model of six layers."""
    passages = [PROSE.read_text()[:900], "short"]
    expected = real_encoder.encode(passages)
    for _ in range(8):  # by default it tries fewer threads now and then
        np.testing.assert_array_equal(real_encoder.encode(passages), expected)
    for n_threads in (1, 3):
        with Encoder(minilm_path, n_threads=n_threads) as other:
            np.testing.assert_array_equal(other.encode(passages), expected)


def test_encode_truncates_a_long_text(encoder):
    """Tokens after the training length are omitted, but the closing token is kept."""
    assert encoder.n_ctx == 32
    many = "a b c d " * 10_000
    np.testing.assert_array_equal(encoder.encode([many]), encoder.encode([many[: 2 * 30]]))
    assert not np.array_equal(encoder.encode([many]), encoder.encode([many[: 2 * 29]]))


def test_n_ctx_limits_tokens_and_changes_the_fingerprint():
    """A smaller n_ctx gives different vectors, so the fingerprint differs."""
    with Encoder(ENCODER, n_ctx=8) as short, Encoder(ENCODER) as long:
        assert short.n_ctx == 8
        np.testing.assert_array_equal(
            short.encode(["a b c d e f g h i"]), long.encode(["a b c d e f"])
        )
        assert short.fingerprint != long.fingerprint


def test_control_token_text_is_plain_text(encoder):
    """A text cannot contain the closing token."""
    assert not np.array_equal(encoder.encode(["a [SEP] b"]), encoder.encode(["a b"]))
    np.testing.assert_array_equal(encoder.encode(["a [SEP] b"]), encoder.encode(["a [ sep ] b"]))


def test_submit_returns_vectors_and_token_counts(encoder):
    """The vectors equal those of `encode`."""
    vectors, n_tokens = encoder.submit(["a b c", "", "a " * 100]).result()
    np.testing.assert_array_equal(vectors, encoder.encode(["a b c", "", "a " * 100]))
    assert n_tokens.tolist() == [5, 2, encoder.n_ctx]


@given(texts)
def test_count_tokens_equals_the_tokens_read_without_surrounding_tokens(encoder, text):
    """For any text."""
    (n_read,) = encoder.submit([text]).result().n_tokens
    assert min(encoder.count_tokens(text) + 2, encoder.n_ctx) == n_read


def test_passage_tokens_leave_space_for_prefix_and_surrounding_tokens():
    """The total is n_ctx or 256; at least one token remains."""
    for prefix, left in (("", 30), ("a b c ", 27), ("a " * 100, 1)):
        with Encoder(ENCODER, passage_prefix=prefix) as encoder:
            assert encoder.passage_tokens == left


def test_count_tokens_during_close_returns_or_raises():
    """A concurrent count returns the number or raises the error."""
    encoder = Encoder(ENCODER)

    def count(_):
        try:
            return encoder.count_tokens("a b c " * 1000)
        except EncoderError:
            return None

    with ThreadPoolExecutor(4) as threads:
        counts = threads.map(count, range(400))
        encoder.close()
    assert set(counts) <= {3000, None}
    with pytest.raises(EncoderError, match="closed"):
        encoder.count_tokens("a")


def test_threads_get_vectors_of_their_own_texts(encoder):
    """Concurrent calls return the right vectors."""
    letters = [chr(ord("a") + n) * 3 for n in range(26)]
    expected = encoder.encode(letters)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: encoder.encode([letters[n % 26]] * 5), range(52)))
    for n, vectors in enumerate(found):
        np.testing.assert_array_equal(vectors, np.repeat(expected[n % 26 : n % 26 + 1], 5, axis=0))


def test_jobs_are_interleaved_text_by_text():
    """A short job ends when a long job has finished the same number of texts."""

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


def test_cancelled_job_is_dropped_before_its_next_text(encoder):
    """Cancelling the future of 100,000 texts frees the encoder immediately."""
    future = encoder.submit(["a b c d e f g h"] * 100_000)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert encoder.encode(["a"]).shape == (1, 32)
    assert not encoder._jobs._waiting


def test_exception_of_progress_cancels_the_job(encoder):
    """The exception is raised by `encode`, and the remaining texts are dropped."""

    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoder.encode(["a b c d"] * 100_000, progress=fail)
    assert encoder.encode(["a"]).shape == (1, 32)


def test_progress_is_called_in_the_calling_thread_up_to_all_texts(encoder):
    """The numbers ascend, and the last is the number of texts."""
    reported = []
    encoder.encode(
        ["a b c d"] * 3000,
        progress=lambda *both: reported.append((*both, threading.current_thread())),
    )
    done = [one for one, _, _ in reported]
    assert done == sorted(done)
    assert reported[-1] == (3000, 3000, threading.current_thread())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a text", "texts must be a list of strings, got 'a text'; put a single text in a list"),
        ([b"a"], r"texts\[0\] must be a string, got bytes"),
        (["a", None], r"texts\[1\] must be a string, got None"),
        (3, "texts must be a list of strings, got 3"),
    ],
)
def test_invalid_texts_are_rejected(encoder, texts, message):
    """The error names the argument, or the text by its index."""
    with pytest.raises(InvalidRequestError, match=message):
        encoder.encode(texts)


def test_invalid_arguments_are_rejected(encoder):
    """Unknown kinds, prefixes that are not strings, and models that are not paths."""
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
def test_generative_model_error_names_runner(model):
    """A generative model has no pooling."""
    with pytest.raises(
        ModelLoadError, match="holds a model that generates text: pass it to Runner"
    ):
        Encoder(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"PK", "is not a GGUF file"), (b"GGUF" + bytes(99), "be loaded")],
)
def test_invalid_model_file_raises_with_reason(tmp_path, content, message):
    """A missing or damaged file, or a file in another format, raises `ModelLoadError`."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        Encoder(path)


def test_kind_adds_its_prefix(encoder):
    """Without a kind no prefix is added."""
    with Encoder(ENCODER, query_prefix="query: ", passage_prefix="passage: ") as other:
        np.testing.assert_array_equal(
            other.encode(["cat"], kind="query"), encoder.encode(["query: cat"])
        )
        np.testing.assert_array_equal(
            other.encode(["cat"], kind="passage"), encoder.encode(["passage: cat"])
        )
        np.testing.assert_array_equal(other.encode(["cat"]), encoder.encode(["cat"]))
        assert other.fingerprint != encoder.fingerprint


def test_default_prefixes_depend_on_file_folder_or_repository_name(tmp_path):
    """A known name sets the default prefixes."""
    folder = tmp_path / "e5-small-v2"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(ENCODER.read_bytes())
    with (
        Encoder(folder / "model.gguf") as known,
        Encoder(folder / "model.gguf", query_prefix="") as reported,
    ):
        assert (known.query_prefix, known.passage_prefix) == ("query: ", "passage: ")
        assert (reported.query_prefix, reported.passage_prefix) == ("", "passage: ")


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
def test_known_prefixes_equal_the_model_cards(name, query, passage):
    """For each known family of models."""
    assert encoder_room.known_prefixes(name) == (query, passage)


def test_closed_encoder_raises_a_new_error_for_each_caller():
    """The error does not keep the texts of other callers alive."""
    encoder = Encoder(ENCODER, n_threads=1)
    encoder.close()
    depths = set()
    for _ in range(3):
        with pytest.raises(EncoderError, match="the encoder is closed") as caught:
            encoder.encode(["a text"])
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1


def test_closed_encoder_fails_waiting_and_later_calls():
    """Closing twice is allowed."""
    with Encoder(ENCODER) as encoder:
        waiting = encoder.submit(["a b c d e f"] * 100_000)
    with pytest.raises(EncoderError, match="the encoder is closed"):
        waiting.result(timeout=60)
    with pytest.raises(EncoderError, match="the encoder is closed"):
        encoder.encode(["a"])
    encoder.close()
    assert encoder.closed
    assert repr(encoder) == "<Encoder encoder.gguf, 32 dimensions, closed>"


def test_unpickled_encoder_gives_identical_vectors():
    """A copy is the same object; unpickling restores all options."""
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


def test_unreferenced_encoder_ends_its_thread():
    """Garbage collection frees the model."""
    encoder = Encoder(ENCODER)
    thread = encoder._thread.thread
    del encoder
    thread.join(60)
    assert not thread.is_alive()


def test_unexpected_exception_fails_waiting_and_later_calls(monkeypatch):
    """If the model raises an unexpected exception, all calls raise `EncoderError`."""

    class Broken:
        n_ctx, n_dims, n_special_tokens, pooling = 8, 2, 2, "mean"

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


def test_encoder_in_forked_process_raises():
    """It does not wait forever, and the process exits normally."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], timeout=300, check=False)
    assert ended.returncode == 0


def test_interpreter_exit_stops_a_working_encoder():
    """The thread is stopped before llama.cpp is unloaded."""
    code = f"from relevance_gen import Encoder; Encoder({str(ENCODER)!r}).submit(['a b c'] * 1_000_000)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_real_model_ranks_a_paraphrase_first(real_encoder):
    """The nearest of three sentences is the paraphrase."""
    said = [
        "A doctor treats the sick.",
        "Physicians care for patients.",
        "The train leaves at noon.",
    ]
    one, same, other = real_encoder.encode(said)
    assert one @ same > 0.5 > 0.3 > one @ other


def test_real_model_equals_sentence_transformers(real_encoder, minilm_path):
    """The cosine with its vectors is at least 0.99999 on 50 texts with equal tokens."""
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
