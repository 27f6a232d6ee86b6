"""Rerankers with random weights, in the file format of llama.cpp's converter."""

import gguf
import numpy as np

from small_models.make import byte_letters

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = [*SPECIAL, "▁", *(f"▁{letter}" for letter in "abcdefgh"), *"abcdefgh", "▁the", "▁cat"]
"""The vocabulary of the XLM-RoBERTa."""
WIDTH, FF, BLOCKS, HEADS, N_CTX = 64, 96, 2, 4, 64
KV_HEADS, HEAD, BASE, EPSILON = 2, 32, 1_000_000.0, 1e-6
CONTROL = ["<|im_start|>", "<|im_end|>"]
BYTE_PAIRS = [*CONTROL, *byte_letters(), "no", "ye", "yes"]
"""The vocabulary of the Qwen3."""
YES, NO = BYTE_PAIRS.index("yes"), BYTE_PAIRS.index("no")


def _random(shapes, seed=0):
    """Draw tensors: weights of norms near 1, the others so that activations keep their size."""
    chance = np.random.default_rng(seed)

    def draw(name, shape):
        if "norm.weight" in name:
            return 1 + chance.normal(0, 0.2, shape)
        return chance.normal(0, 0.2 if len(shape) == 1 else shape[-1] ** -0.5, shape)

    return {name: draw(name, shape).astype(np.float32) for name, shape in shapes.items()}


def _finish(writer, tensors):
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_xlm_roberta(path):
    """Write a cross-encoder of XLM-RoBERTa's family; return its tensors."""
    layers = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    layers |= {"ffn_up": (FF, WIDTH), "ffn_down": (WIDTH, FF)}
    layers |= {"attn_output_norm": (WIDTH,), "layer_output_norm": (WIDTH,)}
    layers = {
        f"blk.{block}.{name}": shape for block in range(BLOCKS) for name, shape in layers.items()
    }
    layers |= {"cls": (WIDTH, WIDTH), "cls.output": (1, WIDTH), "token_embd_norm": (WIDTH,)}
    shapes = {"token_embd.weight": (len(PIECES), WIDTH), "position_embd.weight": (N_CTX, WIDTH)}
    shapes["token_types.weight"] = (1, WIDTH)
    shapes |= {f"{name}.weight": shape for name, shape in layers.items()}
    tensors = _random(shapes | {f"{name}.bias": shape[:1] for name, shape in layers.items()})
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(PIECES)
    writer.add_token_scores([0.0] * 4 + [-float(10 - len(piece)) for piece in PIECES[4:]])
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN]
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (len(PIECES) - 4))
    writer.add_token_type_count(1)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    for add, number in (("bos", 0), ("pad", 1), ("eos", 2), ("sep", 2), ("unk", 3)):
        getattr(writer, f"add_{add}_token_id")(number)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    _finish(writer, tensors)
    return tensors


def write_qwen3(path, *, has_head):
    """Write a Qwen3-Reranker, with the head of two rows that converters make, or without; return its tensors."""
    shapes = {"token_embd.weight": (len(BYTE_PAIRS), WIDTH), "output_norm.weight": (WIDTH,)}
    layers = {
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
        "attn_q_norm": (HEAD,),
        "attn_k_norm": (HEAD,),
    }
    layers |= {
        "attn_q": (HEADS * HEAD, WIDTH),
        "attn_k": (KV_HEADS * HEAD, WIDTH),
        "attn_v": (KV_HEADS * HEAD, WIDTH),
    }
    layers |= {"attn_output": (WIDTH, HEADS * HEAD), "ffn_gate": (FF, WIDTH), "ffn_up": (FF, WIDTH)}
    layers["ffn_down"] = (WIDTH, FF)
    shapes |= {
        f"blk.{block}.{name}.weight": shape
        for block in range(BLOCKS)
        for name, shape in layers.items()
    }
    tensors = _random(shapes)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name("Qwen3 Reranker Random")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(BYTE_PAIRS)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(BYTE_PAIRS) - 2)
    )
    writer.add_token_merges(["n o", "y e", "ye s"])
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    head = {}
    if has_head:
        writer.add_classifier_output_labels(["yes", "no"])
        head = {"cls.output.weight": tensors["token_embd.weight"][[YES, NO]]}
    _finish(writer, tensors | head)
    return tensors
