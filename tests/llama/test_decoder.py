"""Decoder: bit-identical results on a quantized transformer, and the errors of loading."""

import ctypes
import logging
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from relevance_gen.errors import InvalidRequestError, ModelLoadError
from relevance_gen.llama import weights
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.language_model import Interrupted
from relevance_gen.llama.model_files.resolve import EMBEDDED_MODEL
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.library import lib
from small_models import BIGRAM, ENCODER, RERANKER, TINY
from small_models.make import byte_level_vocabulary, random_tensors, write_model

PROMPT = np.random.default_rng(0).integers(2, 512, 300).astype(np.int32)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "flash_attention"])
def model(request):
    with Decoder(
        TINY, ModelOptions(n_ctx=512, n_slots=4, n_threads=1, flash_attention=request.param)
    ) as model:
        yield model


@pytest.fixture(autouse=True)
def _empty_slots(request):
    yield
    if "model" in request.fixturenames:
        model = request.getfixturevalue("model")
        for slot in range(model.n_slots):
            model.rewind(slot, 0)


def prefill(model, slot, tokens=PROMPT, start=0):
    """Compute `tokens` in prefill chunks, as the engine does, and return the logits of the last one."""
    for first in range(0, len(tokens), model.n_batch):
        (logits,) = model.prefill([slot], [tokens[first : first + model.n_batch]], [start + first])
    return logits.copy()


def test_restored_slot_continues_with_identical_bits(model):
    """A state that is saved in one slot and restored in a second slot gives the same logits."""
    prefill(model, 0)
    model.restore(3, model.save(0))
    expected = model.decode([0], [7], [len(PROMPT)])[0].copy()
    model.rewind(0, 0)
    np.testing.assert_array_equal(model.decode([3], [7], [len(PROMPT)])[0], expected)


def test_restored_prefix_gives_identical_logits(model):
    """A prompt that continues a saved and rewound prefix has the logits of the complete prompt."""
    whole = prefill(model, 0)
    saved = model.save(0)
    model.rewind(0, 0)
    model.restore(0, saved)
    model.rewind(0, 256)
    np.testing.assert_array_equal(prefill(model, 0, PROMPT[256:], 256), whole)


def test_decode_does_not_depend_on_other_slots():
    """With a KV cache for each slot, the logits of a sequence are the same for any number of other sequences."""
    with Decoder(TINY, ModelOptions(n_ctx=512, n_slots=8, n_threads=1)) as model:
        alone = prefill(model, 0, PROMPT[:50])
        step = model.decode([0], [7], [50])[0].copy()
        for slot in range(1, 8):
            np.testing.assert_array_equal(prefill(model, slot, PROMPT[:50]), alone)
        for n in range(2, 9):
            model.rewind(0, 50)
            for slot in range(1, n):
                model.rewind(slot, 50)
            logits = model.decode(range(n), [7] * n, [50] * n)
            np.testing.assert_array_equal(logits, np.repeat(step[None], n, axis=0))


@pytest.fixture(scope="module")
def unquantized(tmp_path_factory):
    """A random transformer in float32, wide enough for all quantizations."""
    path = tmp_path_factory.mktemp("models") / "F32.gguf"
    tokens, merges = byte_level_vocabulary(512)
    shape = {"n_embd": 256, "n_ff": 256, "n_layer": 2}
    tensors = random_tensors(n_vocab=512, **shape)
    written = {
        "tokens": tokens,
        "merges": merges,
        "n_ctx": 512,
        "n_head": 4,
        "add_bos": False,
        "quantized": False,
    }
    write_model(path, tensors, **shape, **written)
    return path


@pytest.fixture(
    scope="module", params=["ALL_F32", "MOSTLY_F16", "MOSTLY_Q8_0", "MOSTLY_Q4_K_M", "MOSTLY_Q2_K"]
)
def quantized(request, unquantized):
    """The same transformer in a common quantization."""
    path = unquantized.with_name(f"{request.param}.gguf")
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(lib, f"LLAMA_FTYPE_{request.param}"), 1
    assert lib.llama_model_quantize(bytes(unquantized), bytes(path), ctypes.byref(params)) == 0
    return path


