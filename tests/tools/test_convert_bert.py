"""The BERT converter: equal weights after conversion, and errors for unsupported models."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relevance_gen import Encoder, Reranker
from tests.reference_ranking import ReferenceBert
from tools.convert_bert import convert

ROOT = Path(__file__).parents[2]
TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[unused1]",
    "cat",
    "##s",
    "dog",
    "b",
    "##a",
]
WIDTH, BLOCKS, N_CTX = 32, 2, 64


def layout(folder, *, stored="F32", n_labels=0, **config):
    """Write a random BERT in the layout of Hugging Face; with labels it is a classifier."""
    folder.mkdir(exist_ok=True)
    facts = {
        "model_type": "bert", "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": BLOCKS,
        "num_attention_heads": 2, "max_position_embeddings": N_CTX, "layer_norm_eps": 1e-12, "type_vocab_size": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(facts | config))
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ]
        )
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    shapes = {"word_embeddings": (len(TOKENS), WIDTH), "position_embeddings": (N_CTX, WIDTH)}
    shapes = {f"embeddings.{name}.weight": shape for name, shape in shapes.items()}
    shapes["embeddings.token_type_embeddings.weight"] = (2, WIDTH)
    shapes |= {f"embeddings.LayerNorm.{part}": (WIDTH,) for part in ("weight", "bias")}
    for block in range(BLOCKS):
        base = f"encoder.layer.{block}"
        layers = {
            f"attention.{name}": (WIDTH, WIDTH) for name in ("self.query", "self.key", "self.value")
        }
        layers |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (64, WIDTH)}
        layers |= {"output.dense": (WIDTH, 64)}
        for name, shape in layers.items():
            shapes |= {f"{base}.{name}.weight": shape, f"{base}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{base}.{name}.{part}": (WIDTH,) for part in ("weight", "bias")}
    if n_labels:
        config["architectures"] = ["BertForSequenceClassification"]
        shapes |= {"pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
        shapes |= {"classifier.weight": (n_labels, WIDTH), "classifier.bias": (n_labels,)}
        (folder / "config.json").write_text(json.dumps(facts | config))
    chance = np.random.default_rng(0)
    tensors = {
        f"bert.{name}": chance.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    write_safetensors(folder / "model.safetensors", tensors, stored)
    return folder


def write_safetensors(path, tensors, stored):
    parts, header, start = [], {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        if stored == "BF16":
            raw = (np.ascontiguousarray(tensor).view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            raw = tensor.astype({"F32": "<f4", "F16": "<f2"}[stored]).tobytes()
        header[name] = {
            "dtype": stored,
            "shape": tensor.shape,
            "data_offsets": [start, start + len(raw)],
        }
        start += len(raw)
        parts.append(raw)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(parts))


def vectors(path, texts=("cats", "dog", "ba cat", "unknown words")):
    with Encoder(path) as encoder:
        return encoder.encode(texts)


def test_f16_and_q8_0_differ_from_f32_by_rounding_only(tmp_path):
    """Vectors of all types are nearly equal."""
    folder = layout(tmp_path / "model")
    found = {}
    for kind in ("f32", "f16", "q8_0"):
        convert(folder, tmp_path / f"{kind}.gguf", kind=kind)
        found[kind] = vectors(tmp_path / f"{kind}.gguf")
    assert ((found["f32"] * found["f16"]).sum(axis=1) > 0.99999).all()
    assert ((found["f32"] * found["q8_0"]).sum(axis=1) > 0.999).all()


@pytest.mark.parametrize("stored", ["F16", "BF16"])
def test_half_precision_weights_are_converted(tmp_path, stored):
    """A model stored in 16 bits is nearly equal to the model in 32 bits."""
    for name in ("F32", stored):
        convert(layout(tmp_path / name, stored=name), tmp_path / f"{name}.gguf", kind="f32")
    both = vectors(tmp_path / "F32.gguf") * vectors(tmp_path / f"{stored}.gguf")
    assert (both.sum(axis=1) > 0.9999).all()


def test_tokens_equal_those_of_bert(tmp_path):
    """A word of two pieces differs from two words, and case matters only if the tokenizer is cased."""
    folder = layout(tmp_path / "model")
    convert(folder, tmp_path / "lower.gguf")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    convert(folder, tmp_path / "cased.gguf")
    lower, cased = (
        vectors(tmp_path / f"{name}.gguf", ["cats", "CATS", "cat s", "Dôg", "dog"])
        for name in ("lower", "cased")
    )
    np.testing.assert_array_equal(lower[0], lower[1])
    np.testing.assert_array_equal(lower[3], lower[4])
    assert not np.array_equal(lower[0], lower[2])
    assert not np.array_equal(cased[0], cased[1])


def test_pooling_is_read_from_files_or_option(tmp_path):
    """The pooling is that of sentence-transformers' files, or of the option."""
    folder = layout(tmp_path / "model")
    convert(folder, tmp_path / "cls.gguf", pooling="cls")
    with Encoder(tmp_path / "cls.gguf") as encoder:
        assert encoder.pooling == "cls"
    (folder / "modules.json").unlink()
    with pytest.raises(
        ValueError, match="does not say how the vectors of tokens are pooled; pass --pooling"
    ):
        convert(folder, tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "roberta"}, "holds no BERT with absolute positions"),
        ({"position_embedding_type": "relative_key"}, "holds no BERT with absolute positions"),
    ],
)
def test_other_families_are_rejected(tmp_path, config, message):
    """The error names the converter to use."""
    with pytest.raises(ValueError, match=message):
        convert(layout(tmp_path / "model", **config), tmp_path / "out.gguf")


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_converted_cross_encoder_equals_the_numpy_reference(tmp_path, kind):
    """With its pooler and token type 1 for texts; F16 and Q8_0 differ by rounding only."""
    folder = layout(tmp_path / "model", n_labels=1)
    for each in dict.fromkeys(("f32", kind)):
        convert(folder, tmp_path / f"{each}.gguf", kind=each)
    reference = ReferenceBert(tmp_path / "f32.gguf", len(TOKENS))
    cls, sep, cat, dog, b = (TOKENS.index(token) for token in ("[CLS]", "[SEP]", "cat", "dog", "b"))
    texts = {"dog": [dog], "b cat b": [b, cat, b], "": []}
    pairs = [
        [cls, cat, sep, *(token + len(TOKENS) for token in [*text, sep])] for text in texts.values()
    ]
    with Reranker(tmp_path / f"{kind}.gguf") as reranker:
        found = reranker.score("cat", list(texts), raw=True)
    np.testing.assert_allclose(
        found, [reference.logit(pair) for pair in pairs], atol=5e-3 if kind == "f32" else 0.05
    )


def test_classifier_with_several_labels_is_rejected(tmp_path):
    """A classifier of three labels does not rank."""
    with pytest.raises(ValueError, match="holds a classifier of 3 labels; a reranker has one"):
        convert(layout(tmp_path / "model", n_labels=3), tmp_path / "out.gguf")


def test_unsupported_dense_layer_is_rejected(tmp_path):
    """The conversion would lose the layer."""
    folder = layout(tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(
        json.dumps([*modules, {"path": "2_Dense", "type": "models.Dense"}])
    )
    with pytest.raises(ValueError, match="layers that a GGUF file cannot hold: Dense"):
        convert(folder, tmp_path / "out.gguf")


def test_command_converts_or_fails_in_one_line(tmp_path):
    """The encoder opens the file that the command writes."""
    folder, output = layout(tmp_path / "model"), tmp_path / "out.gguf"
    command = [sys.executable, "tools/convert_bert.py", str(folder), str(output), "--type", "q8_0"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    assert vectors(output).shape == (4, WIDTH)
    refused = subprocess.run(
        [*command[:2], str(tmp_path), str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "config.json" in refused.stderr.splitlines()[-1]
