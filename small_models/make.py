"""Make the models that tests run on: `python -m small_models.make` writes them, byte for byte the same.

All use the same byte-level BPE vocabulary idea: ids 0 and 1 are control tokens, then single bytes,
then merged words.

- *tiny*: a real transformer with random weights, Q8_0, V=512. Every byte is a token, so any text
  can be a prompt and its output is full of broken UTF-8.
- *bigram*: logits(next) = `bigram_table()[current]`, for any earlier tokens. A one-hot embedding
  passes attention and feed-forward of zeros unchanged, RMSNorm scales it by √V, and the output
  matrix is TABLEᵀ/√V. Greedy text, log probabilities and every sampling distribution then have
  closed forms.
- *encoder*: a BERT of random weights, which reads and does not generate.
- *reranker*: a cross-encoder of the same kind.
- *trial*: zeros. It ships with the package, for `relevance_gen.llama.trial`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from relevance_gen.llama.trial import TRIAL_MODEL
from small_models import BIGRAM, BIGRAM_TOKENS, ENCODER, RERANKER, TINY, bigram_table
from tools.convert_bert import DOCUMENT_OFFSET

CONTROL = ("<|begin|>", "<|end|>")
_MERGED_WORDS = (
    "the",
    "and",
    "ing",
    "ion",
    "ent",
    "er",
    "re",
    "on",
    "at",
    "is",
    "or",
    "es",
    "st",
    "an",
    "en",
)


def byte_letters() -> list[str]:
    """Return GPT-2's printable character for each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(hidden)}
    return [letters[b] for b in range(256)]


def byte_level_vocabulary(n_vocab: int) -> tuple[list[str], list[str]]:
    """Return `n_vocab` tokens, including the 256 bytes, and the merges of the longer tokens."""
    tokens, merges = [*CONTROL, *byte_letters()], []
    alphabet = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    words = [*_MERGED_WORDS, *(a + b for a in alphabet for b in alphabet)]
    for word in words:
        for end in range(2, len(word) + 1):
            if len(tokens) < n_vocab and word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    # Nonsense words fill a large vocabulary: never UNUSED tokens, which would be sampled and print
    # nothing.
    tokens += [f"w{n}" for n in range(n_vocab - len(tokens))]
    return tokens, merges


def write_model(
    path: Path,
    tensors: dict[str, NDArray[Any]],
    *,
    tokens: list[str],
    merges: list[str],
    n_ctx: int,
    n_embd: int,
    n_ff: int,
    n_layer: int,
    n_head: int,
    add_bos: bool,
    quantized: bool,
    types: Mapping[str, gguf.TokenType] = MappingProxyType({}),
) -> None:
    """Write a llama-architecture GGUF file with a byte-level BPE vocabulary.

    Args:
        path: the file to write.
        tensors: name to float array; matrices whose rows are multiples of 32 become Q8_0 where
            `quantized`.
        tokens: the vocabulary; the first two are control tokens, beginning and end.
        merges: BPE merges, ``"a b"`` each.
        n_ctx: trained context, in tokens.
        n_embd: embedding width.
        n_ff: feed-forward width.
        n_layer: number of blocks.
        n_head: number of attention heads.
        add_bos: whether a prompt starts with the begin token.
        quantized: whether matrices are Q8_0.
        types: tokens that are neither control tokens nor normal tokens.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_block_count(n_layer)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head)
    writer.add_layer_norm_rms_eps(1e-9)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(n_embd // n_head)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    of_two = [gguf.TokenType.CONTROL] * 2
    writer.add_token_types(
        of_two + [types.get(token, gguf.TokenType.NORMAL) for token in tokens[2:]]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(False)
    for name, tensor in tensors.items():
        if quantized and tensor.ndim == 2 and tensor.dtype == np.float32:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_tensors(
    *, n_vocab: int, n_embd: int, n_ff: int, n_layer: int, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Draw a llama model's weights so that activations keep their size from block to block."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(
            gain / np.sqrt(columns)
        )

    tensors: dict[str, NDArray[Any]] = {
        "token_embd.weight": rng.standard_normal((n_vocab, n_embd), dtype=np.float32),
        "output_norm.weight": np.ones(n_embd, np.float32),
        "output.weight": matrix(n_vocab, n_embd, 3.0),
    }
    for block in range(n_layer):
        tensors |= {
            f"blk.{block}.attn_norm.weight": np.ones(n_embd, np.float32),
            f"blk.{block}.attn_q.weight": matrix(n_embd, n_embd, 2.0),
            f"blk.{block}.attn_k.weight": matrix(n_embd, n_embd, 2.0),
            f"blk.{block}.attn_v.weight": matrix(n_embd, n_embd),
            f"blk.{block}.attn_output.weight": matrix(n_embd, n_embd),
            f"blk.{block}.ffn_norm.weight": np.ones(n_embd, np.float32),
            f"blk.{block}.ffn_gate.weight": matrix(n_ff, n_embd),
            f"blk.{block}.ffn_up.weight": matrix(n_ff, n_embd),
            f"blk.{block}.ffn_down.weight": matrix(n_embd, n_ff),
        }
    return tensors


def write_random(
    path: Path, *, n_vocab: int, n_embd: int, n_ff: int, n_layer: int, n_head: int, n_ctx: int
) -> None:
    """Write a transformer with random Q8_0 weights."""
    tokens, merges = byte_level_vocabulary(n_vocab)
    tensors = random_tensors(n_vocab=n_vocab, n_embd=n_embd, n_ff=n_ff, n_layer=n_layer)
    write_model(
        path, tensors, tokens=tokens, merges=merges, n_ctx=n_ctx, n_embd=n_embd, n_ff=n_ff, n_layer=n_layer,
        n_head=n_head, add_bos=False, quantized=True,
    )  # fmt: skip


def write_bigram(path: Path) -> None:
    """Write the model whose next-token logits are `bigram_table()[current]`."""
    table = bigram_table()
    n_vocab = len(table)
    n_head = 4  # the fast paths of llama.cpp need head widths that are multiples of 32
    tensors = random_tensors(n_vocab=n_vocab, n_embd=n_vocab, n_ff=32, n_layer=1)
    tensors = {name: np.zeros_like(t) if t.ndim == 2 else t for name, t in tensors.items()}
    tensors["token_embd.weight"] = np.eye(n_vocab, dtype=np.float16)
    tensors["output.weight"] = np.ascontiguousarray(table.T / np.sqrt(n_vocab), dtype=np.float32)
    # llama.cpp requires a merge; it splits a merge without a token again.
    tokens = [*CONTROL, *("".join(byte_letters()[b] for b in piece) for piece in BIGRAM_TOKENS[2:])]
    write_model(
        path, tensors, tokens=tokens, merges=["q q"], n_ctx=512, n_embd=n_vocab, n_ff=32, n_layer=1,
        n_head=n_head, add_bos=True, quantized=False,
    )  # fmt: skip


def write_encoder(path: Path) -> None:
    """Write a BERT of random weights with a vocabulary of letters: a model that reads, and does not generate."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    _write_bert(
        path,
        [*("▁" + letter for letter in letters), *letters],
        gguf.PoolingType.MEAN,
        n_ctx=32,
        scale=0.1,
    )


