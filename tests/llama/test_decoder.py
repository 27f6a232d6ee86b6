"""llama.cpp behind `Decoder`: what is relied on elsewhere, on a quantized transformer, and every way not to load."""

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
from small_models import BIGRAM, ENCODER, TINY
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
    """Compute `tokens` in slices, as the engine does, and return the last one's logits."""
    for first in range(0, len(tokens), model.n_batch):
        (logits,) = model.prefill([slot], [tokens[first : first + model.n_batch]], [start + first])
    return logits.copy()


def test_a_slot_that_was_saved_and_restored_goes_on_identically(model):
    """Saving one slot and restoring it into another changes no bit of what follows."""
    prefill(model, 0)
    model.restore(3, model.save(0))
    expected = model.decode([0], [7], [len(PROMPT)])[0].copy()
    model.rewind(0, 0)
    np.testing.assert_array_equal(model.decode([3], [7], [len(PROMPT)])[0], expected)


def test_a_reused_prefix_gives_identical_logits(model):
    """A prompt continued from a saved, rewound beginning ends with the bits that computing it whole gives."""
    whole = prefill(model, 0)
    saved = model.save(0)
    model.rewind(0, 0)
    model.restore(0, saved)
    model.rewind(0, 256)
    np.testing.assert_array_equal(prefill(model, 0, PROMPT[256:], 256), whole)


def test_neighbours_change_no_bit():
    """With a memory for each slot, a sequence's logits are the same alone and beside any number of others."""
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
    """A random transformer in float32, wide enough for every quantization."""
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
    """The same transformer in one of the formats that people use."""
    path = unquantized.with_name(f"{request.param}.gguf")
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(lib, f"LLAMA_FTYPE_{request.param}"), 1
    assert lib.llama_model_quantize(bytes(unquantized), bytes(path), ctypes.byref(params)) == 0
    return path


@pytest.mark.parametrize("use_extra_bufts", [None, False], ids=["repacked", "as in the file"])
def test_prompts_that_are_computed_together_change_no_bit_of_each_other(quantized, use_extra_bufts):
    """Whatever is computed along with a prompt, its logits and those of its next token are the ones that it has alone.

    One to twelve prompts of one to thirty tokens, in slots of any order, with gaps between them.
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


def test_slices_of_several_prompts_go_on_where_each_of_them_stands():
    """The last slices of prompts, each behind another number of tokens, give the bits that each gives alone."""
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
        slices = [tokens[start:] for tokens, start in zip(prompts, starts, strict=True)]
        np.testing.assert_array_equal(model.prefill(range(3), slices, starts), expected)


def test_flash_attention_computes_the_same():
    """With and without it the logits of a transformer differ by rounding alone."""
    plain, flash = (
        ModelOptions(n_ctx=512, n_slots=1, n_threads=1, flash_attention=flash_attention)
        for flash_attention in (False, True)
    )
    with Decoder(TINY, plain) as one, Decoder(TINY, flash) as other:
        expected = prefill(one, 0)
        assert 0 < np.abs(prefill(other, 0) - expected).max() < 0.02 * np.ptp(expected)


def test_interrupting_stops_a_computation_and_leaves_the_model_usable(model):
    """A flag set before or during `prefill` raises; after a rewind the same call succeeds with the same bits."""
    expected = prefill(model, 0, PROMPT[:100])
    model.rewind(0, 0)
    model.interrupt()
    with pytest.raises(Interrupted):
        model.prefill([0], [PROMPT[:100]], [0])
    model.rewind(0, 0)
    np.testing.assert_array_equal(prefill(model, 0, PROMPT[:100]), expected)


def test_pieces_put_together_are_the_text(model):
    """Tokenizing any text and printing the tokens gives its bytes back."""
    text = "The rest is silence — résumé 🙂\n\t日本語"
    assert b"".join(map(model.piece, model.tokenize(text, 0).tolist())).decode() == text


def test_control_tokens_print_nothing(model):
    """The text of a control token becomes the token, which prints no bytes."""
    assert model.tokenize("<|end|>", 0).tolist() == [1]
    assert model.piece(1) == b""


def test_tokenizing_a_megabyte_without_a_break_survives(model):
    """One word of a million letters is cut into tokens in reasonable time, in a thread with a small stack."""
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(model.tokenize, "a" * 1_000_000, 100).result()) == 100


@pytest.mark.parametrize("character", ["A", "é"])
def test_a_tokenizer_that_uses_std_regex_survives_a_text_without_a_break(tmp_path, character):
    """The pre-tokenizer of bloom, and of many models since, overflows the stack on 32,000 equal letters; not here."""
    model = tmp_path / "bloom.gguf"
    model.write_bytes(TINY.read_bytes().replace(b"gpt-2", b"bloom"))
    code = f"""
