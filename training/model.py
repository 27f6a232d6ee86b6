"""The network: a llama-architecture transformer, written the way llama.cpp computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; rows of every quantized matrix must be multiples of 32."""

    n_tokens: int = 6144
    width: int = 256
    n_layers: int = 6
    n_heads: int = 8
    feed_forward: int = 640
    rope_base: float = 1e6  # high, so that half of each head can match content over hundreds of tokens
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.n_heads


def rope_angles(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin, (length, head_width / 2), of position times frequency."""
    frequencies = shape.rope_base ** (-torch.arange(0, shape.head_width, 2, dtype=torch.float64) / shape.head_width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs (0, 1), (2, 3), ...: llama.cpp's convention for this architecture."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    """Attention, then a gated feed-forward, each on the normed stream and added to it."""

    def __init__(self, shape: Shape) -> None:
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
        y = self.attn_norm(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.attn_q, self.attn_k, self.attn_v)
        )
        seen = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.attn_output(seen.transpose(1, 2).flatten(-2))
        y = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Model(nn.Module):
    """Embedding, blocks, norm; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_tokens, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.output_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, (rows, length, n_tokens)."""
        return functional.linear(self.hidden(tokens), self.token_embd.weight)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the normed stream after the last block, (rows, length, width)."""
        return self.output_norm(self.streams(tokens)[-1])

    def streams(self, tokens: Tensor) -> list[Tensor]:
        """Return the stream after each block, (rows, length, width)."""
        x, after = self.token_embd(tokens), []
        cos, sin = rope_angles(self.shape, tokens.shape[1])
        for block in self.blk:
            x = block(x, cos, sin)
            after.append(x)
        return after


class Hints(nn.Module):
    """Reads from the stream which sentence a token belongs to: a help for training, which is not part of the model.

    To choose the sentence that is asked for takes three steps, none of which helps without the others: a word of the
    context knows how its sentence begins; a word of the question finds itself in the context and takes that from there;
    the answer begins as most words of the question say. A loss on the first two lets each be learnt by itself.
    """

    CONTEXT_BLOCK, QUESTION_BLOCK = 2, 3

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(width, width, bias=False) for _ in range(2))

    def loss(self, model: Model, stream: Tensor, places: Tensor, hints: Tensor) -> Tensor:
        """Return the loss of both tokens at some places, (rows, n), of a stream; the token 0 is no hint."""
        chosen = functional.rms_norm(
            stream.gather(1, places[..., None].expand(-1, -1, stream.shape[-1])), stream.shape[-1:]
        )
        total = torch.zeros(())
        for layer, wanted in ((self.first, hints[..., 0]), (self.second, hints[..., 1])):
            logits = functional.linear(layer(chosen), model.token_embd.weight).float().flatten(0, 1)
            total = total + functional.cross_entropy(logits, wanted.flatten(), ignore_index=0, reduction="sum")
        return total / (hints[..., 0] > 0).sum().clamp(min=1)


@torch.no_grad()
def initialise(model: Model) -> None:
    """Draw the weights so that copying is there from the first step.

    Finding out how to copy takes a transformer longer than everything else here; drawn by chance, the circuit appears
    after millions of tokens. So layer 0 starts with a head that looks one token back, layer 1 with the induction head
    that uses it (it looks for the token after an earlier occurrence of the present one and proposes it), and the later
    heads start with equal query and key matrices, which makes them look for the same token. All of it trains freely.
    Source: Olsson et al. 2022, "In-context learning and induction heads"; Trockman and Kolter 2023, "Mimetic
    initialization of self-attention layers".
    """
    shape, d = model.shape, model.shape.head_width
    constant = functional.normalize(torch.randn(shape.width), dim=0)  # what every embedding has in common
    share, token_share = 0.6, 0.8  # of an embedding's length 1: 0.6² + 0.8² = 1
    nn.init.normal_(model.token_embd.weight, std=token_share * shape.width**-0.5)
    model.token_embd.weight.add_(share * constant)
    for block in model.blk:
        for layer in (block.attn_q, block.attn_k, block.attn_v, block.ffn_gate, block.ffn_up):
            nn.init.normal_(layer.weight, std=shape.width**-0.5)
        for layer in (block.attn_output, block.ffn_down):
            nn.init.zeros_(layer.weight)
        for head in range(shape.n_heads // 2, shape.n_heads - 1):
            rows = slice(head * d, (head + 1) * d)
            block.attn_k.weight[rows] = block.attn_q.weight[rows]

    first, second = model.blk[0], model.blk[1]
    # One token back: query and key stand at the angle of one step, in the frequencies that can tell one step.
    frequencies = shape.rope_base ** (-torch.arange(0, d, 2) / d)
    strength = 8.0 / (share * shape.width**0.5) * (frequencies > 0.05)
    key = torch.stack((strength, torch.zeros(d // 2)), -1).flatten()
    query = torch.stack((strength * frequencies.cos(), -strength * frequencies.sin()), -1).flatten()
    first.attn_k.weight[:d] = key[:, None] * constant
    first.attn_q.weight[:d] = query[:, None] * constant
    # What it saw goes to a subspace of its own; the induction heads' keys are read from there.
    basis = torch.linalg.qr(torch.randn(shape.width, shape.width)).Q.T
    n_copying = shape.n_heads // 2
    subspace, copied = basis[:d], basis[d : (1 + n_copying) * d]
    matching = torch.randn(d, shape.width) * shape.width**-0.5
    matching[: d // 2] *= 0.1  # the fast frequencies cannot match content
    matching -= (matching @ constant)[:, None] * constant
    first.attn_v.weight[:d] = matching
    first.attn_output.weight[:, :d] = 0.15 * subspace.T
    for head in range(n_copying):  # the same look-up, each copying its own part of the embedding
        rows = slice(head * d, (head + 1) * d)
        second.attn_q.weight[rows] = 2.5 * matching
        second.attn_k.weight[rows] = 2.5 * subspace
        second.attn_v.weight[rows] = copied[rows]
        second.attn_output.weight[:, rows] = 0.6 * copied[rows].T


def n_parameters(model: Model) -> int:
    """Count the weights."""
    return sum(math.prod(parameter.shape) for parameter in model.parameters())