@pytest.mark.parametrize("use_extra_bufts", [None, False], ids=["repacked", "as in the file"])
def test_prefill_does_not_depend_on_other_prompts(quantized, use_extra_bufts):
    """The logits of a prompt and of its next token are the same as alone.

    One to twelve prompts of one to thirty tokens, in slots of any order and with gaps.
    """
    options = ModelOptions(
        n_ctx=512, n_slots=12, n_batch=384, n_threads=1, use_extra_bufts=use_extra_bufts
    )
    chance = np.random.default_rng(0)
    with Decoder(quantized, options) as model:
        for n in range(1, 13):
            prompts = [np.resize(PROMPT[7 * place :], chance.integers(1, 31)) for place in range(n)]
            expected = []
            for tokens in prompts:
                (logits,) = model.prefill([0], [tokens], [0]).copy()
                expected += [logits, model.decode([0], [7], [len(tokens)])[0].copy()]
                model.rewind(0, 0)
            slots = chance.permutation(12)[:n].tolist()
            together = model.prefill(slots, prompts, [0] * n)
            for place, (slot, tokens) in enumerate(zip(slots, prompts, strict=True)):
                np.testing.assert_array_equal(together[place], expected[2 * place])
                np.testing.assert_array_equal(
                    model.decode([slot], [7], [len(tokens)])[0], expected[2 * place + 1]
                )
                model.rewind(slot, 0)


def test_prefill_continues_prompts_of_different_lengths():
    """The last chunks of prompts, after different numbers of tokens, have the same bits as alone."""
    with Decoder(TINY, ModelOptions(n_ctx=512, n_slots=3, n_batch=64, n_threads=1)) as model:
        prompts = [PROMPT[:70], PROMPT[3:14], PROMPT[5:200]]
        expected = []
        for tokens in prompts:
            expected.append(prefill(model, 0, tokens))
            model.rewind(0, 0)
        starts = [len(tokens) // 64 * 64 for tokens in prompts]
        for slot, (tokens, start) in enumerate(zip(prompts, starts, strict=True)):
            if start:
                prefill(model, slot, tokens[:start])
        chunks = [tokens[start:] for tokens, start in zip(prompts, starts, strict=True)]
        np.testing.assert_array_equal(model.prefill(range(3), chunks, starts), expected)


def test_flash_attention_differs_by_rounding_only():
    """Logits with and without flash attention are equal up to rounding."""
    plain, flash = (
        ModelOptions(n_ctx=512, n_slots=1, n_threads=1, flash_attention=flash_attention)
        for flash_attention in (False, True)
    )
    with Decoder(TINY, plain) as one, Decoder(TINY, flash) as other:
        expected = prefill(one, 0)
        assert 0 < np.abs(prefill(other, 0) - expected).max() < 0.02 * np.ptp(expected)


def test_interrupt_before_or_during_prefill_raises_and_allows_retry(model):
    """After a rewind the same call succeeds with the same bits."""
    expected = prefill(model, 0, PROMPT[:100])
    model.rewind(0, 0)
    model.interrupt()
    with pytest.raises(Interrupted):
        model.prefill([0], [PROMPT[:100]], [0])
    model.rewind(0, 0)
    np.testing.assert_array_equal(prefill(model, 0, PROMPT[:100]), expected)


def test_pieces_of_tokens_join_to_the_text(model):
    """Tokenizing a text and joining the bytes of its tokens returns the text."""
    text = "The rest is silence — résumé 🙂\n\t日本語"
    assert b"".join(map(model.piece, model.tokenize(text, 0).tolist())).decode() == text


def test_control_tokens_print_nothing(model):
    """The text of a control token becomes the token, which prints no bytes."""
    assert model.tokenize("<|end|>", 0).tolist() == [1]
    assert model.piece(1) == b""


def test_tokenize_megabyte_without_break_succeeds(model):
    """A word of a million letters is tokenized in reasonable time, in a thread with a small stack."""
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(model.tokenize, "a" * 1_000_000, 100).result()) == 100


@pytest.mark.parametrize("character", ["A", "é"])
def test_tokenize_with_std_regex_does_not_overflow_the_stack(tmp_path, character):
    """The pre-tokenizer of bloom and many later models would overflow the stack on 32,000 equal letters."""
    model = tmp_path / "bloom.gguf"
    model.write_bytes(TINY.read_bytes().replace(b"gpt-2", b"bloom"))
    code = f"""
from pathlib import Path
from relevance_gen.llama import weights
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.model_files.resolve import EMBEDDED_MODEL
print(len(Decoder(Path({str(model)!r}), ModelOptions(n_ctx=8192, n_slots=1)).tokenize({character!r} * 100_000, 0)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert int(ended.stdout) == 100_000 * len(character.encode())


def test_tokenize_text_that_grows_by_normalization_succeeds(model):
    """The buffer is enlarged if a text has more tokens than bytes."""
    tokens = model.tokenize.__self__._tokenize(b"some text", add_special=True, capacity=1)
    np.testing.assert_array_equal(tokens, model.tokenize("some text", 0))


def test_tokenize_long_text_with_breaks_is_not_split(model):
    """Twenty thousand characters of words have the tokens of a single call."""
    words = "the quick brown fox " * 1000
    in_one_call = model.tokenize.__self__._tokenize(words.encode(), add_special=True)
    np.testing.assert_array_equal(model.tokenize(words, 0), in_one_call)


def test_tokenize_encodes_only_the_end_of_a_long_text(model):
    """The last tokens equal those of its end, and a text that cannot fit is rejected without tokenizing."""
    text = "the quick brown fox " * 20_000
    np.testing.assert_array_equal(model.tokenize(text, 100), model.tokenize(text[-10_000:], 100))
    assert model.tokenize(text, 100).base is None
    with pytest.raises(InvalidRequestError, match="more than 81,920 bytes"):
        model.tokenize(text, 0)


def test_tokenize_split_text_has_one_bos_token():
    """Only the first part has the BOS token."""
    with Decoder(BIGRAM, ModelOptions(n_slots=1, n_threads=1)) as model:
        assert model.tokenize("a" * 20_000, 0).tolist() == [0] + [2] * 20_000


def test_default_context_has_the_training_length(caplog):
    """With enough memory there are 16 slots of the model's training length, which the log reports."""
    with caplog.at_level(logging.INFO, "relevance_gen.llama.decoder"), Decoder(TINY) as model:
        assert (model.n_ctx, model.n_slots) == (2048, 16)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.name == "relevance_gen.llama.decoder"
    ]
    assert re.fullmatch(
        r"16 slots with n_ctx=2048 need 19 MiB of the machine's memory, of which [\d,]+ are free",
        line,
    )


