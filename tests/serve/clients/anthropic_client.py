"""Anthropic's client: text, structured output, streaming, token counts and a tool loop."""

import os
from typing import Literal

import anthropic
import pydantic

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
client = anthropic.Anthropic(api_key=KEY, base_url=URL, max_retries=0, timeout=100)
HELLO = [{"role": "user", "content": "Where do whales sleep?"}]
short = {
    "model": "claude-any",
    "max_tokens": 8,
    "system": "Be brief.",
    "extra_body": {"temperature": 0, "top_k": 1},
}


def refused(call, error, says: str, kind: str = "invalid_request_error") -> None:
    try:
        call()
    except error as caught:
        assert says in caught.body["error"]["message"], caught.body
        assert (caught.body["type"], caught.body["error"]["type"]) == ("error", kind)
    else:
        raise AssertionError(f"{error} was not raised")


# A text, whole and streamed, and the tokens of its prompt.
whole = client.messages.create(**short, messages=HELLO)
assert (whole.type, whole.role, whole.model) == ("message", "assistant", "claude-any")
assert whole.stop_reason in ("end_turn", "max_tokens")
blocks = [
    {"type": "text", "text": "Where do whales sleep?", "cache_control": {"type": "ephemeral"}}
]
with_blocks = {**short, "messages": [{"role": "user", "content": blocks}]}
with_blocks["system"] = [
    {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
]
with client.messages.stream(**with_blocks, metadata={"user_id": "u"}) as stream:
    text = "".join(stream.text_stream)
    last = stream.get_final_message()
assert text == last.content[0].text == whole.content[0].text
assert last.stop_reason == whole.stop_reason
n_prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
assert last.usage.input_tokens + last.usage.cache_read_input_tokens == n_prompt
assert last.usage.output_tokens == whole.usage.output_tokens
assert (
    client.messages.count_tokens(model="m", system="Be brief.", messages=HELLO).input_tokens
    == n_prompt
)
stopped = client.messages.create(
    **{**short, "max_tokens": 32000}, messages=HELLO, stop_sequences=["e", "a"]
)
assert (stopped.stop_reason, stopped.stop_sequence in ("e", "a")) == ("stop_sequence", True)
begun = [*HELLO, {"role": "assistant", "content": "In the sea,"}]
assert client.messages.create(**short, messages=begun).content[0].text


# A form to keep to.
class City(pydantic.BaseModel):
    """The schema of the output."""

    name: Literal["Oslo", "Rome"]
    is_capital: bool


asked = {
    **short,
    "max_tokens": 120,
    "messages": [{"role": "user", "content": "Name a city."}],
    "output_format": City,
}
parsed = client.messages.parse(**asked)
assert isinstance(parsed.parsed_output, City)
with client.messages.stream(**asked) as stream:
    assert stream.get_final_message().parsed_output == parsed.parsed_output

# Citations: the blocks join to the text, and each cited text is at its offsets.
tale = "It rained. Whales sleep in the sea."
document = {"type": "document", "title": "Whales", "citations": {"enabled": True}}
document["source"] = {"type": "text", "media_type": "text/plain", "data": tale}
asked = {
    **short,
    "max_tokens": 60,
    "messages": [{"role": "user", "content": [document, blocks[0]]}],
}
cited = client.messages.create(**asked)
with client.messages.stream(**asked) as stream:
    text = "".join(stream.text_stream)
    last = stream.get_final_message()
assert (
    "".join(block.text for block in cited.content)
    == "".join(block.text for block in last.content)
    == text
)
for one in (
    one for message in (cited, last) for block in message.content for one in block.citations or ()
):
    assert one.cited_text == tale[one.start_char_index : one.end_char_index]
again = [*asked["messages"], {"role": "assistant", "content": cited.content}, *HELLO]
assert client.messages.create(**short, messages=again).content[0].text

# The tool loop: a search call, its results, and an answer.
schema = {
    "type": "object",
    "properties": {"query": {"type": "string", "maxLength": 12}},
    "required": ["query"],
}
search = {"name": "search", "description": "Find texts.", "input_schema": schema}
must = {
    **short,
    "max_tokens": 120,
    "tools": [search],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
turn = client.messages.create(**must, messages=HELLO)
(call,) = turn.content
assert (turn.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "search")
assert list(call.input) == ["query"]
with client.messages.stream(**must, messages=HELLO) as stream:
    pieces = "".join(event.partial_json for event in stream if event.type == "input_json")
    streamed = stream.get_final_message()
assert streamed.content[0].input == call.input
assert pieces
found = {
    "type": "tool_result",
    "tool_use_id": call.id,
    "content": [{"type": "text", "text": "In the sea."}],
}
turns = [
    *HELLO,
    {"role": "assistant", "content": turn.content},
    {"role": "user", "content": [found]},
]
answer = client.messages.create(**{**must, "tool_choice": {"type": "none"}}, messages=turns)
assert answer.content[0].type == "text"
assert answer.content[0].text
assert answer.usage.cache_read_input_tokens > 0
named = client.messages.create(
    **{**must, "tool_choice": {"type": "tool", "name": "search"}}, messages=turns
)
assert list(named.content[0].input) == ["query"]
counted = client.messages.count_tokens(
    model="m", system="Be brief.", messages=turns, tools=[search]
).input_tokens
assert counted > n_prompt

# Errors, in its own words.
image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
pictured = [{"role": "user", "content": [image]}]
refused(
    lambda: client.messages.create(**short, messages=pictured),
    anthropic.BadRequestError,
    "messages[0].content[0]",
)
wide = [{"role": "user", "content": "hello " * 9000}]
refused(
    lambda: client.messages.create(**short, messages=wide),
    anthropic.BadRequestError,
    "prompt is too long",
)
refused(
    lambda: client.messages.count_tokens(model="m", messages=[]),
    anthropic.BadRequestError,
    "messages",
)
unknown = [{"type": "oven", "name": "bake"}]
refused(
    lambda: client.messages.create(**short, messages=HELLO, tools=unknown),
    anthropic.BadRequestError,
    "tools[0]",
)
wrong = anthropic.Anthropic(api_key="wrong", base_url=URL, max_retries=0)
said = "the key in X-API-Key"
refused(
    lambda: wrong.messages.create(**short, messages=HELLO),
    anthropic.AuthenticationError,
    said,
    "authentication_error",
)
