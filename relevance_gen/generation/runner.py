"""A runner: accepts requests from any thread, returns futures and streams, generates in threads.

The module is long because it documents every method of one public class; the methods delegate to
other modules.
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
from relevance_gen.checks import check_flag, check_integer, model_source
from relevance_gen.errors import InvalidRequestError, RequestCancelledError, RunnerClosedError
from relevance_gen.generation.chat.chat_rendering import RenderedChat, render_chat
from relevance_gen.generation.chat.conversation import (
    Conversation,
    ToolChoice,
    ToolDefinition,
    choice_of,
    tools_of,
)
from relevance_gen.generation.counters import Counters
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
from relevance_gen.llama.model_files import resolve
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
_CHAT_CONTEXT = RequestContext(is_chat=True, use_model_eos=True)


class ChatOptions(RequestFields, total=False):
    """Types of the options of `Runner.submit_chat`, for code that passes them by keyword."""

    tools: Sequence[ToolDefinition | Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any] | ToolChoice
    parallel_tool_calls: bool
    chat_template: str | None
    template_variables: Mapping[str, Any] | None
    continues: bool


@shows_options
class Runner:
    """A model that generates for many callers at once, in one thread, or in one thread per device.

    Thread-safe.

    Args:
        model: a GGUF file; with the extra ``hub`` also a repository of the Hugging Face hub,
            ``"owner/name"`` or ``"owner/name:Q8_0"``; by default the model named in
            ``RELEVANCE_GEN_MODEL``, else the embedded model.
        devices: GPU indexes from 0; each GPU gets the whole model and a worker of its own. By
            default one worker.
        max_queue: samples of one client that may wait, at least 1; at this limit `submit` raises
            `OverloadedError`.
        prefix_cache_bytes: memory of each worker for computed prompts of recent requests; 0
            disables the prefix cache.
        wait: wait until the model is loaded; otherwise return at once and load in the background.
        **options: options of `ModelOptions`.

    Raises:
        ModelLoadError: the model cannot be loaded (only with `wait`).
        InvalidRequestError: an option is out of range, or a GPU does not exist.
        TypeError: an option does not exist.
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
        if model is not None:
            model_source.check("model", model)
        check_flag("wait", wait)
        options_by_worker = on_devices(model_options(options), devices)
        if devices is not None and options_by_worker[0].n_gpu_layers != 0:
            # Imported late because this loads llama.cpp.
            from relevance_gen.llama.runtime.devices import check_gpus

            check_gpus("devices", devices)
        queue = create_queue(max_queue, prefix_cache_bytes)
        workers = [
            Worker(queue, partial(load_model, model, worker_options), prefix_cache_bytes)
            for worker_options in options_by_worker
        ]
        self._start(queue, workers, wait=wait)

    def _start(self, queue: RequestQueue, workers: Sequence[Worker], *, wait: bool) -> None:
        """Start all workers of a queue; close the runner on any error.

        Args:
            queue: the queue from which the workers take requests.
            workers: the workers.
            wait: whether to wait until the workers are ready.
        """
        self._queue = queue
        self._ids = itertools.count()
        self._workers = workers
        # A runner without references finishes its requests and then ends.
        weakref.finalize(self, self._queue.close).atexit = False
        try:
            for worker in self._workers:
                worker.start()
            if wait:
                self.wait_ready()
        except BaseException:
            # Also after an interrupt, because the caller gets no runner to close.
            self.close(drain=False)
            raise

    # ── Requests ────────────────────────────────────────────────────────────────────────────────

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
            on_text: called with sample index and text while the text is generated: complete
                characters, and no part of a stop string. It runs in the thread of a model, so it
                must return quickly; an exception that it raises fails this request.
            context: options set by the calling code.
            fields: fields of a `GenerationRequest`; they override the fields of `request`.

        Returns:
            A future. Its `cancel()` works until the response is complete; the slots of the request
            are then free at the next step, and waiting for the future raises
            `concurrent.futures.CancelledError`.

        Raises:
            InvalidRequestError: a field is wrong, the stop strings are too long, or there are too
                many EOS tokens. Errors that depend on the model fail the future instead.
            OverloadedError: too many samples are queued.
            RunnerClosedError: the runner is closed, has failed, or belongs to the process this one
                was forked from.
        """
        request = as_request(request, fields)
        self._check_not_forked()
        check_bounds(request)
        queued = QueuedRequest(
            id=next(self._ids),
            request=request,
            seed=secrets.randbits(128) if request.seed is None else request.seed,
            created=time.time(),
            context=context,
        )
        return self._queue.put(queued, on_text)

    def generate(
        self, request: Request | None = None, **fields: Unpack[RequestFields]
    ) -> GenerationResponse:
        """Submit a request, wait for it, and return its response. Arguments: see `submit`.

        Raises:
            RequestCancelledError: the request was cancelled.
            InvalidRequestError: also if the request does not fit the model, or if `on_text` calls
                this method in the thread of a model.
            RelevanceGenError: see `submit`; or the request failed.
        """
        return self._wait_for(lambda: self.submit(request, **fields))

    def _wait_for(self, submit: Callable[[], Future[GenerationResponse]]) -> GenerationResponse:
        if self._is_worker_thread():
            raise InvalidRequestError(
                "on_text must not wait for the thread that it runs in; call submit, not generate"
            )
        future = submit()
        try:
            return future.result()
        except CancelledError:
            raise RequestCancelledError("the request was cancelled") from None
        finally:
            future.cancel()  # After an interrupt in this thread the response is not needed.
            del future  # It holds the exception, whose traceback holds this frame.

    def stream(self, request: Request | None = None, **fields: Unpack[RequestFields]) -> TextStream:
        """Submit a request and return a stream of its text. Arguments and errors: see `submit`."""
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
        """Render a conversation with the model's chat template and submit it.

        Rendering usually takes milliseconds. The template may be rendered up to three times, each
        time with at most 5 seconds of CPU time.

        Args:
            messages: objects with ``role`` and ``content``, and other fields that the template
                uses; see `ChatMessage`.
            tools: tools that the model may call: `ToolDefinition` values, or objects in OpenAI's
                format.
            tool_choice: ``"auto"``, ``"none"``, ``"required"``, or an object in OpenAI's format
                that names tools.
            parallel_tool_calls: whether a turn may have several tool calls.
            chat_template: a Jinja template instead of the template in the model's file.
            template_variables: further variables of the template, such as ``enable_thinking``.
            continues: continue the last message, which is the model's own, instead of starting a
                new turn.
            on_part: called like ``on_text`` of `submit`, with sample index and `ContentPart`.
            fields: fields of a `GenerationRequest` except ``text``; the tokens that end a turn of
                this model are added to ``eos_token_ids``.

        Raises:
            InvalidRequestError: a field is wrong, or no template accepts these messages.
            RelevanceGenError: see `submit` and `wait_ready`.
        """
        if "text" in fields:
            raise InvalidRequestError(
                "cannot be combined with messages, which it is made of", "text"
            )
        check_flag("parallel_tool_calls", parallel_tool_calls)
        check_flag("continues", continues)
        request = wire.structure(GenerationRequest, {"text": "", **fields})
        tool_definitions = tools_of(tools)
        choice = choice_of(tool_choice, tool_definitions, is_parallel=parallel_tool_calls)
        variables = {} if template_variables is None else template_variables
        conversation = Conversation(
            messages, tool_definitions, choice, variables, continues=continues
        )
        rendered = self.render_chat(conversation, request, chat_template=chat_template)
        context = attrs.evolve(_CHAT_CONTEXT, output_format=rendered.output_format)
        return self.submit(rendered.request, on_text=on_part, context=context)

    def render_chat(
        self,
        conversation: Conversation,
        request: GenerationRequest,
        *,
        chat_template: str | None = None,
        client: str | None = None,
    ) -> RenderedChat:
        """Return the request for the next turn of a conversation, and the format of this turn.

        Submit the request in a context with ``is_chat=True`` and the returned ``output_format``.

        Args:
            conversation: the messages, tools and template variables.
            request: all other options.
            chat_template: overrides the template in the model's file.
            client: the client, as in `RequestContext`.

        Raises:
            InvalidRequestError: no template accepts these messages.
            RelevanceGenError: see `wait_ready`.
        """
        return render_chat(conversation, request, self.chat_format, chat_template, client)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]
    ) -> GenerationResponse:
        """Generate the next turn of a conversation. Options and errors: see `submit_chat`."""
        return self._wait_for(lambda: self.submit_chat(messages, **options))

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]
    ) -> TextStream:
        """Stream the next turn of a conversation. Options and errors: see `submit_chat`."""
        return TextStream(lambda on_part: self.submit_chat(messages, on_part=on_part, **options))

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a prompt, including the BOS token.

        The call waits in the queue like a request, but uses no slot.

        Raises:
            InvalidRequestError: the text is far longer than the context.
            RelevanceGenError: see `generate`.
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
        """Return the number of tokens of a conversation as `submit_chat` renders it.

        Arguments and errors: see `submit_chat` and `count_tokens`.
        """
        conversation = Conversation(messages, tools_of(tools), variables=template_variables or {})
        request = GenerationRequest("")
        rendered = self.render_chat(conversation, request, chat_template=chat_template)
        return self._count(rendered.request, RequestContext(is_chat=True, count_only=True))

    def _count(self, request: Request, context: RequestContext) -> int:
        return self._wait_for(lambda: self.submit(request, context=context)).prompt_tokens

    # ── State ───────────────────────────────────────────────────────────────────────────────────

    @property
    def chat_format(self) -> ChatFormat:
        """Properties of the model that are needed to render a conversation.

        Waits until the model is loaded.

        Raises:
            ModelLoadError: the model cannot be loaded.
            RunnerClosedError: the runner was closed before the model was loaded.
        """
        self._check_not_forked()
        self.wait_ready()
        for worker in self._workers:
            if worker.chat_format is not None:
                return worker.chat_format
        raise RunnerClosedError("the runner was closed before its model was loaded")

    @property
    def alive(self) -> bool:
        """Whether a model is loaded and requests are accepted."""
        return self.stats().num_total_runners > 0

    @property
    def closed(self) -> bool:
        """Whether the runner refuses requests, because it was closed or has failed."""
        return self._queue.is_closed

    @property
    def error(self) -> BaseException | None:
        """The error of the first worker, if all workers have failed.

        ``None`` while a worker runs or loads, and after `close`.
        """
        errors = [worker.error for worker in self._workers]
        return None if None in errors else errors[0]

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until each device has loaded the model or has failed to.

        Args:
            timeout_s: maximum seconds to wait; ``None`` for no limit.

        Raises:
            ModelLoadError: no device can load the model.
            TimeoutError: the model is still loading after `timeout_s` seconds.
        """
        deadline = _Deadline(timeout_s)
        if not all(worker.wait_loaded(deadline.remaining_s()) for worker in self._workers):
            raise TimeoutError(f"the model is still loading after {timeout_s} s")
        if self.error is not None:
            raise self.error

    def stats(self) -> Stats:
        """Return the number of samples without a first token, and the number of ready workers.

        They are `backlog` and `num_total_runners` of the result; a closed runner has 0 ready
        workers.
        """
        if self._queue.is_forked:
            return Stats(0, 0)
        n_ready = sum(worker.state is ThreadState.READY for worker in self._workers)
        return Stats(self._queue.n_pending_samples, 0 if self.closed else n_ready)

    def counters(self) -> Counters:
        """Return a copy of the counts of all work so far."""
        worker_counters = (worker.counters for worker in self._workers)
        return sum([self._queue.counters, *worker_counters], Counters())

    def close(self, drain: bool = True, timeout_s: float | None = None) -> None:
        """Refuse further requests, end the threads and free the model. Idempotent.

        Args:
            drain: finish accepted requests first; otherwise they fail with `RunnerClosedError`.
            timeout_s: maximum seconds to wait until the threads have ended; ``None`` for no limit.
                Requests that are not finished by then fail. A thread that is still in a callback 5
                seconds later is abandoned.
        """
        check_flag("drain", drain)
        if self._queue.is_forked:
            return
        self._queue.close()
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
            f"a {type(self).__name__} cannot be pickled or copied: its model and its threads belong to "
            "this process; create a runner in the process that uses it, or use a server or a "
            "ClusterRunner for several processes"
        )

    def _check_not_forked(self) -> None:
        if self._queue.is_forked:
            raise RunnerClosedError(
                "this runner belongs to the process that this one was forked from, and has none of its "
                "threads; start processes with the 'spawn' method, or create the runner after the fork"
            )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _join(self, timeout_s: float | None) -> bool:
        """Wait for the threads of all workers; return whether they have ended.

        In the thread of a worker, return True at once: a thread cannot wait for itself.
        """
        deadline = _Deadline(timeout_s)
        return self._is_worker_thread() or all(
            worker.join(deadline.remaining_s()) for worker in self._workers
        )

    def _is_worker_thread(self) -> bool:
        return any(worker.thread is threading.current_thread() for worker in self._workers)


