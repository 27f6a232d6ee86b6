"""Tests of the asyncio functions with a real runner."""

import asyncio
import gc
import inspect
import typing

import pytest

import relevance_gen
from relevance_gen import (
    ChunkIndex,
    GenerationRequest,
    InvalidRequestError,
    RequestCancelledError,
    Runner,
    TextPiece,
    aio,
)
from relevance_gen.generation.queue.request import RequestFields
from relevance_gen.generation.runner import ChatOptions
from small_models import BIGRAM, STORY

ENDLESS = GenerationRequest("a", max_tokens=10**9)
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def bigram():
    """A runner with two slots whose model writes the story after the letter z."""
    with Runner(BIGRAM, n_slots=2, n_ctx=256, n_threads=1) as runner:
        yield runner


async def until(holds):
    """Wait until a condition holds; the test run has a time limit of its own."""
    while not holds():
        await asyncio.sleep(0.005)


async def collect(stream):
    """Return all pieces of a stream."""
    return [piece async for piece in stream]


def test_aio_is_attribute_of_package():
    """`import relevance_gen` is enough to use `relevance_gen.aio`."""
    assert relevance_gen.aio.generate is aio.generate


def test_generate_equals_runner(bigram):
    """Several awaited requests have the responses of the runner."""

    async def generate_twice():
        first = aio.generate("z", max_tokens=12, temperature=0, runner=bigram)
        second = aio.generate({"text": "z", "max_tokens": 3}, temperature=0, runner=bigram)
        return await asyncio.gather(first, second)

    first, second = asyncio.run(generate_twice())
    assert first.responses[0].text == STORY
    assert second.responses[0].generated_tokens == 3


def test_chat_equals_runner(bigram):
    """The rendered conversation and the turn are those of `Runner.chat`."""
    messages = [{"role": "user", "content": "z"}]
    options = {"chat_template": CHAT_TEMPLATE, "max_tokens": 5, "temperature": 0}
    response = asyncio.run(aio.chat(messages, runner=bigram, **options))
    expected = bigram.chat(messages, **options)
    assert response.prompt == expected.prompt
    assert response.responses[0].text == expected.responses[0].text


def test_stream_joins_to_text_of_response(bigram):
    """The pieces of a stream are the text of its response, and iteration ends for good."""

    async def read():
        stream = aio.stream("z", max_tokens=12, temperature=0, runner=bigram)
        assert stream.response is None
        pieces = await collect(stream)
        assert await collect(stream) == []
        return pieces, stream.response

    pieces, response = asyncio.run(read())
    assert all(isinstance(piece, TextPiece) for piece in pieces)
    assert "".join(piece.text for piece in pieces) == response.responses[0].text == STORY


def test_stream_chat_has_content_parts(bigram):
    """The pieces of a chat name their content part, as those of `Runner.stream_chat` do."""

    async def read():
        stream = aio.stream_chat(
            [{"role": "user", "content": "z"}],
            runner=bigram,
            chat_template=CHAT_TEMPLATE,
            max_tokens=5,
            temperature=0,
        )
        return await collect(stream)

    assert {piece.part.kind for piece in asyncio.run(read())} == {"text"}


@pytest.mark.parametrize("function", [aio.generate, aio.stream])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"n_ctx": 8}, "create a Runner with it"),
    ],
)
def test_invalid_field_raises(bigram, function, fields, message):
    """Invalid fields raise the errors of `relevance_gen.generate`."""

    async def call():
        if function is aio.stream:
            await collect(aio.stream("a", runner=bigram, **fields))
        else:
            await aio.generate("a", runner=bigram, **fields)

    with pytest.raises(InvalidRequestError, match=message):
        asyncio.run(call())


def test_cancelled_task_cancels_request():
    """A task that is cancelled while it waits frees the slot of its request."""

    async def cancel(runner):
        task = asyncio.create_task(aio.generate(ENDLESS, runner=runner))
        await until(lambda: runner.counters().generated_tokens > 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: runner.counters().requests_cancelled == 1)

    with Runner(BIGRAM, n_slots=1, n_ctx=256, n_threads=1) as runner:
        asyncio.run(cancel(runner))
        assert runner.generate("z", max_tokens=1).responses[0].generated_tokens == 1


