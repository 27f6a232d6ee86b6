"""Requests whose grammars are being compiled.

The engine queues a request when its grammar is ready.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import Any

from relevance_gen.errors import RelevanceGenError
from relevance_gen.generation.constraints.choices import Choices, TokenPrefixIndex
from relevance_gen.generation.constraints.grammar_compiler import Grammars
from relevance_gen.generation.constraints.token_constraint import Grammar, grammar_source
from relevance_gen.generation.engine.active_request import ActiveRequest
from relevance_gen.llama.language_model import LanguageModel

_WAIT_S = 0.01
"""Seconds to wait for a grammar before the engine takes further requests."""


class PendingCompilations:
    """Grammars that are compiled in threads while the engine continues.

    Attributes:
        futures: for each waiting request, the future of its compiled grammar or choices.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.futures: dict[ActiveRequest, Future[Any]] = {}
        self._model = model
        self._grammars: Grammars | None = None
        self._token_index: TokenPrefixIndex | None = None

    def add(self, request: ActiveRequest) -> None:
        """Start to compile the grammar of a request."""
        self.futures[request] = self._compile(request)

    def _compile(self, request: ActiveRequest) -> Future[Any]:
        choices = request.params.choice
        compiled: Future[Any] = Future()
        try:
            if choices is None:
                source = grammar_source(request.params)
                if self._grammars is None:
                    self._grammars = Grammars(self._vocabulary())
                return self._grammars.compile(source, request.client)
            if self._token_index is None:
                self._token_index = TokenPrefixIndex(self._vocabulary())
            # Lone surrogates become "?", as they do in a prompt.
            texts = {text.encode(errors="replace") for text in choices}
            compiled.set_result(Choices(sorted(texts), self._token_index))
        except RelevanceGenError as error:
            compiled.set_exception(error)
        return compiled

    def _vocabulary(self) -> list[bytes]:
        return [self._model.piece(token) for token in range(self._model.n_vocab)]

    def take_finished(self, *, wait_for_one: bool) -> dict[ActiveRequest, BaseException | None]:
        """Remove and return the requests whose compilation has ended, each with its error if any.

        With `wait_for_one`, first wait up to `_WAIT_S` seconds for a compilation to end.
        """
        if self.futures and wait_for_one:
            wait(self.futures.values(), _WAIT_S, return_when="FIRST_COMPLETED")
        finished = {}
        for request, future in list(self.futures.items()):
            if future.done():
                del self.futures[request]
                finished[request] = future.exception()
                if finished[request] is None:
                    request.grammar = future.result()
        return finished

    def give_up(self, request: ActiveRequest) -> None:
        """Remove a request's grammar from the cache because its masks took too much CPU time.

        The CPU time of the masks is charged to the client. Does nothing for a request with choices.
        """
        if self._grammars is not None and isinstance(request.grammar, Grammar):
            source, n_seconds = request.grammar.source, request.mask_budget.seconds
            self._grammars.discard(source, request.client, n_seconds)

    def drop(self, request_id: int) -> None:
        """Cancel the compilation for a request, and remove the request; ignore an unknown id."""
        for request in list(self.futures):
            if request.id == request_id:
                self.futures.pop(request).cancel()

    def clear(self) -> None:
        """Cancel all compilations, remove their requests, and close the compiler of grammars."""
        while self.futures:
            self.futures.popitem()[1].cancel()
        if self._grammars is not None:
            self._grammars.close()
            self._grammars = None
