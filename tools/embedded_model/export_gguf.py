"""Write the trained model as GGUF: Q8_0 for shipping, F32 to compare with PyTorch.

python tools/embedded_model/export_gguf.py BUILD relevance_gen/assets/embedded.gguf [--f32]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from model import Model, ModelShape
from train_vocabulary import BEGIN, BEGIN_ID, END, END_ID

ARCHITECTURE = "llama"
CONTEXT_LENGTH = 2048  # it was trained on 896: longer prompts are accepted, and answered worse
CHAT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'assistant' %} {{ message.content | trim }}{{ eos_token }}
{%- else %}{% if not loop.first %}{{ '\\n' }}{% endif %}
{%- if message.role == 'system' %}Context: {{ message.content | trim }}
{%- else %}Question: {{ message.content | trim }}{{ '\\nAnswer:' }}{% endif %}
{%- endif %}
{%- endfor %}"""


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Path) -> None:
    """Add tokens and merges; llama.cpp's "gpt-2" split is the one the vocabulary was trained with."""
    parts = json.loads(vocabulary.read_text())["model"]
    tokens = sorted(parts["vocab"], key=parts["vocab"].__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if token in {BEGIN, END} else gguf.TokenType.NORMAL
        for token in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in parts["merges"]])
    writer.add_bos_token_id(BEGIN_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_shape(writer: gguf.GGUFWriter, shape: ModelShape) -> None:
    """Add the sizes llama.cpp builds the network from."""
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_vocab_size(shape.n_tokens)


def export(model: Model, vocabulary: Path, output: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Write matrices in `kind`, norms in F32; the output matrix is the embedding and so is left out."""
    writer = gguf.GGUFWriter(str(output), ARCHITECTURE)
    writer.add_name("relevance_gen embedded")
    writer.add_description(
        "A tiny English model that works out of the box; see embedded.md beside it."
    )
    writer.add_license("MIT")
    writer.add_file_type(
        gguf.LlamaFileType.ALL_F32
        if kind == gguf.GGMLQuantizationType.F32
        else gguf.LlamaFileType.MOSTLY_Q8_0
    )
    add_shape(writer, model.shape)
    writer.add_bool("relevance_gen.extractive", True)  # freely generated text is not an answer
    add_vocabulary(writer, vocabulary)
    for name, weight in model.state_dict().items():
        values = weight.float().numpy().astype(np.float32)
        used = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(build: Path) -> Model:
    """Load the last checkpoint."""
    model = Model(ModelShape())
    model.load_state_dict(torch.load(build / "model" / "last.pt")["model"])
    return model.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    parser.add_argument("output", type=Path)
    parser.add_argument("--f32", action="store_true", help="do not quantize")
    arguments = parser.parse_args()
    chosen = gguf.GGMLQuantizationType.F32 if arguments.f32 else gguf.GGMLQuantizationType.Q8_0
    export(load(arguments.build), arguments.build / "vocabulary.json", arguments.output, chosen)
