"""Counts of tokens in the model's vocabulary, made in the worker's thread."""

import threading

import pytest

from relevance_gen.errors import InvalidRequestError, RunnerClosedError
from relevance_gen.generation.runner import Runner
from small_models import TINY

TEMPLATE = "{% for m in messages %}{{ m.content }}{% if more %}!{% endif %}{% endfor %}"
HELLO = [{"role": "user", "content": "Hello <|end|> there"}]


@pytest.mark.parametrize("text", ["a", "the and ing", "ü🙂" * 20])
def test_count_tokens_equals_prompt_tokens(tiny, text):
    """The count equals `prompt_tokens` of a generation, including the BOS token."""
    assert tiny.count_tokens(text) == tiny.generate({"text": text, "max_tokens": 1}).prompt_tokens


def test_count_chat_tokens_equals_prompt_tokens(tiny):
    """The conversation is rendered with the template; the text of a control token in a message stays text."""
    for variables in ({}, {"more": True}):
        options = {"chat_template": TEMPLATE, "template_variables": variables}
        n_tokens = tiny.count_chat_tokens(HELLO, **options)
        assert n_tokens == tiny.chat(HELLO, max_tokens=1, **options).prompt_tokens


def test_count_tokens_longer_than_context(tiny):
    """A text that is too long to generate from is counted, so that its excess is known; a far longer text is refused."""
    assert tiny.count_tokens("Z" * 2000) in (2000, 2001)
    with pytest.raises(InvalidRequestError, match="is too long: more than"):
        tiny.count_tokens("Z" * 200_000)


def test_count_tokens_computes_no_step(tiny):
    """Counting uses neither a step of the model nor a slot."""
    before = tiny.counters()
    tiny.count_tokens("some text")
    after = tiny.counters()
    assert (after.prompt_tokens, after.decode_steps) == (before.prompt_tokens, before.decode_steps)
    assert tiny.stats().backlog == 0


def test_count_tokens_in_threads_during_generation():
    """Threads count while a sample uses the only slot."""
    counts = []
    with Runner(TINY, n_slots=1, n_ctx=256, n_threads=1) as runner:
        future = runner.submit({"text": "a", "max_tokens": 50})
        threads = [
            threading.Thread(target=lambda n=n: counts.append((n, runner.count_tokens("Z" * n))))
            for n in range(1, 9)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert future.result().responses[0].generated_tokens == 50
    assert len({count - n for n, count in counts}) == 1
    with pytest.raises(RunnerClosedError):
        runner.count_tokens("a")
