"""What one request may cost: the one table, in bytes of its lane's memory, and what of a request is counted."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from attrs import evolve, frozen

from relevance_gen.embedding.jobs import Embeddings
from relevance_gen.serve.services.agents import Reply
from relevance_gen.serve.services.embedding import EmbeddingTask
from relevance_gen.serve.services.generation import GenerationTask
from relevance_gen.serve.services.search import (
    CitationTask,
    CompressionTask,
    ExplanationTask,
    SearchTask,
)
from relevance_gen.types import GenerationResponse, PromptResponse, SearchResponse

_SPAN_BYTES: Final = 160
"""A span as Python has it."""


@frozen(kw_only=True)
class Cost:
    """The bytes that a request takes, beside its body while that is received and parsed, before they are used.

    Attributes:
        flat: whatever is asked.
        body_byte: for each byte of the body, after decompression.
        chunk: for each chunk that is brought, or was kept.
        index: for an index of a cluster, whose chunks are not known before.
        result_char: for each character of the results of an index, or that is cited: as Python has it, as JSON, and
            compressed.
        span: for each span of a result, before it is made: as Python has it, twice, and as JSON.
        titled: for each chunk that has a title.
        ranked: for each chunk that is ranked where one result of each value of a key is asked for.
        span_char: for each character that is looked at together with others for spans.
        phrase_char: for each character of texts that are read together to find a phrase in quotes.
        sentence: for each sentence of the chunks, or of a text that is cited from them.
        sentence_char: for each character of the longest chunk, all of whose sentences are sought at once; of what is
            cited, for each of all.
        number: for each number of a vector: as Python has it, as JSON, and the same compressed.
        token: for each token of a response: its text, as JSON.
        logprob_token: for each token whose id or log probability is told: as Python has them, and as JSON.
        alternative: for each of the likeliest tokens in the place of one, likewise.
        character: for each character of a prompt in a response.
        cited: for an answer that is cited, beside its sentences: too much for the event loop, as is the time it takes.
    """

    flat: int = 0
    body_byte: int = 0
    chunk: int = 0
    cluster_index: int = 0
    result_char: int = 0
    span: int = 0
    titled_chunk: int = 0
    ranked_chunk: int = 0
    span_char: int = 0
    phrase_char: int = 0
    sentence: int = 0
    sentence_char: int = 0
    vector_component: int = 0
    token: int = 0
    logprob_token: int = 0
    top_logprob: int = 0
    char: int = 0
    citation: int = 0

    def of(self, thing: object, task: object = None) -> int:
        """Return the cost of a task, or of what came of that `task`."""
        return sum(number * getattr(self, unit) for unit, number in _counts(thing, task).items())


SEARCH: Final = Cost(
    body_byte=9,
    chunk=320,
    cluster_index=16 << 20,
    result_char=12,
    titled_chunk=512,
    ranked_chunk=256,
    span=800,
    span_char=110,
    phrase_char=130,
)
COMPRESSION: Final = evolve(SEARCH, body_byte=12, sentence=800, sentence_char=30)
CITATION: Final = Cost(chunk=320, sentence=3000, sentence_char=220)
PROMPT: Final = evolve(SEARCH, char=1)
EXTRACTION: Final = Cost(
    flat=128 << 20, body_byte=4
)  # on the way into the sandbox; and at most on the way out
AGENTS: Final = evolve(SEARCH, flat=64 << 20, char=6)  # for a file that is read
EMBEDDING: Final = Cost(vector_component=64)
GENERATION: Final = Cost(token=32, logprob_token=320, top_logprob=640, char=1)
COMPLETION: Final = evolve(GENERATION, logprob_token=500, top_logprob=400)
CHAT: Final = evolve(
    CITATION,
    logprob_token=1400,
    top_logprob=850,
    token=32,
    char=1,
    result_char=12,
    citation=128 << 10,
)
RESPONSE: Final = evolve(
    CHAT, token=160
)  # the end of a stream says a text up to four times, and packed


def _counts(thing: object, task: object) -> Mapping[str, int]:
    match thing:
        case SearchTask() | ExplanationTask() | CompressionTask():
            return {
                "chunk": len(thing.chunks),
                "cluster_index": int(thing.named is not None and thing.digest is None),
            }
        case CitationTask():
            return {"chunk": len(thing.chunks)}
        case Embeddings():
            return {"vector_component": thing.vectors.size}
        case Reply():
            return {"char": len(thing.body)}
        case PromptResponse():
            texts = (
                thing.request.get("text", ""),
                *(one["content"] for one in thing.request.get("messages", ())),
            )
            return {"char": sum(map(len, texts))}
        case tuple():  # responses to the prompts of one request
            samples = [one for response in thing for one in response.responses]
            n_tokens = sum(one.generated_tokens for one in samples)
            n_told = sum(len(one.tokens or one.logprobs or ()) for one in samples)
            n_alternatives = sum(len(row) for one in samples for row in one.top_logprobs or ())
            n_characters = 0
            for response in thing:
                n_copies = (
                    len(response.responses)
                    if isinstance(task, GenerationTask) and task.echoes
                    else 1
                )
                n_told += n_copies * len(response.prompt_logprobs or ())
                n_alternatives += n_copies * sum(
                    map(
                        len,
                        response.token_texts.prompt_top_logprobs if response.token_texts else (),
                    )
                )
                n_characters += n_copies * _prompt_characters(response)
            told = {"logprob_token": n_told, "top_logprob": n_alternatives, "char": n_characters}
            return {"token": n_tokens, **told, **_counts([], task)}
        case list():  # pieces of a stream
            return {"citation": int(isinstance(task, GenerationTask) and task.citer is not None)}
    return {}


def _prompt_characters(response: GenerationResponse) -> int:
    """Return the characters of a prompt; one that was given as tokens is spelled."""
    if response.prompt or response.token_texts is None:
        return len(response.prompt)
    return sum(len(response.token_texts.pieces[token]) for token in response.token_texts.prompt)


def kept_bytes(thing: object) -> int:
    """Return the memory of what waits for the model or the encoder: of its texts, and of where these are marked."""
    match thing:
        case GenerationTask():
            lists = [
                (one.text, one.stop, *one.stop, one.eos_token_ids, *one.eos_token_ids)
                for one in thing.requests
            ]
            lists += [(prompt, *prompt) for prompt in thing.prompts]
            first = thing.requests[0]  # the others have these from it
            lists.append(
                (first.allowed_token_ids, *first.allowed_token_ids, first.grammar, first.regex)
            )
            lists.append(first.choice or ())
            lists.append(tuple(thing.citer.texts) if thing.citer else ())
            return sum(sys.getsizeof(part) for parts in lists for part in parts)
        case EmbeddingTask():
            return sum(map(sys.getsizeof, thing.texts))
        case SearchResponse():
            spans = sum(len(result.spans or ()) for result in thing.results)
            return _SPAN_BYTES * spans + sum(
                sys.getsizeof(result.chunk_txt) for result in thing.results
            )
    return 0
