"""Slow reference of rerankers: scores of pairs in float64, from the tensors of the model."""

from math import erf, sqrt

import gguf
import numpy as np


class ReferenceBert:
    """A BERT with a pooler and a ranking head, as its file names them.

    A file may have a second copy of the vocabulary: a token of it is the first copy's with the
    token type 1.
    """

    def __init__(self, path, offset=0, epsilon=1e-12):
        self.epsilon = epsilon
        reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors}
        self.n_heads = int(reader.fields["bert.attention.head_count"].contents())
        self.n_blocks = int(reader.fields["bert.block_count"].contents())
        self.offset = offset

    def logit(self, tokens):
        """Return the logit of the tokens of a pair."""
        tokens = np.asarray(tokens)
        types = (tokens >= self.offset).astype(int) if self.offset else np.zeros(len(tokens), int)
        of = self.tensors
        x = of["token_embd.weight"][tokens - types * self.offset] + of["token_types.weight"][types]
        x = self._norm(x + of["position_embd.weight"][: len(tokens)], "token_embd_norm")
        for block in range(self.n_blocks):
            name = f"blk.{block}"
            x = self._norm(x + self._attention(x, name), f"{name}.attn_output_norm")
            up = self._linear(x, f"{name}.ffn_up")
            gelu = up * 0.5 * (1.0 + np.vectorize(erf)(up / sqrt(2.0)))
            x = self._norm(x + self._linear(gelu, f"{name}.ffn_down"), f"{name}.layer_output_norm")
        return float(self._linear(np.tanh(self._linear(x[0], "cls")), "cls.output")[0])

    def _linear(self, x, name):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def _norm(self, x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.epsilon)
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def _attention(self, x, name):
        def heads(part):
            return (
                self._linear(x, f"{name}.{part}")
                .reshape(len(x), self.n_heads, -1)
                .transpose(1, 0, 2)
            )

        q, k, v = heads("attn_q"), heads("attn_k"), heads("attn_v")
        weights = np.exp(q @ k.transpose(0, 2, 1) / sqrt(q.shape[-1]))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(
            (weights @ v).transpose(1, 0, 2).reshape(len(x), -1), f"{name}.attn_output"
        )


def qwen3_logits(tokens, of, *, n_heads, n_kv_heads, base, epsilon):
    """Return the logits of Qwen3 for the token after the sequence, with tied embeddings."""
    of = {name: tensor.astype(np.float64) for name, tensor in of.items()}

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * of[f"{name}.weight"]

    def heads(x, name, n):
        return (x @ of[f"{name}.weight"].T).reshape(len(x), n, -1).transpose(1, 0, 2)

    def turned(x):
        half = x.shape[-1] // 2
        angles = np.outer(np.arange(len(tokens)), base ** (-np.arange(half) / half))
        first, second = x[..., :half], x[..., half:]
        turned = (
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        )
        return np.concatenate(turned, -1)

    x = of["token_embd.weight"][np.asarray(tokens)]
    later = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    for block in range(sum(name.endswith("attn_q.weight") for name in of)):
        name = f"blk.{block}"
        y = norm(x, f"{name}.attn_norm")
        q = turned(norm(heads(y, f"{name}.attn_q", n_heads), f"{name}.attn_q_norm"))
        k = turned(norm(heads(y, f"{name}.attn_k", n_kv_heads), f"{name}.attn_k_norm"))
        k, v = (
            np.repeat(each, n_heads // n_kv_heads, 0)
            for each in (k, heads(y, f"{name}.attn_v", n_kv_heads))
        )
        weights = np.exp(q @ k.transpose(0, 2, 1) / sqrt(q.shape[-1]) + later)
        weights /= weights.sum(-1, keepdims=True)
        x = (
            x
            + (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
            @ of[f"{name}.attn_output.weight"].T
        )
        y = norm(x, f"{name}.ffn_norm")
        gate, up = y @ of[f"{name}.ffn_gate.weight"].T, y @ of[f"{name}.ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ of[f"{name}.ffn_down.weight"].T
    return norm(x[-1], "output_norm") @ of["token_embd.weight"].T
