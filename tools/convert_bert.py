"""Turn a BERT of the Hugging Face layout into a GGUF file: ``python tools/convert_bert.py FOLDER OUTPUT.gguf``.

For models whose ``config.json`` has ``"model_type": "bert"`` and whose weights are safetensors:
all-MiniLM, bge, e5, gte and their like, and cross-encoders such as ms-marco-MiniLM. Other families
are converted by llama.cpp's own ``convert_hf_to_gguf.py``, as are these, but for cross-encoders: of
those it drops the pooler, and llama.cpp gives every token the type 0, also those of the text, which
have the type 1. So the file has a second copy of the vocabulary, whose vectors have the difference
of the two types added, and `relevance_gen.Reranker` reads the text in its tokens.

It needs the package `gguf`, and neither PyTorch nor transformers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.float32]]

TYPES: Final = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
DOCUMENT_OFFSET: Final = "relevance_gen.document_offset"
"""The metadata key with the start of the second copy of the vocabulary."""
POOLINGS: Final = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}

_NUMPY_TYPES: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_EMBEDDINGS: Final = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
_BLOCK: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_RANKING: Final = {"pooler.dense": "cls", "classifier": "cls.output"}
_ALWAYS_F32: Final = ("position_embd.weight", "token_types.weight", "cls.output.weight")


def convert(folder: Path, output: Path, *, kind: str = "f16", pooling: str | None = None) -> None:
    """Write the model of `folder` to `output`.

    Args:
        folder: holds ``config.json``, ``model.safetensors``, and ``vocab.txt`` or
            ``tokenizer.json``.
        output: the GGUF file.
        kind: the type of the matrices, a key of `TYPES`.
        pooling: a key of `POOLINGS`; None reads it from the files of sentence-transformers. A
            cross-encoder has none.

    Raises:
        ValueError: the model is of another family, or its pooling is not known.
        OSError: a file is missing.
    """
    config = _read(folder / "config.json")
    if (
        config.get("model_type") != "bert"
        or config.get("position_embedding_type", "absolute") != "absolute"
    ):
        raise ValueError(
            f"{folder} holds no BERT with absolute positions; use llama.cpp's convert_hf_to_gguf.py"
        )
    ranks = "BertForSequenceClassification" in config.get("architectures", ())
    tensors = _tensors(folder / "model.safetensors")
    if ranks and len(tensors["classifier.weight"]) != 1:
        raise ValueError(
            f"{folder} holds a classifier of {len(tensors['classifier.weight'])} labels; a reranker has one"
        )
    pooling_type = gguf.PoolingType.RANK if ranks else POOLINGS[pooling or _pooling(folder)]
    writer = gguf.GGUFWriter(output, "bert")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling_type)
    writer.add_file_type(TYPES[kind][1])
    _add_vocabulary(writer, folder, config["type_vocab_size"], twice=ranks)
    for name, tensor in _renamed(tensors, config["num_hidden_layers"], ranks=ranks):
        if kind == "f32" or tensor.ndim < 2 or name in _ALWAYS_F32:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(
                name, gguf.quants.quantize(tensor, TYPES[kind][0]), raw_dtype=TYPES[kind][0]
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _pooling(folder: Path) -> str:
    """Return the pooling of sentence-transformers, from its separate folder."""
    modules = folder / "modules.json"
    if not modules.exists():
        raise ValueError(
            f"{folder} does not say how the vectors of tokens are pooled; pass --pooling"
        )
    by_kind = {module["type"].rpartition(".")[2]: module["path"] for module in _read(modules)}
    if surplus := by_kind.keys() - {"Transformer", "Pooling", "Normalize"}:
        raise ValueError(
            f"{folder} ends in layers that a GGUF file cannot hold: {', '.join(sorted(surplus))}"
        )
    modes = _read(folder / by_kind["Pooling"] / "config.json")
    chosen = [
        name
        for name, key in (("mean", "mean_tokens"), ("cls", "cls_token"))
        if modes[f"pooling_mode_{key}"]
    ]
    if len(chosen) != 1:
        raise ValueError(
            f"{folder} pools in a way that llama.cpp does not: neither mean nor cls alone"
        )
    return chosen[0]


# ── The vocabulary ────────────────────────────────────────────────────────────────────────────────


def _add_vocabulary(
    writer: gguf.GGUFWriter, folder: Path, n_token_types: int, *, twice: bool
) -> None:
    """Add the tokens; llama.cpp marks the beginning of a word, Hugging Face its continuation."""
    tokens = _tokens(folder)
    names, kinds = [], []
    for token in tokens:
        is_unused = token.startswith("[unused") and token.endswith("]")
        if token in _SPECIAL or is_unused:
            names.append(token)
            kinds.append(gguf.TokenType.UNUSED if is_unused else gguf.TokenType.CONTROL)
        else:
            names.append(token[2:] if token.startswith("##") else "▁" + token)
            kinds.append(gguf.TokenType.NORMAL)
    if twice:  # no text has a token of the second copy: brackets are cut from words
        writer.add_uint32(DOCUMENT_OFFSET, len(tokens))
        names += [f"[second {name}]" for name in names]
        kinds += [gguf.TokenType.UNUSED] * len(tokens)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_type_count(n_token_types)
    number = {token: at for at, token in enumerate(tokens)}
    writer.add_pad_token_id(number["[PAD]"])
    writer.add_unk_token_id(number["[UNK]"])
    writer.add_bos_token_id(number["[CLS]"])
    writer.add_sep_token_id(number["[SEP]"])
    writer.add_mask_token_id(number["[MASK]"])
    settings = (
        _read(folder / "tokenizer_config.json")
        if (folder / "tokenizer_config.json").exists()
        else {}
    )
    lowercase = bool(settings.get("do_lower_case", True))
    accents = settings.get("strip_accents")
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", lowercase)
    writer.add_bool(
        "tokenizer.ggml.normalizer.strip_accents", lowercase if accents is None else bool(accents)
    )


def _tokens(folder: Path) -> list[str]:
    """Return the tokens in the order of their ids."""
    if (folder / "vocab.txt").exists():
        return (folder / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
    numbers = _read(folder / "tokenizer.json")["model"]["vocab"]
    return sorted(numbers, key=numbers.__getitem__)


# ── The weights ───────────────────────────────────────────────────────────────────────────────────


def _tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read a safetensors file: the length of its header, the header in JSON, and the numbers."""
    content = np.memmap(path, np.uint8, "r")
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    tensors = {}
    for name, entry in json.loads(content[8:start].tobytes()).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            raw = (
                content[start + first : start + last]
                .view(_NUMPY_TYPES[entry["dtype"]])
                .reshape(entry["shape"])
            )
            if entry["dtype"] == "BF16":  # the upper half of a float32
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            tensors[name.removeprefix("bert.")] = np.ascontiguousarray(raw, np.float32)
    return tensors


