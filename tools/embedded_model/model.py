"""The network: a llama-architecture transformer, written the way llama.cpp computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the network; rows of every quantized matrix must be multiples of 32."""

    n_tokens: int = 6144
    width: int = 256
    n_layers: int = 6
    n_heads: int = 4
    feed_forward: int = 640
    rope_base: float = (
        1e8  # high, so that most of each head can match content over hundreds of tokens
    )
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.n_heads

    def frequencies(self) -> Tensor:
        """Return the angle, in radians a token, by which each pair of a head is turned: (head_width / 2,)."""
        return self.rope_base ** (
            -torch.arange(0, self.head_width, 2, dtype=torch.float64) / self.head_width
        )


def rope_angles(shape: ModelShape, length: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin, (length, head_width / 2), of position times frequency."""
    angles = torch.arange(length, dtype=torch.float64)[:, None] * shape.frequencies()
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs at a distance of half a head: the fast method, for `halved` rows."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def halved(weight: Tensor, n_heads: int) -> Tensor:
    """Sort each head's rows: 0, 2, 4, ..., then 1, 3, 5, ...

    llama.cpp rotates neighbouring pairs of this architecture's queries and keys, and so does the
    file. Their products are unchanged if both are sorted equally.
    """
    return weight.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


class Block(nn.Module):
    """Attention, then a gated feed-forward, each on the normed stream and added to it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.feed_forward
        self.n_heads = shape.n_heads
        self.attn_norm = nn.RMSNorm(width, shape.norm_epsilon)
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.ffn_norm = nn.RMSNorm(width, shape.norm_epsilon)
        self.ffn_gate, self.ffn_up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the stream, (rows, length, width), with this block's part added."""
        n_heads, length = self.n_heads, x.shape[1]
        matrices = (
            halved(self.attn_q.weight, n_heads),
            halved(self.attn_k.weight, n_heads),
            self.attn_v.weight,
        )
        qkv = functional.linear(self.attn_norm(x), torch.cat(matrices))
        q, k, v = qkv.unflatten(-1, (3, n_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        scores = rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2)
        later = torch.full((length, length), -torch.inf).triu(1)
        shares = torch.softmax(scores.float() * q.shape[-1] ** -0.5 + later, -1).to(v.dtype)
        x = x + self.attn_output((shares @ v).transpose(1, 2).flatten(-2))
        both = functional.linear(
            self.ffn_norm(x), torch.cat((self.ffn_gate.weight, self.ffn_up.weight))
        )
        gate, up = both.chunk(2, -1)
        return x + self.ffn_down(functional.silu(gate) * up)


class Model(nn.Module):
    """Embedding, blocks, norm; the output matrix is the embedding."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_tokens, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.output_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, (rows, length, n_tokens)."""
        return functional.linear(self.hidden(tokens), self.token_embd.weight)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the normed stream after the last block, (rows, length, width)."""
        x = self.token_embd(tokens)
        cos, sin = rope_angles(self.shape, tokens.shape[1])
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)


def n_parameters(model: Model) -> int:
    """Count the weights."""
    return sum(math.prod(parameter.shape) for parameter in model.parameters())