def write_reranker(path: Path) -> None:
    """Write a cross-encoder of the same kind, as `tools.convert_bert` would: with a second copy of the vocabulary."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    _write_bert(
        path,
        [*("▁" + letter for letter in letters), *letters],
        gguf.PoolingType.RANK,
        n_ctx=64,
        scale=0.3,
    )


def _write_bert(
    path: Path, words: list[str], pooling: gguf.PoolingType, *, n_ctx: int, scale: float
) -> None:
    n_embd, n_ff = 32, 32
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens, kinds = (
        special + words,
        [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * len(words),
    )
    n_tokens, ranks = len(tokens), pooling == gguf.PoolingType.RANK
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    if ranks:
        writer.add_uint32(DOCUMENT_OFFSET, n_tokens)
        tokens = [*tokens, *(f"[second {token}]" for token in tokens)]
        kinds = [*kinds, *[gguf.TokenType.UNUSED] * n_tokens]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    shapes = {
        "token_embd": (n_tokens, n_embd),
        "position_embd": (n_ctx, n_embd),
        "token_types": (2, n_embd),
    }
    shapes |= {f"blk.0.attn_{name}": (n_embd, n_embd) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_up": (n_ff, n_embd), "blk.0.ffn_down": (n_embd, n_ff)}
    if ranks:
        shapes |= {"cls": (n_embd, n_embd), "cls.output": (1, n_embd)}
    chance = np.random.default_rng(0)
    tensors = {
        name: chance.normal(0, scale, shape).astype(np.float32) for name, shape in shapes.items()
    }
    if ranks:
        types = tensors["token_types"]
        tensors["token_embd"] = np.concatenate(
            (tensors["token_embd"], tensors["token_embd"] + types[1] - types[0])
        )
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
        if name.startswith(("blk", "cls")):
            writer.add_tensor(f"{name}.bias", np.zeros(len(tensor), np.float32))
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(n_embd, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(n_embd, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_trial(path: Path) -> None:
    """Write a Q8_0 model of zeros, every matrix wide enough for AMX tiles: it compresses to nothing in a wheel."""
    tokens, merges = byte_level_vocabulary(288)
    tensors = random_tensors(n_vocab=len(tokens), n_embd=128, n_ff=256, n_layer=1)
    tensors = {name: np.zeros_like(t) if t.ndim == 2 else t for name, t in tensors.items()}
    write_model(
        path, tensors, tokens=tokens, merges=merges, n_ctx=256, n_embd=128, n_ff=256, n_layer=1,
        n_head=2, add_bos=False, quantized=True,
    )  # fmt: skip


if __name__ == "__main__":
    write_random(TINY, n_vocab=512, n_embd=64, n_ff=128, n_layer=2, n_head=2, n_ctx=2048)
    write_bigram(BIGRAM)
    write_encoder(ENCODER)
    write_reranker(RERANKER)
    write_trial(TRIAL_MODEL)
