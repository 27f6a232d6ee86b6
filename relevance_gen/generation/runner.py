"""A runner: requests go in from any thread, futures and streams come out, and one or more workers generate.

The file is long because it documents every method of the one public class; what the methods do is in other rooms.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn, Self, Unpack

import attrs

from relevance_gen import wire
from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, RequestCancelledError, RunnerClosedError
from relevance_gen.generation.chat import chat_rendering as writing
from relevance_gen.generation.chat.conversation import (
    Conversation,
    ToolChoice,
    ToolDefinition,
    choice_of,
    tools_of,
)
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.output_parsing.output_parser import OutputFormat
from relevance_gen.generation.output_parsing.tool_call_formats import MARKERS
from relevance_gen.generation.queue.pending_request import OnText
from relevance_gen.generation.queue.request import (
    DEFAULT_CONTEXT,
    QueuedRequest,
    Request,
    RequestContext,
    RequestFields,
    as_request,
    check_bounds,
)
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.generation.stream import TextStream
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.language_model import ChatFormat, LanguageModel
from relevance_gen.llama.model_files import resolve as model_file
from relevance_gen.llama.model_thread import GRACE_S, ThreadState
from relevance_gen.llama.options import (
    ModelOptions,
    OptionTypes,
    model_options,
    on_devices,
    shows_options,
)
from relevance_gen.types import GenerationRequest, GenerationResponse, Stats

DEFAULT_MAX_QUEUE = 256
DEFAULT_PREFIX_CACHE_BYTES = 512 << 20
_CHAT = RequestContext(is_chat=True, use_model_eos=True)


class ChatOptions(RequestFields, total=False):
    """The types of the options of `Runner.submit_chat`, for type checkers of code that passes them by keyword."""

    tools: Sequence[ToolDefinition | Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any] | ToolChoice
    parallel_tool_calls: bool
    chat_template: str | None
    template_variables: Mapping[str, Any] | None
    continues: bool


@shows_options
class Runner:
    """A model that generates for many callers at once, in a thread of its own, or in one for each device.

    Args:
        model: a GGUF file; or with the extra ``hub`` a repository of the Hugging Face hub, ``"owner/name"`` or
            ``"owner/name:Q8_0"``; by default what ``RELEVANCE_GEN_MODEL`` names, else the embedded model.
        devices: GPUs, from 0, each of which gets the whole model and a worker of its own; by default one worker.
        max_queue: samples of one client that may wait, at least 1; while as many do, `submit` raises `OverloadedError`.
        prefix_cache_bytes: memory, for each worker, for the computed prompts of recent requests; 0 turns the prefix
            cache off.
        wait: wait until the model is loaded; otherwise return at once and load meanwhile.
        **options: each as `ModelOptions` has it.

    Raises:
        ModelLoadError: the model cannot be loaded (where `wait`).
        InvalidRequestError: an option is out of range, or there is no such GPU.
        TypeError: there is no such option.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        devices: Sequence[int] | None = None,
        max_queue: int = DEFAULT_MAX_QUEUE,
        prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES,
        wait: bool = True,
        **options: Unpack[OptionTypes],
    ) -> None:
        if model is not None and not isinstance(model, str | os.PathLike):
            raise InvalidRequestError.must_be(
                "model", "the path of a GGUF file or the name of a repository", model
            )
        each = on_devices(model_options(options), devices)
        if devices is not None and each[0].n_gpu_layers != 0:
            from relevance_gen.llama.runtime.devices import (
                check_gpus,  # not at the top: this loads llama.cpp
            )

            check_gpus("devices", devices)

        def workers(backlog: RequestQueue) -> list[Worker]:
            return [
                Worker(backlog, partial(load_model, model, one), prefix_cache_bytes) for one in each
            ]

        self._start(workers, max_queue, prefix_cache_bytes, wait)

    def _start(
        self,
        join: Callable[[RequestQueue], Sequence[Worker]],
        max_queue: int,
        prefix_cache_bytes: int,
        wait: bool,
    ) -> None:
        """Start the workers that join the backlog, of whatever kind."""
        check_integer("max_queue", max_queue, 1)
        check_integer("prefix_cache_bytes", prefix_cache_bytes, 0)
        self._backlog = RequestQueue(max_queue, routes_by_prefix=prefix_cache_bytes > 0)
        self._ids = itertools.count()
        self._workers = join(self._backlog)
        # A runner that nobody holds any more finishes what it has, and ends.
        weakref.finalize(self, self._backlog.close).atexit = False
        try:
            for worker in self._workers:
                worker.start()
            if wait:
                self.wait_ready()
        except BaseException:  # an interrupt too: nobody would have the runner to close it
            self.close(drain=False)
            raise

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        request: Request | None = None,
        *,
        on_text: OnText | None = None,
        context: RequestContext = DEFAULT_CONTEXT,
        **fields: Unpack[RequestFields],
    ) -> Future[GenerationResponse]:
        """Accept a request and return at once.

        Args:
            request: the text to continue, a `GenerationRequest`, or a mapping of its fields.
            on_text: called with sample index and text as it is generated: whole characters, never part of a stop
                string. It runs in the thread of a model, so it must be quick; whatever it raises fails this request.
            context: what is said beside the request.
            fields: fields of a `GenerationRequest`; they go before those of `request`.

        Returns:
            A future. Its `cancel()` works until the response is there; the request's slots are then free at the next
            step, and whoever waits sees `concurrent.futures.CancelledError`.

        Raises:
            InvalidRequestError: a field is wrong, the stop strings are too long, or the end tokens too many. What
                depends on the model fails the future instead.
            OverloadedError: as many samples as allowed wait already.
            RunnerClosedError: the runner is closed, has died, or belongs to the process this one was forked from.
        """
        request = as_request(request, fields)
        self._check_not_forked()
        check_bounds(request)
        seed = secrets.randbits(128) if request.seed is None else request.seed
        ticket = QueuedRequest(next(self._ids), request, seed, time.time(), context)
        return self._backlog.put(ticket, on_text)

    def generate(
        self, request: Request | None = None, **fields: Unpack[RequestFields]
    ) -> GenerationResponse:
        """Submit a request, with `fields` as in `submit`, and return its response, or raise what it failed with."""
        return self._wait_for(lambda: self.submit(request, **fields))

    def _wait_for(self, submit: Callable[[], Future[GenerationResponse]]) -> GenerationResponse:
        if self._runs_here():
            raise InvalidRequestError(
                "on_text must not wait for the thread that it runs in; call submit, not generate"
            )
        future = submit()
        try:
            return future.result()
        except CancelledError:
            raise RequestCancelledError("the request was cancelled") from None
        finally:
            future.cancel()  # after an interrupt in this thread nobody waits for it any more
            del future  # it holds the exception, whose traceback holds this frame

    def stream(self, request: Request | None = None, **fields: Unpack[RequestFields]) -> TextStream:
        """Submit a request, with `fields` as in `submit`, which says what is raised; return its text as it comes."""
        return TextStream(lambda on_text: self.submit(request, on_text=on_text, **fields))

    def submit_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[ToolDefinition | Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] | ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
        continues: bool = False,
        on_part: OnText | None = None,
        **fields: Unpack[RequestFields],
    ) -> Future[GenerationResponse]:
        """Submit a conversation, which takes milliseconds to write as the model's template has it, 5 seconds at most.

        Args:
            messages: objects with ``role`` and ``content``, and whatever else the template reads; see `ChatMessage`.
            tools: what the model may call: objects of OpenAI's form, or `ToolDefinition`.
            tool_choice: ``"auto"``, ``"none"``, ``"required"`` or an object of OpenAI's that names tools.
            parallel_tool_calls: whether a turn may have several calls.
            chat_template: a Jinja template instead of the one in the model's file.
            template_variables: what else the template reads, such as ``enable_thinking``.
            continues: go on with the last message, the model's own, in place of the next turn.
            on_part: called as `submit` calls ``on_text``, with sample index and piece of the turn.
            fields: fields of a `GenerationRequest` but ``text``; the tokens that end a turn of this model are added to
                ``eos_token_ids``.

        Raises:
            InvalidRequestError: a field is wrong, or there is no template for these messages.
            RelevanceGenError: as `submit` and `wait_ready` raise.
        """
        if "text" in fields:
            raise InvalidRequestError(
                "cannot be combined with messages, which it is made of", "text"
            )
        request = wire.structure(GenerationRequest, {"text": "", **fields})
        known = tools_of(tools)
        choice = choice_of(tool_choice, known, is_parallel=parallel_tool_calls)
        variables = {} if template_variables is None else template_variables
        given = [
            f"tools[{place}]{'' if isinstance(tool, ToolDefinition) else '.function'}"
            for place, tool in enumerate(tools)
        ]
        named = {tool.name: f"{path}.parameters" for tool, path in zip(known, given, strict=True)}
        conversation = Conversation(messages, known, choice, variables, {}, continues, named)
        request, answer = self.write_chat(conversation, request, chat_template=chat_template)
        return self.submit(
            request, on_text=on_part, context=attrs.evolve(_CHAT, output_format=answer)
        )

    def write_chat(
        self,
        conversation: Conversation,
        request: GenerationRequest,
        *,
        chat_template: str | None = None,
        client: str | None = None,
    ) -> tuple[GenerationRequest, OutputFormat]:
        """Return a request that continues a conversation, as `writing.write` makes it, and how its answer is read.

        Both are for a `submit` whose context says ``is_chat`` and that ``output_format``. It raises an `InvalidRequestError`
        where there is no template for these messages, and what `wait_ready` raises.
        """
        return writing.write(conversation, request, self.chat_format, chat_template, client)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]
    ) -> GenerationResponse:
        """Answer a conversation: its next turn, whole. `options`, and what is raised, are those of `submit_chat`."""
        return self._wait_for(lambda: self.submit_chat(messages, **options))

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]
    ) -> TextStream:
        """Answer a conversation as the text comes. `options`, and what is raised, are those of `submit_chat`."""
        return TextStream(lambda on_part: self.submit_chat(messages, on_part=on_part, **options))

    def count_tokens(self, text: str) -> int:
        """Return how many tokens of the model a prompt has, with its BOS token. Waits as a request does, for no step.

        It raises what `generate` raises, and an `InvalidRequestError` of a text far beyond what the context could hold.
        """
        return self._count({"text": text}, RequestContext(count_only=True))

    def count_chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[ToolDefinition | Mapping[str, Any]] = (),
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> int:
        """Return how many tokens of the model a conversation has, as `submit_chat` writes it.

        The arguments, and what is raised, are those of `submit_chat` and `count_tokens`.
        """
        conversation = Conversation(messages, tools_of(tools), variables=template_variables or {})
        request, _ = self.write_chat(
            conversation, GenerationRequest(""), chat_template=chat_template
        )
        return self._count(request, RequestContext(is_chat=True, count_only=True))

    def _count(self, request: Request, context: RequestContext) -> int:
        return self._wait_for(lambda: self.submit(request, context=context)).prompt_tokens

    # ── State ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def chat_format(self) -> ChatFormat:
        """What writing a prompt needs to know of the model; waits until that is loaded.

        Raises:
            ModelLoadError: it cannot be loaded.
            RunnerClosedError: the runner was closed before.
        """
        self._check_not_forked()
        self.wait_ready()
        model = next(
            (worker.chat_format for worker in self._workers if worker.chat_format is not None), None
        )
        if model is None:
            raise RunnerClosedError("the runner was closed before its model was loaded")
        return model

    @property
    def alive(self) -> bool:
        """Whether a model is loaded, and requests are taken."""
        return self.stats().num_total_runners > 0

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests, because it was closed or has died."""
        return self._backlog.closed

    @property
    def error(self) -> BaseException | None:
        """What the runner died of; ``None`` while a worker lives or loads, and after `close`."""
        errors = [worker.error for worker in self._workers]
        return None if None in errors else errors[0]

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the model is loaded, on every device where it can be.

        Raises:
            ModelLoadError: it cannot be loaded on any.
            TimeoutError: it is still loading after `timeout_s` seconds.
        """
        remaining = _countdown(timeout_s)
        if not all(worker.wait_loaded(remaining()) for worker in self._workers):
            raise TimeoutError(f"the model is still loading after {timeout_s} s")
        if self.error is not None:
            raise self.error

    def stats(self) -> Stats:
        """Return the samples that have not produced a token, and how many workers are ready."""
        if self._backlog.forked:
            return Stats(0, 0)
        n_ready = sum(worker.state is ThreadState.READY for worker in self._workers)
        return Stats(self._backlog.n_pending_samples, 0 if self.closed else n_ready)

    def counters(self) -> Counters:
        """Return what was done so far; a copy."""
        parts = [self._backlog.counters, *(worker.counters for worker in self._workers)]
        return sum(parts, Counters())

    def close(self, drain: bool = True, timeout_s: float | None = None) -> None:
        """Take no more requests, end the threads and free the model; safe to call twice.

        Args:
            drain: finish what was accepted; otherwise every waiter sees `RunnerClosedError`.
            timeout_s: longest time to spend on that, in seconds; what is not done by then is given up. A thread that
                does not get out of a callback is left behind 5 seconds later.
        """
        if self._backlog.forked:
            return
        self._backlog.close()
        if not drain:
            self._stop()
        if not self._join(timeout_s):
            self._stop()
            self._join(GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: its model and its threads belong to this process; "
            "make one in the process that is to use it, or a server or a ClusterRunner for several processes"
        )

    def _check_not_forked(self) -> None:
        if self._backlog.forked:
            raise RunnerClosedError(
                "this runner belongs to the process that this one was forked from, and its threads did not come along; "
                "start processes with the 'spawn' method, or make the runner after the fork"
            )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _join(self, timeout_s: float | None) -> bool:
        """Wait for the threads, but not for the one that calls; tell whether they have ended."""
        remaining = _countdown(timeout_s)
        return self._runs_here() or all(worker.join(remaining()) for worker in self._workers)

    def _runs_here(self) -> bool:
        return any(worker.thread is threading.current_thread() for worker in self._workers)


def load_model(
    model: str | os.PathLike[str] | None,
    options: ModelOptions,
    on_progress: Callable[[float], bool],
) -> AbstractContextManager[LanguageModel]:
    """Load a model as the options say; with model and options filled in this is a `Load`."""
    from relevance_gen.llama.decoder import Decoder  # not at the top: this loads llama.cpp

    return Decoder(model_file.resolve(model), options, on_progress=on_progress, shown=MARKERS)


def _countdown(timeout_s: float | None) -> Callable[[], float | None]:
    """Return a function that tells how much is left of `timeout_s` seconds."""
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    return lambda: None if end_s is None else max(0.0, end_s - time.monotonic())
