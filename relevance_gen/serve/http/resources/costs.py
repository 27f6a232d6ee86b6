"""Memory cost of requests: a table in bytes of the resource pool, and the counts it uses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.serve.services.search import IndexTask
from relevance_gen.types import GenerationResponse, PromptResponse, SearchResponse

_SPAN_BYTES: Final = 160
"""Size of a span as a Python object."""


@frozen(kw_only=True)
class Cost:
    """The number of bytes that a request reserves for each unit of its work, before it uses them.

    The body itself is accounted for while it is received and parsed.

    Attributes:
        flat: for every request.
        body_byte: for each byte of the body, after decompression.
        chunk: for each chunk in the request or in a cached index.
        cluster_index: for an index of a cluster or of the server that the request names: its number
            of chunks is not known before.
        result_char: for each character of the results of an index, or of a cited text: as a Python
            string, as JSON, and compressed.
        span: for each span of a result: as two Python objects, and as JSON.
        titled_chunk: for each chunk that has a title.
        ranked_chunk: for each chunk that is ranked if only one result for each value of a key is
            returned.
        span_char: for each character of the texts that are searched for spans together.
        phrase_char: for each character of the texts that are searched for a phrase together.
        sentence: for each sentence of the chunks, or of a text that is cited from them.
        sentence_char: for each character of the longest chunk, whose sentences are split at once;
            for citations, for each character of all texts.
        vector_component: for each component of a vector: as a Python number, as JSON, compressed.
        token: for each token of a response: its text as JSON.
        logprob_token: for each token whose id or log probability is returned: as Python objects
            and as JSON.
        top_logprob: for each top log probability: as Python objects and as JSON.
        char: for each character of a prompt in a response.
        citation: for an answer with citations, in addition to its sentences. Larger than
            `call.LOOP_LIMIT_BYTES`, so that citing, which takes too long for the event loop, runs
            in a thread.
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

    def of(self, **counts: int) -> int:
        """Return the bytes for counts by unit: ``cost.of(chunk=3)``."""
        total = 0
        for unit, count in counts.items():
            total += count * getattr(self, unit)
        return total

    def of_task(self, task: IndexTask) -> int:
        """Return the bytes to reserve before a search, an explanation or a compression begins."""
        is_remote = task.index is not None and task.digest is None
        return self.of(chunk=len(task.chunks), cluster_index=int(is_remote))

    def of_prompt(self, prompt: PromptResponse) -> int:
        """Return the bytes of a prompt in a response."""
        messages = prompt.request.get("messages", ())
        n_chars = sum(len(message["content"]) for message in messages)
        return self.of(char=n_chars + len(prompt.request.get("text", "")))

    def of_pieces(self, task: GenerationTask) -> int:
        """Return the bytes to reserve for each event of a stream, in addition to its text.

        They are above 0 only if the task has citations.
        """
        return self.of(citation=int(task.citer is not None))

    def of_responses(self, responses: Responses, task: GenerationTask) -> int:
        """Return the bytes to reserve for the responses to all prompts of one request.

        They include the prompts that the responses repeat.
        """
        total = self.of_pieces(task)
        for response in responses:
            # An echoed prompt is part of each sample.
            n_copies = len(response.responses) if task.echoes else 1
            total += self._of_samples(response) + n_copies * self._of_response_prompt(response)
        return total

    def _of_samples(self, response: GenerationResponse) -> int:
        total = 0
        for sample in response.responses:
            total += self.of(
                token=sample.generated_tokens,
                logprob_token=len(sample.tokens or sample.logprobs or ()),
                top_logprob=sum(map(len, sample.top_logprobs or ())),
            )
        return total

    def _of_response_prompt(self, response: GenerationResponse) -> int:
        texts = response.token_texts
        n_chars = len(response.prompt)
        if texts is not None and not response.prompt:  # the prompt was given as tokens
            n_chars = sum(len(texts.pieces[token]) for token in texts.prompt)
        return self.of(
            logprob_token=len(response.prompt_logprobs or ()),
            top_logprob=sum(map(len, texts.prompt_top_logprobs)) if texts else 0,
            char=n_chars,
        )


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
# The document on its way to the sandbox process, and at most its text on the way back.
EXTRACTION: Final = Cost(flat=128 << 20, body_byte=4)
# Includes a file that a tool reads.
AGENTS: Final = evolve(SEARCH, flat=64 << 20, char=6)
# A chat template can have a hundred kilobytes.
MODEL_DETAILS: Final = Cost(flat=1 << 20)
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
# The last event of a stream repeats a text up to four times.
RESPONSE: Final = evolve(CHAT, token=160)


def queued_task_bytes(task: GenerationTask) -> int:
    """Return the memory of a generation that waits for the model: its texts, tokens and sources."""
    total = 0
    for request in task.requests:
        total += sys.getsizeof(request.text)
        total += _sequence_bytes(request.stop) + _sequence_bytes(request.eos_token_ids)
    total += sum(map(_sequence_bytes, task.prompts))
    # All requests of a task share these values.
    first = task.requests[0]
    total += _sequence_bytes(first.allowed_token_ids)
    total += sys.getsizeof(first.grammar) + sys.getsizeof(first.regex)
    total += sum(map(sys.getsizeof, first.choice or ()))
    if task.citer is not None:
        total += sum(map(sys.getsizeof, task.citer.texts))
    return total


def search_results_bytes(response: SearchResponse) -> int:
    """Return the memory of the results of a search: their texts and spans."""
    n_spans = sum(len(result.spans or ()) for result in response.results)
    n_text_bytes = sum(sys.getsizeof(result.chunk_txt) for result in response.results)
    return _SPAN_BYTES * n_spans + n_text_bytes


def _sequence_bytes(values: Sequence[object]) -> int:
    return sys.getsizeof(values) + sum(map(sys.getsizeof, values))