def _renamed(
    tensors: Tensors, n_blocks: int, *, ranks: bool
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each tensor under llama.cpp's name; what BERT's other uses need is left out."""
    for name, renamed in _EMBEDDINGS.items():
        tensor = tensors[name]
        if ranks and renamed == "token_embd.weight":
            types = tensors["embeddings.token_type_embeddings.weight"]
            tensor = np.concatenate((tensor, tensor + types[-1] - types[0]))
        yield renamed, tensor
    for name, renamed in _RANKING.items() if ranks else ():
        for part in ("weight", "bias"):
            yield f"{renamed}.{part}", tensors[f"{name}.{part}"]
    for block in range(n_blocks):
        for name, renamed in _BLOCK.items():
            for part in ("weight", "bias"):
                yield (
                    f"blk.{block}.{renamed}.{part}",
                    tensors[f"encoder.layer.{block}.{name}.{part}"],
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a model of the Hugging Face layout"
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the GGUF file to write")
    parser.add_argument(
        "--type", choices=TYPES, default="f16", help="type of the matrices (default: %(default)s)"
    )
    parser.add_argument(
        "--pooling", choices=POOLINGS, help="by default what sentence-transformers' files say"
    )
    args = parser.parse_args()
    try:
        convert(args.folder, args.output, kind=args.type, pooling=args.pooling)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