def test_task_cancelled_during_submission_cancels_request():
    """A task that is cancelled while its request is submitted leaves no running request."""

    async def cancel(runner):
        task = asyncio.create_task(aio.generate(ENDLESS, runner=runner))
        await asyncio.sleep(0)  # the submission has been handed to a thread
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: runner.counters().requests_cancelled == 1)

    with Runner(BIGRAM, n_slots=1, n_ctx=256, n_threads=1) as runner:
        asyncio.run(cancel(runner))


def test_timeout_cancels_request():
    """`asyncio.timeout` raises TimeoutError and frees the slot."""

    async def wait(runner):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await aio.generate(ENDLESS, runner=runner)
        await until(lambda: runner.counters().requests_cancelled == 1)

    with Runner(BIGRAM, n_slots=1, n_ctx=256, n_threads=1) as runner:
        asyncio.run(wait(runner))


@pytest.mark.parametrize("ending", ["context", "cancel", "garbage collection"])
def test_stream_left_early_is_cancelled(ending):
    """Leaving a stream by its context, by `cancel`, or by dropping it frees its slot."""

    async def leave(runner):
        stream = aio.stream(ENDLESS, runner=runner)
        if ending == "context":
            async with stream:
                await anext(stream)
        else:
            await anext(stream)
        if ending == "cancel":
            stream.cancel()
        if ending == "garbage collection":
            del stream
            gc.collect()
        else:
            with pytest.raises(RequestCancelledError):
                await collect(stream)
        await until(lambda: runner.counters().requests_cancelled == 1)

    with Runner(BIGRAM, n_slots=1, n_ctx=256, n_threads=1) as runner:
        asyncio.run(leave(runner))


def test_closed_runner_raises_its_error_in_awaiting_task():
    """A runner that closes without draining fails the awaited request, and not the task."""

    async def close(runner):
        task = asyncio.create_task(aio.generate(ENDLESS, runner=runner))
        await until(lambda: runner.counters().generated_tokens > 2)
        await asyncio.to_thread(runner.close, drain=False)
        with pytest.raises(relevance_gen.RelevanceGenError):
            await task

    asyncio.run(close(Runner(BIGRAM, n_slots=1, n_ctx=256, n_threads=1)))


def test_asearch_equals_search():
    """Chunks and an index are searched with the options of `search`."""
    chunks = ["an apple", "a pear", "apples and pears"]
    index = ChunkIndex(chunks)
    expected = relevance_gen.search("apple", chunks, top_n=2)

    async def search_both():
        return await asyncio.gather(
            aio.asearch("apple", chunks, top_n=2), aio.asearch("apple", index, top_n=2)
        )

    for response in asyncio.run(search_both()):
        assert response.results == expected.results


def test_asearch_invalid_option_raises():
    """An invalid option raises the error of `search`."""
    with pytest.raises(InvalidRequestError, match="top_n"):
        asyncio.run(aio.asearch("apple", ["an apple"], top_n=-1))


def test_ask_equals_relevance_gen_ask(bigram):
    """The answer is that of `relevance_gen.ask`; without an answer in the chunks it says so."""
    chunks = ["The ferry leaves at seven.", "Bees dance."]
    answer = asyncio.run(aio.ask("When does the ferry leave?", chunks, runner=bigram, max_tokens=4))
    expected = relevance_gen.ask("When does the ferry leave?", chunks, runner=bigram, max_tokens=4)
    assert answer.text == expected.text
    assert answer.sources == expected.sources
    assert not asyncio.run(aio.ask("Do cats bark?", ["Cows moo."], runner=bigram)).found


@pytest.mark.parametrize(
    ("function", "original"),
    [
        (aio.generate, relevance_gen.generate),
        (aio.chat, relevance_gen.chat),
        (aio.stream, relevance_gen.generate),
        (aio.stream_chat, relevance_gen.chat),
    ],
)
def test_parameters_are_those_of_synchronous_function(function, original):
    """Each function has the parameters, and the types of fields, of the function that it mirrors."""
    assert list(inspect.signature(function).parameters) == list(
        inspect.signature(original).parameters
    )
    hints = typing.get_type_hints(function)
    fields = hints.get("fields") or hints["options"]
    assert fields.__args__[0] in {RequestFields, ChatOptions}
