"""Log probabilities, finish reasons and counts, as OpenAI's clients read them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import Completion, TokenLogprob, TokenTexts

_Row: TypeAlias = tuple[int, "float | None", "Sequence[TokenLogprob] | None"]
"""A token, its log probability, and the likeliest in its place."""

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "tool_calls": "tool_calls"}


def usage(responses: Responses) -> dict[str, Any]:
    """Return the tokens of all prompts and all samples, and of turns also those that were known, and of thoughts."""
    samples = [one for response in responses for one in response.responses]
    n_prompt = sum(response.prompt_tokens for response in responses)
    n_generated = sum(one.generated_tokens for one in samples)
    counts = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
    }
    thoughts = [one.reasoning_tokens for one in samples if one.reasoning_tokens is not None]
    if not thoughts:
        return counts
    n_known = sum(response.reused_tokens for response in responses)
    details = {"prompt_tokens_details": {"cached_tokens": n_known}}
    return {**counts, **details, "completion_tokens_details": {"reasoning_tokens": sum(thoughts)}}


def chat_logprobs(completion: Completion, token_texts: TokenTexts) -> dict[str, object]:
    """Return a sample's log probabilities as chats have them."""

    def entry(token: int, logprob: float) -> dict[str, object]:
        piece = token_texts.pieces[token]
        return {"token": piece.decode(errors="replace"), "logprob": logprob, "bytes": list(piece)}

    content = [
        {
            **entry(token, logprob),
            "top_logprobs": [entry(one.token, one.logprob) for one in alternatives],
        }
        for token, logprob, alternatives in _shown(completion, token_texts)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    completion: Completion, token_texts: TokenTexts, prompt_logprobs: Sequence[float | None]
) -> dict[str, object]:
    """Return a sample's log probabilities as completions have them, behind those of the prompt, if there are any.

    Behind a prompt every token of the sample has its place, also one that ends it, so that clients who score prompts
    can count from the end.
    """
    alternatives = (None, *(token_texts.prompt_top_logprobs or (None,) * len(token_texts.prompt)))
    rows: list[_Row] = [
        *zip(token_texts.prompt, prompt_logprobs, alternatives, strict=False),
        *_shown(completion, token_texts, with_end=bool(prompt_logprobs)),
    ]
    texts = [_text(token_texts.pieces[token]) for token, _, _ in rows]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for _, logprob, _ in rows],
        "top_logprobs": [_by_text(alternatives, token_texts) for *_, alternatives in rows]
        if completion.top_logprobs is not None
        else None,
        "text_offset": _offsets(token_texts.pieces[token] for token, _, _ in rows),
    }


def _text(piece: bytes) -> str:
    """Return what a token prints; where that is a part of a character only, its bytes, as OpenAI writes them."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _shown(
    completion: Completion, token_texts: TokenTexts, *, with_end: bool = False
) -> Iterable[tuple[int, float, Sequence[TokenLogprob]]]:
    """Return a sample's tokens with what is known of each, but for the end token, which is no part of the text."""
    tokens, logprobs = completion.tokens or (), completion.logprobs or ()
    alternatives = completion.top_logprobs or ((),) * len(tokens)
    n_shown = len(tokens) - bool(
        tokens and tokens[-1] in token_texts.eos_token_ids and not with_end
    )
    return zip(tokens[:n_shown], logprobs[:n_shown], alternatives[:n_shown], strict=True)


def _by_text(
    alternatives: Sequence[TokenLogprob] | None, token_texts: TokenTexts
) -> dict[str, float] | None:
    if alternatives is None:
        return None
    best: dict[str, float] = {}
    for one in alternatives:  # the likeliest first; tokens may print the same
        best.setdefault(_text(token_texts.pieces[one.token]), one.logprob)
    return best


def _offsets(pieces: Iterable[bytes]) -> list[int]:
    """Return where each piece begins in the text, in characters: one that begins within a character, at that one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offsets, n_characters = [], 0
    for piece in pieces:
        offsets.append(n_characters)
        n_characters += len(decoder.decode(piece))
    return offsets