from relevance_gen.llama import weights
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.model_files.resolve import EMBEDDED_MODEL
print(len(Decoder({str(model)!r}, ModelOptions(n_ctx=8192, n_slots=1)).tokenize({character!r} * 100_000, 0)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert int(ended.stdout) == 100_000 * len(character.encode())


def test_a_text_of_more_tokens_than_there_is_room_for_is_tokenized_again(model):
    """Where normalizing makes more tokens than the text has bytes, room is made for them."""
    tokens = model.tokenize.__self__._tokenize(b"some text", add_special=True, capacity=1)
    np.testing.assert_array_equal(tokens, model.tokenize("some text", 0))


def test_a_long_text_of_words_is_tokenized_in_one_piece(model):
    """Only text without a break is cut: twenty thousand characters of words give the tokens of one call."""
    words = "the quick brown fox " * 1000
    in_one_call = model.tokenize.__self__._tokenize(words.encode(), add_special=True)
    np.testing.assert_array_equal(model.tokenize(words, 0), in_one_call)


def test_of_a_long_text_only_as_much_is_read_as_can_matter(model):
    """The last tokens of a long text are those of its end alone, and what cannot fit is refused without being read."""
    text = "the quick brown fox " * 20_000
    np.testing.assert_array_equal(model.tokenize(text, 100), model.tokenize(text[-10_000:], 100))
    assert model.tokenize(text, 100).base is None
    with pytest.raises(InvalidRequestError, match="at most 81,920 bytes"):
        model.tokenize(text, 0)


def test_a_text_in_parts_has_one_bos_token():
    """Where a text is cut, the BOS token stands in front of the first part alone."""
    with Decoder(BIGRAM, ModelOptions(n_slots=1, n_threads=1)) as model:
        assert model.tokenize("a" * 20_000, 0).tolist() == [0] + [2] * 20_000


def test_the_default_context_is_what_the_model_was_trained_on(caplog):
    """Where memory is plenty there are 16 slots of the model's own length, and one line says so."""
    with caplog.at_level(logging.INFO, "relevance_gen.llama.decoder"), Decoder(TINY) as model:
        assert (model.n_ctx, model.n_slots) == (2048, 16)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.name == "relevance_gen.llama.decoder"
    ]
    assert re.fullmatch(
        r"n_ctx=2048 for 16 slots need 19 MiB of the machine's memory, of which [\d,]+ are free",
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
def test_where_memory_is_scarce_slots_are_given_up_before_tokens(
    monkeypatch, free_mib, options, expected
):
    """A context takes half of what is free beside the weights; what was asked for stays."""
    monkeypatch.setattr(
        "relevance_gen.llama.free_memory.available_memory",
        lambda: (free_mib << 20) + TINY.stat().st_size,
    )
    with Decoder(TINY, ModelOptions(n_threads=1, **options)) as model:
        assert (model.n_ctx, model.n_slots) == expected
        for slot in range(model.n_slots):
            model.prefill([slot], [np.zeros(2, np.int32)], [0])


def test_keys_and_values_are_counted_as_llama_cpp_allocates_them(caplog):
    """What a token takes is what llama.cpp's own log says of the whole context."""
    options = ModelOptions(n_ctx=1024, n_slots=8)
    with caplog.at_level(logging.DEBUG, "relevance_gen.llama"), Decoder(TINY, options) as model:
        told = re.search(r"KV buffer size = +([\d.]+) MiB", caplog.text)
        assert told is not None
        assert float(told[1]) * 2**20 == model._weights.token_bytes * 1024 * 8


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
def test_what_is_no_model_is_an_error_that_says_why(tmp_path, content, message):
    """No file, no GGUF, a damaged or truncated one: `ModelLoadError`, an OSError, with the reason."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        Decoder(path)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_copy_goes_on_with_the_same_bits(on_device):
    """A slot that was copied has the logits of its source, whichever way, also where a copied one is copied on."""
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


def test_what_is_to_be_copied_later_does_not_overwrite_what_came_since():
    """On a device a copy is made at the next computation: a slot that is restored before keeps what was restored."""
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


def test_an_embedding_model_is_refused():
    """A BERT can be loaded and computed, but has no memory of what it read: it would answer with nonsense."""
    with pytest.raises(
        ModelLoadError,
        match=r"encoder\.gguf holds an embedding model, which does not generate text: pass it to Encoder",
    ):
        Decoder(ENCODER, ModelOptions(n_ctx=32, n_slots=1))


def test_a_gpu_that_is_not_there_is_refused():
    """It would be left out in silence, or fail for a reason of llama.cpp's; on a CPU alone no GPU is looked for."""
    with pytest.raises(
        InvalidRequestError,
        match=r"main_gpu must be the number of a GPU of this build of llama\.cpp \(.*\), got 99; ",
    ):
        Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, main_gpu=99))
    with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, main_gpu=99, n_gpu_layers=0)) as model:
        assert model.n_slots == 1