@pytest.mark.parametrize(
    ("free_mib", "options", "expected"),
    [
        (30, {}, (2048, 12)),
        (8, {}, (2048, 1)),
        (4, {}, (1024, 1)),
        (30, {"n_slots": 16}, (1536, 16)),
        (30, {"n_ctx": 512}, (512, 16)),
        (10, {"n_ctx": 2048}, (2048, 2)),
        (30, {"flash_attention": True}, (2048, 14)),
    ],
)
def test_scarce_memory_reduces_slots_before_length(monkeypatch, free_mib, options, expected):
    """A context takes half of the free memory after the weights; requested values are unchanged."""
    monkeypatch.setattr(
        "relevance_gen.llama.free_memory.available_memory",
        lambda: (free_mib << 20) + TINY.stat().st_size,
    )
    with Decoder(TINY, ModelOptions(n_threads=1, **options)) as model:
        assert (model.n_ctx, model.n_slots) == expected
        for slot in range(model.n_slots):
            model.prefill([slot], [np.zeros(2, np.int32)], [0])


def test_token_bytes_equal_the_allocation_of_llama_cpp(caplog):
    """The estimate for the context equals the size in llama.cpp's log."""
    options = ModelOptions(n_ctx=1024, n_slots=8)
    with caplog.at_level(logging.DEBUG, "relevance_gen.llama"), Decoder(TINY, options) as model:
        match = re.search(r"KV buffer size = +([\d.]+) MiB", caplog.text)
        assert match is not None
        assert float(match[1]) * 2**20 == model._weights.token_bytes * 1024 * 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04 a zip file", "is not a GGUF file"),
        (b"GGUF", "cannot be loaded"),
        (b"GGUF" + bytes(200), "cannot be loaded"),
        (TINY.read_bytes()[:5000], "cannot be loaded"),
        (TINY.read_bytes()[:-2000], "cannot be loaded: .*bounds"),
    ],
    ids=["missing", "empty", "zip", "magic only", "zeros", "half a header", "truncated"],
)
def test_invalid_model_file_raises_with_reason(tmp_path, content, message):
    """A missing, damaged or truncated file, or one in another format, raises `ModelLoadError`, an OSError."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        Decoder(path)


@pytest.mark.parametrize("on_device", [False, True])
def test_copied_slot_continues_with_identical_bits(on_device):
    """A copy has the logits of its source, on a CPU and on a device, also a copy of a copy."""
    with Decoder(TINY, ModelOptions(n_ctx=512, n_slots=4, n_threads=1)) as model:
        assert not model.copies_on_device
        model.copies_on_device = on_device
        prompt = model.tokenize("the quick brown fox jumps over the lazy dog", 0)
        model.prefill([0], [prompt], [0])
        model.copy(0, 2)
        model.copy(2, 1)
        model.rewind(2, 0)
        alone = model.decode([0], [5], [len(prompt)])[0].copy()
        model.rewind(0, len(prompt))
        rows = model.decode([0, 1], [5, 5], [len(prompt)] * 2)
        np.testing.assert_array_equal(rows, [alone, alone])


def test_pending_copy_does_not_overwrite_a_restored_slot():
    """On a device the next computation makes the copy; a slot that is restored before that keeps the restored state."""
    with Decoder(TINY, ModelOptions(n_ctx=512, n_slots=4, n_threads=1)) as model:
        texts = [
            model.tokenize(text, 0) for text in ("the quick brown fox", "over the lazy dog again")
        ]
        for slot, tokens in enumerate(texts):
            model.prefill([slot], [tokens], [0])
        states = [model.save(slot) for slot in range(2)]
        expected = [model.decode([slot], [7], [len(texts[slot])])[0].copy() for slot in range(2)]
        for slot in range(2):
            model.rewind(slot, len(texts[slot]))
        model.copies_on_device = True
        model.copy(0, 2)
        model.restore(2, states[1])
        model.copy(1, 3)
        copied = model.save(3)
        model.interrupt()
        model.copy(0, 3)
        model.restore(3, copied)
        for slot in (2, 3):
            np.testing.assert_array_equal(
                model.decode([slot], [7], [len(texts[1])])[0], expected[1]
            )
        np.testing.assert_array_equal(model.decode([0], [7], [len(texts[0])])[0], expected[0])


def test_embedding_model_is_rejected():
    """BERT can be loaded and computed, but has no KV cache, and would generate nonsense."""
    with pytest.raises(
        ModelLoadError,
        match=r"encoder\.gguf holds an embedding model, which does not generate text: pass it to Encoder",
    ):
        Decoder(ENCODER, ModelOptions(n_ctx=32, n_slots=1))


def test_reranker_is_rejected():
    """The error names the class for the file, and not the class of embedding models."""
    with pytest.raises(
        ModelLoadError,
        match=r"reranker\.gguf holds a reranker, which does not generate text: pass it to Reranker",
    ):
        Decoder(RERANKER, ModelOptions(n_ctx=32, n_slots=1))


def test_missing_gpu_is_rejected():
    """The error lists the GPUs; with n_gpu_layers=0 the number is not checked."""
    with pytest.raises(
        InvalidRequestError,
        match=r"main_gpu must be the number of a GPU of this build of llama\.cpp \(.*\), got 99; ",
    ):
        Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, main_gpu=99))
    with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, main_gpu=99, n_gpu_layers=0)) as model:
        assert model.n_slots == 1


def test_directory_is_rejected(tmp_path):
    """A directory is rejected like an unreadable file."""
    with pytest.raises(ModelLoadError, match="cannot be read: Is a directory"):
        Decoder(tmp_path)


@pytest.mark.parametrize("n_ctx", [10**8, 10**12])
def test_context_larger_than_memory_is_rejected_before_allocation(n_ctx):
    """The error reports the required memory, and the process survives."""
    with pytest.raises(ModelLoadError, match=r"need [\d,]+ MiB .* choose a smaller n_ctx"):
        Decoder(TINY, ModelOptions(n_ctx=n_ctx, n_slots=16))


def test_n_batch_is_limited_to_n_ctx():
    """The batch is at most n_ctx tokens, rounded up to a multiple of 8."""
    with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, n_batch=10**9, n_threads=1)) as model:
        assert model.n_batch == 256
    with Decoder(TINY, ModelOptions(n_ctx=1, n_slots=1, n_threads=1)) as model:
        assert model.n_batch == 8


def test_on_progress_returning_false_cancels_loading(tmp_path):
    """Loading ends with an error."""
    with pytest.raises(ModelLoadError):
        Decoder(TINY, on_progress=lambda _: False)


def test_llama_cpp_log_goes_to_python_logging(capfd, caplog):
    """Nothing is printed by default; the logger relevance_gen.llama receives all messages."""
    options = ModelOptions(n_ctx=256, n_slots=1, n_threads=1)
    with caplog.at_level(logging.DEBUG, "relevance_gen.llama"), Decoder(TINY, options):
        pass
    assert any("llama_model_loader" in record.message for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_interrupt_from_another_thread_stops_a_prefill():
    """A long prefill ends soon after the interrupt."""
    with Decoder(TINY, ModelOptions(n_ctx=2048, n_slots=1, n_batch=2000, n_threads=1)) as model:
        threading.Timer(0.005, model.interrupt).start()
        tokens = np.resize(PROMPT, 2000)
        with pytest.raises(Interrupted):  # noqa: PT012 - whichever of the calls is under way
            while True:
                model.prefill([0], [tokens], [0])
                model.rewind(0, 0)


def test_default_threads_depend_on_the_size_of_the_model(monkeypatch):
    """The embedded model gets one thread, a larger model the physical cores, and an option overrides both."""

    def n_threads(**options):
        with Decoder(EMBEDDED_MODEL, ModelOptions(n_ctx=256, n_slots=1, **options)) as model:
            return model.n_threads

    assert n_threads() == 1
    assert n_threads(n_threads=2) == 2
    monkeypatch.setattr(weights, "usable_cores", lambda: 3)
    monkeypatch.setattr(weights, "_MIN_MULTITHREADED_BYTES", EMBEDDED_MODEL.stat().st_size // 2)
    assert n_threads() == 3
