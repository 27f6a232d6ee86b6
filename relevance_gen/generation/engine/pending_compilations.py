"""The requests whose grammars are being compiled: they join the others when that is done."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import Any

from relevance_gen.errors import RelevanceGenError
from relevance_gen.generation.constraints.choices import Choices, Pieces
from relevance_gen.generation.constraints.grammar_compiler import Grammars
from relevance_gen.generation.constraints.token_constraint import Grammar, source_of
from relevance_gen.generation.engine.active_request import ActiveRequest
from relevance_gen.llama.language_model import LanguageModel

_WAIT_S = 0.01
"""How long to wait for a grammar before looking for new requests."""


class PendingCompilations:
    """Where `prompts` wait for their grammars, which threads compile while the engine goes on."""

    def __init__(self, model: LanguageModel) -> None:
        self.prompts: dict[ActiveRequest, Future[Any]] = {}
        self._model = model
        self._grammars: Grammars | None = None
        self._pieces: Pieces | None = None

    def add(self, prompt: ActiveRequest) -> None:
        """Begin to compile the grammar of a prompt."""
        self.prompts[prompt] = self._compile(prompt)

    def _compile(self, prompt: ActiveRequest) -> Future[Any]:
        request = prompt.ticket.request
        compiled: Future[Any] = Future()
        try:
            if request.choice is None:
                source = source_of(request)
                if self._grammars is None:
                    self._grammars = Grammars(self._vocabulary())
                return self._grammars.compile(source, prompt.client)
            if self._pieces is None:
                self._pieces = Pieces(self._vocabulary())
            # Lone surrogates count as "?", as they do in a prompt.
            texts = sorted({text.encode(errors="replace") for text in request.choice})
            compiled.set_result(Choices(texts, self._pieces))
        except RelevanceGenError as error:
            compiled.set_exception(error)
        return compiled

    def _vocabulary(self) -> list[bytes]:
        return [self._model.piece(token) for token in range(self._model.n_vocab)]

    def take_finished(
        self, *, wait_for_one: bool
    ) -> list[tuple[ActiveRequest, BaseException | None]]:
        """Remove and return the prompts that have their grammar now, each with the error if it has none."""
        if self.prompts and wait_for_one:
            wait(self.prompts.values(), _WAIT_S, return_when="FIRST_COMPLETED")
        finished: list[tuple[ActiveRequest, BaseException | None]] = []
        for prompt, future in list(self.prompts.items()):
            if future.done():
                error = future.exception()
                prompt.grammar = None if error else future.result()
                finished.append((prompt, error))
                del self.prompts[prompt]
        return finished

    def give_up(self, prompt: ActiveRequest) -> None:
        """Forget a grammar that took too much to follow, and count that time as its client's."""
        if self._grammars is not None and isinstance(prompt.grammar, Grammar):
            self._grammars.give_up(prompt.grammar.source, prompt.client, prompt.effort.seconds)

    def drop(self, ticket_id: int) -> None:
        """Forget a request, if it is here."""
        for prompt in [prompt for prompt in self.prompts if prompt.ticket.id == ticket_id]:
            self.prompts.pop(prompt).cancel()

    def clear(self) -> None:
        """Forget every request, and end the threads with what they are doing."""
        while self.prompts:
            self.prompts.popitem()[1].cancel()
        if self._grammars is not None:
            self._grammars.close()
            self._grammars = None