def test_a_directory_is_no_model(tmp_path):
    """A directory is refused like any unreadable file."""
    with pytest.raises(ModelLoadError, match="cannot be read: Is a directory"):
        Decoder(tmp_path)


@pytest.mark.parametrize("n_ctx", [10**8, 10**12])
def test_a_context_too_large_for_the_machine_is_refused_before_it_is_made(n_ctx):
    """Memory that the machine does not have is an error that says how much, not the end of the process."""
    with pytest.raises(ModelLoadError, match=r"need [\d,]+ MiB .* choose a smaller n_ctx"):
        Decoder(TINY, ModelOptions(n_ctx=n_ctx, n_slots=16))


def test_a_slice_is_no_longer_than_the_context():
    """A slice that no prompt can fill gets no memory: n_batch is n_ctx at most, rounded up to a multiple of 8."""
    with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, n_batch=10**9, n_threads=1)) as model:
        assert model.n_batch == 256
    with Decoder(TINY, ModelOptions(n_ctx=1, n_slots=1, n_threads=1)) as model:
        assert model.n_batch == 8


def test_loading_can_be_given_up(tmp_path):
    """Where `on_progress` says no, loading ends with an error."""
    with pytest.raises(ModelLoadError):
        Decoder(TINY, on_progress=lambda _: False)


def test_llama_cpp_is_quiet_and_its_log_is_reachable(capfd, caplog):
    """Nothing is printed by default; the logger relevance_gen.llama has it all."""
    options = ModelOptions(n_ctx=256, n_slots=1, n_threads=1)
    with caplog.at_level(logging.DEBUG, "relevance_gen.llama"), Decoder(TINY, options):
        pass
    assert any("llama_model_loader" in record.message for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_interrupting_works_from_another_thread_while_a_prompt_is_computed():
    """A long prefill ends soon after another thread interrupts it."""
    with Decoder(TINY, ModelOptions(n_ctx=2048, n_slots=1, n_batch=2000, n_threads=1)) as model:
        threading.Timer(0.005, model.interrupt).start()
        tokens = np.resize(PROMPT, 2000)
        with pytest.raises(Interrupted):  # noqa: PT012 - whichever of the calls is under way
            while True:
                model.prefill([0], [tokens], [0])
                model.rewind(0, 0)


def test_a_small_model_is_computed_by_one_thread(monkeypatch):
    """By default the embedded model gets one thread, a larger one the physical cores, and an option has its way."""

    def n_threads(**options):
        with Decoder(EMBEDDED_MODEL, ModelOptions(n_ctx=256, n_slots=1, **options)) as model:
            return model.n_threads

    assert n_threads() == 1
    assert n_threads(n_threads=2) == 2
    monkeypatch.setattr(weights, "usable_cores", lambda: 3)
    monkeypatch.setattr(weights, "_MIN_MULTITHREADED_BYTES", EMBEDDED_MODEL.stat().st_size // 2)
    assert n_threads() == 3