def create_queue(max_queue: int, prefix_cache_bytes: int) -> RequestQueue:
    """Return the queue of a runner. Arguments: see `Runner`.

    Raises:
        InvalidRequestError: an argument is out of range.
    """
    check_integer("max_queue", max_queue, 1)
    check_integer("prefix_cache_bytes", prefix_cache_bytes, 0)
    return RequestQueue(max_queue, routes_by_prefix=prefix_cache_bytes > 0)


def load_model(
    model: str | os.PathLike[str] | None,
    options: ModelOptions,
    on_progress: Callable[[float], bool],
) -> AbstractContextManager[LanguageModel]:
    """Load a model with the given options.

    With `model` and `options` bound by `functools.partial`, this function is a `Load`, which a
    model thread calls.

    Args:
        model: as for `Runner`.
        options: the options of loading.
        on_progress: called with the loaded fraction, in [0, 1]; returns whether to continue.
    """
    # Imported late because this loads llama.cpp.
    from relevance_gen.llama.decoder import Decoder

    return Decoder(resolve.resolve(model), options, on_progress=on_progress, visible_texts=MARKERS)


class _Deadline:
    """The time `timeout_s` seconds after the creation of this object.

    ``None`` disables the limit.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def remaining_s(self) -> float | None:
        """Return the seconds that are left, at least 0; ``None`` without a limit."""
        return None if self._end_s is None else max(0.0, self._end_s - time.monotonic())
